package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// pipelines has f decide about pipelines of a client.
type pipelines struct {
	f func(cmds []redis.Cmder) error
}

func (pipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (p pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := p.f(cmds); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}

var errLate = errors.New("not answered in time")

// If a read of many keys is too slow, fewer are read at once, and Redis does not count as down.
func TestTooManyKeysAtOnce(t *testing.T) {
	r := testenv.SharedRedis(t)
	b := newBackend(t, r.Client(t))
	keys := make([]string, 300)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
		b.check(b.rdb.Set(b.ctx, keys[i], appendEntry(nil, Entry{Codec: 4, Payload: []byte(keys[i])}), 0).Err())
	}
	rdb := r.Client(t)
	late := 0
	rdb.AddHook(pipelines{func(cmds []redis.Cmder) error {
		if len(cmds) > 2*fewKeys {
			late++
			return errLate
		}
		return nil
	}})
	b.store = open(t, rdb, testenv.Hang)
	b.store.conn.Watch("prefix", testenv.Hang)
	for range 5 {
		n := 0
		b.store.Read(b.ctx, &Sizes{}, keys, func(i int, held *State, err error) {
			if err == nil && held.Kind == Stored && string(held.Entry.Payload) == keys[i] {
				n++
			}
		})
		if n != len(keys) {
			t.Errorf("%d of %d were read", n, len(keys))
		}
	}
	if late < 5 {
		t.Errorf("%d trips were late", late)
	}
	if err := b.store.conn.Down(0); err != nil {
		t.Error(err)
	}
}

// If Redis does not reply for a few keys, the read of all keys ends: the caller does not wait for
// each part.
func TestManyKeysOfASilentServer(t *testing.T) {
	r := testenv.SharedRedis(t)
	rdb := r.Client(t)
	trips := 0
	rdb.AddHook(pipelines{func([]redis.Cmder) error { trips++; return errLate }})
	b := newBackend(t, rdb)
	keys := make([]string, 3000)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	failed := 0
	b.store.Read(b.ctx, &Sizes{}, keys, func(_ int, _ *State, err error) {
		if errors.Is(err, errLate) {
			failed++
		}
	})
	if failed != len(keys) || trips > 4 {
		t.Errorf("%d of %d have failed, after %d trips", failed, len(keys), trips)
	}
}

// Many concurrent reads of long entries use few trips at once.
func TestLongEntriesTakeFewConnections(t *testing.T) {
	r := testenv.SharedRedis(t)
	b := newBackend(t, r.Client(t))
	b.put("k", Entry{Codec: 4, Payload: longBytes(3 * chunk)}, long)
	look := b.look("k").Raw
	var mu sync.Mutex
	under, most := 0, 0
	rdb := r.Client(t)
	rdb.AddHook(counted{func(d int) {
		mu.Lock()
		defer mu.Unlock()
		under += d
		most = max(most, under)
	}})
	s := open(t, rdb, testenv.Hang)
	var readers sync.WaitGroup
	for range 10 * maxLargeTrips {
		readers.Go(func() {
			if got, err := s.Fetch(b.ctx, "k", look, 8*chunk); err != nil || len(got.Entry.Payload) != 3*chunk {
				t.Error(err, got.Kind)
			}
		})
	}
	readers.Wait()
	if most > maxLargeTrips {
		t.Errorf("%d trips were under way at once", most)
	}
}

// counted is a hook that calls change with 1 when a pipeline begins, and with -1 when it ends.
type counted struct{ change func(int) }

func (counted) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (counted) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (c counted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "getrange" { // of a new connection
			return next(ctx, cmds)
		}
		c.change(1)
		defer c.change(-1)
		return next(ctx, cmds)
	}
}

// Readers who would make a trip too long go by themselves.
func TestTripsAreNotTooLong(t *testing.T) {
	r := testenv.SharedRedis(t)
	b := newBackend(t, r.Client(t))
	payload := longBytes(FirstRead / 2)
	b.put("k", Entry{Codec: 4, Payload: payload}, long)
	rdb := r.Client(t)
	release := make(chan struct{})
	rdb.AddHook(held{release})
	b.store = open(t, rdb, testenv.Hang)
	sizes := &Sizes{}
	sizes.Observe(len(payload))
	var readers sync.WaitGroup
	for range 300 { // more than fit into all trips
		readers.Go(func() {
			b.store.Read(b.ctx, sizes, []string{"k"}, func(_ int, held *State, err error) {
				if err != nil || len(held.Entry.Payload) != len(payload) {
					t.Error(err, held.Kind)
				}
			})
		})
	}
	g := &b.store.reads.one
	testenv.Eventually(t, "a reader who goes by himself",
		func() bool { return len(b.store.largeTrips) == maxLargeTrips })
	g.mu.Lock()
	if g.next != nil && g.next.weight > tripBytes {
		t.Errorf("the next trip is %+v", g.next)
	}
	g.mu.Unlock()
	close(release)
	readers.Wait()
}

// Lookups that also request leases have the same bound.
func TestTripsOfFirstLookupsAreNotTooLong(t *testing.T) {
	for name, rdb := range map[string]redis.UniversalClient{
		"single": testenv.SharedRedis(t).Client(t), "cluster": testenv.SharedCluster(t).Client(t),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, rdb)
			payload := longBytes(50_000)
			keys := []string{"k{1}", "l{1}"}
			for _, key := range keys {
				b.delete(key)
				b.put(key, Entry{Codec: 4, Payload: payload}, long)
			}
			take := func(sizes *Sizes, keys ...string) {
				attempts := make([]*Attempt, len(keys))
				for i, key := range keys {
					attempts[i] = b.attempt(key).Attempt
				}
				b.store.TakeFirst(b.ctx, sizes, attempts)
				for _, a := range attempts {
					if a.Err != nil || len(a.State.Entry.Payload) != len(payload) {
						t.Error(a.Err, a.State.Kind)
					}
				}
			}
			sizes := &Sizes{}
			sizes.Observe(len(payload))
			take(sizes, keys...) // Redis knows the scripts
			take(sizes, keys[0])
			h := held{make(chan struct{})}
			most := &mostBytes{}
			rdb.AddHook(most)
			rdb.AddHook(h)
			var readers sync.WaitGroup
			for i := range 300 {
				readers.Go(func() { take(sizes, keys[:1+i%2]...) })
			}
			testenv.Eventually(t, "lookups in trips of their own",
				func() bool { return len(b.store.largeTrips) == maxLargeTrips })
			close(h.release)
			readers.Wait()
			if most.n > tripBytes+tripBytes/8 || most.n < tripBytes/2 && name == "single" {
				t.Errorf("a trip had replies of %d bytes", most.n)
			}
		})
	}
}

// mostBytes is a hook that records the largest number of bytes in the replies of one trip.
type mostBytes struct {
	mu sync.Mutex
	n  int
}

func (m *mostBytes) count(cmds ...redis.Cmder) {
	total := 0
	for _, cmd := range cmds {
		total += len(cmd.String())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n = max(m.n, total)
}

func (*mostBytes) DialHook(next redis.DialHook) redis.DialHook { return next }
func (m *mostBytes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer m.count(cmd)
		return next(ctx, cmd)
	}
}
func (m *mostBytes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer m.count(cmds...)
		return next(ctx, cmds)
	}
}

// held holds all reads and scripts up.
type held struct{ release chan struct{} }

func (h held) wait(cmd redis.Cmder) {
	if name := cmd.Name(); name == "getrange" || name == "eval" || name == "evalsha" {
		<-h.release
	}
}

func (held) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h held) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.wait(cmd)
		return next(ctx, cmd)
	}
}
func (h held) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.wait(cmds[0])
		return next(ctx, cmds)
	}
}

// deadlines is a hook that calls tell with the time limit of each script.
type deadlines struct{ tell func(time.Duration) }

func (deadlines) DialHook(next redis.DialHook) redis.DialHook { return next }
func (d deadlines) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if end, ok := ctx.Deadline(); ok &&
			(cmd.Name() == "evalsha" || len(cmd.Args()) > 3 && cmd.Args()[3] == "ifeq") {
			d.tell(time.Until(end))
		}
		return next(ctx, cmd)
	}
}
func (d deadlines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if end, ok := ctx.Deadline(); ok && cmds[0].Name() == "set" {
			d.tell(time.Until(end))
		}
		return next(ctx, cmds)
	}
}

// A command that stores a large value has time in proportion.
func TestLongFillsHaveMoreTime(t *testing.T) {
	const timeout = 10 * time.Minute
	rdb := testenv.SharedRedis(t).Client(t)
	var last time.Duration
	rdb.AddHook(deadlines{func(d time.Duration) { last = d }})
	b := newBackend(t, rdb)
	b.store = open(t, rdb, timeout)
	for _, c := range []struct {
		bytes    int
		min, max time.Duration
	}{{100, 0, timeout}, {FirstRead - 1000, 0, timeout},
		{bytesPerTimeout, 2*timeout - timeout/2, 2 * timeout * 11 / 10}} {
		b.delete("k")
		b.put("k", Entry{Codec: 4, Payload: longBytes(c.bytes)}, long)
		if last < c.min || last > c.max {
			t.Errorf("%d bytes: %v", c.bytes, last)
		}
	}
}

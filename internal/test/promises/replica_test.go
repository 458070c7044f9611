package promises

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Load functions read from a lagging replica of the database.

// replicated is a database whose replica gets the rows only in catchUp.
type replicated struct {
	*table  // the primary; pause and counts apply to loads from either
	replica *table

	mu    sync.Mutex
	calls []call
}

// call is a call of the load function.
type call struct {
	keys    []int
	primary bool
}

func newReplicated(rows map[int]string) *replicated {
	return &replicated{table: newTable(maps.Clone(rows)), replica: newTable(maps.Clone(rows))}
}

// catchUp copies the rows of the primary to the replica.
func (r *replicated) catchUp() {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.replica.mu.Lock()
	defer r.replica.mu.Unlock()
	r.replica.rows = maps.Clone(r.table.rows)
}

// loadMany reads from the server that PreferPrimary selects.
func (r *replicated) loadMany(ctx context.Context, keys []int) (map[int]string, error) {
	primary := cacheaside.PreferPrimary(ctx)
	r.mu.Lock()
	r.calls = append(r.calls, call{slices.Sorted(slices.Values(keys)), primary})
	r.mu.Unlock()
	from := r.replica
	if primary {
		from = r.table
	}
	from.mu.Lock()
	found := make(map[int]string)
	for _, key := range keys {
		if row, ok := from.rows[key]; ok {
			found[key] = row
		}
	}
	from.mu.Unlock()
	_, err := r.table.load(ctx, keys[0]) // counts, and waits where the test wants it
	if errors.Is(err, cacheaside.ErrNotFound) {
		err = nil
	}
	return found, err
}

// since returns the calls after the first n, those of the primary first.
func (r *replicated) since(n int) []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := slices.Clone(r.calls[n:])
	slices.SortStableFunc(calls, func(a, b call) int {
		switch {
		case a.primary == b.primary:
			return 0
		case a.primary:
			return -1
		default:
			return 1
		}
	})
	return calls
}

func (r *replicated) called() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

// lagging are steady options. Its holds do not end during a test.
var lagging = cacheaside.Options{
	RedisTimeout: time.Minute, ReadTimeout: time.Minute, MaxStaleness: time.Minute,
	LeaseTTL: time.Minute, QueueTimeout: time.Minute, MemoryBytes: 1 << 20, ReplicaLag: time.Minute,
}

// startReplicated starts a process that reads from d.
func startReplicated(t testing.TB, rdb redis.UniversalClient, d *replicated, o cacheaside.Options) process {
	t.Helper()
	return startLoading(t, rdb, d.loadMany, o)
}

func startLoading(
	t testing.TB, rdb redis.UniversalClient, load func(context.Context, []int) (map[int]string, error),
	o cacheaside.Options,
) process {
	t.Helper()
	c, err := newCache(rdb, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewBatchLoader(c, "row", load, nil)
	if err != nil {
		t.Fatal(err)
	}
	hear(t, l)
	return process{l, c}
}

// inUse empties Redis except for the old generation of the test's loader, because a loader that is
// new to Redis is on hold.
func inUse(t testing.TB, b backend, age time.Duration) {
	t.Helper()
	flushAll(t, b)
	began := time.Now().Add(-age).UnixMicro()
	for r := range conn.Ranges {
		if err := b.admin.HSet(t.Context(), "cacheaside::announced:{"+conn.Tag(r)+"}", "row", began, "",
			began).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// stored fails unless Redis has an entry of the key as wanted.
func (b backend) stored(t testing.TB, key int, want bool) {
	t.Helper()
	if n := b.admin.Exists(t.Context(), redisKey(key)).Val(); (n == 1) != want {
		t.Fatalf("an entry is stored: %v", n == 1)
	}
}

// endHold ends the hold of a key, as time does.
func (b backend) endHold(t testing.TB, key int) {
	t.Helper()
	if n := b.admin.Del(t.Context(), keys.Hold(redisKey(key))).Val(); n != 1 {
		t.Fatal("the key is not on hold")
	}
}

// After an invalidation, values are read from the primary and not stored until the hold has ended.
func TestReplicaLag(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		inUse(t, b, time.Hour)
		d := newReplicated(map[int]string{1: "old"})
		p, q := startReplicated(t, b.client(t), d, lagging), startReplicated(t, b.client(t), d, lagging)
		p.want(t, 1, "old", nil)
		q.want(t, 1, "old", nil)
		if n := d.called(); n != 1 {
			t.Fatalf("%d loads", n)
		}
		d.write(1, "new")
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "new", nil)
		q.sees(t, 1, "new", testenv.Hang)
		n := d.called()
		for range 2 {
			p.want(t, 1, "new", nil)
			q.want(t, 1, "new", nil)
			b.stored(t, 1, false)
		}
		if got := d.since(n); len(got) != 4 || slices.ContainsFunc(got, func(c call) bool { return !c.primary }) {
			t.Errorf("%+v", got)
		}
		if s := p.Stats(); s.Held != 3 || s.Unvalidated != 3 || s.Refused != 0 || s.RedisErrors != 0 {
			t.Errorf("%+v", s)
		}
		d.catchUp()
		b.endHold(t, 1)
		n = d.called()
		p.want(t, 1, "new", nil)
		b.stored(t, 1, true)
		q.want(t, 1, "new", nil)
		p.want(t, 1, "new", nil)
		if got := d.since(n); len(got) != 1 || got[0].primary {
			t.Errorf("%+v", got)
		}
	})
}

// If a load function reads from the replica anyway, its result is not stored.
func TestLoadFromReplicaOnHoldIsNotStored(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		inUse(t, b, time.Hour)
		d := newReplicated(map[int]string{1: "old"})
		p := startLoading(t, b.client(t), func(_ context.Context, keys []int) (map[int]string, error) {
			return d.loadMany(context.Background(), keys)
		}, lagging)
		p.want(t, 1, "old", nil)
		d.write(1, "new")
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "old", nil)
		b.stored(t, 1, false)
		d.catchUp()
		p.want(t, 1, "new", nil) // nor is it in memory
		b.stored(t, 1, false)
	})
}

// A load that began before the invalidation is refused, whether the hold has ended or not.
func TestLoadFromBeforeTheHold(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		for _, ended := range []bool{false, true} {
			inUse(t, b, time.Hour)
			d := newReplicated(map[int]string{1: "old"})
			p, q := startReplicated(t, b.client(t), d, lagging), startReplicated(t, b.client(t), d, lagging)
			reached, resume := d.pause(1)
			defer resume()
			got := later(func() (string, error) { return p.Get(t.Context(), 1) })
			reach(t, reached, "the load")
			d.write(1, "new")
			if err := q.Invalidate(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if ended {
				d.catchUp()
				b.endHold(t, 1)
			}
			resume()
			wantResult(t, got, "new")
			b.stored(t, 1, ended)
			if s := p.Stats(); s.Refused != 1 || (s.Held == 0) != ended {
				t.Errorf("%+v", s)
			}
		}
	})
}

// Under a hold, the callers in a process share loads, which run one at a time.
func TestLoadsAreSharedOnHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		inUse(t, b, time.Hour)
		d := newReplicated(map[int]string{1: "new"})
		p := startReplicated(t, b.client(t), d, lagging)
		defer p.cache.Close()
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		reached, resume := d.pause(1)
		defer resume()
		first := later(func() (string, error) { return p.Get(t.Context(), 1) })
		reach(t, reached, "the load")
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				var got string
				var err error
				switch i % 4 {
				case 0:
					got, err = p.Get(t.Context(), 1)
				case 1:
					got, err = p.Get(t.Context(), 1, cacheaside.Fresh)
				case 2:
					got, err = p.Refresh(t.Context(), 1)
				case 3:
					var rows map[int]string
					rows, err = p.GetMany(t.Context(), []int{1})
					got = rows[1]
				}
				if got != "new" || err != nil {
					t.Error(got, err)
				}
			})
		}
		time.Sleep(time.Second) // in the bubble
		resume()
		wantResult(t, first, "new")
		all.Wait()
		// The first Get, fresh Get and Refresh, and one load for all later callers of each.
		if n := d.called(); n > 6 || d.most.Load() != 1 {
			t.Errorf("%d loads, %d concurrent", n, d.most.Load())
		}
		if s := p.Stats(); s.Held != int64(d.called()) {
			t.Errorf("%+v", s)
		}
	})
}

// In a batch, keys on hold are read from the primary and not stored. The others are read from the
// replica and stored.
func TestBatchWithKeysOnHold(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		inUse(t, b, time.Hour)
		rows := make(map[int]string)
		for i := range 10 {
			rows[i] = "row"
		}
		d := newReplicated(rows)
		p := startReplicated(t, b.client(t), d, lagging)
		d.write(3, "new")
		d.write(4, "new")
		if err := p.Invalidate(t.Context(), 3, 4); err != nil {
			t.Fatal(err)
		}
		got, err := p.GetMany(t.Context(), upTo(10))
		if err != nil || got[3] != "new" || got[4] != "new" || got[5] != "row" || len(got) != 10 {
			t.Errorf("%v, %v", got, err)
		}
		for i := range 10 {
			b.stored(t, i, i != 3 && i != 4)
		}
		if calls := d.since(0); len(calls) != 2 || !calls[0].primary || !slices.Equal(calls[0].keys, []int{3, 4}) ||
			calls[1].primary || len(calls[1].keys) != 8 {
			t.Errorf("%+v", calls)
		}
		if s := p.Stats(); s.Held != 2 || s.Loads != 10 {
			t.Errorf("%+v", s)
		}
	})
}

// A Refresh under a hold returns its value and stores nothing.
func TestRefreshOnHold(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		inUse(t, b, time.Hour)
		d := newReplicated(map[int]string{1: "old"})
		p := startReplicated(t, b.client(t), d, lagging)
		p.want(t, 1, "old", nil)
		d.write(1, "new")
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got, err := p.Refresh(t.Context(), 1); got != "new" || err != nil {
				t.Fatal(got, err)
			}
			b.stored(t, 1, false)
		}
		if s := p.Stats(); s.Held != 2 {
			t.Errorf("%+v", s)
		}
		d.catchUp()
		b.endHold(t, 1)
		if got, err := p.Refresh(t.Context(), 1); got != "new" || err != nil {
			t.Fatal(got, err)
		}
		b.stored(t, 1, true)
		for key, err := range warming(p.Loader, t.Context(), slices.Values([]int{1}), 0) {
			if err != nil {
				t.Error(key, err)
			}
		}
		p.Invalidate(t.Context(), 1)
		for key, err := range warming(p.Loader, t.Context(), slices.Values([]int{1}), 0) {
			if !errors.Is(err, rows.ErrNotStored) {
				t.Error(key, err)
			}
		}
	})
}

// An InvalidateAll puts all keys of the loader on hold, in all processes that have received it. It
// does not affect other loaders.
func TestInvalidateAllPutsLoaderOnHold(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		inUse(t, b, time.Hour)
		rows := make(map[int]string)
		for i := range 20 {
			rows[i] = "old"
		}
		d := newReplicated(rows)
		p, q := startReplicated(t, b.client(t), d, lagging), startReplicated(t, b.client(t), d, lagging)
		for i := range 20 {
			p.want(t, i, "old", nil)
			q.want(t, i, "old", nil)
			d.write(i, "new")
		}
		if err := p.InvalidateAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			p.want(t, i, "new", nil)
			q.sees(t, i, "new", testenv.Hang)
		}
		n := d.called()
		d.catchUp()
		for i := range 20 {
			p.want(t, i, "new", nil)
			q.want(t, i, "new", nil)
			if got, err := p.Refresh(t.Context(), i); got != "new" || err != nil {
				t.Fatal(got, err)
			}
		}
		if got := d.since(n); len(got) != 60 || slices.ContainsFunc(got, func(c call) bool { return !c.primary }) {
			t.Errorf("%d: %+v", len(got), got)
		}
		// At its start it learns that the generation is young.
		r := startReplicated(t, b.client(t), d, lagging)
		r.want(t, 1, "new", nil)
		if s := r.Stats(); s.Held != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A hold ends by itself, with and without Redis. A process that starts long after an InvalidateAll
// has no hold.
func TestHoldEnds(t *testing.T) {
	const lag = 1500 * time.Millisecond
	o := lagging
	o.ReplicaLag = lag
	for _, without := range []bool{false, true} {
		for _, everything := range []bool{false, true} {
			t.Run(fmt.Sprintf("without Redis %v, all %v", without, everything), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, b := embedded(t)
					inUse(t, b, time.Hour)
					var rdb redis.UniversalClient
					if !without {
						rdb = b.client(t)
					}
					d := newReplicated(map[int]string{1: "old"})
					p := startReplicated(t, rdb, d, o)
					defer p.cache.Close()
					cached := func(row string, want bool) {
						t.Helper()
						n := d.called()
						for range 2 {
							p.want(t, 1, row, nil)
							p.settle()
						}
						calls := d.since(n)
						if cached := len(calls) < 2; cached != want ||
							slices.ContainsFunc(calls, func(c call) bool { return c.primary == want }) {
							t.Fatalf("%+v", calls)
						}
					}
					cached("old", true)
					d.write(1, "new")
					if everything {
						p.InvalidateAll(t.Context())
					} else {
						p.Invalidate(t.Context(), 1)
					}
					began := time.Now()
					cached("new", false)
					time.Sleep(time.Until(began.Add(lag - 10*time.Millisecond)))
					cached("new", false)
					d.catchUp()
					time.Sleep(20 * time.Millisecond)
					cached("new", true)
					if !without {
						q := startReplicated(t, rdb, d, o)
						defer q.cache.Close()
						q.want(t, 1, "new", nil)
						if q.want(t, 2, "", cacheaside.ErrNotFound); q.Stats().Held > 0 {
							t.Errorf("%+v", q.Stats())
						}
					}
				})
			})
		}
	}
}

// If Redis has lost all its data, including holds, all keys are on hold.
func TestLostHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := embedded(t)
		inUse(t, b, time.Hour)
		d := newReplicated(map[int]string{1: "old"})
		p := startReplicated(t, b.client(t), d, lagging)
		defer p.cache.Close()
		p.want(t, 1, "old", nil)
		d.write(1, "new")
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		m.FlushAll()
		time.Sleep(lagging.MaxStaleness) // until the next poll
		p.want(t, 1, "new", nil)
		b.stored(t, 1, false)
	})
}

// If a generation is far ahead of Redis' clock, because that was set back, processes are on hold
// only for the lag.
func TestGenerationAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		inUse(t, b, -time.Hour)
		d := newReplicated(map[int]string{1: "old"})
		p := startReplicated(t, b.client(t), d, lagging)
		defer p.cache.Close()
		p.want(t, 1, "old", nil)
		b.stored(t, 1, false)
		time.Sleep(time.Minute)
		p.want(t, 1, "old", nil)
		b.stored(t, 1, true)
	})
}

// Without Redis, values that are loaded under a hold are not kept in memory, not even by a Refresh.
func TestHoldWithoutRedis(t *testing.T) {
	d := newReplicated(map[int]string{1: "old", 2: "old"})
	p := startReplicated(t, nil, d, lagging)
	p.remembers(t, 1, "old")
	p.remembers(t, 2, "old")
	d.write(1, "new")
	if err := p.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p.want(t, 1, "new", nil)
		p.settle()
		if got, err := p.Refresh(t.Context(), 1); got != "new" || err != nil {
			t.Fatal(got, err)
		}
		p.settle()
	}
	p.want(t, 2, "old", nil)
	if s := p.Stats(); s.Held != 6 || s.Loads != 8 || d.called() != 8 {
		t.Errorf("%+v", s)
	}
}

// The load after a refused load reads from the primary, even without a hold.
func TestRefusedLoadIsFollowedByOneFromThePrimary(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, _ *miniredis.Miniredis, b backend) {
		inUse(t, b, time.Hour)
		d := newReplicated(map[int]string{1: "old"})
		p := startReplicated(t, b.client(t), d, lagging)
		reached, resume := d.pause(1)
		defer resume()
		got := later(func() (string, error) { return p.Get(t.Context(), 1) })
		reach(t, reached, "the load")
		d.write(1, "new")
		b.admin.Del(t.Context(), redisKey(1)) // without this library
		resume()
		wantResult(t, got, "new")
		if calls := d.since(0); len(calls) != 2 || !calls[0].primary {
			t.Errorf("%+v", calls)
		}
		b.stored(t, 1, true)
	})
}

// If Redis is unreachable or bypassed, processes do not know of holds, so they read from the
// primary.
func TestPrimaryWhereHoldsAreNotKnown(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, m *miniredis.Miniredis, b backend) {
		inUse(t, b, time.Hour)
		d := newReplicated(map[int]string{1: "row"})
		p := startReplicated(t, b.client(t), d, lagging)
		p.Bypass(true)
		p.want(t, 1, "row", nil)
		p.Bypass(false)
		m.SetError("out of order")
		p.want(t, 1, "row", nil)
		m.SetError("")
		p.want(t, 1, "row", nil)
		if calls := d.since(0); len(calls) != 3 || !calls[0].primary || !calls[1].primary || calls[2].primary {
			t.Errorf("%+v", calls)
		}
	})
}

// PreferPrimary applies to the innermost load only. It is false in other contexts, and in caches
// without the option.
func TestPreferPrimaryAppliesToItsLoadOnly(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, m *miniredis.Miniredis, b backend) {
		inUse(t, b, time.Hour)
		if cacheaside.PreferPrimary(t.Context()) {
			t.Error("PreferPrimary is true outside of a load")
		}
		inner := newReplicated(map[int]string{1: "row"})
		p := startReplicated(t, b.client(t), inner, lagging)
		var primary atomic.Bool
		outerOptions := lagging
		outerOptions.Prefix = "outer"
		outer, err := cacheaside.New(b.client(t), &outerOptions)
		if err != nil {
			t.Fatal(err)
		}
		defer outer.Close()
		l, err := cacheaside.NewLoader(outer, "outer", func(ctx context.Context, key int) (string, error) {
			primary.Store(cacheaside.PreferPrimary(ctx))
			return p.Get(ctx, key)
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Get(t.Context(), 1); err != nil || !primary.Load() {
			t.Error(primary.Load(), err)
		}
		if calls := inner.since(0); len(calls) != 1 || calls[0].primary {
			t.Errorf("%+v", calls)
		}

		plain := newReplicated(map[int]string{1: "row"})
		q := startReplicated(t, b.client(t), plain, steady)
		m.SetError("out of order")
		q.want(t, 1, "row", nil)
		if calls := plain.since(0); len(calls) != 1 || calls[0].primary {
			t.Errorf("%+v", calls)
		}
	})
}

// Without the option there are no holds and no lookups for them.
func TestNoHoldsWithoutTheOption(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		d := newReplicated(map[int]string{1: "row"})
		p := startReplicated(t, b.client(t), d, steadyNoMemory)
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "row", nil)
		b.stored(t, 1, true)
		if n := b.admin.Exists(t.Context(), keys.Hold(redisKey(1))).Val(); n != 0 {
			t.Error("the key is on hold")
		}
	})
}

// A hold is kept when Redis is full.
func TestHoldInAFullRedis(t *testing.T) {
	server := testenv.StartRedis(t, "--maxmemory-policy", "noeviction")
	admin := server.Client(t)
	b := backend{admin: admin}
	inUse(t, b, time.Hour)
	d := newReplicated(map[int]string{1: "old"})
	p := startReplicated(t, server.Client(t), d, lagging)
	p.want(t, 1, "old", nil)
	d.write(1, "new")
	if err := admin.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := p.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := admin.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	p.want(t, 1, "new", nil)
	b.stored(t, 1, false)
}

// versions is a database whose replica lags by a random time at each read. Its rows are growing
// numbers.
type versions struct {
	lag time.Duration
	mu  sync.Mutex
	at  map[int][]time.Time // commit times of the versions of a row
}

func (v *versions) commit(key int) (version int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at[key] = append(v.at[key], time.Now())
	return len(v.at[key])
}

func (v *versions) load(ctx context.Context, key int) (int, error) {
	as := time.Now()
	if !cacheaside.PreferPrimary(ctx) {
		as = as.Add(-v.lag + time.Duration(as.UnixNano()%int64(v.lag)/4))
	}
	v.mu.Lock()
	version := len(v.at[key])
	for version > 0 && v.at[key][version-1].After(as) {
		version--
	}
	v.mu.Unlock()
	time.Sleep(time.Duration(as.UnixNano() % int64(time.Millisecond)))
	return version, nil
}

// Two processes read and write at random. No read that begins after an Invalidate has returned
// shows an older row, although the replica does. This holds for Fresh reads, and for all reads
// without a memory tier.
func TestReplicaLagHistory(t *testing.T) {
	const lag, rows = 15 * time.Millisecond, 4
	b := realBackend(t)
	flushAll(t, b)
	d := &versions{lag: lag, at: make(map[int][]time.Time)}
	var loaders []*cacheaside.Loader[int, int]
	for i := range 2 {
		o := lagging
		o.ReplicaLag = lag
		if i == 0 {
			o.MemoryBytes = -1
		}
		c, err := cacheaside.New(b.client(t), &o)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := cacheaside.NewLoader(c, "row", d.load, &cacheaside.LoaderOptions{NullTTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		loaders = append(loaders, l)
	}
	var acknowledged [rows]atomic.Int64
	var writing [rows]sync.Mutex
	var reads, stale atomic.Int64
	var all sync.WaitGroup
	var writes atomic.Int64
	began := time.Now()
	enough := func() bool { // enough operations for a verdict
		s := loaders[0].Stats()
		return reads.Load() > 2000 && writes.Load() > 100 && s.Held > 0 && s.RedisHits > 0 &&
			(!accepting || time.Since(began) > 2*time.Second) || time.Since(began) > testenv.Hang
	}
	for g := range 16 {
		l := loaders[g%2]
		all.Go(func() {
			for n := g; n%16 != 0 || !enough(); n++ {
				key := n % rows
				if n%7 == 0 && writing[key].TryLock() {
					version := d.commit(key)
					if err := l.Invalidate(t.Context(), key); err != nil {
						t.Error(err)
					}
					acknowledged[key].Store(int64(version))
					writing[key].Unlock()
					writes.Add(1)
					time.Sleep(lag * 3 / 2) // so that values are stored in between
					continue
				}
				least := acknowledged[key].Load()
				got, err := l.Get(t.Context(), key, cacheaside.Fresh)
				if n%13 == 0 {
					least = acknowledged[key].Load()
					got, err = l.Refresh(t.Context(), key)
				}
				if reads.Add(1); err != nil {
					t.Error(err)
				}
				if int64(got) < least {
					stale.Add(1)
				}
				time.Sleep(time.Duration(n%5) * 200 * time.Microsecond)
			}
		})
	}
	all.Wait()
	s := loaders[0].Stats()
	t.Logf("%d reads and %d writes in %v, of one process: %d loads, %d held, %d refused, %d hits", reads.Load(),
		writes.Load(), time.Since(began), s.Loads, s.Held, s.Refused, s.RedisHits)
	if stale.Load() > 0 {
		t.Errorf("%d reads are stale", stale.Load())
	}
	if s.Held == 0 || s.RedisHits == 0 {
		t.Errorf("too few operations for a verdict: %+v", s)
	}
}

// An expired value is reloaded from the primary, because a replica may still have the expired row.
func TestExpiredIsReadFromThePrimary(t *testing.T) {
	t.Run("Redis", func(t *testing.T) { testExpiredIsReadFromThePrimary(t, true) })
	t.Run("local", func(t *testing.T) { testExpiredIsReadFromThePrimary(t, false) })
}

func testExpiredIsReadFromThePrimary(t *testing.T, withRedis bool) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		var rdb redis.UniversalClient
		if withRedis {
			rdb = b.client(t)
		}
		var changed atomic.Int64
		c, err := newCache(rdb, &cacheaside.Options{RedisTimeout: 10 * time.Second, ReplicaLag: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := cacheaside.NewLoader(c, "row", func(ctx context.Context, _ int) (string, error) {
			at := changed.Load()
			if at == 0 || !cacheaside.PreferPrimary(ctx) && time.Since(time.Unix(0, at)) < time.Second {
				return "old", nil
			}
			return "new", nil
		}, &lives)
		if err != nil {
			t.Fatal(err)
		}
		want := func(row string) {
			t.Helper()
			if v, err := l.Get(t.Context(), 1); v != row || err != nil {
				t.Errorf("%q, %v", v, err)
			}
			synctest.Wait()
		}
		want("old")
		time.Sleep(5 * time.Second) // a loader that is new to Redis is on hold
		want("old")
		changed.Store(time.Now().UnixNano())
		if err := l.Expire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		want("old") // immediately; it is reloaded
		want("new")
		time.Sleep(50 * time.Second)
		want("new")
	})
}

// An expired entry is also replaced from the primary by a process that serves no stale values, or
// cannot decode the entry.
func TestExpiredIsReplacedFromThePrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		options := &cacheaside.Options{RedisTimeout: 10 * time.Second, ReplicaLag: 2 * time.Second, MemoryBytes: -1}
		keeps := startLoad(t, b.client(t), func(context.Context, int) (string, error) { return "text", nil },
			*options, &lives)
		defer keeps.cache.Close()
		var primary atomic.Bool
		load := func(ctx context.Context, _ int) (string, error) {
			primary.Store(cacheaside.PreferPrimary(ctx))
			return "text", nil
		}
		drops := startLoad(t, b.client(t), load, *options,
			livesWith(func(o *cacheaside.LoaderOptions) { o.StaleFor = -1 }))
		defer drops.cache.Close()
		c, err := cacheaside.New(b.client(t), options)
		noError(t, err)
		defer c.Close()
		cannot, err := cacheaside.NewLoader(c, "row",
			func(ctx context.Context, key int) (int, error) { _, err := load(ctx, key); return 1, err }, &lives)
		noError(t, err)
		for name, get := range map[string]func(key int) error{
			"nothing stale": func(key int) error { _, err := drops.Get(t.Context(), key); return err },
			"undecodable":   func(key int) error { _, err := cannot.Get(t.Context(), key); return err },
		} {
			noError(t, get(2)) // from now on the caller itself reads Redis first
			noError(t, keeps.Invalidate(t.Context(), 1))
			// The hold has ended, also that of a loader that is new to Redis.
			time.Sleep(5 * time.Second)
			keeps.want(t, 1, "text", nil)
			noError(t, keeps.Expire(t.Context(), 1))
			primary.Store(false)
			if err := get(1); err != nil || !primary.Load() {
				t.Errorf("%s: from the primary: %t, %v", name, primary.Load(), err)
			}
		}
	})
}

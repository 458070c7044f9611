package bloom

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// says returns a replica's result for one key, also without Redis.
func says(r *Replica, key string) bool {
	maybe, _ := r.MightContain(context.Background(), key)
	return maybe
}

// mute drops the replies to a client's scripts.
type mute struct {
	on atomic.Bool
}

func (m *mute) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *mute) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !m.on.Load() || cmd.Name() != "evalsha" {
			return next(ctx, cmd)
		}
		<-ctx.Done()
		cmd.SetErr(ctx.Err())
		return ctx.Err()
	}
}

func (m *mute) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !m.on.Load() {
			return next(ctx, cmds)
		}
		<-ctx.Done()
		for _, cmd := range cmds {
			cmd.SetErr(ctx.Err())
		}
		return ctx.Err()
	}
}

// A replica without a connection to Redis denies keys until the bound after its last poll, and not
// for longer. Later it works again.
func TestReplicaWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		f := newFilter(t, rdb, 1000)
		built(t, f, "a")
		var m mute
		rdb.AddHook(&m)
		r := newReplica(t, rdb, nil)
		copiedBy(t, r)
		time.Sleep(time.Minute)
		if says(r, "absent") {
			t.Fatal("it does not know")
		}
		m.on.Store(true)
		time.Sleep(time.Second)
		if says(r, "absent") {
			t.Error("it does not go on by itself")
		}
		time.Sleep(time.Second)
		if maybe, err := r.MightContain(t.Context(), "absent"); !maybe || err == nil {
			t.Error("it says no of what it does not know any more", maybe, err)
		}
		if maybe, err := r.MightContainMany(t.Context(), []string{"absent", "a"}); !maybe[0] || !maybe[1] ||
			err == nil {
			t.Error(maybe, err)
		}
		if maybe, err := r.MightContain(t.Context(), "a"); !maybe || err != nil {
			t.Error("what it has needs no Redis", maybe, err)
		}
		if r.Stats().Copied {
			t.Error("the replica still reports its copy")
		}
		m.on.Store(false)
		copiedBy(t, r)
		if s := r.Stats(); says(r, "absent") || s.Failed != 2 || s.Copies != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A key whose announcement is lost is found after the bound: that it is missing has been noticed,
// and the copy made again.
func TestReplicaMissesAnAnnouncement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		f := newFilter(t, rdb, 1000)
		g := built(t, f, "a")
		r := newReplica(t, rdb, nil)
		copiedBy(t, r)
		time.Sleep(time.Minute)
		err := f.write(t.Context(), g, []bitmap.Hash{bitmap.HashOf("missed")})
		must(t, err)
		number := rdb.Keys(t.Context(), f.key+"::announced:*").Val()[0]
		must(t, rdb.HIncrByFloat(t.Context(), number, "", 1e9).Err())
		time.Sleep(2 * time.Second)
		for range 1000 {
			if !says(r, "missed") {
				t.Fatal("it is missed after the bound")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if s := r.Stats(); s.Gaps < 2 || s.Copies != s.Gaps || !s.Copied || says(r, "absent") {
			t.Errorf("%+v", s)
		}
	})
}

// After FLUSHALL the filter is lost, and no replica denies a key that it had.
func TestReplicaFlushed(t *testing.T) {
	const bound = time.Second
	for name, rdb := range map[string]func(t *testing.T) redis.UniversalClient{
		"redis":   func(t *testing.T) redis.UniversalClient { return testenv.SharedRedis(t).Client(t) },
		"cluster": func(t *testing.T) redis.UniversalClient { return testenv.SharedCluster(t).Client(t) },
	} {
		t.Run(name, func(t *testing.T) {
			rdb := rdb(t)
			f := newFilter(t, rdb, 1000)
			built(t, f, "a")
			r := newReplica(t, rdb, &Options{Timeout: testenv.Hang / 2, MaxStaleness: bound})
			copiedBy(t, r)
			flush(t, rdb)
			must(t, f.Add(t.Context(), "b")) // to nothing
			added := time.Now()
			testenv.Eventually(t, "noticed", func() bool {
				late := time.Since(added) > bound
				if !says(r, "b") && late {
					t.Fatal("b is missed")
				}
				return says(r, "absent")
			})
			built(t, f, "a", "b")
			testenv.Eventually(t, "copied again", func() bool { return !says(r, "absent") })
			if !says(r, "a") || !says(r, "b") {
				t.Error("it is missed")
			}
		})
	}
}

// A server that hangs, cannot be reached, or ends the subscriptions: after the bound, no replica
// misses a key that another process has added.
func TestReplicaBehindABadNetwork(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, direct := testenv.Mini(t)
			w := new(wire)
			replicaBehindABadNetwork(t, direct, w.client(t, direct), []fault{
				{"hang", func() { w.hang(true) }, func() { w.hang(false) }},
				{"cut", func() { w.cut(true) }, func() { w.cut(false) }},
				{"kill", w.reset, func() {}},
			})
		})
	})
	if !accept {
		return
	}
	t.Run("redis", func(t *testing.T) {
		server := testenv.SharedRedis(t)
		direct, proxy := server.Client(t), testenv.NewProxy(t, server.Addr)
		rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, MaxRetries: -1})
		t.Cleanup(func() { rdb.Close() })
		replicaBehindABadNetwork(t, direct, rdb, []fault{
			{"hang", func() { proxy.Hang(true) }, func() { proxy.Hang(false) }},
			{"cut", proxy.Cut, proxy.Restore},
			{"kill", func() { direct.ClientKillByFilter(t.Context(), "TYPE", "pubsub") }, func() {}},
		})
	})
}

type fault struct {
	name       string
	begin, end func()
}

func replicaBehindABadNetwork(t *testing.T, direct, rdb *redis.Client, faults []fault) {
	const bound = 300 * time.Millisecond
	f := newFilter(t, direct, 1000)
	built(t, f, "a")
	r := newReplica(t, rdb, &Options{Timeout: 100 * time.Millisecond, MaxStaleness: bound})
	for _, fault := range faults {
		copiedBy(t, r)
		fault.begin()
		for i := range 2 {
			key := fmt.Sprint(fault.name, i)
			must(t, f.Add(t.Context(), key))
			time.Sleep(bound)
			for range 20 {
				if !says(r, key) {
					t.Fatalf("%s: %s is missed after the bound", fault.name, key)
				}
				time.Sleep(time.Millisecond)
			}
		}
		fault.end()
	}
	copiedBy(t, r)
	testenv.Eventually(t, "no", func() bool { return !says(r, "absent") })
	if s := r.Stats(); s.Gaps < 3 {
		t.Errorf("%+v", s)
	}
}

// Many add, in two processes, while copies are made again and again, and generations replaced: what
// was acknowledged is found, here at once, there after the bound.
func TestReplicaUnderAdds(t *testing.T) {
	const bound = 500 * time.Millisecond
	rdb := testenv.SharedRedis(t).Client(t)
	f := newFilter(t, rdb, 100_000)
	built(t, f)
	options := &Options{Timeout: testenv.Hang / 2, MaxStaleness: bound}
	here, there := newReplica(t, rdb, options), newReplica(t, rdb, options)
	copiedBy(t, here)
	copiedBy(t, there)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	var rows []string
	var missed, nos atomic.Int64
	for w := range 4 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprint("w", w, "/", i)
				mu.Lock()
				rows = append(rows, key) // before it is added: a rebuild may read it from now on
				mu.Unlock()
				if here.Add(context.Background(), key) == nil && !says(here, key) {
					missed.Add(1)
				}
				if !says(here, "absent"+key) {
					nos.Add(1)
				}
				if i%8 == 0 {
					all.Go(func() {
						time.Sleep(bound)
						if !says(there, key) {
							missed.Add(1)
						}
					})
				}
			}
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			busListener{here.Redis}.Clear(0)
			busListener{there.Redis}.Void(0)
			time.Sleep(5 * time.Millisecond)
		}
	})
	all.Go(func() {
		for ctx.Err() == nil {
			g, err := f.begin(t.Context(), f.capacity)
			must(t, err)
			must(t, f.prepare(t.Context(), g))
			mu.Lock()
			read := slices.Clone(rows)
			mu.Unlock()
			hashes := make([]bitmap.Hash, len(read))
			for i, key := range read {
				hashes[i] = bitmap.HashOf(key)
			}
			err = f.write(t.Context(), g, hashes)
			must(t, err)
			must(t, f.activate(t.Context(), g))
			must(t, f.remove(t.Context()))
			time.Sleep(20 * time.Millisecond)
		}
	})
	time.Sleep(time.Second)
	testenv.Eventually(t, "some have said no", func() bool { return nos.Load() > 100 })
	cancel()
	all.Wait()
	t.Logf("%d keys, %d noes, %+v", len(rows), nos.Load(), there.Stats())
	if missed.Load() != 0 {
		t.Errorf("%d are missed", missed.Load())
	}
	time.Sleep(bound)
	for _, r := range []*Replica{here, there} {
		testenv.Eventually(t, "copied at last", func() bool { return r.Stats().Copied })
		for _, key := range rows {
			if !says(r, key) {
				t.Fatalf("%s is missed", key)
			}
		}
	}
}

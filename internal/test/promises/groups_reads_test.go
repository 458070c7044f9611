package promises

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Groups with each way to read.

// colored returns options whose groups are byParityAndColor, changed.
func colored(change func(*cacheaside.LoaderOptions)) *cacheaside.LoaderOptions {
	o := byParityAndColor()
	change(o)
	return o
}

// invalidateAt calls InvalidateGroup right after a client has received the reply to the first
// command with this name.
func (p process) invalidateAt(t *testing.T, b backend, command, group string) {
	var done atomic.Bool
	b.client(t).AddHook(hooked{before: func(cmd redis.Cmder) {}, after: func(cmd redis.Cmder) {
		if cmd.Name() == command && done.CompareAndSwap(false, true) {
			p.invalidateGroup(t, group)
		}
	}})
}

// An absence belongs to the groups of the zero value.
func TestGroupsOfAbsences(t *testing.T) {
	for i, o := range []cacheaside.Options{steady, steadyNoMemory, {}} {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{})
			rdb := b.admin
			if i == 2 { // without Redis
				rdb = nil
			}
			p := startOn(t, rdb, d, o, byParityAndColor())
			defer p.cache.Close()
			hear(t, p.Loader)
			p.want(t, 2, "", cacheaside.ErrNotFound)
			p.settle()
			d.write(2, "red new")
			p.invalidateGroup(t, "odd")
			p.want(t, 2, "", cacheaside.ErrNotFound)
			p.invalidateGroup(t, "even")
			p.want(t, 2, "red new", nil)
		})
	}
}

// A value with too many groups belongs to all groups.
func TestManyGroups(t *testing.T) {
	for _, o := range []cacheaside.Options{steady, steadyNoMemory} {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{64: "old", 65: "old"})
			p := start(t, b, d, o, &cacheaside.LoaderOptions{Groups: cacheaside.GroupsOf(
				func(n int, _ string) (names []string) {
					for i := range n {
						names = append(names, fmt.Sprint(i), "", fmt.Sprint(i)) // twice
					}
					return names
				})})
			defer p.cache.Close()
			for range 2 {
				p.want(t, 64, "old", nil)
				p.want(t, 65, "old", nil)
				p.settle()
			}
			d.write(64, "new")
			d.write(65, "new")
			p.invalidateGroup(t, "of another value")
			p.want(t, 64, "old", nil)
			p.want(t, 65, "new", nil)
			p.invalidateGroup(t, "63")
			p.want(t, 64, "new", nil)
			if s := p.Stats(); s.ManyGroups != 2 {
				t.Errorf("%d loads of a value with too many groups are counted, want 2", s.ManyGroups)
			}
		})
	}
}

// If the function fails, the load fails, and nothing is cached.
func TestGroupsFunctionFails(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("groups") }, "Goexit": runtime.Goexit} {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{1: "old"})
			var failing atomic.Bool
			p := start(t, b, d, steady, &cacheaside.LoaderOptions{ErrorTTL: time.Second,
				Groups: cacheaside.GroupsOf(func(int, string) []string {
					if failing.Load() {
						fail()
					}
					return []string{"a"}
				})})
			defer p.cache.Close()
			failing.Store(true)
			for _, get := range []func(context.Context, int) (string,
				error){p.Refresh, func(ctx context.Context, key int) (string, error) { return p.Get(ctx, key) }} {
				if v, err := get(t.Context(), 1); v != "" || err == nil {
					t.Errorf("%s: %q, %v", name, v, err)
				}
			}
			key, row := 1, "new"
			if name == "panic" { // in StoreHeld
				if _, _, err := readerOf(p.Loader).Fetch.Entry(&key, "1", new(memory.Generation), 0, &row); err == nil {
					t.Error("an entry is created")
				}
			}
			failing.Store(false)
			d.write(1, "new")
			time.Sleep(2 * time.Second)
			p.want(t, 1, "new", nil)
		})
	}
}

// A value that a writer stores has, at the latest, the groups from the start of the write.
func TestStoreHeldWithGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		inUse(t, b, time.Hour)
		d := newTable(map[int]string{1: "red old", 2: "red old", 3: "red old"})
		p, q := start(t, b, d, strict, byParityAndColor()), start(t, b, d, strict, byParityAndColor())
		defer p.cache.Close()
		defer q.cache.Close()
		p.want(t, 3, "red old", nil)
		q.want(t, 3, "red old", nil)
		h := p.hold(t, 1, 2)
		defer h.Invalidate(t.Context())
		d.write(1, "blue new")
		p.storeHeld(t, h, 1, "blue new", true)
		q.want(t, 1, "blue new", nil)
		if n := d.loads.Load(); n != 1 {
			t.Errorf("%d loads", n)
		}
		q.invalidateGroup(t, "blue") // after the writer's commit, before it stores the value
		d.write(2, "blue newer")
		p.freshly(t, 3, "red old") // it receives the invalidation
		p.storeHeld(t, h, 2, "blue new", true)
		q.want(t, 2, "blue newer", nil)
		p.freshly(t, 2, "blue newer")
	})
}

// Keys and groups can be invalidated in one call. It reports those that failed.
func TestInvalidateKeysWithGroups(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "red old", 2: "blue old", 3: "blue old"})
	p := start(t, b, d, patient, byParityAndColor())
	plain, err := cacheaside.NewLoader(p.cache, "plain", d.load, nil)
	noError(t, err)
	for i := range 3 {
		p.Get(t.Context(), i+1)
		d.write(i+1, "green new")
	}
	bad := plain.GroupKey("red")
	err = p.cache.InvalidateKeys(t.Context(), p.Key(1), bad, p.GroupKey("even"),
		cacheaside.Key{Loader: "elsewhere", Text: "a", Group: true})
	if failed, ok := errors.AsType[*cacheaside.BatchError[cacheaside.Key]](err); !ok || len(failed.Errs) != 1 ||
		failed.Errs[bad] == nil {
		t.Errorf("%v", err)
	}
	p.want(t, 1, "green new", nil)
	p.want(t, 2, "green new", nil)
	p.want(t, 3, "blue old", nil)
	noError(t, p.cache.InvalidateKeys(t.Context(), p.GroupKey("blue")))
	p.want(t, 3, "green new", nil)
}

// An InvalidateGroup that does not reach Redis at least removes the values from this process's
// memory, including those that are being loaded while Redis is down.
func TestInvalidateGroupWhileRedisIsDown(t *testing.T) {
	for policy := range policies {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{1: "red old", 3: "blue old"})
			o := &outage{}
			rdb := b.client(t).(*redis.Client)
			rdb.AddHook(o)
			p := startOn(t, rdb, d, steady, colored(func(lo *cacheaside.LoaderOptions) { lo.RedisDown = policy }))
			defer p.cache.Close()
			hear(t, p.Loader)
			p.remembers(t, 1, "red old")
			p.remembers(t, 3, "blue old")
			o.on.Store(true)
			for partsOf(p.cache).conn.Down(0) == nil {
				p.Get(t.Context(), 2, cacheaside.Fresh)
			}
			fails := func() {
				t.Helper()
				if err := p.InvalidateGroup(t.Context(), "red"); !errors.Is(err, cacheaside.ErrRedis) {
					t.Errorf("%v", err)
				}
			}
			d.write(1, "red new")
			d.write(3, "blue new")
			fails()
			if policy != cacheaside.LoadWhenDown {
				p.want(t, 1, "", cacheaside.ErrRedis)
			}
			if policy == cacheaside.StaleWhenDown {
				p.want(t, 3, "blue old", nil) // the process knows no invalidation
			}
			if policy != cacheaside.LoadWhenDown {
				return
			}
			reached, resume := d.pause(d.loads.Load() + 1)
			running := later(func() (string, error) { return p.Get(t.Context(), 1) })
			reach(t, reached, "the load")
			d.write(1, "red newest")
			fails()
			resume()
			if _, err := running(t); err != nil { // it began before
				t.Fatal(err)
			}
			p.want(t, 1, "red newest", nil)
			loads := d.loads.Load()
			p.settle()
			p.want(t, 1, "red newest", nil) // the value was kept
			if n := d.loads.Load(); n != loads {
				t.Errorf("%d loads", n-loads)
			}
		})
	}
}

// Groups add nothing to a hit, and one command to a miss: invalidations are read in the trip of the
// lease. An InvalidateGroup is one command for any number of entries. A Fresh read polls once.
func TestCostsOfGroups(t *testing.T) {
	b := realBackend(t)
	flushAll(t, b)
	d := newTable(map[int]string{1: "red", 2: "red", 3: "red"})
	rdb, polls := countsPolls(t, b)
	p := startOn(t, rdb, d, rarePolls, byParityAndColor())
	p.want(t, 3, "red", nil)
	p.invalidateGroup(t, "red") // loads the scripts
	p.want(t, 3, "red", nil)
	polls.known(t)
	misses := missCost(t, b)
	did := func(what string, f func(), want map[string]int) {
		t.Helper()
		before, begun, reads := b.calls(t), polls.ended.Load(), polls.reads.Load()
		f()
		got, polled := b.calls(t), polls.ended.Load()-begun
		polls.remove(got, polled, polls.reads.Load()-reads, map[string]int{"time": 1, "hget": 3})
		got["zrange"] -= int(polled)
		for name, n := range before {
			got[name] -= n
		}
		maps.DeleteFunc(got, func(_ string, n int) bool { return n == 0 })
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	miss := misses(1, 0)
	miss["zrange"] = 1
	did("a miss", func() { p.want(t, 1, "red", nil) }, miss)
	did("a hit", func() { p.want(t, 1, "red", nil) }, map[string]int{"getrange": 1})
	begun := polls.ended.Load()
	did("a fresh hit", func() { p.freshly(t, 1, "red") }, map[string]int{"getrange": 1})
	if n := polls.ended.Load() - begun; n != 1 {
		t.Errorf("a fresh hit takes %d polls, want 1", n)
	}
	did("an invalidation", func() { p.invalidateGroup(t, "red") },
		map[string]int{"evalsha": 1, "time": 1, "hget": 3, "persist": 1, "hset": 1, "zrange": 3, "zadd": 1,
			"pexpire": 1, "publish": 1})
	checkDocumented(t, b)
}

// A load after an InvalidateGroup reads from the primary while a replica may lag. If it cannot, its
// value is not stored.
func TestGroupsOfALaggingReplica(t *testing.T) {
	for i, o := range []cacheaside.Options{lagging, withoutMemory(lagging), {ReplicaLag: lagging.ReplicaLag}} {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			inUse(t, b, time.Hour)
			rdb := b.admin
			if i == 2 { // without Redis
				rdb = nil
			}
			d := newReplicated(map[int]string{1: "red old", 2: "red old", 3: "red old"})
			c, err := newCache(rdb, &o)
			noError(t, err)
			defer c.Close()
			l, err := cacheaside.NewBatchLoader(c, "row", d.loadMany, byParityAndColor())
			noError(t, err)
			hear(t, l)
			p := process{l, c}
			p.want(t, 1, "red old", nil)
			time.Sleep(time.Second)
			reached, resume := d.pause(d.loads.Load() + 1)
			running := later(func() (string, error) { return p.Get(t.Context(), 3) })
			reach(t, reached, "the load, which began before")
			d.write(1, "red new")
			d.write(2, "red new")
			d.write(3, "red new")
			p.invalidateGroup(t, "red")
			resume()
			running(t)
			for key := range 3 {
				before := d.called()
				p.want(t, key+1, "red new", nil)
				if calls := d.since(before); len(calls) != 1 || !calls[0].primary {
					t.Errorf("%v", calls)
				}
			}
			loads := d.called()
			p.settle()
			p.want(t, 1, "red new", nil)
			if d.called() == loads {
				t.Error("the value is stored although it may come from a replica")
			}
			d.catchUp()
			time.Sleep(lagging.ReplicaLag)
			loads = d.called()
			p.want(t, 1, "red new", nil)
			p.settle()
			p.want(t, 1, "red new", nil)
			if calls := d.since(loads); len(calls) != 1 || calls[0].primary {
				t.Errorf("after the lag: %v", calls)
			}
		})
	}
}

// A process that learns of an InvalidateGroup from a poll also holds the group.
func TestHoldOfGroupsIsLearnedByPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		inUse(t, b, time.Hour)
		d := newReplicated(map[int]string{1: "red old"})
		open := func() process {
			o := withoutMemory(lagging)
			c, err := cacheaside.New(b.admin, &o)
			noError(t, err)
			l, err := cacheaside.NewBatchLoader(c, "row", d.loadMany, byParityAndColor())
			noError(t, err)
			return process{l, c}
		}
		p, q := open(), open()
		defer p.cache.Close()
		defer q.cache.Close()
		q.want(t, 1, "red old", nil)
		time.Sleep(lagging.ReplicaLag) // the new floor holds all groups
		q.want(t, 1, "red old", nil)
		d.write(1, "red new")
		p.want(t, 1, "red old", nil)
		p.invalidateGroup(t, "red")
		held := q.Stats().Held
		time.Sleep(time.Second)
		q.freshly(t, 1, "red new")
		if s := q.Stats(); s.Held != held+1 {
			t.Errorf("%+v", s)
		}
	})
}

// If the set of groups is lost soon after an invalidation, the new floor holds all groups, because
// a replica may still lag.
func TestNewGroupFloorHoldsAllGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := embedded(t)
		inUse(t, b, time.Hour)
		d := newReplicated(map[int]string{1: "red old"})
		o := withoutMemory(lagging)
		c, err := cacheaside.New(b.admin, &o)
		noError(t, err)
		defer c.Close()
		l, err := cacheaside.NewBatchLoader(c, "row", d.loadMany, byParityAndColor())
		noError(t, err)
		p := process{l, c}
		p.want(t, 1, "red old", nil)
		time.Sleep(lagging.ReplicaLag)
		p.want(t, 1, "red old", nil)
		b.stored(t, 1, true)
		d.write(1, "red new")
		p.invalidateGroup(t, "red")
		m.Del(groupsKey())
		p.freshly(t, 1, "red new")
		time.Sleep(lagging.ReplicaLag / 2)
		d.catchUp()
		p.freshly(t, 1, "red new")
		if s := p.Stats(); s.Held < 3 {
			t.Errorf("%+v", s)
		}
	})
}

// If the numbers of groups could not be read before a load, its value is outdated for every reader.
func TestUnreadGroupNumbersOutdateLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "red", 2: "blue"})
		p := start(t, b, d, steadyNoMemory, byParityAndColor())
		defer p.cache.Close()
		options := *b.admin.(*redis.Client).Options()
		rdb := redis.NewClient(&options)
		defer rdb.Close()
		var fail atomic.Bool
		rdb.AddHook(hooked{before: func(cmd redis.Cmder) {
			if cmd.Name() == "zrange" && fail.Load() {
				cmd.Args()[2] = "x"
			}
		}, after: func(redis.Cmder) {}})
		q := startOn(t, rdb, d, steadyNoMemory, byParityAndColor())
		defer q.cache.Close()
		q.freshly(t, 2, "blue")
		fail.Store(true)
		q.want(t, 1, "red", nil)
		p.want(t, 1, "red", nil)
		if n := p.Stats().Loads; n != 1 {
			t.Errorf("%d loads", n)
		}
	})
}

// Invalidations that a process receives during a load do not count for the loaded value.
func TestGroupInvalidationDuringLoadDoesNotCount(t *testing.T) {
	for _, o := range []cacheaside.Options{steady, steadyNoMemory} {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{1: "red old", 2: "blue"})
			p, q := start(t, b, d, o, byParityAndColor()), start(t, b, d, steadyNoMemory, byParityAndColor())
			defer p.cache.Close()
			defer q.cache.Close()
			reached, resume := d.pause(1)
			running := later(func() (string, error) { return p.Get(t.Context(), 1) })
			reach(t, reached, "the load")
			d.write(1, "red new")
			q.invalidateGroup(t, "red")
			p.freshly(t, 2, "blue")
			resume()
			if _, err := running(t); err != nil {
				t.Fatal(err)
			}
			p.want(t, 1, "red new", nil)
			q.want(t, 1, "red new", nil)
		})
	}
}

// A load function that ignores PreferPrimary may return an old row until the lag since the
// invalidation has passed. The start of the load decides.
func TestGroupsOfALoadThatReadsReplicas(t *testing.T) {
	for i, o := range []cacheaside.Options{lagging, withoutMemory(lagging), {ReplicaLag: lagging.ReplicaLag}} {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			inUse(t, b, time.Hour)
			rdb := b.admin
			if i == 2 { // without Redis
				rdb = nil
			}
			d := newTable(map[int]string{1: "red old"})
			p := startOn(t, rdb, d, o, byParityAndColor())
			defer p.cache.Close()
			hear(t, p.Loader)
			p.want(t, 1, "red old", nil)
			time.Sleep(time.Second)
			p.invalidateGroup(t, "red")
			time.Sleep(lagging.ReplicaLag - time.Second)
			reached, resume := d.pause(2)
			running := later(func() (string, error) { return p.Get(t.Context(), 1) })
			reach(t, reached, "the load")
			time.Sleep(2 * time.Second)
			resume()
			if v, err := running(t); v != "red old" || err != nil {
				t.Errorf("%q, %v", v, err)
			}
			d.write(1, "red new") // on the replica
			time.Sleep(lagging.ReplicaLag)
			p.want(t, 1, "red new", nil)
			p.settle()
			p.want(t, 1, "red new", nil)
			if n := d.loads.Load(); n != 3 {
				t.Errorf("%d loads", n)
			}
		})
	}
}

// No kind of load that is in progress during an InvalidateGroup leaves a value that is served
// afterwards.
func TestGroupDuringOtherLoads(t *testing.T) {
	for name, c := range map[string]func(p process) (string, error){
		"Refresh": func(p process) (string, error) { return p.Refresh(context.Background(), 1) },
		"Fresh":   func(p process) (string, error) { return p.Get(context.Background(), 1, cacheaside.Fresh) },
		"Warm": func(p process) (string, error) {
			return "", p.Warm(context.Background(), slices.Values([]int{1}), 100, nil)
		},
		"GetMany": func(p process) (string, error) {
			rows, err := p.GetMany(context.Background(), []int{1})
			return rows[1], err
		},
	} {
		for _, o := range []cacheaside.Options{steady, steadyNoMemory} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, b := embedded(t)
					d := newTable(map[int]string{1: "red old"})
					p, q := start(t, b, d, o, byParityAndColor()), start(t, b, d, steadyNoMemory, byParityAndColor())
					defer p.cache.Close()
					defer q.cache.Close()
					reached, resume := d.pause(1)
					running := later(func() (string, error) { return c(p) })
					reach(t, reached, "the load")
					d.write(1, "red new")
					q.invalidateGroup(t, "red")
					synctest.Wait()
					resume()
					if _, err := running(t); err != nil {
						t.Fatal(err)
					}
					p.freshly(t, 1, "red new")
					q.want(t, 1, "red new", nil)
					p.settle()
					p.want(t, 1, "red new", nil)
				})
			})
		}
	}
}

// Nor does a background refresh that is in progress. And no policy serves a stale value of an
// invalidated group.
func TestStaleValuesOfGroups(t *testing.T) {
	for _, o := range []cacheaside.Options{steady, steadyNoMemory} {
		for _, soft := range []time.Duration{0, 10 * time.Millisecond} {
			lo := livesWith(func(lo *cacheaside.LoaderOptions) {
				lo.Groups, lo.SoftTimeout, lo.RedisDown = byParityAndColor().Groups, soft, cacheaside.StaleWhenDown
			})
			bubble(t, o, lo, func(t *testing.T, _ backend, d *table, p, q process) {
				d.write(1, "red a")
				p.want(t, 1, "red a", nil)
				time.Sleep(61 * time.Second)
				reached, resume := d.pause(2)
				p.want(t, 1, "red a", nil) // stale
				reach(t, reached, "the refresh")
				d.write(1, "red b")
				q.invalidateGroup(t, "red")
				synctest.Wait()
				resume()
				synctest.Wait()
				p.freshly(t, 1, "red b")
				q.freshly(t, 1, "red b")
				time.Sleep(61 * time.Second)
				q.invalidateGroup(t, "red")
				synctest.Wait()
				down := errors.New("down")
				d.mu.Lock()
				d.read = func(context.Context, int64) error { return down }
				d.mu.Unlock()
				for _, x := range []process{p, q} {
					if v, err := x.Get(t.Context(), 1, cacheaside.Fresh); v != "" || err == nil {
						t.Errorf("%q, %v", v, err)
					}
					if v, err := x.Get(t.Context(), 1); v != "" || err == nil {
						t.Errorf("%q, %v", v, err)
					}
				}
			})
		}
	}
}

// Peek, and the comparison of a meter, find only values that a read would return.
func TestPeekIgnoresInvalidatedGroups(t *testing.T) {
	for _, o := range []cacheaside.Options{steady, steadyNoMemory} {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{1: "red old"})
			p := start(t, b, d, o, byParityAndColor())
			defer p.cache.Close()
			p.want(t, 1, "red old", nil)
			p.settle()
			look := func(want bool) {
				t.Helper()
				if v, ok, err := p.Peek(t.Context(), 1); ok != want || (v == "red old") != want || err != nil {
					t.Errorf("Peek: %q, %v, %v", v, ok, err)
				}
				r, err := readerOf(p.Loader).Lone(1)
				noError(t, err)
				if _, v := readerOf(p.Loader).Fetch.Copy(t.Context(), r,
					audit.Undecided); (v == audit.Undecided) != want {
					t.Errorf("the copy for a meter: %v", v)
				}
			}
			look(true)
			p.invalidateGroup(t, "blue")
			look(true)
			p.invalidateGroup(t, "red")
			look(false)
		})
	}
}

// Callers that come after an InvalidateGroup do not share an earlier reader's result, and memory
// does not serve it. That includes values found in between.
func TestLateCallersSeeInvalidateGroup(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "red old"})
	start(t, b, d, steadyNoMemory, byParityAndColor()).want(t, 1, "red old", nil)
	p := start(t, b, d, steady, byParityAndColor())
	r := p.looks(t, b, 1, func() {})
	if !readerOf(p.Loader).Fetch.Current(r) {
		t.Fatal("the round is outdated at the start")
	}
	p.invalidateGroup(t, "red")
	if readerOf(p.Loader).Fetch.Current(r) {
		t.Error("late callers get a value from before an acknowledged invalidation")
	}
	p.settle()
	if _, ok := readerOf(p.Loader).Remembered(1); ok {
		t.Error("memory serves the outdated value")
	}
	q := start(t, b, d, steady, byParityAndColor())
	q.want(t, 1, "red old", nil) // loads the row
	r, err := readerOf(p.Loader).Lone(1)
	noError(t, err)
	p.invalidateAt(t, b, "getrange", "red")
	readerOf(p.Loader).Fetch.ReadInline(t.Context(), fetch.Plain, fetch.Single(r))
	if r.Ended() {
		t.Errorf("the round ends with %+v, which was invalidated before", r.Result)
	}
	if _, ok := readerOf(p.Loader).Remembered(1); ok {
		t.Error("memory serves the outdated value")
	}
}

// Long values, and entries that contain long keys, have groups too.
func TestLongEntriesOfGroups(t *testing.T) {
	noise := make([]byte, 100<<10)
	for i := range noise { // incompressible
		noise[i] = 'a' + byte(keys.NewNamespace("", "row", "").Hash(fmt.Sprint(i))%26)
	}
	for name, lo := range map[string]*cacheaside.LoaderOptions{
		"long values": byParityAndColor(),
		"long keys": colored(func(o *cacheaside.LoaderOptions) {
			o.Key = cacheaside.KeyOf(func(key int) string { return strings.Repeat("x", 300) + fmt.Sprint(key) })
		}),
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b backend) {
				flushAll(t, b)
				d := newTable(map[int]string{1: "red " + string(noise), 2: "blue " + string(noise), 3: "red short"})
				p, q := start(t, b, d, noMemory, lo), start(t, b, d, noMemory, lo)
				for _, x := range []process{p, q, p} {
					for key := range 3 {
						x.want(t, key+1, d.rows[key+1], nil)
					}
				}
				if n := d.loads.Load(); n != 3 {
					t.Errorf("%d loads", n)
				}
				d.write(1, "red new"+string(noise))
				p.invalidateGroup(t, "red")
				for _, x := range []process{q, p} {
					for key := range 3 {
						x.freshly(t, key+1, d.rows[key+1])
					}
				}
				if n := d.loads.Load(); n != 5 {
					t.Errorf("%d loads", n)
				}
			})
		})
	}
}

// Invalidations of groups are read with the lease, also where lookups request it. So a value that
// is loaded after an InvalidateGroup is loaded once.
func TestGroupNumbersAreReadWithLeases(t *testing.T) {
	for _, slow := range []time.Duration{0, -1} {
		setSlowTrip(t, slow)
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{1: "red old"})
			p, q := start(t, b, d, steadyNoMemory, byParityAndColor()), start(t, b, d, steadyNoMemory,
				byParityAndColor())
			defer p.cache.Close()
			defer q.cache.Close()
			for i := range 5 {
				row := fmt.Sprint("red ", i)
				d.write(1, row)
				q.invalidateGroup(t, "red")
				q.want(t, 1, row, nil)
				p.want(t, 1, row, nil)
				q.want(t, 1, row, nil)
			}
			if n := d.loads.Load(); n != 5 {
				t.Errorf("%d loads", n)
			}
		})
	}
}

// A batch has keys of several ranges, each with its own numbers.
func TestGetManyOfGroups(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		d := newShelf(100)
		groups := &cacheaside.LoaderOptions{Groups: cacheaside.GroupsOf(
			func(key int, _ string) []string {
				return []string{fmt.Sprint("tens ", key/10)}
			})}
		p, q := startMany(t, b.client(t), d, noMemory, groups), startMany(t, b.client(t), d, noMemory, groups)
		p.wantMany(t, upTo(100), rowsOf(d, 100))
		for i := 30; i < 40; i++ {
			d.write(i, "new")
		}
		noError(t, p.InvalidateGroup(t.Context(), "tens 3"))
		rows := rowsOf(d, 100)
		for i := 30; i < 40; i++ {
			rows[i] = "new"
		}
		p.wantMany(t, upTo(100), rows)
		if got, err := q.GetMany(t.Context(), upTo(100), cacheaside.Fresh); err != nil || !maps.Equal(got, rows) {
			t.Errorf("%d rows, %v", len(got), err)
		}
		loaded, _ := d.loaded()
		for key, n := range loaded {
			if want := map[bool]int{false: 1, true: 2}[key/10 == 3]; n != want {
				t.Errorf("row %d is loaded %d times", key, n)
			}
		}
	})
}

// A program without Groups notices groups in an entry or a poll. From then on its Fresh reads
// observe every InvalidateGroup.
func TestGroupsAreDiscovered(t *testing.T) {
	for _, o := range []cacheaside.Options{steady, steadyNoMemory} {
		for name, discover := range map[string]func(t *testing.T, plain, p process){
			"by an entry": func(t *testing.T, plain, p process) {
				p.want(t, 2, "red old", nil)
				plain.want(t, 2, "red old", nil)
			},
			"by a poll": func(t *testing.T, plain, p process) { time.Sleep(o.MaxStaleness) },
		} {
			t.Run(name+map[bool]string{true: " without memory"}[o.MemoryBytes < 0], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, b := embedded(t)
					d := newTable(map[int]string{1: "red old", 2: "red old", 3: "red old"})
					var log testenv.Log
					oo := o
					oo.Logger = log.Logger()
					plain := start(t, b, d, oo, nil)
					defer plain.cache.Close()
					plain.want(t, 1, "red old", nil)
					plain.want(t, 3, "red old", nil)
					plain.settle()
					p := start(t, b, d, steady, byParityAndColor())
					defer p.cache.Close()
					p.want(t, 2, "red old", nil) // its poll has left the mark
					discover(t, plain, p)
					synctest.Wait()
					if !readerOf(plain.Loader).GroupLog.InUse() {
						t.Fatal("the groups are not discovered")
					}
					if n := strings.Count(log.String(), "LoaderOptions.Groups"); n != 1 {
						t.Errorf("%d warnings", n)
					}
					plain.want(t, 1, "red old", nil)
					loads := d.loads.Load()
					plain.want(t, 1, "red old", nil)
					if n := d.loads.Load(); n != loads {
						t.Errorf("%d loads", n-loads)
					}
					d.write(1, "red new")
					d.write(3, "red new")
					p.invalidateGroup(t, "odd")
					plain.freshly(t, 1, "red new")
					synctest.Wait()
					plain.want(t, 3, "red new", nil)
				})
			})
		}
	}
}

// A release without groups replaces entries with groups, and clears its memory when it receives an
// announcement of a group.
func TestMessageOfGroups(t *testing.T) {
	b := realBackend(t)
	flushAll(t, b)
	d := newTable(map[int]string{1: "red"})
	p := start(t, b, d, patient, byParityAndColor())
	sub := b.admin.Subscribe(t.Context(), "cacheaside::invalidations")
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.invalidateGroup(t, "red")
	m, err := invalidation.Decode([]byte(testenv.Receive(t, "a message", sub.Channel()).Payload))
	loader, of := m.Groups()
	if err != nil || loader != "row" || of.Len() != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	if n, err := b.admin.ZScore(t.Context(), groupsKey(), string(of)).Result(); err != nil || uint64(n) != m.Number {
		t.Errorf("%v, %v", n, err)
	}
	if n := b.admin.HGet(t.Context(), invalidation.Numbers("cacheaside", 0), "").Val(); n != fmt.Sprint(m.Number) {
		t.Errorf("%v, want %d", n, m.Number)
	}
}

// hanging is a hook whose commands hang until their contexts end, while on is set.
type hanging struct{ on *atomic.Bool }

func (hanging) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hanging) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.on.Load() {
			<-ctx.Done()
			cmd.SetErr(ctx.Err())
			return ctx.Err()
		}
		return next(ctx, cmd)
	}
}

func (h hanging) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.on.Load() {
			<-ctx.Done()
			for _, cmd := range cmds {
				cmd.SetErr(ctx.Err())
			}
			return ctx.Err()
		}
		return next(ctx, cmds)
	}
}

// If Redis hangs, a lookup that also requests a lease takes no longer with groups.
func TestHangingLookupOfGroups(t *testing.T) {
	setSlowTrip(t, -1)
	var took [2]time.Duration
	for i, lo := range []*cacheaside.LoaderOptions{nil, byParityAndColor()} {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			options := *b.admin.(*redis.Client).Options()
			rdb := redis.NewClient(&options)
			defer rdb.Close()
			var hang atomic.Bool
			rdb.AddHook(hanging{&hang})
			d := newTable(map[int]string{1: "red", 2: "red"})
			p := startOn(t, rdb, d, cacheaside.Options{MemoryBytes: -1, RedisTimeout: 10 * time.Second,
				ReadTimeout: time.Second}, lo)
			defer p.cache.Close()
			p.want(t, 2, "red", nil)
			hang.Store(true)
			began := time.Now()
			p.want(t, 1, "red", nil)
			took[i] = time.Since(began)
			hang.Store(false)
		})
	}
	if took[0] != took[1] {
		t.Errorf("%v without groups, %v with them", took[0], took[1])
	}
}

// Many groups of a loader are invalidated by one command in each range.
func TestManyGroupKeys(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		d := newTable(map[int]string{1: "red old", 2: "blue old", 3: "green old"})
		p, q := start(t, b, d, patient, byParityAndColor()), start(t, b, d, noMemory, byParityAndColor())
		for _, x := range []process{p, q} {
			x.want(t, 1, "red old", nil)
			x.want(t, 2, "blue old", nil)
			x.want(t, 3, "green old", nil)
		}
		d.write(1, "red new")
		d.write(2, "blue new")
		d.write(3, "green new")
		keys := []cacheaside.Key{p.GroupKey("red"), p.GroupKey("blue")}
		for i := range 2500 {
			keys = append(keys, p.GroupKey(fmt.Sprint("another ", i)))
		}
		announced := p.Stats().Bus.Announced
		if err := p.cache.InvalidateKeys(t.Context(), keys...); err != nil {
			t.Fatal(err)
		}
		ranges := p.Stats().Bus.Ranges
		if n := p.Stats().Bus.Announced - announced; n != int64(3*ranges) {
			t.Errorf("%d announcements in %d ranges", n, ranges)
		}
		for _, x := range []process{p, q} {
			x.freshly(t, 1, "red new")
			x.freshly(t, 2, "blue new")
			x.freshly(t, 3, "green old")
		}
		p.want(t, 1, "red new", nil)
		p.sees(t, 2, "blue new")
	})
}

// Package nested_test tests loads that ask other loaders.
package nested_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// database counts how many queries it is asked at once.
type database struct{ now, most, all atomic.Int64 }

const query = 5 * time.Millisecond

// ask is one query.
func (d *database) ask(ctx context.Context) error {
	d.all.Add(1)
	n := d.now.Add(1)
	for most := d.most.Load(); n > most && !d.most.CompareAndSwap(most, n); most = d.most.Load() {
	}
	defer d.now.Add(-1)
	timer := time.NewTimer(query)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wantAtMost fails unless the database was asked that often, and no more at once.
func (d *database) wantAtMost(t *testing.T, all, atOnce int64) {
	t.Helper()
	if d.all.Load() != all || d.most.Load() > atOnce {
		t.Errorf("%d queries, %d at once; want %d, at most %d", d.all.Load(), d.most.Load(), all, atOnce)
	}
}

type loader = cacheaside.Loader[int, string]

func newCache(t *testing.T, rdb redis.UniversalClient, o cacheaside.Options) *cacheaside.Cache {
	t.Helper()
	o.MemoryBytes, o.RedisTimeout = -1, 10*time.Second
	c, err := cacheaside.NewLocal(&o)
	if rdb != nil {
		c, err = cacheaside.New(rdb, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func newLoader(
	t *testing.T, c *cacheaside.Cache, name string, load func(context.Context, int) (string, error),
	o *cacheaside.LoaderOptions,
) *loader {
	t.Helper()
	l, err := cacheaside.NewLoader(c, name, load, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// leaf reads only the database.
func (d *database) leaf(ctx context.Context, key int) (string, error) {
	return fmt.Sprint(key), d.ask(ctx)
}

// asking asks the database, and then another loader.
func (d *database) asking(get func(context.Context, int) (string, error)) func(context.Context, int) (string, error) {
	return func(ctx context.Context, key int) (string, error) {
		if err := d.ask(ctx); err != nil {
			return "", err
		}
		inner, err := get(ctx, key)
		return "of " + inner, err
	}
}

func getOf(l *loader) func(context.Context, int) (string, error) {
	return func(ctx context.Context, key int) (string, error) { return l.Get(ctx, key) }
}

// inBubbles runs f in a bubble, on a cache without Redis and on an embedded one.
func inBubbles(t *testing.T, f func(t *testing.T, rdb func() redis.UniversalClient)) {
	t.Run("nil", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, func() redis.UniversalClient { return nil }) })
	})
	t.Run("embedded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f(t, func() redis.UniversalClient { _, rdb := testenv.Mini(t); return rdb })
		})
	})
}

// all asks for n keys, each by its own caller.
func all(t *testing.T, l *loader, n int, want string) {
	t.Helper()
	var wg sync.WaitGroup
	for key := range n {
		wg.Go(func() {
			if got, err := l.Get(t.Context(), key); err != nil || got != fmt.Sprintf(want, key) {
				t.Errorf("key %d: %q, %v", key, got, err)
			}
		})
	}
	wg.Wait()
}

// With any number of callers, a load that asks another loader does not keep that one's load from
// its turn: the database is as busy as it may be.
func TestChainsDoNotWaitForEachOther(t *testing.T) {
	for _, depth := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
				var d database
				c := newCache(t, rdb(), cacheaside.Options{MaxLoads: 4})
				defer c.Close()
				want := "%d"
				l := newLoader(t, c, "0", d.leaf, nil)
				for i := 1; i < depth; i++ {
					l, want = newLoader(t, c, fmt.Sprint(i), d.asking(getOf(l)), nil), "of "+want
				}
				began := time.Now()
				all(t, l, 40, want)
				if took, least := time.Since(began), time.Duration(40*depth/4)*query; took > least*3/2 {
					t.Errorf("it took %v; the database needs %v", took, least)
				}
				d.wantAtMost(t, int64(40*depth), 4)
				if s := c.Stats(); s.Unavailable != 0 {
					t.Errorf("%d were refused", s.Unavailable)
				}
			})
		})
	}
}

// The loaders of a chain may be of several caches, each with its own limit.
func TestChainsOfSeveralCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second database
		a, b := newCache(t, nil, cacheaside.Options{MaxLoads: 2}), newCache(t, nil, cacheaside.Options{MaxLoads: 3})
		defer a.Close()
		defer b.Close()
		l := newLoader(t, a, "0", first.leaf, nil)
		l = newLoader(t, b, "1", second.asking(getOf(l)), nil)
		l = newLoader(t, a, "2", first.asking(getOf(l)), nil)
		l = newLoader(t, b, "3", second.asking(getOf(l)), nil)
		all(t, l, 30, "of of of %d")
		first.wantAtMost(t, 60, 2)
		second.wantAtMost(t, 60, 3)
	})
}

// A loader may ask itself for other keys, also where it has a limit of its own.
func TestTree(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		var d database
		c := newCache(t, rdb(), cacheaside.Options{MaxLoads: 3})
		defer c.Close()
		var l *loader
		l = newLoader(t, c, "node", func(ctx context.Context, key int) (string, error) {
			if err := d.ask(ctx); err != nil || key == 0 {
				return "/", err
			}
			parent, err := l.Get(ctx, (key-1)/2)
			return parent + fmt.Sprint(key) + "/", err
		}, &cacheaside.LoaderOptions{MaxLoads: 1})
		var wg sync.WaitGroup
		for key := range 31 {
			wg.Go(func() {
				if _, err := l.Get(t.Context(), key); err != nil {
					t.Errorf("key %d: %v", key, err)
				}
			})
		}
		wg.Wait()
		if rdb() != nil {
			if got, err := l.Get(t.Context(), 30); got != "/2/6/14/30/" || err != nil {
				t.Error(got, err)
			}
		}
		if d.most.Load() > 1 {
			t.Errorf("%d queries at once", d.most.Load())
		}
	})
}

// The inner load may have been asked for by a caller who waits for a place behind the loads that
// have joined it.
func TestInnerLoadOfAnotherCaller(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		var d database
		c := newCache(t, rdb(), cacheaside.Options{MaxLoads: 4})
		defer c.Close()
		inner := newLoader(t, c, "inner", d.leaf, nil)
		goOn := make(chan struct{})
		var ready sync.WaitGroup
		ready.Add(4)
		outer := newLoader(t, c, "outer", func(ctx context.Context, key int) (string, error) {
			ready.Done()
			<-goOn
			return inner.Get(ctx, 7)
		}, nil)
		var wg sync.WaitGroup
		get := func(l *loader, key int) {
			wg.Go(func() {
				if got, err := l.Get(t.Context(), key); got != "7" || err != nil {
					t.Errorf("key %d: %q, %v", key, got, err)
				}
			})
		}
		for key := range 4 {
			get(outer, key)
		}
		ready.Wait()
		get(inner, 7) // waits for a place
		synctest.Wait()
		began := time.Now()
		close(goOn)
		wg.Wait()
		if took := time.Since(began); took > 20*query {
			t.Error("it took", took)
		}
	})
}

// A load may ask for several keys at once, one by one or as a batch, and for those of batch
// loaders.
func TestLoadsThatAskForMany(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		var d database
		c := newCache(t, rdb(), cacheaside.Options{MaxLoads: 3})
		defer c.Close()
		inner := newLoader(t, c, "inner", d.leaf, nil)
		batch, err := cacheaside.NewBatchLoader(c, "batch",
			func(ctx context.Context, keys []int) (map[int]string, error) {
				if err := d.ask(ctx); err != nil {
					return nil, err
				}
				return inner.GetMany(ctx, keys)
			}, &cacheaside.LoaderOptions{BatchSize: 3})
		if err != nil {
			t.Fatal(err)
		}
		outer := newLoader(t, c, "outer", func(ctx context.Context, key int) (string, error) {
			var group errgroup.Group
			var one, other string
			group.Go(func() (err error) { one, err = inner.Get(ctx, 1000+key); return err })
			group.Go(func() (err error) { other, err = inner.Get(ctx, 2000+key); return err })
			group.Go(func() error {
				many, err := batch.GetMany(ctx, []int{3000 + key, 4000 + key, 5000, 5001, 5002, 5003, 5004})
				if err == nil && len(many) != 7 {
					err = fmt.Errorf("%d of 7", len(many))
				}
				return err
			})
			err := group.Wait()
			return one + " " + other, err
		}, nil)
		var wg sync.WaitGroup
		for key := range 20 {
			wg.Go(func() {
				want := fmt.Sprintf("%d %d", 1000+key, 2000+key)
				if got, err := outer.Get(t.Context(), key); got != want || err != nil {
					t.Errorf("key %d: %q, %v", key, got, err)
				}
			})
		}
		wg.Wait()
		if d.most.Load() > 3 {
			t.Errorf("%d queries at once", d.most.Load())
		}
		if s := c.Stats(); s.Unavailable != 0 {
			t.Errorf("%d were refused", s.Unavailable)
		}
	})
}

// The loads of one GetMany may ask for keys that it asks for, too, and so may those of another.
func TestLoadsOfOneBatchAskForEachOther(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		const n = 60
		var d database
		c := newCache(t, rdb(), cacheaside.Options{MaxLoads: 3})
		defer c.Close()
		var l *loader
		l = newLoader(t, c, "row", func(ctx context.Context, key int) (string, error) {
			if err := d.ask(ctx); err != nil || key >= n/2 {
				return fmt.Sprint(key), err
			}
			return l.Get(ctx, key+n/2)
		}, nil)
		var forth, back []int
		for key := range n {
			forth, back = append(forth, key), append([]int{key}, back...)
		}
		began := time.Now()
		var wg sync.WaitGroup
		for _, keys := range [][]int{forth, back, forth} {
			wg.Go(func() {
				if got, err := l.GetMany(t.Context(), keys); err != nil || len(got) != n ||
					got[1] != fmt.Sprint(1+n/2) {
					t.Errorf("%d keys, %v", len(got), err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > time.Second {
			t.Error("it took", took)
		}
		if d.most.Load() > 3 {
			t.Errorf("%d queries at once", d.most.Load())
		}
	})
}

// Two processes whose outer loads fill all places, and wait for keys that the other one loads.
func TestChainsOfTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := testenv.Mini(t)
		_ = m
		var d [2]database
		var outer [2]*loader
		for i := range outer {
			c := newCache(t, rdb, cacheaside.Options{MaxLoads: 2})
			defer c.Close()
			inner := newLoader(t, c, "inner", d[i].leaf, nil)
			outer[i] = newLoader(t, c, fmt.Sprint("outer", i),
				d[i].asking(func(ctx context.Context, key int) (string, error) {
					if _, err := inner.Get(ctx, (key+6*i)%12); err != nil { // each loads what the other will ask for
						return "", err
					}
					return inner.Get(ctx, (key+6*i+6)%12)
				}), nil)
		}
		began := time.Now()
		var wg sync.WaitGroup
		for i := range outer {
			for key := range 12 {
				wg.Go(func() {
					if _, err := outer[i].Get(t.Context(), key); err != nil {
						t.Error(i, key, err)
					}
				})
			}
		}
		wg.Wait()
		if took := time.Since(began); took > time.Second {
			t.Error("it took", took)
		}
		for i := range d {
			if d[i].most.Load() > 2 {
				t.Errorf("%d queries at once", d[i].most.Load())
			}
		}
	})
}

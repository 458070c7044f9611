package nested_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/cacheaside/cacheaside"
)

// Callers who leave in the middle of chains, inner loads that fail or are slow, loads that ask for
// several keys: at most MaxLoads loads that do not wait for others are in progress at any time, and
// in the end all places are free.
func TestPlacesAreCounted(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		const most = 3
		var active, top atomic.Int64
		raise := func() {
			n := active.Add(1)
			for old := top.Load(); n > old && !top.CompareAndSwap(old, n); old = top.Load() {
			}
		}
		c := newCache(t, rdb(), cacheaside.Options{MaxLoads: most})
		defer c.Close()
		work := func(ctx context.Context, d time.Duration) error {
			if err := ctx.Err(); err != nil { // as database/sql does
				return err
			}
			raise()
			defer active.Add(-1)
			select {
			case <-time.After(d):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		inner := newLoader(t, c, "inner", func(ctx context.Context, key int) (string, error) {
			err := work(ctx, time.Duration(key%7)*time.Millisecond)
			if key%5 == 0 {
				err = errors.New("failed")
			}
			return "v", err
		}, nil)
		outer := newLoader(t, c, "outer", func(ctx context.Context, key int) (string, error) {
			if err := work(ctx, time.Millisecond); err != nil {
				return "", err
			}
			var group errgroup.Group
			for i := range key % 3 {
				group.Go(func() error {
					_, err := inner.Get(ctx, key*2+i)
					return err
				})
			}
			bound, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
			inner.Get(bound, key) // it may come too late
			cancel()
			if err := group.Wait(); err != nil {
				return "", err
			}
			return "v", work(ctx, time.Millisecond)
		}, nil)
		var wg sync.WaitGroup
		for key := range 40 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(key%11+1)*3*time.Millisecond)
				if key%4 == 0 {
					ctx = t.Context()
				}
				outer.Get(ctx, key) // it may be cancelled
				cancel()
			})
		}
		wg.Wait()
		time.Sleep(time.Minute)
		if n := top.Load(); n > most {
			t.Errorf("%d at once", n)
		}
		gate := make(chan struct{})
		var under atomic.Int64
		last := newLoader(t, c, "last", func(context.Context, int) (string, error) {
			under.Add(1)
			<-gate
			return "v", nil
		}, nil)
		for key := range most + 2 {
			wg.Go(func() { last.Get(t.Context(), key) }) // it waits for the gate
		}
		time.Sleep(time.Millisecond) // of the bubble
		synctest.Wait()
		if under.Load() != most {
			t.Errorf("%d loads under way, want %d", under.Load(), most)
		}
		close(gate)
		wg.Wait()
	})
}

// If the caller of an inner load leaves, the outer load has its place again before it continues.
func TestLoadContinuesInItsPlace(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		var d database
		c := newCache(t, rdb(), cacheaside.Options{MaxLoads: 1})
		defer c.Close()
		inner := newLoader(t, c, "inner", func(context.Context, int) (string, error) {
			return "late", d.ask(context.Background()) // it ignores its context
		}, nil)
		outer := newLoader(t, c, "outer", func(ctx context.Context, key int) (string, error) {
			bound, cancel := context.WithTimeout(ctx, query/5)
			defer cancel()
			if _, err := inner.Get(bound, key); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			return "without", d.ask(ctx)
		}, nil)
		if got, err := outer.Get(t.Context(), 1); got != "without" || err != nil {
			t.Error(got, err)
		}
		d.wantAtMost(t, 2, 1)
	})
}

// Without a queue, loads that have begun still end.
func TestNestedLoadsWithoutAQueue(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		var d database
		c := newCache(t, rdb(), cacheaside.Options{MaxLoads: 3, MaxQueue: -1})
		defer c.Close()
		inner := newLoader(t, c, "inner", d.leaf, nil)
		var begun atomic.Int64
		load := d.asking(func(ctx context.Context, key int) (string, error) {
			got, err := inner.GetMany(ctx, []int{2 * key, 2*key + 1}) // for two places, where it has one
			return got[2*key], err
		})
		outer := newLoader(t, c, "outer", func(ctx context.Context, key int) (string, error) {
			begun.Add(1)
			return load(ctx, key)
		}, nil)
		var wg sync.WaitGroup
		var got atomic.Int64
		for key := range 30 {
			wg.Go(func() {
				time.Sleep(time.Duration(key) * time.Millisecond)
				if _, err := outer.Get(t.Context(), key); err == nil {
					got.Add(1)
				}
			})
		}
		wg.Wait()
		if got.Load() != begun.Load() || got.Load() == 30 || d.most.Load() > 3 {
			t.Errorf("%d loads had begun, %d came to their end; %d queries at once", begun.Load(), got.Load(),
				d.most.Load())
		}
	})
}

// The load that tries whether the database is back may ask its own loader for other keys.
func TestProbeAsksItsOwnLoader(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		c := newCache(t, rdb(), cacheaside.Options{})
		defer c.Close()
		var l *loader
		down := true
		l = newLoader(t, c, "node", func(ctx context.Context, key int) (string, error) {
			switch {
			case down:
				return "", errors.New("down")
			case key == 0:
				return "/", nil
			}
			return l.Get(ctx, key/2)
		}, &cacheaside.LoaderOptions{ErrorTTL: time.Millisecond})
		for key := range 20 {
			if _, err := l.Get(t.Context(), key); err == nil {
				t.Error("it is not down")
			}
		}
		if l.Stats().BreakersOpen != 1 {
			t.Fatal("the breaker is closed")
		}
		down = false
		time.Sleep(2 * time.Second)
		if got, err := l.Get(t.Context(), 5); got != "/" || err != nil {
			t.Error(got, err)
		}
		if l.Stats().BreakersOpen != 0 {
			t.Error("the breaker is open")
		}
	})
}

package flight

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var errStorm = errors.New("a run has failed")

// Many callers of few keys, some of which leave, and runs some of which fail or panic: a key never
// has two runs at once, and no caller gets a run that began before its request, unless it may be
// shared.
func TestRoundsHoldInAStorm(t *testing.T) {
	const callers, turns, keys = 1000, 20, 37
	var clock atomic.Int64 // orders what happens
	var running [keys]atomic.Int32
	var runs, cancelled, failed atomic.Int64
	g := newSimple(func(ctx context.Context, key int) (int64, error) {
		began := clock.Add(1)
		if n := running[key].Add(1); n != 1 {
			t.Errorf("%d runs of key %d at once", n, key)
		}
		defer running[key].Add(-1)
		runs.Add(1)
		switch n := rand.N(20); {
		case n == 0:
			return 0, errStorm
		case n == 1:
			panic(errStorm)
		case n < 10:
			time.Sleep(rand.N(200 * time.Microsecond)) // other callers come in this time
		}
		return began, nil
	}, func(int64) bool { return false }, func(recovered any) error { return recovered.(error) })

	var asking sync.WaitGroup
	for range callers {
		asking.Go(func() {
			for range turns {
				key := rand.N(keys)
				ctx, cancel := context.WithCancel(context.Background())
				if rand.N(10) == 0 {
					time.AfterFunc(rand.N(300*time.Microsecond), cancel)
				}
				asked := clock.Add(1)
				began, err := g.Do(ctx, key)
				switch {
				case err == nil && began <= asked:
					t.Errorf("key %d: asked at %d, given a result that began at %d", key, asked, began)
				case errors.Is(err, errStorm):
					failed.Add(1)
				case errors.Is(err, context.Canceled) && ctx.Err() != nil:
					cancelled.Add(1)
				case err != nil:
					t.Errorf("key %d: %v", key, err)
				}
				cancel()
			}
		})
	}
	asking.Wait()
	g.Close(errors.New("closed"))
	t.Logf("%d calls, %d runs, %d of the calls failed, %d were cancelled", callers*turns, runs.Load(), failed.Load(),
		cancelled.Load())
	if n := runs.Load(); n >= callers*turns {
		t.Errorf("%d runs for %d calls: nothing was shared", n, callers*turns)
	}
}

// With sharing, a result is given only to those who had asked before it was found to be current.
func TestSharedResultsHoldInAStorm(t *testing.T) {
	const callers, turns, keys = 200, 30, 5
	type version struct {
		key   int
		value int64
	}
	var versions [keys]atomic.Int64 // a write raises it
	g := newSimple(func(_ context.Context, key int) (version, error) {
		v := version{key, versions[key].Load()}
		time.Sleep(rand.N(100 * time.Microsecond))
		return v, nil
	}, func(v version) bool { return versions[v.key].Load() == v.value }, func(any) error { return errStorm })

	var asking sync.WaitGroup
	for range callers {
		asking.Go(func() {
			for i := range turns {
				key := rand.N(keys)
				var written int64
				if i%5 == 0 {
					written = versions[key].Add(1)
				} else {
					written = versions[key].Load()
				}
				v, err := g.Do(t.Context(), key)
				if err != nil || v.value < written || v.key != key {
					t.Errorf("key %d: written %d, read %+v, %v", key, written, v, err)
				}
			}
		})
	}
	asking.Wait()
	g.Close(errors.New("closed"))
}

func TestCloseHoldsInAStorm(t *testing.T) {
	for range 50 {
		cause := errors.New("closing")
		var running, after atomic.Int32
		g := newSimple(func(ctx context.Context, key int) (int, error) {
			running.Add(1)
			defer running.Add(-1)
			if after.Load() != 0 {
				t.Error("a run began after Close had returned")
			}
			<-ctx.Done() // by leaving callers, or Close
			return key, nil
		}, func(int) bool { return false }, func(any) error { return errStorm })
		var asking sync.WaitGroup
		for i := range 100 {
			asking.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if i%2 == 0 {
					time.AfterFunc(rand.N(500*time.Microsecond), cancel)
				}
				for {
					_, err := g.Do(ctx, rand.N(10))
					if errors.Is(err, cause) || ctx.Err() != nil {
						return
					}
				}
			})
		}
		time.Sleep(rand.N(300 * time.Microsecond))
		g.Close(cause)
		after.Store(1)
		if n := running.Load(); n != 0 {
			t.Errorf("%d runs after Close", n)
		}
		asking.Wait()
	}
}

package promises

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
)

// A process remembers for ErrorTTL those failed loads that are not recorded in Redis.

func TestRecentFailureWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, b := startBrittle(t, nil)
		defer p.cache.Close()
		for n := int64(1); n <= 3; n++ {
			p.want(t, 1, "", errBroken)
			for range 5 {
				p.want(t, 1, "", cacheaside.ErrLoadFailed)
				p.want(t, 1, "", cacheaside.ErrLoadFailed)
				time.Sleep(39 * time.Millisecond)
			}
			if b.calls.Load() != n {
				t.Errorf("%d calls", b.calls.Load())
			}
			time.Sleep(5 * time.Millisecond) // after 40 of these, 200 ms have passed
		}
		if s := p.Stats(); s.FailedByMark != 30 || s.Loads != 3 {
			t.Errorf("%+v", s)
		}
		b.set(mended)
		p.want(t, 2, "2", nil)
	})
}

// Callers that wait for a failed load do not load one after another.
func TestWaitersShareRecentFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, b := startBrittle(t, nil)
		defer p.cache.Close()
		b.set(func(context.Context) error { time.Sleep(100 * time.Millisecond); return errBroken })
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { p.Get(t.Context(), 1) })
			wg.Go(func() { p.GetMany(t.Context(), []int{1}, cacheaside.Fresh) })
		}
		wg.Wait()
		if b.calls.Load() != 1 {
			t.Errorf("%d calls", b.calls.Load())
		}
	})
}

func TestRecentFailureEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, b := startBrittle(t, nil)
		defer p.cache.Close()
		p.want(t, 1, "", errBroken)
		p.want(t, 1, "", cacheaside.ErrLoadFailed)
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if p.want(t, 1, "", errBroken); b.calls.Load() != 2 {
			t.Errorf("%d calls of the load function", b.calls.Load())
		}
		if _, err := p.Refresh(t.Context(), 1); !sameError(err, errBroken) {
			t.Error(err)
		}
		p.want(t, 1, "", cacheaside.ErrLoadFailed)
		p.Bypass(true)
		p.want(t, 1, "", errBroken)
		p.want(t, 1, "", errBroken)
		p.Bypass(false)
		b.set(mended)
		p.want(t, 1, "", cacheaside.ErrLoadFailed)
		if _, err := p.Refresh(t.Context(), 1); err != nil {
			t.Error(err)
		}
		p.want(t, 1, "1", nil)
		b.set(broken)
		p.want(t, 1, "", errBroken)
		p.Bypass(true)
		p.want(t, 2, "", errBroken) // leaves no mark
		p.Bypass(false)
		p.want(t, 2, "", errBroken)
	})
}

// A load with a later Invalidate leaves no mark, because the cause of its failure may have gone.
func TestInvalidatedLoadLeavesNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, b := startBrittle(t, nil)
		defer p.cache.Close()
		b.set(func(context.Context) error { time.Sleep(time.Millisecond); return errBroken })
		got := later(func() (string, error) { return p.Get(t.Context(), 1) })
		synctest.Wait()
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if _, err := got(t); !sameError(err, errBroken) {
			t.Error(err)
		}
		b.set(mended)
		p.want(t, 1, "1", nil)
	})
}

// Stopped loads leave no mark.
func TestRecentFailureOfStoppedLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, b := startBrittle(t, nil)
		defer p.cache.Close()
		b.set(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := p.Get(ctx, 1); !sameError(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		b.set(mended)
		p.want(t, 1, "1", nil)
	})
}

// Without Redis too, a failed background reload is not retried for a while.
func TestRecentFailureOfReloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newTable(map[int]string{1: "one"})
		p := startOn(t, nil, d, cacheaside.Options{}, &cacheaside.LoaderOptions{TTL: time.Minute, Jitter: -1,
			StaleFor: time.Hour, EarlyRefresh: -1, ErrorTTL: time.Second})
		defer p.cache.Close()
		p.want(t, 1, "one", nil)
		p.settle()
		time.Sleep(61 * time.Second)
		d.fail(errBroken)
		for range 200 { // 20 s
			p.want(t, 1, "one", nil)
			time.Sleep(100 * time.Millisecond)
		}
		if n := d.loads.Load(); n < 15 || n > 21 {
			t.Errorf("%d loads", n)
		}
	})
}

// In a batch, keys with a recently failed load fail, and the others are loaded.
func TestRecentFailureInABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newShelf(10)
		failed := map[int]error{3: errBroken, 5: errBroken}
		d.answer = func(_ []int, rows map[int]string) (map[int]string, error) {
			delete(rows, 3)
			delete(rows, 5)
			return rows, &cacheaside.BatchError[int]{Errs: failed}
		}
		p := startMany(t, nil, d, cacheaside.Options{MemoryBytes: -1}, nil)
		defer p.cache.Close()
		for _, want := range []error{errBroken, cacheaside.ErrLoadFailed, cacheaside.ErrLoadFailed} {
			m, err := p.GetMany(t.Context(), upTo(10))
			if len(m) != 8 || m[9] != "row 9" || !sameError(err, want) {
				t.Error(m, err)
			}
		}
		if loads, calls := d.loaded(); calls != 3 || loads[3] != 1 || loads[5] != 1 || loads[4] != 3 {
			t.Error(calls, loads)
		}
	})
}

// While Redis is unreachable, even from the middle of a load on, each process remembers failures
// itself. While Redis is reachable, only its marker counts.
func TestRecentFailureWhileRedisIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, r := embedded(t)
		p, b := startBrittle(t, r.client(t))
		defer p.cache.Close()
		m.SetError("ERR out of order")
		for range 2 {
			p.want(t, 1, "", errBroken)
			p.want(t, 1, "", cacheaside.ErrLoadFailed)
			time.Sleep(time.Second)
		}
		p.want(t, 1, "", errBroken)
		m.SetError("")
		p.want(t, 1, "", errBroken)
		p.want(t, 1, "", cacheaside.ErrLoadFailed) // from the marker

		b.set(func(context.Context) error { m.SetError("ERR out of order"); return errBroken })
		p.want(t, 2, "", errBroken)
		p.want(t, 2, "", cacheaside.ErrLoadFailed)
		if n := b.calls.Load(); n != 5 {
			t.Errorf("%d calls", n)
		}

		b.set(mended)
		m.SetError("")
		p.want(t, 2, "2", nil) // ends the failure
		m.SetError("ERR out of order")
		p.want(t, 2, "2", nil)
		m.SetError("")
	})
}

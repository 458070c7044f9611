package promises

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/source"
)

// The database is protected by limits, a queue and a circuit breaker.

// startLoad is start with a load function of the test, without a memory tier.
func startLoad(
	t testing.TB, rdb redis.UniversalClient, load func(context.Context, int) (string, error), o cacheaside.Options,
	lo *cacheaside.LoaderOptions,
) process {
	t.Helper()
	o.MemoryBytes, o.RedisTimeout = -1, cmp.Or(o.RedisTimeout, 10*time.Second)
	c, err := newCache(rdb, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewLoader(c, "row", load, lo)
	if err != nil {
		t.Fatal(err)
	}
	return process{l, c}
}

// inBubbles runs f in a bubble, on a cache without Redis and on an embedded one.
func inBubbles(t *testing.T, f func(t *testing.T, rdb redis.UniversalClient)) {
	t.Run("nil", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, nil) })
	})
	t.Run("embedded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			f(t, b.client(t))
		})
	})
}

// crowd counts loads in progress, their maximum, and all loads.
type crowd struct{ now, most, all atomic.Int64 }

func (c *crowd) enter() {
	c.all.Add(1)
	n := c.now.Add(1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
}

func (c *crowd) leave() { c.now.Add(-1) }

func (c *crowd) load(_ context.Context, key int) (string, error) {
	c.enter()
	defer c.leave()
	time.Sleep(10 * time.Millisecond)
	return fmt.Sprint(key), nil
}

// wantUnavailable fails unless err is ErrUnavailable, for this reason.
func wantUnavailable(t testing.TB, err error, reason string) {
	t.Helper()
	if !errors.Is(err, cacheaside.ErrUnavailable) || !strings.Contains(err.Error(), reason) {
		t.Errorf("%v, want ErrUnavailable with the reason %s", err, reason)
	}
}

func TestMaxLoads(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		var c crowd
		p := startLoad(t, rdb, c.load, cacheaside.Options{MaxLoads: 5, MaxQueue: 200, QueueTimeout: time.Minute}, nil)
		defer p.cache.Close()
		var wg sync.WaitGroup
		for key := range 200 {
			wg.Go(func() {
				if got, err := p.Get(t.Context(), key); got != fmt.Sprint(key) || err != nil {
					t.Error(got, err)
				}
			})
		}
		wg.Wait()
		if c.most.Load() != 5 || c.all.Load() != 200 {
			t.Errorf("%d loads, %d concurrent", c.all.Load(), c.most.Load())
		}
		if s := p.Stats(); s.Unavailable != 0 || s.Refused != 0 || s.Loads != 200 {
			t.Errorf("%+v", s)
		}
	})
}

func TestMaxLoadsByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c crowd
		p := startLoad(t, nil, c.load, cacheaside.Options{}, nil)
		defer p.cache.Close()
		var wg sync.WaitGroup
		for key := range 300 {
			wg.Go(func() { p.want(t, key, fmt.Sprint(key), nil) })
		}
		wg.Wait()
		if c.most.Load() != 100 {
			t.Errorf("%d concurrent loads, want 100", c.most.Load())
		}
	})
}

func TestMaxLoadsOfABatch(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		var c crowd
		d := newShelf(100)
		d.during = func(context.Context, int, []int) error {
			c.enter()
			defer c.leave()
			time.Sleep(10 * time.Millisecond)
			return nil
		}
		p := startMany(t, rdb, d, cacheaside.Options{MaxLoads: 3, MemoryBytes: -1, RedisTimeout: 10 * time.Second},
			&cacheaside.LoaderOptions{BatchSize: 4})
		defer p.cache.Close()
		p.wantMany(t, upTo(100), d.rows)
		if c.most.Load() != 3 || c.all.Load() != 25 {
			t.Errorf("%d calls, %d concurrent", c.all.Load(), c.most.Load())
		}
	})
}

// A limit of one loader does not affect the others.
func TestMaxLoadsOfALoader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow, quick crowd
		p := startLoad(t, nil, func(ctx context.Context, key int) (string, error) {
			slow.enter()
			defer slow.leave()
			time.Sleep(time.Second)
			return "", nil
		}, cacheaside.Options{MaxLoads: 3, QueueTimeout: time.Minute}, &cacheaside.LoaderOptions{MaxLoads: 1})
		defer p.cache.Close()
		other, err := cacheaside.NewLoader(p.cache, "other", quick.load, nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for key := range 10 {
			wg.Go(func() { p.want(t, key, "", nil) })
		}
		synctest.Wait()
		began := time.Now()
		for key := range 10 {
			wg.Go(func() {
				if _, err := other.Get(t.Context(), key); err != nil || time.Since(began) > 100*time.Millisecond {
					t.Error(err, "after", time.Since(began))
				}
			})
		}
		wg.Wait()
		if slow.most.Load() != 1 || quick.most.Load() != 2 {
			t.Errorf("%d and %d concurrent loads", slow.most.Load(), quick.most.Load())
		}
	})
}

func TestLoadRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c crowd
		p := startLoad(t, nil, c.load, cacheaside.Options{LoadRate: 20, QueueTimeout: time.Minute}, nil)
		defer p.cache.Close()
		began := time.Now()
		var wg sync.WaitGroup
		for key := range 42 {
			wg.Go(func() { p.want(t, key, fmt.Sprint(key), nil) })
		}
		wg.Wait()
		if took := time.Since(began); took < 2*time.Second || took > 2020*time.Millisecond {
			t.Error("2 and then 40 loads, at 20 a second, take", took)
		}
		p = startLoad(t, nil, c.load, cacheaside.Options{LoadRate: 0.1}, nil)
		defer p.cache.Close()
		p.want(t, 1, "1", nil)
		_, err := p.Get(t.Context(), 1)
		wantUnavailable(t, err, "rate")
	})
}

// held is a load function whose first load waits until the test lets it continue.
type held struct {
	crowd
	began  chan struct{}
	letGo  chan struct{}
	ignore bool // ignore the context
}

func newHeld() *held { return &held{began: make(chan struct{}), letGo: make(chan struct{})} }

func (h *held) load(ctx context.Context, key int) (string, error) {
	h.enter()
	defer h.leave()
	if h.all.Load() > 1 {
		return fmt.Sprint(key), nil
	}
	close(h.began)
	done := ctx.Done()
	if h.ignore {
		done = nil
	}
	select {
	case <-h.letGo:
		return fmt.Sprint(key), nil
	case <-done:
		return "", ctx.Err()
	}
}

// A load that does not fit into the queue is refused immediately. Other callers can load its key
// immediately: no marker and no lease is left.
func TestUnavailableLeavesNoMarker(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := newHeld()
		lo := &cacheaside.LoaderOptions{ErrorTTL: time.Hour, LoadTimeout: time.Minute}
		p := startLoad(t, rdb, h.load, cacheaside.Options{MaxLoads: 1, MaxQueue: 1, QueueTimeout: 2 * time.Second,
			LeaseTTL: time.Minute}, lo)
		defer p.cache.Close()
		first := later(func() (string, error) { return p.Get(t.Context(), 1) })
		<-h.began
		second := later(func() (string, error) { return p.Get(t.Context(), 2) })
		synctest.Wait()
		began := time.Now()
		_, err := p.Get(t.Context(), 3)
		wantUnavailable(t, err, "too many")
		_, err = p.Refresh(t.Context(), 4)
		wantUnavailable(t, err, "too many")
		if time.Since(began) > 0 {
			t.Error("after", time.Since(began))
		}
		if rdb != nil {
			q := startLoad(t, rdb, (&crowd{}).load, cacheaside.Options{}, lo)
			defer q.cache.Close()
			for _, key := range []int{3, 4} {
				if n, err := rdb.Exists(t.Context(), redisKey(key)).Result(); n != 0 || err != nil {
					t.Errorf("key %d: %d, %v", key, n, err)
				}
				q.want(t, key, fmt.Sprint(key), nil)
			}
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Error("after", took)
			}
		}
		_, err = second(t) // waits for QueueTimeout
		wantUnavailable(t, err, "too long")
		if took := time.Since(began); took < 2*time.Second || took > 2010*time.Millisecond {
			t.Error("after", took)
		}
		close(h.letGo)
		wantResult(t, first, "1")
		for key := range 5 { // without Redis too, no failure is remembered
			p.want(t, key, fmt.Sprint(key), nil)
		}
		if s := p.Stats(); s.Unavailable != 3 || s.FailedByMark != 0 || s.LoadErrors != 0 || s.Refused != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A refused refresh leaves the cached value.
func TestUnavailableRefreshLeavesTheEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		c := &crowd{}
		q := startLoad(t, b.client(t), c.load, cacheaside.Options{}, nil)
		defer q.cache.Close()
		q.want(t, 2, "2", nil)
		h := newHeld()
		p := startLoad(t, b.client(t), h.load, cacheaside.Options{MaxLoads: 1, MaxQueue: -1}, nil)
		defer p.cache.Close()
		first := later(func() (string, error) { return p.Get(t.Context(), 1) })
		<-h.began
		_, err := p.Refresh(t.Context(), 2)
		wantUnavailable(t, err, "too many")
		p.want(t, 2, "2", nil)
		if _, err := q.Refresh(t.Context(), 2); err != nil || c.all.Load() != 2 {
			t.Error(err, c.all.Load())
		}
		close(h.letGo)
		wantResult(t, first, "1")
	})
}

// While a load waits for its turn its lease is renewed, so that no other process loads the key.
func TestLeaseIsKeptInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		h, c := newHeld(), &crowd{}
		p := startLoad(t, b.client(t), h.load, cacheaside.Options{MaxLoads: 1, QueueTimeout: time.Minute,
			LeaseTTL: 200 * time.Millisecond}, &cacheaside.LoaderOptions{LoadTimeout: 10 * time.Second})
		defer p.cache.Close()
		q := startLoad(t, b.client(t), c.load, cacheaside.Options{QueueTimeout: time.Minute,
			LeaseTTL: 200 * time.Millisecond}, &cacheaside.LoaderOptions{LoadTimeout: 2 * time.Second})
		defer q.cache.Close()
		first := later(func() (string, error) { return p.Get(t.Context(), 1) })
		<-h.began
		second := later(func() (string, error) { return p.Get(t.Context(), 2) })
		synctest.Wait()
		third := later(func() (string, error) { return q.Get(t.Context(), 2) })
		time.Sleep(9 * time.Second) // longer than q waits for a load that does not have to queue
		close(h.letGo)
		wantResult(t, first, "1")
		wantResult(t, second, "2")
		wantResult(t, third, "2")
		if h.all.Load() != 2 || c.all.Load() != 0 {
			t.Errorf("%d and %d loads", h.all.Load(), c.all.Load())
		}
	})
}

func TestLoadTimeoutBeginsAfterTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := func(context.Context, int) (string, error) { time.Sleep(900 * time.Millisecond); return "v", nil }
		p := startLoad(t, nil, load, cacheaside.Options{MaxLoads: 1, QueueTimeout: time.Minute},
			&cacheaside.LoaderOptions{LoadTimeout: time.Second})
		defer p.cache.Close()
		var wg sync.WaitGroup
		for key := range 5 {
			wg.Go(func() { p.want(t, key, "v", nil) })
		}
		wg.Wait()
	})
}

func TestLoadKeepsItsPlaceUntilItReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld()
		h.ignore = true
		p := startLoad(t, nil, h.load, cacheaside.Options{MaxLoads: 1, MaxQueue: -1},
			&cacheaside.LoaderOptions{LoadTimeout: time.Second})
		defer p.cache.Close()
		p.want(t, 1, "", cacheaside.ErrLoadTimeout)
		for key := range 3 {
			_, err := p.Get(t.Context(), key+2)
			wantUnavailable(t, err, "too many")
		}
		close(h.letGo)
		synctest.Wait()
		for key := range 3 {
			p.want(t, key+2, fmt.Sprint(key+2), nil)
		}
		if h.most.Load() != 1 {
			t.Errorf("%d concurrent loads, want 1", h.most.Load())
		}
	})
}

// A caller of a queued load can leave immediately. So can all callers at Close.
func TestCallersLeaveLoadQueue(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := newHeld()
		p := startLoad(t, rdb, h.load, cacheaside.Options{MaxLoads: 1, MaxQueue: 20, QueueTimeout: time.Hour},
			&cacheaside.LoaderOptions{LoadTimeout: time.Hour})
		first := later(func() (string, error) { return p.Get(t.Context(), 1) })
		<-h.began
		began := time.Now()
		for range 3 { // each time there is room for all
			ctx, cancel := context.WithCancel(t.Context())
			var left []func(testing.TB) (string, error)
			for key := range 20 {
				left = append(left, later(func() (string, error) { return p.Get(ctx, key+2) }))
			}
			synctest.Wait()
			cancel()
			for _, l := range left {
				if _, err := l(t); !errors.Is(err, context.Canceled) || errors.Is(err, cacheaside.ErrUnavailable) {
					t.Error(err)
				}
			}
			synctest.Wait()
		}
		var rest []func(testing.TB) (string, error)
		for key := range 20 {
			rest = append(rest, later(func() (string, error) { return p.Get(t.Context(), key+2) }))
		}
		synctest.Wait()
		p.cache.Close()
		for _, r := range append(rest, first) {
			if _, err := r(t); !errors.Is(err, cacheaside.ErrClosed) || errors.Is(err, cacheaside.ErrUnavailable) {
				t.Error(err)
			}
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Error("after", took)
		}
		if rdb != nil {
			if keys, err := rdb.Keys(t.Context(), "cacheaside:row:*").Result(); len(keys) != 0 || err != nil {
				t.Error(keys, err)
			}
		}
		if s := p.Stats(); s.Unavailable != 0 || s.LoadCalls != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A queued load may get the place of one that Close has stopped, before it is stopped itself.
func TestNothingBeginsAfterClose(t *testing.T) {
	p := startLoad(t, nil, (&crowd{}).load, cacheaside.Options{MaxLoads: 1, MaxQueue: -1}, nil)
	p.cache.Close()
	for range 2 { // the place is free again
		r, err := readerOf(p.Loader).Lone(1)
		if err != nil {
			t.Fatal(err)
		}
		if row := readerOf(p.Loader).LoadAlone(t.Context(), fetch.Single(r), source.Call{})[0]; !sameError(row.Err,
			cacheaside.ErrClosed) {
			t.Error(row.Err)
		}
	}
}

// configurableLoad is a load function with a configurable result.
type configurableLoad struct {
	calls atomic.Int64
	end   atomic.Pointer[func(context.Context) error]
}

func (b *configurableLoad) set(end func(context.Context) error) { b.end.Store(&end) }

func (b *configurableLoad) load(ctx context.Context, key int) (string, error) {
	b.calls.Add(1)
	return fmt.Sprint(key), (*b.end.Load())(ctx)
}

func broken(context.Context) error { return errBroken }
func mended(context.Context) error { return nil }

func startBrittle(t *testing.T, rdb redis.UniversalClient) (process, *configurableLoad) {
	b := &configurableLoad{}
	b.set(broken)
	return startLoad(t, rdb, b.load, cacheaside.Options{}, &cacheaside.LoaderOptions{LoadTimeout: time.Second}), b
}

func TestBreaker(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		p, b := startBrittle(t, rdb)
		defer p.cache.Close()
		for key := range 20 {
			p.want(t, key, "", errBroken)
		}
		for key := range 20 {
			_, err := p.Get(t.Context(), 100+key)
			wantUnavailable(t, err, "breaker")
			_, err = p.Refresh(t.Context(), 100+key)
			wantUnavailable(t, err, "breaker")
		}
		if s := p.Stats(); b.calls.Load() != 20 || s.Unavailable != 40 || s.LoadCalls != 20 {
			t.Errorf("%d calls, %+v", b.calls.Load(), s)
		}
		other, err := cacheaside.NewLoader(p.cache, "other", (&crowd{}).load, nil) // has its own breaker
		if err != nil {
			t.Fatal(err)
		}
		if v, err := other.Get(t.Context(), 1); v != "1" || err != nil {
			t.Error(v, err)
		}

		time.Sleep(time.Second + time.Millisecond)
		p.want(t, 200, "", errBroken) // a probe
		_, err = p.Get(t.Context(), 201)
		wantUnavailable(t, err, "breaker")

		b.set(mended)
		time.Sleep(time.Second + time.Millisecond)
		for key := range 20 {
			p.want(t, 100+key, fmt.Sprint(100+key), nil) // no marker was left
		}
	})
}

// Timeouts, panics and Goexits count as failures, also of the probe.
func TestBreakerCountsFailures(t *testing.T) {
	for name, end := range map[string]func(context.Context) error{
		"time-out": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"ignoring": func(context.Context) error { time.Sleep(time.Minute); return nil },
		"panic":    func(context.Context) error { panic("boom") },
		"Goexit":   func(context.Context) error { runtime.Goexit(); return nil },
		"bad":      func(context.Context) error { return badError{} },
	} {
		synctest.Test(t, func(t *testing.T) {
			p, b := startBrittle(t, nil)
			b.set(end)
			var wg sync.WaitGroup
			for key := range 20 { // concurrently
				wg.Go(func() {
					if _, err := p.Get(t.Context(), key); err == nil || strings.Contains(err.Error(),
						strings.TrimPrefix(cacheaside.ErrUnavailable.Error(), "cacheaside: ")) {
						t.Error(name, err)
					}
				})
			}
			wg.Wait()
			_, err := p.Get(t.Context(), 100)
			wantUnavailable(t, err, "breaker")
			time.Sleep(time.Second + time.Millisecond)
			if _, err = p.Get(t.Context(), 101); err == nil || b.calls.Load() != 21 {
				t.Error(name, err, b.calls.Load())
			}
			_, err = p.Get(t.Context(), 102)
			wantUnavailable(t, err, "breaker")
			b.set(mended)
			time.Sleep(time.Second + time.Millisecond)
			p.want(t, 103, "103", nil)
			p.want(t, 104, "104", nil)
			p.cache.Close()
			time.Sleep(2 * time.Minute) // loads that ignore their context end
		})
	}
}

func TestBreakerCountsNotFoundAsSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, b := startBrittle(t, nil)
		defer p.cache.Close()
		for i, none := range []error{cacheaside.ErrNotFound, sql.ErrNoRows, fmt.Errorf("wrapped: %w", sql.ErrNoRows)} {
			b.set(func(context.Context) error { return none })
			for key := range 10 {
				p.want(t, 100*i+key, "", cacheaside.ErrNotFound)
			}
		}
		b.set(broken)
		for key := range 100 {
			p.want(t, 1000+key, "", errBroken) // 100 of 130
		}
	})
}

func TestBreakerIgnoresStoppedLoads(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		p, b := startBrittle(t, rdb)
		defer p.cache.Close()
		b.set(func(ctx context.Context) error { <-ctx.Done(); return errors.New("stopped, in other words") })
		stop := func(key int) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if _, err := p.Get(ctx, key); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			synctest.Wait()
		}
		for key := range 100 {
			stop(key)
		}
		b.set(broken)
		for key := range 20 {
			p.want(t, 200+key, "", errBroken)
		}
		time.Sleep(time.Second + time.Millisecond)
		b.set(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		for key := range 5 { // probes that their callers leave
			stop(300 + key)
		}
		b.set(mended)
		p.want(t, 400, "400", nil)
		p.want(t, 401, "401", nil)
	})
}

// A batch load that returns any row has reached the database.
func TestBreakerAndPartialFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newShelf(1)
		failed := map[int]error{}
		d.answer = func(_ []int, rows map[int]string) (map[int]string, error) {
			return rows, &cacheaside.BatchError[int]{Errs: failed}
		}
		p := startMany(t, nil, d, cacheaside.Options{MemoryBytes: -1}, nil)
		defer p.cache.Close()
		for i := range 50 {
			failed = map[int]error{i + 1: errBroken}
			m, err := p.GetMany(t.Context(), []int{0, i + 1})
			if len(m) != 1 || !errors.Is(err, errBroken) {
				t.Fatal(m, err)
			}
			failed = map[int]error{i + 101: errBroken, i + 201: cacheaside.ErrNotFound}
			if _, err = p.GetMany(t.Context(), []int{i + 101, i + 201}); !errors.Is(err, errBroken) {
				t.Fatal(err)
			}
		}
	})
}

// A loader that calls an unavailable loader has not failed.
func TestNestedUnavailableIsNotAFailure(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		p, b := startBrittle(t, rdb)
		defer p.cache.Close()
		outer, err := cacheaside.NewLoader(p.cache, "outer",
			func(ctx context.Context, key int) (string, error) { return p.Get(ctx, key) }, nil)
		if err != nil {
			t.Fatal(err)
		}
		for key := range 20 {
			p.want(t, key, "", errBroken)
		}
		for key := range 50 {
			_, err := outer.Get(t.Context(), 100+key)
			wantUnavailable(t, err, "breaker")
		}
		b.set(mended)
		time.Sleep(time.Second + time.Millisecond)
		for key := range 50 {
			if v, err := outer.Get(t.Context(), 100+key); v != fmt.Sprint(100+key) || err != nil {
				t.Fatal(v, err)
			}
		}
		if s := outer.Stats(); s.Unavailable != 0 || s.FailedByMark != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A load that calls another loader lends it its place. No load deadlocks, with or without its own
// limit.
func TestNestedLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c crowd
		p := startLoad(t, nil, c.load, cacheaside.Options{MaxLoads: 4, QueueTimeout: time.Second}, nil)
		defer p.cache.Close()
		for name, most := range map[string]int{"within": 3, "without": 0} {
			outer, err := cacheaside.NewLoader(p.cache, name, func(ctx context.Context, key int) (string, error) {
				time.Sleep(time.Millisecond) // so that all have begun
				return p.Get(ctx, key)
			}, &cacheaside.LoaderOptions{MaxLoads: most})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			var wg sync.WaitGroup
			for key := range 20 {
				wg.Go(func() {
					if _, err := outer.Get(t.Context(), key); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if took := time.Since(began); took > 100*time.Millisecond || c.most.Load() > 4 {
				t.Errorf("%s their own limit: %v, %d concurrent loads", name, took, c.most.Load())
			}
		}
	})
}

func TestNoBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &configurableLoad{}
		b.set(broken)
		p := startLoad(t, nil, b.load, cacheaside.Options{}, &cacheaside.LoaderOptions{BreakAt: -1})
		defer p.cache.Close()
		for key := range 100 {
			p.want(t, key, "", errBroken)
		}
	})
}

package promises

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Values have two lives: fresh, then stale.

// lives are options with round numbers.
var lives = cacheaside.LoaderOptions{TTL: time.Minute, StaleFor: time.Hour, Jitter: -1, EarlyRefresh: -1,
	ErrorTTL: time.Second}

func livesWith(change func(*cacheaside.LoaderOptions)) *cacheaside.LoaderOptions {
	o := lives
	change(&o)
	return &o
}

// bubble runs f with two processes on an embedded Redis, in fake time.
func bubble(
	t *testing.T, o cacheaside.Options, lo *cacheaside.LoaderOptions,
	f func(t *testing.T, b backend, d *table, p, q process),
) {
	o.MemoryBytes, o.MaxStaleness = cmp.Or(o.MemoryBytes, steady.MemoryBytes), cmp.Or(o.MaxStaleness, time.Minute)
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "a"})
		p, q := start(t, b, d, o, lo), start(t, b, d, o, lo)
		defer p.cache.Close()
		defer q.cache.Close()
		f(t, b, d, p, q)
	})
}

// passes fails unless exactly this time has passed since then.
func passes(t *testing.T, since time.Time, want time.Duration) {
	t.Helper()
	if d := time.Since(since).Round(time.Millisecond); d != want {
		t.Errorf("%v have passed, want %v", d, want)
	}
}

func TestStaleIsServedWhileItIsReloaded(t *testing.T) {
	for _, o := range []cacheaside.Options{steady, steadyNoMemory} {
		bubble(t, o, &lives, func(t *testing.T, _ backend, d *table, p, q process) {
			p.want(t, 1, "a", nil)
			q.want(t, 1, "a", nil)
			d.write(1, "b") // without an invalidation
			time.Sleep(59 * time.Second)
			q.want(t, 1, "a", nil)
			if n := d.loads.Load(); n != 1 {
				t.Fatalf("%d loads", n)
			}
			time.Sleep(2 * time.Second)
			reached, resume := d.pause(2)
			defer resume()
			var all sync.WaitGroup
			for i := range 40 {
				all.Go(func() { []process{p, q}[i%2].want(t, 1, "a", nil) })
			}
			all.Wait()
			reach(t, reached, "the load")
			time.Sleep(5 * time.Second)
			p.want(t, 1, "a", nil)
			q.want(t, 1, "a", nil)
			resume()
			synctest.Wait()
			p.want(t, 1, "b", nil)
			q.want(t, 1, "b", nil)
			if n := d.loads.Load(); n != 2 {
				t.Errorf("%d loads", n)
			}
			s, u := p.Stats(), q.Stats()
			if s.Stale == 0 || u.Stale == 0 || s.BackgroundRefreshes+u.BackgroundRefreshes != 1 ||
				s.EarlyRefreshes+u.EarlyRefreshes != 0 || s.Unvalidated+u.Unvalidated != 0 {
				t.Errorf("%+v\n%+v", s, u)
			}
		})
	}
}

// A value that has not been read for longer than both lives is gone. With Forever it stays.
func TestValueEndsAfterBothLives(t *testing.T) {
	bubble(t, rarePolls, &lives, func(t *testing.T, _ backend, d *table, p, _ process) {
		p.want(t, 1, "a", nil)
		p.want(t, 2, "", cacheaside.ErrNotFound)
		p.want(t, 3, "", cacheaside.ErrNotFound)
		d.write(1, "b")
		d.write(2, "c")
		d.write(3, "c")
		time.Sleep(2*time.Minute - time.Second) // an absence is kept for twice NullTTL
		p.want(t, 2, "", cacheaside.ErrNotFound)
		synctest.Wait()
		p.want(t, 2, "c", nil)
		time.Sleep(2 * time.Second)
		p.want(t, 3, "c", nil)
		time.Sleep(59*time.Minute - 2*time.Second)
		p.want(t, 1, "a", nil) // a second before its end
		synctest.Wait()
		p.want(t, 1, "b", nil)
		d.write(1, "d")
		time.Sleep(61*time.Minute + time.Millisecond)
		p.want(t, 1, "d", nil)
	})
	bubble(t, rarePolls, livesWith(func(o *cacheaside.LoaderOptions) { o.StaleFor = cacheaside.Forever }),
		func(t *testing.T, b backend, d *table, p, _ process) {
			p.want(t, 1, "a", nil)
			if ttl := b.admin.PTTL(t.Context(), redisKey(1)).Val(); ttl < cacheaside.MaxTTL-time.Hour ||
				ttl > cacheaside.MaxTTL {
				t.Errorf("the entry has a TTL of %v", ttl)
			}
			d.write(1, "b")
			long := 3 * time.Hour // longer than all default lives and those above
			if accepting {
				long = 24 * time.Hour
			}
			time.Sleep(long)
			p.want(t, 1, "a", nil)
			synctest.Wait()
			p.want(t, 1, "b", nil)
		})
}

var errBroken = errors.New("broken")

func (t *table) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.read = nil
	if err != nil {
		t.read = func(context.Context, int64) error { return err }
	}
}

// While loads fail, the stale value is served, with one load per ErrorTTL. An invalidated value is
// not served.
func TestFailSafe(t *testing.T) {
	bubble(t, noMemory, &lives, func(t *testing.T, _ backend, d *table, p, q process) {
		p.want(t, 1, "a", nil)
		d.fail(errBroken)
		time.Sleep(61 * time.Second)
		for range 200 { // 20 s
			p.want(t, 1, "a", nil)
			q.want(t, 1, "a", nil)
			time.Sleep(100 * time.Millisecond)
		}
		if n := d.loads.Load() - 1; n < 19 || n > 20 {
			t.Errorf("%d loads in 20 s, want one a second", n)
		}
		// A Refresh does not wait for ErrorTTL to end.
		if _, err := p.Refresh(t.Context(), 1); !errors.Is(err, errBroken) {
			t.Error(err)
		}
		p.want(t, 1, "a", nil)
		if err := q.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			for _, of := range []process{p, q} {
				if v, err := of.Get(t.Context(), 1); v != "" || !errors.Is(err, errBroken) &&
					!errors.Is(err, cacheaside.ErrLoadFailed) {
					t.Fatalf("after the invalidation: %q, %v", v, err)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		d.fail(nil)
		d.write(1, "b")
		time.Sleep(time.Second)
		p.want(t, 1, "b", nil)
	})
}

// Loads are not retried within ErrorTTL, before and after the hard end of the value.
func TestFailSafeEndsWithTheHardLife(t *testing.T) {
	bubble(t, noMemory, livesWith(
		func(o *cacheaside.LoaderOptions) { o.StaleFor, o.ErrorTTL = time.Minute, time.Second }), func(t *testing.T,
		_ backend, d *table, p, _ process) {
		p.want(t, 1, "a", nil)
		d.fail(errBroken)
		time.Sleep(time.Minute)
		for since := time.Now(); time.Since(since) < 59*time.Second; time.Sleep(300 * time.Millisecond) {
			p.want(t, 1, "a", nil)
		}
		time.Sleep(2 * time.Second)
		if _, err := p.Get(t.Context(), 1); !errors.Is(err, errBroken) {
			t.Error(err)
		}
	})
}

// wantSoon is want for a read that must end within a minute, which takes no time in a bubble.
func (p process) wantSoon(t *testing.T, key int, row string, wantErr error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if got, err := p.Get(ctx, key); got != row || !sameError(err, wantErr) {
		t.Fatalf("Get(%d) = %q, %v; want %q, %v", key, got, err, row, wantErr)
	}
}

// With SoftTimeout, a caller that finds a stale value waits for a fresh one, but not longer.
func TestSoftTimeout(t *testing.T) {
	lo := livesWith(func(o *cacheaside.LoaderOptions) { o.SoftTimeout = 50 * time.Millisecond })
	bubble(t, noMemory, lo, func(t *testing.T, _ backend, d *table, p, q process) {
		p.wantSoon(t, 1, "a", nil)
		var takes time.Duration
		d.mu.Lock()
		d.read = func(context.Context, int64) error { time.Sleep(takes); return nil }
		d.mu.Unlock()

		// A fast load: all callers get the new value.
		takes = 20 * time.Millisecond
		d.write(1, "b")
		time.Sleep(61 * time.Second)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				began := time.Now()
				[]process{p, q}[i%2].wantSoon(t, 1, "b", nil)
				if d := time.Since(began); d < takes || d > lo.SoftTimeout {
					t.Errorf("the read takes %v", d)
				}
			})
		}
		all.Wait()

		// A slow load: callers get the old value after SoftTimeout, and the result is stored later.
		takes = 2 * time.Second
		d.write(1, "c")
		time.Sleep(61 * time.Second)
		for i := range 20 {
			all.Go(func() {
				began := time.Now()
				[]process{p, q}[i%2].wantSoon(t, 1, "b", nil)
				passes(t, began, lo.SoftTimeout)
			})
		}
		all.Wait()
		time.Sleep(2 * time.Second)
		p.wantSoon(t, 1, "c", nil)
		q.wantSoon(t, 1, "c", nil)
		if n := d.loads.Load(); n != 3 {
			t.Errorf("%d loads", n)
		}

		// The load fails: callers get the old value, and it is not retried immediately.
		takes = 0
		d.fail(errBroken)
		time.Sleep(61 * time.Second)
		p.wantSoon(t, 1, "c", nil)
		q.wantSoon(t, 1, "c", nil)

		// The value is invalidated during the wait: then callers wait for the new value.
		d.fail(nil)
		reached, resume := d.pause(d.loads.Load() + 1)
		defer resume()
		time.Sleep(2 * time.Second)
		get := later(func() (string, error) { return p.Get(context.Background(), 1) })
		reach(t, reached, "the load") // the load has read the row
		d.write(1, "d")
		if err := q.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if v, err := get(t); v != "d" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
		resume()
		synctest.Wait()
		q.wantSoon(t, 1, "d", nil)
		if s := p.Stats(); s.Refused != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A background reload makes no stale set: after it has read the row, an invalidation comes. (Other
// cases are in stale_set_test.go.)
func TestStaleSetRenewal(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		d := newTable(map[int]string{1: "old"})
		lo := &cacheaside.LoaderOptions{TTL: 50 * time.Millisecond, StaleFor: time.Hour, Jitter: -1, EarlyRefresh: -1}
		p, q := start(t, b, d, steadyNoMemory, lo), start(t, b, d, steadyNoMemory, lo)
		p.want(t, 1, "old", nil)
		reached, resume := d.pause(2)
		defer resume()
		testenv.Eventually(t, "the end of the TTL", func() bool {
			p.want(t, 1, "old", nil)
			return p.Stats().Stale > 0
		})
		reach(t, reached, "the reload")
		d.write(1, "new")
		if err := q.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		q.want(t, 1, "new", nil)
		stamp := b.admin.Get(t.Context(), redisKey(1)).Val()
		resume()
		testenv.Eventually(t, "the refusal of what was reloaded", func() bool { return p.Stats().Refused > 0 })
		if after := b.admin.Get(t.Context(), redisKey(1)).Val(); after != stamp {
			t.Error("the entry is replaced")
		}
		p.want(t, 1, "new", nil)
		q.want(t, 1, "new", nil)
		if n := p.Stats().Refused; n != 1 {
			t.Errorf("%d fills are refused, want 1", n)
		}
	})
}

// A batch finds many stale keys, which are reloaded by one call.
func TestRenewalOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newShelf(200)
		lo := lives
		p := startMany(t, b.client(t), d, rarePolls, &lo)
		defer p.cache.Close()
		want, err := p.GetMany(t.Context(), upTo(100))
		if err != nil || len(want) != 100 {
			t.Fatal(len(want), err)
		}
		calls := p.Stats().LoadCalls
		time.Sleep(61 * time.Second)
		got, err := p.GetMany(t.Context(), upTo(150))
		if err != nil || len(got) != 150 {
			t.Fatal(len(got), err)
		}
		synctest.Wait()
		if s := p.Stats(); s.LoadCalls != calls+2 || s.BackgroundRefreshes != 100 || s.Stale != 100 || s.Loads != 250 {
			t.Errorf("%+v", s)
		}
		time.Sleep(30 * time.Second)
		if _, err := p.GetMany(t.Context(), upTo(150)); err != nil || p.Stats().Loads != 250 {
			t.Errorf("%v, %+v", err, p.Stats())
		}
	})
}

// Without Redis, the memory of the process has both lives.
func TestStaleWithoutRedis(t *testing.T) {
	for _, soft := range []time.Duration{0, 50 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			d := newTable(map[int]string{1: "a"})
			p := startOn(t, nil, d, steady, livesWith(func(o *cacheaside.LoaderOptions) { o.SoftTimeout = soft }))
			defer p.cache.Close()
			p.want(t, 1, "a", nil)
			p.want(t, 2, "", cacheaside.ErrNotFound)
			p.settle()
			d.write(1, "b")
			time.Sleep(61 * time.Second)
			reached, resume := d.pause(3)
			defer resume()
			var all sync.WaitGroup
			began := time.Now()
			for range 20 {
				all.Go(func() { p.want(t, 1, "a", nil) })
			}
			all.Wait()
			passes(t, began, soft)
			reach(t, reached, "the load")
			resume()
			synctest.Wait()
			p.settle()
			p.want(t, 1, "b", nil)
			if n := d.loads.Load(); n != 3 {
				t.Errorf("%d loads", n)
			}
			d.fail(errBroken)
			time.Sleep(61 * time.Second)
			for range 20 {
				p.want(t, 1, "b", nil)
				time.Sleep(100 * time.Millisecond)
			}
			if err := p.Invalidate(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if v, err := p.Get(t.Context(), 1); !errors.Is(err, errBroken) {
				t.Errorf("%q, %v", v, err)
			}
			d.fail(nil)
			d.write(2, "c")
			time.Sleep(time.Minute) // beyond twice NullTTL
			p.want(t, 2, "c", nil)
			if s := p.Stats(); s.Stale == 0 || s.BackgroundRefreshes == 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

type tenant struct{}

// A background reload has no context values of the request that started it, but ends with the
// cache.
func TestRenewalContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		c, err := cacheaside.New(b.client(t), &rarePolls)
		if err != nil {
			t.Fatal(err)
		}
		seen := make(chan any, 2)
		causes := make(chan error, 1)
		lo := lives
		l, err := cacheaside.NewLoader(c, "row", func(ctx context.Context, key int) (int, error) {
			seen <- ctx.Value(tenant{})
			if len(seen) == 2 {
				<-ctx.Done()
				causes <- context.Cause(ctx)
			}
			return key, nil
		}, &lo)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), tenant{}, "one"))
		get := func() {
			if v, err := l.Get(ctx, 7); v != 7 || err != nil {
				t.Fatal(v, err)
			}
		}
		get()
		time.Sleep(61 * time.Second)
		get()
		cancel()
		synctest.Wait()
		c.Close()
		if first, second := <-seen, <-seen; first != "one" || second != nil {
			t.Error(first, second)
		}
		if err := <-causes; !errors.Is(err, cacheaside.ErrClosed) {
			t.Error(err)
		}
		if n := b.admin.Get(t.Context(), "cacheaside:row:1:{7}"); errors.Is(n.Err(), redis.Nil) {
			t.Error("the entry is missing")
		}
	})
}

// While the circuit breaker is open, stale values are served. Refused reloads cost little.
func TestStaleWhileTheBreakerIsOpen(t *testing.T) {
	lo := livesWith(func(o *cacheaside.LoaderOptions) {
		o.ErrorTTL, o.BreakFor, o.StaleFor = 50*time.Millisecond, time.Hour, 24*time.Hour
	})
	bubble(t, rarePolls, lo, func(t *testing.T, _ backend, d *table, p, _ process) {
		p.want(t, 1, "a", nil)
		time.Sleep(61 * time.Second)
		d.fail(errBroken)
		for !readerOf(p.Loader).Source.Broken() { // until it is open
			p.want(t, 1, "a", nil)
			time.Sleep(10 * time.Millisecond)
		}
		loads, refused := d.loads.Load(), p.Stats().Unavailable
		for range 2000 { // 10 s
			p.want(t, 1, "a", nil)
			time.Sleep(5 * time.Millisecond)
		}
		if n := d.loads.Load(); n != loads {
			t.Errorf("%d loads", n-loads)
		}
		if n := p.Stats().Unavailable - refused; n > 1 { // no reload is tried without a chance
			t.Errorf("%d tries in 10 s", n)
		}
		d.fail(nil)
		d.write(1, "b")
		time.Sleep(time.Hour)
		p.want(t, 1, "a", nil)
		synctest.Wait()
		p.want(t, 1, "b", nil)
	})
}

// A key whose reload was refused by the limits rests, because each try would cost a claim and its
// release.
func TestRefusedReloadsAreNotRetriedAtOnce(t *testing.T) {
	o := noMemory
	o.MaxLoads, o.MaxQueue = 1, -1
	bubble(t, o, &lives, func(t *testing.T, _ backend, d *table, p, _ process) {
		p.want(t, 1, "a", nil)
		p.want(t, 2, "", cacheaside.ErrNotFound)
		reached, resume := d.pause(3)
		defer resume()
		time.Sleep(61 * time.Second)
		p.want(t, 2, "", cacheaside.ErrNotFound) // its reload takes the only place
		reach(t, reached, "the load")
		for range 1000 { // a second
			p.want(t, 1, "a", nil)
			time.Sleep(time.Millisecond)
		}
		if n := p.Stats().Unavailable; n < 5 || n > 11 {
			t.Errorf("%d tries in a second", n)
		}
		resume()
	})
}

// A caller does not wait for a fresh value that cannot come, because its load has just failed or is
// not allowed.
func TestSoftTimeoutSkipsImpossibleReloads(t *testing.T) {
	soft := func(o *cacheaside.LoaderOptions) {
		o.SoftTimeout, o.ErrorTTL, o.LoadTimeout = 5*time.Second, 20*time.Second, 100*time.Millisecond
	}
	at := func(t *testing.T, p process, most time.Duration) {
		t.Helper()
		for range 10 {
			began := time.Now()
			p.want(t, 1, "a", nil)
			if d := time.Since(began); d > most {
				t.Errorf("the read takes %v", d)
			}
		}
	}
	o := noMemory
	o.QueueTimeout = 100 * time.Millisecond
	bubble(t, o, livesWith(soft), func(t *testing.T, _ backend, d *table, p, q process) {
		p.want(t, 1, "a", nil)
		d.fail(errBroken)
		time.Sleep(61 * time.Second)
		p.want(t, 1, "a", nil)
		at(t, p, 0)
		at(t, q, 0)

		// The reload never ends: callers wait for SoftTimeout, although that is longer than
		// LoadTimeout.
		d.fail(nil)
		time.Sleep(21 * time.Second)
		forever := make(chan struct{})
		defer close(forever)
		d.mu.Lock()
		d.read = func(context.Context, int64) error { <-forever; return nil }
		d.mu.Unlock()
		p.want(t, 1, "a", nil)
	})
	synctest.Test(t, func(t *testing.T) { // without Redis
		d := newTable(map[int]string{1: "a"})
		p := startOn(t, nil, d, steady, livesWith(soft))
		defer p.cache.Close()
		p.want(t, 1, "a", nil)
		p.settle()
		d.fail(errBroken)
		time.Sleep(61 * time.Second)
		p.want(t, 1, "a", nil)
		at(t, p, 0)
		if s := p.Stats(); s.BackgroundRefreshes != 1 {
			t.Errorf("%+v", s)
		}
	})
	o.MaxLoads, o.MaxQueue = 1, -1 // its reload is refused
	bubble(t, o, livesWith(func(o *cacheaside.LoaderOptions) { soft(o); o.LoadTimeout = time.Hour }),
		func(t *testing.T, _ backend, d *table, p, _ process) {
			p.want(t, 1, "a", nil)
			reached, resume := d.pause(2)
			defer resume()
			busy := later(func() (string, error) { return p.Get(context.Background(), 2) })
			reach(t, reached, "the load")
			time.Sleep(61 * time.Second)
			at(t, p, 20*time.Millisecond) // after some tries, the refusal is known
			resume()
			busy(t)
		})
}

// An entry that another process has stored for longer than this one's options allow is loaded
// again.
func TestStaleOfOtherOptions(t *testing.T) {
	for staleFor, after := range map[time.Duration]time.Duration{-1: 0, 10 * time.Minute: 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{1: "a"})
			p := start(t, b, d, rarePolls, &lives)
			q := start(t, b, d, rarePolls, livesWith(func(o *cacheaside.LoaderOptions) { o.StaleFor = staleFor }))
			defer p.cache.Close()
			defer q.cache.Close()
			p.want(t, 1, "a", nil)
			d.write(1, "b")
			time.Sleep(time.Minute + after + 10*time.Second)
			q.want(t, 1, "b", nil)
			p.want(t, 1, "b", nil)
			if n := d.loads.Load(); n != 2 {
				t.Errorf("%d loads", n)
			}
		})
	}
}

// TestRefreshDoesNotExtendTheTTL hangs the database during an early refresh. Without a stale life,
// the value is not served after its TTL, although the claim of the refresh keeps its key in Redis.
// Readers wait for the refresh.
func TestRefreshDoesNotExtendTheTTL(t *testing.T) {
	lo := &cacheaside.LoaderOptions{TTL: 2 * time.Second, StaleFor: -1, Jitter: -1, EarlyRefresh: 100,
		LoadTimeout: 10 * time.Second}
	bubble(t, noMemory, lo, func(t *testing.T, _ backend, d *table, p, q process) {
		d.read = func(ctx context.Context, n int64) error {
			if n == 1 {
				// The cost, which determines the time of early refreshes.
				time.Sleep(100 * time.Millisecond)
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		p.want(t, 1, "a", nil)
		stored := time.Now()
		for time.Since(stored) < 2*time.Second {
			q.want(t, 1, "a", nil)
			time.Sleep(50 * time.Millisecond)
		}
		if n := d.loads.Load(); n != 2 {
			t.Fatalf("%d loads, no early refresh", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if v, err := p.Get(ctx, 1); v != "" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after its load: %q, %v", time.Since(stored), v, err)
		}
		if n := d.loads.Load(); n != 2 {
			t.Errorf("%d loads: a second one runs next to the refresh", n)
		}
	})
}

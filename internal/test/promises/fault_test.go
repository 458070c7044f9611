package promises

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Loads that panic, exit their goroutine, ignore their context or are abandoned; callers that
// leave; Close; and failures of Redis.

func TestPanicAndGoexit(t *testing.T) {
	ends := map[string]func(){
		"panic":      func() { panic("boom") },
		"panic(nil)": func() { panic(nil) },
		"error":      func() { panic(fmt.Errorf("wrapped: %w", context.DeadlineExceeded)) },
		"Goexit":     runtime.Goexit,
	}
	each(t, func(t *testing.T, b backend) {
		for name, end := range ends {
			t.Run(name, func(t *testing.T) {
				b.admin.Del(t.Context(), redisKey(1))
				d := newTable(map[int]string{1: "one"})
				d.read = func(context.Context, int64) error { end(); return nil }
				p := start(t, b, d, patient, &cacheaside.LoaderOptions{ErrorTTL: time.Hour})
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() {
						_, err := p.Get(t.Context(), 1)
						pe, ok := errors.AsType[*cacheaside.PanicError](err)
						if !ok && !errors.Is(err, cacheaside.ErrLoadFailed) {
							t.Errorf("%v", err)
						}
						if ok && (pe.Goexit != (name == "Goexit") ||
							!strings.Contains(string(pe.Stack), "fault_test.go")) {
							t.Errorf("%+v\n%s", pe, pe.Stack)
						}
					})
				}
				wg.Wait()
				if n := d.loads.Load(); n != 1 {
					t.Errorf("%d loads", n)
				}
				d.read = nil
				// Ends the remembered failure; the key is not blocked.
				if err := p.Invalidate(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				p.want(t, 1, "one", nil)
				if got, err := p.Refresh(t.Context(), 1); got != "one" || err != nil {
					t.Error(got, err)
				}
			})
		}
	})
}

// badText panics in a round's goroutine when it is encoded or decoded.
type badText bool

func (b badText) MarshalJSON() ([]byte, error) {
	if b {
		runtime.Goexit()
	}
	panic("encode")
}

// A codec that panics leaves the key free and no lease behind. A marker informs the fleet.
func TestCodecPanics(t *testing.T) {
	for _, exit := range []bool{false, true} {
		_, b := embedded(t)
		c, err := cacheaside.New(b.client(t), &patient)
		if err != nil {
			t.Fatal(err)
		}
		loads := 0
		l, err := cacheaside.NewLoader(c, "bad",
			func(context.Context, string) (badText,
				error) {
				loads++
				return badText(exit), nil
			}, &cacheaside.LoaderOptions{ErrorTTL: time.Hour, AllowLoss: true})
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Get(t.Context(), "1")
		if p, ok := errors.AsType[*cacheaside.PanicError](err); !ok || p.Goexit != exit {
			t.Errorf("%v", err)
		}
		if _, err = l.Get(t.Context(), "1"); !errors.Is(err, cacheaside.ErrLoadFailed) || loads != 1 {
			t.Error(err, loads)
		}
		c.Close()
	}
}

// panicsInDecode panics when it is decoded, until it is disarmed.
type panicsInDecode struct{ Name string }

var armed atomic.Bool

func (e *panicsInDecode) UnmarshalJSON(b []byte) error {
	if armed.Load() {
		panic("decode")
	}
	return json.Unmarshal(b, &e.Name)
}

func (e panicsInDecode) MarshalJSON() ([]byte, error) { return json.Marshal(e.Name) }

// An entry whose decoding panics counts as undecodable: it is a counted miss and is replaced. It
// does not cause errors until it expires.
func TestDecodingPanics(t *testing.T) {
	_, b := embedded(t)
	c, err := cacheaside.New(b.client(t), &noMemory)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	load := func(context.Context, int) (panicsInDecode, error) { return panicsInDecode{"x"}, nil }
	l, err := cacheaside.NewLoader(c, "panicsInDecode", load, nil)
	if err != nil {
		t.Fatal(err)
	}
	armed.Store(true)
	for range 3 {
		if v, err := l.Get(t.Context(), 1); err != nil || v.Name != "x" {
			t.Fatal(v, err)
		}
	}
	armed.Store(false)
	if v, err := l.Get(t.Context(), 1); err != nil || v.Name != "x" {
		t.Fatal(v, err)
	}
	if s := l.Stats(); s.Loads != 3 || s.Undecodable != 2 || s.RedisHits != 1 {
		t.Errorf("%+v", s)
	}
}

// A long entry whose decoding calls runtime.Goexit ends its own read, and is not fetched
// repeatedly.
func TestGoexitInALongEntry(t *testing.T) {
	_, b := embedded(t)
	c, err := cacheaside.New(b.client(t), &noMemory)
	noError(t, err)
	defer c.Close()
	long := leaving{strings.Repeat("x", 1<<17)}
	l, err := cacheaside.NewLoader(c, "leaving", func(context.Context, int) (leaving, error) { return long, nil }, nil)
	noError(t, err)
	get := func() (leaving, error) { return l.Get(t.Context(), 1) }
	if v, err := get(); v != long || err != nil {
		t.Fatal(err)
	}
	leaves.Store(2) // it is not retried
	_, err = get()
	leaves.Store(0)
	if p, ok := errors.AsType[*cacheaside.PanicError](err); !ok || !p.Goexit {
		t.Error(err)
	}
	if v, err := get(); v != long || err != nil {
		t.Error(err)
	}
}

// leaving calls runtime.Goexit when it is decoded, a limited number of times.
type leaving struct{ Name string }

var leaves atomic.Int64

func (l *leaving) UnmarshalJSON(b []byte) error {
	if leaves.Add(-1) >= 0 {
		runtime.Goexit()
	}
	return json.Unmarshal(b, &l.Name)
}

func (l leaving) MarshalJSON() ([]byte, error) { return json.Marshal(l.Name) }

// The panic of a load is logged once, without the error texts of loads that called it.
func TestPanicOfAnotherLoader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &testenv.Log{}
		c, err := cacheaside.NewLocal(&cacheaside.Options{Logger: log.Logger()})
		noError(t, err)
		defer c.Close()
		inner, err := cacheaside.NewLoader(c, "inner",
			func(context.Context, string) (string, error) { panic("the value") }, nil)
		noError(t, err)
		outer, err := cacheaside.NewLoader(c, "outer", func(ctx context.Context, key string) (string, error) {
			_, err := inner.Get(ctx, key)
			return "", fmt.Errorf("the profile of %s: %w", key, err)
		}, nil)
		noError(t, err)
		if _, err := outer.Get(t.Context(), "alice"); err == nil {
			t.Error("no error")
		}
		log.Has(t,
			`level=WARN msg="cacheaside: a load has panicked" loader=inner error="the load panicked with a string"`)
	})
}

// A load that ignores its context is abandoned at its deadline: its callers get ErrLoadTimeout, the
// fleet a failure marker, and the next load begins while it still runs.
func TestLoadIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "one"})
		release := make(chan struct{})
		d.read = func(_ context.Context, n int64) error {
			if n == 1 {
				<-release
			}
			return nil
		}
		p := start(t, b, d, patient, &cacheaside.LoaderOptions{LoadTimeout: 5 * time.Second, ErrorTTL: time.Second})
		defer p.cache.Close()
		began := time.Now()
		p.want(t, 1, "", cacheaside.ErrLoadTimeout)
		if took := time.Since(began); took < 5*time.Second || took > 5*time.Second+10*time.Millisecond {
			t.Error("the callers wait for", took)
		}
		p.want(t, 1, "", cacheaside.ErrLoadFailed)
		time.Sleep(time.Second)
		p.want(t, 1, "one", nil)
		close(release)
		if s := p.Stats(); s.LoadsLeft != 1 || s.LoadErrors != 1 || s.Loads != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// A load that respects its context ends with it, with the same error.
func TestLoadTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "one"})
		d.read = func(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() }
		p := start(t, b, d, patient, &cacheaside.LoaderOptions{LoadTimeout: 5 * time.Second})
		defer p.cache.Close()
		p.want(t, 1, "", cacheaside.ErrLoadTimeout)
		p.want(t, 1, "", cacheaside.ErrLoadFailed)
	})
}

// The leader of 100 waiters is cancelled: it returns immediately, and the others get the value of
// the same load.
func TestCancelledLeader(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		d := newTable(map[int]string{1: "one"})
		reached, resume := d.pause(1)
		p := start(t, b, d, patient, nil)
		ctx, cancel := context.WithCancel(t.Context())
		leader := later(func() (string, error) { return p.Get(ctx, 1) })
		reach(t, reached, "the load")
		var waiters []func(testing.TB) (string, error)
		for range 100 {
			waiters = append(waiters, later(func() (string, error) { return p.Get(t.Context(), 1) }))
		}
		// A later caller does not keep the leader's round running: its load stops and the next one
		// begins. To give the leader company in its round, start a second round whose first caller
		// leaves.
		cancel()
		if _, err := leader(t); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		resume()
		for _, w := range waiters {
			wantResult(t, w, "one")
		}
	})
}

// The first caller of a round leaves: the others get the same load.
func TestFirstCallerLeaves(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "one"})
	first, resumeFirst := d.pause(1)
	second, resumeSecond := d.pause(2)
	p := start(t, b, d, noMemory, nil)
	opening := later(func() (string, error) { return p.Get(t.Context(), 1) })
	reach(t, first, "the first load")
	ctx, cancel := context.WithCancel(t.Context())
	leader := later(func() (string, error) { return p.Get(ctx, 1) }) // waits for the second round
	waitFor(t, func() bool { return readerOf(p.Loader).Flights.Plain.Waiting("1") == 1 })
	follower := later(func() (string, error) { return p.Get(t.Context(), 1) })
	waitFor(t, func() bool { return readerOf(p.Loader).Flights.Plain.Waiting("1") == 2 })
	b.admin.Del(t.Context(), redisKey(1)) // so that the second round loads too
	resumeFirst()
	reach(t, second, "the second load")
	cancel()
	if _, err := leader(t); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	resumeSecond()
	wantResult(t, opening, "one")
	wantResult(t, follower, "one")
	if n := d.loads.Load(); n != 2 {
		t.Errorf("%d loads", n)
	}
}

// When the last caller has left, the load's context ends and its lease is released immediately,
// without a failure marker.
func TestAbandonedLoad(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		d := newTable(map[int]string{1: "one"})
		began, stopped := make(chan struct{}), make(chan error, 1)
		d.read = func(ctx context.Context, n int64) error {
			if n > 1 {
				return nil
			}
			close(began)
			<-ctx.Done()
			stopped <- ctx.Err()
			return ctx.Err()
		}
		o := patient
		o.LeaseTTL = time.Minute // so that it does not expire
		p := start(t, b, d, o, &cacheaside.LoaderOptions{LoadTimeout: time.Minute, ErrorTTL: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		got := later(func() (string, error) { return p.Get(ctx, 1) })
		reach(t, began, "the load")
		cancel()
		if _, err := got(t); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := testenv.Receive(t, "the end of a load that goes on for nobody", stopped); !errors.Is(err,
			context.Canceled) {
			t.Error(err)
		}
		// No lease is left.
		waitFor(t, func() bool { return b.admin.Exists(t.Context(), redisKey(1)).Val() == 0 })
		p.want(t, 1, "one", nil)
		if s := p.Stats(); s.Abandoned != 1 || s.FailedByMark != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Every end of a load releases the lease: another process loads immediately, without waiting for
// the lease to expire.
func TestLeaseIsReleased(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "one"})
	reached, resume := d.pause(1)
	p := start(t, b, d, patient, nil)
	q := start(t, b, d, patient, nil)
	got := later(func() (string, error) { return p.Get(t.Context(), 1) })
	reach(t, reached, "the load")
	closed := later(func() (any, error) { return nil, p.cache.Close() })
	if _, err := got(t); !errors.Is(err, cacheaside.ErrClosed) {
		t.Error(err)
	}
	resume()
	closed(t)
	if s := b.admin.Get(t.Context(), redisKey(1)).Val(); strings.HasPrefix(s, "\xa1") {
		t.Error("the lease is not released")
	}
	q.want(t, 1, "one", nil)
}

// Close during loads: callers get ErrClosed immediately, contexts end, and no goroutine is left.
func TestCloseDuringLoads(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		d := newTable(nil)
		d.read = func(ctx context.Context, _ int64) error { <-ctx.Done(); return ctx.Err() }
		p := start(t, b, d, patient, nil)
		var callers []func(testing.TB) (string, error)
		for i := range 20 {
			callers = append(callers, later(func() (string, error) { return p.Get(t.Context(), i%5) }))
			callers = append(callers, later(func() (string, error) { return p.Refresh(t.Context(), i%5+5) }))
		}
		waitFor(t, func() bool { return d.loads.Load() == 10 })
		closed := later(func() (any, error) { return nil, p.cache.Close() })
		for _, c := range callers {
			if _, err := c(t); !errors.Is(err, cacheaside.ErrClosed) {
				t.Error(err)
			}
		}
		closed(t)
		p.want(t, 1, "", cacheaside.ErrClosed)
		if _, err := p.Refresh(t.Context(), 1); !errors.Is(err, cacheaside.ErrClosed) {
			t.Error(err)
		}
		if err := p.Invalidate(t.Context(), 1); !errors.Is(err, cacheaside.ErrClosed) {
			t.Error(err)
		}
		if _, err := cacheaside.NewLoader(p.cache, "late", d.load, nil); !errors.Is(err, cacheaside.ErrClosed) {
			t.Error(err)
		}
		for key := range 10 {
			if n := b.admin.Exists(t.Context(), redisKey(key)).Val(); n != 0 {
				t.Errorf("the lease of key %d is not released", key)
			}
		}
		p.cache.Close()
	})
}

// A caller that waits for another process's load polls until that load ends, by value, failure or
// death.
func TestLongLoadKeepsItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "one"})
		d.read = func(context.Context, int64) error { time.Sleep(20 * time.Second); return nil }
		lo := &cacheaside.LoaderOptions{LoadTimeout: time.Minute}
		p, q := start(t, b, d, patient, lo), start(t, b, d, patient, lo)
		defer p.cache.Close()
		defer q.cache.Close()
		first := later(func() (string, error) { return p.Get(context.Background(), 1) })
		q.want(t, 1, "one", nil)
		first(t)
		if n := d.loads.Load(); n != 1 {
			t.Errorf("%d loads", n)
		}
		d.write(1, "two")
		began := time.Now() // a long refresh keeps its claim
		refreshed := later(func() (string, error) { return p.Refresh(context.Background(), 1) })
		time.Sleep(time.Second)
		if v, err := q.Refresh(t.Context(), 1); v != "two" || err != nil {
			t.Error(v, err)
		}
		refreshed(t)
		if took := time.Since(began); took < 40*time.Second {
			t.Errorf("two concurrent loads: both end within %v", took)
		}
		if most := d.most.Load(); most > 1 {
			t.Errorf("%d concurrent loads", most)
		}
	})
}

// The claim of a refresh outlives its entry. A reader that comes after the end of the entry gets
// the result of the refresh. It gets neither the expired value nor a second load.
func TestRefreshOutlivesItsEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "one"})
		// An early refresh is likely after such a slow load.
		lo := &cacheaside.LoaderOptions{TTL: 5 * time.Second, Jitter: -1, StaleFor: -1, EarlyRefresh: -1}
		p, q := start(t, b, d, noMemory, lo), start(t, b, d, noMemory, lo)
		defer p.cache.Close()
		defer q.cache.Close()
		p.want(t, 1, "one", nil)
		time.Sleep(4 * time.Second)
		d.write(1, "two")
		reached, resume := d.pause(2)
		got := later(func() (string, error) { return p.Refresh(context.Background(), 1) })
		<-reached
		time.Sleep(4 * time.Second) // past its end
		waits := later(func() (string, error) { return q.Get(context.Background(), 1) })
		synctest.Wait()
		resume()
		wantResult(t, got, "two")
		wantResult(t, waits, "two")
		q.want(t, 1, "two", nil)
		if n := d.loads.Load(); n != 2 {
			t.Errorf("%d loads", n)
		}
	})
}

// While Redis is unreachable, a process runs one load of a key at a time, for Get and Refresh.
func TestOneLoadPerProcessWithoutRedis(t *testing.T) {
	d := newTable(map[int]string{1: "one"})
	reached, resume := d.pause(1)
	p := startOn(t, nil, d, patient, nil)
	first := later(func() (string, error) { return p.Get(t.Context(), 1) })
	reach(t, reached, "the first load")
	second := later(func() (string, error) { return p.Refresh(t.Context(), 1) })
	third := later(func() (string, error) { return p.Get(t.Context(), 1) })
	waitFor(t, func() bool {
		return readerOf(p.Loader).Flights.Refreshes.Waiting("1") >= 0 &&
			readerOf(p.Loader).Flights.Plain.Waiting("1") == 1
	})
	time.Sleep(20 * time.Millisecond)
	if n := d.loads.Load(); n != 1 {
		t.Errorf("%d concurrent loads", n)
	}
	resume()
	wantResult(t, first, "one")
	wantResult(t, second, "one")
	wantResult(t, third, "one")
}

// Redis hangs: its connections stay open without replies. Reads load from the database after
// RedisTimeout, callers' deadlines are kept, and Invalidate and Refresh return errors. After the
// hang everything works again.
func TestRedisHangs(t *testing.T) {
	b := realBackend(t)
	t.Run("the client has go-redis' defaults", func(t *testing.T) {
		o := *b.client(t).(*redis.Client).Options()
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = 0, 0, 0, 0
		rdb := redis.NewClient(&o)
		t.Cleanup(func() { rdb.Close() })
		testRedisHangs(t, b, rdb)
	})
	t.Run("the client keeps deadlines", func(t *testing.T) { testRedisHangs(t, b, keepsDeadlines(t, b)) })
}

// outlasts is a Redis timeout that callers do not wait for, even on a busy machine.
var outlasts = testenv.Hang / 5

// soon fails if a call took as long as the timeout that it must not wait for. In acceptance runs
// its delay has a bound too.
func soon(t testing.TB, what string, late, bound time.Duration) {
	t.Helper()
	t.Logf("%s: %v late", what, late.Round(10*time.Microsecond))
	if late >= outlasts || accepting && late > bound {
		t.Errorf("%s is %v late", what, late)
	}
}

// keepsDeadlines returns a client of b with ContextTimeoutEnabled.
func keepsDeadlines(t testing.TB, b backend) *redis.Client {
	o := *b.client(t).(*redis.Client).Options()
	o.ContextTimeoutEnabled = true
	rdb := redis.NewClient(&o)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func testRedisHangs(t *testing.T, b backend, rdb redis.UniversalClient) {
	flushAll(t, b)
	d := newTable(map[int]string{1: "one", 2: "two", 3: "three", 4: "four"})
	var processes []process // none has noticed the hang
	for _, timeout := range []time.Duration{200 * time.Millisecond, 2 * outlasts, 2 * outlasts, 2 * outlasts,
		outlasts * 5 / 4} {
		p := startOn(t, rdb, d, cacheaside.Options{RedisTimeout: timeout, ReadTimeout: timeout, MemoryBytes: -1}, nil)
		p.want(t, 1, "one", nil)
		processes = append(processes, p)
	}
	p, q, lone, many, writer := processes[0], processes[1], processes[2], processes[3], processes[4]
	b.server.Pause()
	defer b.server.Resume()

	// Cancelled, without a deadline: the first caller reads on its own goroutine if the client
	// allows that.
	for _, key := range []int{1, 2} {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		time.AfterFunc(50*time.Millisecond, cancel)
		if _, err := q.Get(ctx, key); !errors.Is(err, context.Canceled) {
			t.Error("Get:", err)
		}
		soon(t, "a Get that was cancelled", time.Since(began)-50*time.Millisecond, 20*time.Millisecond*slack)
	}
	for _, key := range []int{1, 2, 3, 4} { // on the pool's connections and on new ones
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		began := time.Now()
		_, err := q.Get(ctx, key)
		soon(t, "a Get beyond its deadline", time.Since(began)-50*time.Millisecond, 20*time.Millisecond*slack)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error("Get:", err)
		}
	}
	for name, f := range map[string]func(context.Context) error{
		"a lone Get": func(ctx context.Context) error { _, err := lone.Get(ctx, 5); return err },
		"GetMany":    func(ctx context.Context) error { _, err := many.GetMany(ctx, []int{6, 7}); return err },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		time.AfterFunc(10*time.Millisecond, cancel)
		if err := f(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		soon(t, name+" that was cancelled", time.Since(began)-10*time.Millisecond, 20*time.Millisecond*slack)
	}
	began := time.Now()
	p.want(t, 2, "two", nil) // while Redis hangs
	soon(t, "what the database answers", time.Since(began)-200*time.Millisecond, 300*time.Millisecond*slack)
	for name, f := range map[string]func(context.Context, process) error{
		"Invalidate": func(ctx context.Context, p process) error { return p.Invalidate(ctx, 1) },
		"Refresh":    func(ctx context.Context, p process) error { _, err := p.Refresh(ctx, 1); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		began := time.Now()
		err := f(ctx, writer)
		soon(t, name+" beyond its deadline", time.Since(began)-50*time.Millisecond, 20*time.Millisecond*slack)
		cancel()
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if err := f(t.Context(), p); !errors.Is(err, cacheaside.ErrRedis) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := p.Stats(); s.RedisErrors == 0 || s.Unvalidated == 0 || s.InvalidateErrors != 1 ||
		writer.Stats().InvalidateErrors != 1 {
		t.Errorf("%+v, %+v", s, writer.Stats())
	}
	d.write(1, "new")
	b.server.Resume()
	waitFor(t, func() bool { return p.Invalidate(t.Context(), 1) == nil })
	p.want(t, 1, "new", nil)
}

// Redis is killed: reads load from the database, and Fresh reads do not get values from memory.
// After a restart, it is used again and is empty.
func TestRedisKilledAndRestartedEmpty(t *testing.T) {
	b := realBackend(t)
	d := newTable(map[int]string{1: "one"})
	p := start(t, b, d, cacheaside.Options{RedisTimeout: 300 * time.Millisecond,
		ReadTimeout: 300 * time.Millisecond}, nil)
	p.want(t, 2, "", cacheaside.ErrNotFound)
	b.server.Kill()
	for i := range 3 {
		d.write(1, fmt.Sprint("row ", i))
		if got, err := p.Get(t.Context(), 1, cacheaside.Fresh); got != fmt.Sprint("row ", i) || err != nil {
			t.Error(got, err)
		}
	}
	if err := p.Invalidate(t.Context(), 1); !errors.Is(err, cacheaside.ErrRedis) {
		t.Error(err)
	}
	if _, err := p.Refresh(t.Context(), 1); !errors.Is(err, cacheaside.ErrRedis) {
		t.Error(err)
	}
	b.server.Restart(t)
	waitFor(t, func() bool { return p.Invalidate(t.Context(), 1) == nil })
	waitFor(t, func() bool { // a busy machine may consider Redis down for a while
		p.want(t, 1, "row 2", nil)
		return b.admin.Exists(t.Context(), redisKey(1)).Val() == 1
	})
	before := d.loads.Load()
	q := start(t, b, d, patient, nil)
	q.want(t, 1, "row 2", nil)
	if n := d.loads.Load(); n != before {
		t.Errorf("%d loads of rows that the other process has stored after the restart", n-before)
	}
}

// Redis is lost and comes back during a load: the value is returned, counted as unvalidated, and
// not stored.
func TestRedisLostDuringLoad(t *testing.T) {
	proxy := testenv.NewProxy(t, testenv.SharedRedis(t).Addr)
	// Commands fail immediately when the connection is cut.
	rdb := redis.NewClient(&redis.Options{
		Addr: proxy.Addr, MaxRetries: -1, DialerRetries: 1, ReadTimeout: testenv.Hang,
	})
	t.Cleanup(func() { rdb.Close() })
	d := newTable(map[int]string{1: "one"})
	reached, resume := d.pause(1)
	p := startOn(t, rdb, d, patient, nil)
	got := later(func() (string, error) { return p.Get(t.Context(), 1) })
	reach(t, reached, "the load")
	proxy.Cut()
	resume()
	wantResult(t, got, "one")
	if s := p.Stats(); s.Unvalidated != 1 || s.Refused != 0 || s.RedisErrors == 0 {
		t.Errorf("%+v", s)
	}
	proxy.Restore()
	if _, ok := readerOf(p.Loader).Remembered(1); ok {
		t.Error("the value is in memory")
	}

	// A Refresh, whose purpose is to store, returns an error.
	reached, resume = d.pause(2)
	got = later(func() (string, error) { return p.Refresh(t.Context(), 2) })
	reach(t, reached, "the load")
	proxy.Cut()
	resume()
	if _, err := got(t); !errors.Is(err, cacheaside.ErrRedis) {
		t.Error(err)
	}
}

// If Redis is full and refuses to store, reads succeed, and the failure is counted.
func TestRedisFull(t *testing.T) {
	server := testenv.StartRedis(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
	d := newTable(map[int]string{1: "one"})
	p := startOn(t, server.Client(t), d, patient, nil)
	p.want(t, 1, "one", nil)
	if s := p.Stats(); s.Unvalidated != 1 || s.RedisErrors != 1 {
		t.Errorf("%+v", s)
	}
	if err := p.Invalidate(t.Context(), 1); err != nil {
		t.Error(err)
	}
}

// A key with an unexpected type is an error of Redis. An Invalidate removes the key.
func TestUnexpectedRedisTypeIsAnError(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		b.admin.Del(t.Context(), redisKey(1))
		b.admin.RPush(t.Context(), redisKey(1), "x")
		d := newTable(map[int]string{1: "one"})
		p := start(t, b, d, noMemory, nil)
		p.want(t, 1, "one", nil)
		if s := p.Stats(); s.RedisErrors != 1 || s.Unvalidated != 1 {
			t.Errorf("%+v", s)
		}
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "one", nil)
		p.want(t, 1, "one", nil)
		if n := d.loads.Load(); n != 2 {
			t.Errorf("%d loads", n)
		}
	})
}

// A caller whose context has ended starts no load.
func TestEndedContext(t *testing.T) {
	d := newTable(map[int]string{1: "one"})
	p := startOn(t, nil, d, patient, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Get(ctx, 1); !errors.Is(err, context.Canceled) || d.loads.Load() != 0 {
		t.Error(err, d.loads.Load())
	}
}

// A load has the values of its first caller's context, but neither its deadline nor its
// cancellation.
func TestLoadContext(t *testing.T) { synctest.Test(t, testLoadContext) }

func testLoadContext(t *testing.T) {
	type name struct{}
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "x", func(ctx context.Context, _ int) (string, error) {
		deadline, _ := ctx.Deadline()
		if left := time.Until(deadline); left != 10*time.Second { // LoaderOptions.LoadTimeout
			t.Errorf("the load's deadline is in %v, want 10s", left)
		}
		s, _ := ctx.Value(name{}).(string)
		return s, nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), name{}, "caller"), time.Second)
	defer cancel()
	if v, err := l.Get(ctx, 1); v != "caller" || err != nil {
		t.Error(v, err)
	}
}

// A panic with the error of a missing row does not mean that the row is missing.
func TestPanicDoesNotMeanNotFound(t *testing.T) {
	_, b := embedded(t)
	for i, with := range []error{sql.ErrNoRows, cacheaside.ErrNotFound, fmt.Errorf("must: %w", sql.ErrNoRows)} {
		d := newTable(map[int]string{i: "one"})
		d.read = func(context.Context, int64) error { panic(with) }
		p := start(t, b, d, patient, nil)
		_, err := p.Get(t.Context(), i)
		if _, ok := errors.AsType[*cacheaside.PanicError](err); !ok || errors.Is(err, cacheaside.ErrNotFound) ||
			errors.Is(err, sql.ErrNoRows) {
			t.Errorf("%v: %v", with, err)
		}
		if s := p.Stats(); s.LoadErrors != 1 {
			t.Errorf("%+v", s)
		}
	}
}

// Ristretto's Get panics if it races with Close. Hits continue until the cache is closed, and then
// return ErrClosed.
func TestCloseDuringHits(t *testing.T) {
	times := 20
	if accepting {
		times = 200
	}
	for range times {
		c, err := cacheaside.NewLocal(&cacheaside.Options{MemoryBytes: 1 << 20}) // quick to create
		if err != nil {
			t.Fatal(err)
		}
		l, err := cacheaside.NewLoader(c, "x", func(_ context.Context, key int) (int, error) { return key, nil }, nil)
		if err != nil {
			t.Fatal(err)
		}
		l.Get(t.Context(), 1)
		partsOf(c).memory.Wait()
		var wg sync.WaitGroup
		var hits atomic.Int64
		for range 4 {
			wg.Go(func() {
				for {
					v, err := l.Get(t.Context(), 1)
					if err != nil {
						if !errors.Is(err, cacheaside.ErrClosed) {
							t.Error(err)
						}
						return
					}
					if v != 1 {
						t.Error(v)
					}
					hits.Add(1)
				}
			})
		}
		waitFor(t, func() bool { return hits.Load() > 100 })
		c.Close()
		wg.Wait()
	}
}

// A key whose marshaler panics is an error, not a panic of the caller's goroutine.
func TestKeyPanics(t *testing.T) {
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "x", func(context.Context, panickingKey) (int, error) { return 1, nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"Get": second(l.Get(t.Context(), 1)),
		"Refresh": second(l.Refresh(t.Context(), 1)), "Invalidate": l.Invalidate(t.Context(), 1)} {
		if _, ok := errors.AsType[*cacheaside.PanicError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type panickingKey int

func (panickingKey) MarshalText() ([]byte, error) { panic("the key has no text") }

func second[T any](_ T, err error) error { return err }

// A Refresh, like a Get, replaces bytes that only begin like a lease.
func TestRefreshReplacesUnknownBytes(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		for _, bytes := range []string{"\xa1junk that is no lease", "\xa1", "x", "\xe1short"} {
			b.admin.Set(t.Context(), redisKey(1), bytes, 0)
			p := start(t, b, newTable(map[int]string{1: "one"}), noMemory,
				&cacheaside.LoaderOptions{LoadTimeout: time.Second})
			if v, err := p.Refresh(t.Context(), 1); v != "one" || err != nil {
				t.Errorf("%q: %q, %v", bytes, v, err)
			}
		}
	})
}

// A full Redis refuses the marker of a failed load: the lease is released anyway.
func TestFailedLoadWhenRedisIsFull(t *testing.T) {
	server := testenv.StartRedis(t, "--maxmemory-policy", "noeviction")
	admin := server.Client(t)
	d := newTable(map[int]string{1: "one"})
	reached, resume := d.pause(1)
	broken := errors.New("broken")
	d.mu.Lock()
	paused := d.read
	d.read = func(ctx context.Context, n int64) error {
		if err := paused(ctx, n); err != nil || n > 1 {
			return err
		}
		return broken
	}
	d.mu.Unlock()
	o := patient
	o.LeaseTTL = time.Minute
	p := startOn(t, server.Client(t), d, o, nil)
	got := later(func() (string, error) { return p.Get(t.Context(), 1) })
	reach(t, reached, "the load")
	if err := admin.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	resume()
	if _, err := got(t); !errors.Is(err, broken) {
		t.Error(err)
	}
	if n := admin.Exists(t.Context(), redisKey(1)).Val(); n != 0 {
		t.Error("the lease is not released")
	}
}

// The loss of one renewal in the network does not lose the lease, even if RedisTimeout is as long
// as LeaseTTL.
func TestLostLeaseRenewalIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "one"})
		d.read = sleeps(2500 * time.Millisecond)
		p := start(t, b, d, cacheaside.Options{RedisTimeout: 2 * time.Second, ReadTimeout: 2 * time.Second,
			LeaseTTL: 2 * time.Second, MaxStaleness: time.Minute}, nil)
		defer p.cache.Close()
		got := later(func() (string, error) { return p.Get(t.Context(), 1) })
		synctest.Wait() // the load is in progress
		var renewals atomic.Int32
		b.admin.AddHook(hooked{before: func(cmd redis.Cmder) {
			if cmd.Name() == "evalsha" && renewals.Add(1) == 1 {
				time.Sleep(4 * time.Second)
			}
		}, after: func(redis.Cmder) {}})
		wantResult(t, got, "one")
		if s := p.Stats(); s.Loads != 1 || s.Refused != 0 || s.RedisErrors == 0 || renewals.Load() < 2 {
			t.Errorf("%+v, %d renewals", s, renewals.Load())
		}
	})
}

// Keys are not refreshed by themselves, so a key without readers is never loaded. A refresh has the
// context of its caller, not of the caller that first read the key.
func TestRefreshUsesItsCallersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		type from struct{}
		var seen []any
		c, err := cacheaside.New(b.client(t), &rarelyPolling)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := cacheaside.NewLoader(c, "x", func(ctx context.Context, _ int) (int, error) {
			seen = append(seen, ctx.Value(from{}))
			return 1, ctx.Err()
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		first, cancel := context.WithCancel(context.WithValue(t.Context(), from{}, "the first request"))
		if _, err := l.Get(first, 1); err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(time.Hour)
		if len(seen) != 1 {
			t.Errorf("%d loads without a read", len(seen))
		}
		if _, err := l.Get(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Refresh(context.WithValue(t.Context(), from{}, "a scheduler"), 1); err != nil {
			t.Fatal(err)
		}
		if want := "[the first request <nil> a scheduler]"; fmt.Sprint(seen) != want {
			t.Errorf("loads for %v, want %s", seen, want)
		}
	})
}

// A hanging node of a cluster affects only its own keys. Reads of other keys continue, even in the
// same batch. For its own keys, only the first few reads wait. The node is behind a proxy, so that
// the cluster does not consider it dead.
func TestClusterNodeHangs(t *testing.T) {
	c := testenv.SharedCluster(t)
	for _, keepsDeadlines := range []bool{true, false} {
		t.Run(fmt.Sprint("the client keeps deadlines: ", keepsDeadlines), func(t *testing.T) {
			t.Parallel() // they wait for the hanging node, and cache the same rows
			proxies, rdb := proxiedCluster(t, c, keepsDeadlines,
				func(o *redis.ClusterOptions) { o.ReadTimeout = testenv.Hang })
			rows := make(map[int]string)
			for key := range 200 {
				rows[key] = fmt.Sprint("row ", key)
			}
			d := newTable(rows)
			// Reads of the first process do not time out in this test; those of the second do soon.
			batches := startOn(t, rdb, d, cacheaside.Options{RedisTimeout: outlasts / 3, ReadTimeout: outlasts / 3,
				MemoryBytes: -1}, nil)
			p := startOn(t, rdb, d, noMemory, nil)
			sick, healthy := byHealth(t, p, rdb, c.Nodes[0].Addr, rows)
			for key := range rows {
				waitFor(t, func() bool { // all rows are cached, and are known to be
					before := d.loads.Load()
					_, err := p.Get(t.Context(), key)
					return err == nil && d.loads.Load() == before
				})
			}
			if found, err := batches.GetMany(t.Context(), append(slices.Clone(sick), healthy...)); err != nil ||
				len(found) != len(sick)+len(healthy) {
				t.Fatal(len(found), err)
			}
			var of sync.Map // number of loads by key
			d.loaded = func(key int) { n, _ := of.LoadOrStore(key, new(atomic.Int64)); n.(*atomic.Int64).Add(1) }
			loads := func(keys []int) (sum int64) {
				for _, key := range keys {
					if n, ok := of.Load(key); ok {
						sum += n.(*atomic.Int64).Load()
					}
				}
				return sum
			}
			proxies[c.Nodes[0].Addr].Hang(true)
			defer proxies[c.Nodes[0].Addr].Hang(false)

			keys := append(slices.Clone(healthy), sick...)
			began := time.Now()
			batch := later(func() (map[int]string, error) { return batches.GetMany(t.Context(), keys) })

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var waiting []func(testing.TB) (string, error)
			for i := range 4 {
				waiting = append(waiting, later(func() (string, error) { return p.Get(ctx, sick[i]) }))
			}
			var reads []func(testing.TB) (int, error)
			for i := range 4 {
				reads = append(reads, later(func() (int, error) { return readAll(ctx, p, healthy, rows, i) }))
			}
			for _, read := range reads {
				if n, err := read(t); n != 100 || err != nil { // while the others wait
					t.Errorf("%d reads from healthy nodes, %v", n, err)
				}
			}
			cancel()
			for _, get := range waiting {
				if _, err := get(t); !errors.Is(err, context.Canceled) {
					t.Error("a read from the node that hangs:", err)
				}
			}
			found, err := batch(t)
			if took := time.Since(began); err != nil || len(found) != len(keys) {
				t.Errorf("a batch returns %d of %d rows after %v, %v", len(found), len(keys), took, err)
			}
			if n := loads(healthy); n != 0 { // only the rows of the hanging node are unreachable
				t.Errorf("%d loads of keys of healthy nodes", n)
			}
		})
	}
}

// readAll reads cached rows a hundred times.
func readAll(ctx context.Context, p process, keys []int, rows map[int]string, from int) (n int, err error) {
	for ; n < 100 && err == nil; n++ {
		key := keys[(from+n)*7%len(keys)]
		var v string
		if v, err = p.Get(ctx, key); err == nil && v != rows[key] {
			err = errors.New("a wrong value")
		}
	}
	return n, err
}

// proxiedCluster returns a client that reaches each node of a cluster through its own proxy, and
// the proxies by the nodes' addresses.
func proxiedCluster(
	t *testing.T, c *testenv.Cluster, keepsDeadlines bool, change func(*redis.ClusterOptions),
) (map[string]*testenv.Proxy, *redis.ClusterClient) {
	t.Helper()
	proxies := make(map[string]*testenv.Proxy)
	for _, n := range c.Nodes {
		proxies[n.Addr] = testenv.NewProxy(t, n.Addr)
	}
	o := c.Options()
	o.ContextTimeoutEnabled = keepsDeadlines
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if p := proxies[addr]; p != nil {
			addr = p.Addr
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	change(o)
	rdb := redis.NewClusterClient(o)
	t.Cleanup(func() { rdb.Close() })
	return proxies, rdb
}

// byHealth separates the keys of the sick node from those of healthy nodes. It omits keys of other
// nodes whose range is partly on the sick node.
func byHealth(
	t *testing.T, p process, rdb *redis.ClusterClient, addr string, rows map[int]string,
) (sick, healthy []int) {
	at := make(map[int]bool)
	partly := make(map[int]bool)
	for key := range 2000 {
		master, err := rdb.MasterForKey(t.Context(), redisKey(key))
		if err != nil {
			t.Fatal(err)
		}
		if master.Options().Addr == addr {
			at[key], partly[partsOf(p.cache).conn.Range(redisKey(key))] = true, true
		}
	}
	for key := range rows {
		if at[key] {
			sick = append(sick, key)
		} else if !partly[partsOf(p.cache).conn.Range(redisKey(key))] {
			healthy = append(healthy, key)
		}
	}
	return sick, healthy
}

// If no server replies, go-redis' cluster client takes its own time for its first command. No
// caller waits for that.
func TestClusterHangsFromTheStart(t *testing.T) {
	proxies, rdb := proxiedCluster(t, testenv.SharedCluster(t), true,
		func(o *redis.ClusterOptions) { o.ReadTimeout = 2 * outlasts })
	rdb.ReloadState(t.Context())
	p := startOn(t, rdb, newTable(map[int]string{1: "one"}),
		cacheaside.Options{RedisTimeout: 200 * time.Millisecond, ReadTimeout: 200 * time.Millisecond}, nil)
	for _, proxy := range proxies {
		proxy.Hang(true)
		defer proxy.Hang(false)
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		began := time.Now()
		if _, err := p.Get(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		soon(t, "a Get beyond its deadline", time.Since(began)-50*time.Millisecond, 20*time.Millisecond*slack)
		cancel()
	}
	began := time.Now()
	p.want(t, 1, "one", nil)
	soon(t, "what the database answers", time.Since(began)-200*time.Millisecond,
		400*time.Millisecond+20*time.Millisecond*slack)
}

package promises

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// recordingObserver is an Observer that records its calls.
type recordingObserver struct {
	mu     sync.Mutex
	told   []string // "op loader keys within", at the start
	begun  int
	ended  int
	twice  int
	errors map[string]error // the last of each op
	took   map[string]time.Duration
}

type within struct{}

func (o *recordingObserver) Begin(ctx context.Context, op, loader string, keys int) (context.Context, func(error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begun++
	outer, _ := ctx.Value(within{}).(string)
	o.told = append(o.told, strings.TrimSpace(fmt.Sprintf("%s %s %d %s", op, loader, keys, outer)))
	began := time.Now()
	var ends atomic.Int64
	return context.WithValue(ctx, within{}, op), func(err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.ended++
		if ends.Add(1) > 1 {
			o.twice++
		}
		if o.errors == nil {
			o.errors, o.took = make(map[string]error), make(map[string]time.Duration)
		}
		o.errors[op], o.took[op] = err, time.Since(began)
	}
}

// was fails unless the observer has recorded exactly this since the previous call.
func (o *recordingObserver) was(t testing.TB, want ...string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.told, want) {
		t.Errorf("observed %q, want %q", o.told, want)
	}
	o.told = nil
}

func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		w := &recordingObserver{}
		rows := map[int]string{1: "one", 2: "two", 3: "three"}
		load := func(ctx context.Context, key int) (string, error) {
			// Nil in the process without an Observer.
			if in := ctx.Value(within{}); in != nil && in != cacheaside.OpLoad {
				t.Errorf("the load runs within %v", in)
			}
			time.Sleep(100 * time.Millisecond)
			if key == 9 {
				return "", errBroken
			}
			if v, ok := rows[key]; ok {
				return v, nil
			}
			return "", cacheaside.ErrNotFound
		}
		start := func(o *cacheaside.Options) process {
			o.RedisTimeout, o.MaxStaleness = 10*time.Second, time.Minute
			c, err := cacheaside.New(b.client(t), o)
			noError(t, err)
			l, err := cacheaside.NewLoader(c, "row", load, &cacheaside.LoaderOptions{EarlyRefresh: -1})
			noError(t, err)
			return process{l, c}
		}
		p, other := start(&cacheaside.Options{Observer: w}), start(&cacheaside.Options{})
		defer p.cache.Close()
		defer other.cache.Close()
		p.want(t, 1, "one", nil)
		w.was(t, "get row 1", "lease row 1 get", "load row 1 get")
		if w.took[cacheaside.OpLoad] != 100*time.Millisecond || w.took[cacheaside.OpGet] < 100*time.Millisecond ||
			w.errors[cacheaside.OpGet] != nil {
			t.Errorf("%v, %v", w.took, w.errors)
		}
		p.remembers(t, 1, "one")
		w.told = nil
		p.want(t, 1, "one", nil) // hits in memory are not observed
		w.was(t)
		other.want(t, 2, "two", nil)
		p.want(t, 2, "two", nil) // a hit in Redis
		w.was(t, "get row 1")
		_, err := p.GetMany(t.Context(), []int{1, 2, 3, 4})
		noError(t, err)
		got := w.told
		w.told = nil
		slices.Sort(got[1:]) // one that does not wait, and two concurrent loads
		if want := []string{"get row 2", "lease row 2 get", "load row 1 get",
			"load row 1 get"}; !slices.Equal(got, want) {
			t.Errorf("observed %q, want %q", got, want)
		}
		p.want(t, 9, "", errBroken)
		if !errors.Is(w.errors[cacheaside.OpGet], errBroken) || !errors.Is(w.errors[cacheaside.OpLoad], errBroken) ||
			w.errors[cacheaside.OpLease] != nil {
			t.Errorf("%v", w.errors)
		}
		p.want(t, 10, "", cacheaside.ErrNotFound) // not a failure of the caller or of the load
		if w.errors[cacheaside.OpGet] != nil || !errors.Is(w.errors[cacheaside.OpLoad], cacheaside.ErrNotFound) {
			t.Errorf("%v", w.errors)
		}
		w.told = nil
		_, err = p.Refresh(t.Context(), 1)
		noError(t, err)
		w.was(t, "refresh row 1", "load row 1 refresh")
		noError(t, p.Invalidate(t.Context(), 1, 2))
		noError(t, p.Expire(t.Context(), 3))
		noError(t, p.InvalidateAll(t.Context()))
		noError(t, p.cache.InvalidateKeys(t.Context(), p.Key(1), p.Key(2)))
		w.was(t, "invalidate row 2", "invalidate row 1", "invalidate row 1", "invalidate row 2")
		// The other process has received all messages: it does not wait for a load from before an
		// InvalidateAll.
		time.Sleep(time.Minute)
		var all sync.WaitGroup // another process loads
		all.Go(func() { other.want(t, 3, "three", nil) })
		time.Sleep(50 * time.Millisecond)
		p.want(t, 3, "three", nil) // while that load runs
		all.Wait()
		w.was(t, "get row 1", "wait row 1 get")
		if took := w.took[cacheaside.OpWait]; took < 30*time.Millisecond || took > 100*time.Millisecond {
			t.Errorf("the read waits for %v", took)
		}
	})
}

// A read that loads from the database is observed too.
func TestObserverSeesShadowReads(t *testing.T) {
	w := &recordingObserver{}
	p := startOn(t, nil, newTable(map[int]string{1: "one", 2: "two"}), cacheaside.Options{Observer: w},
		&cacheaside.LoaderOptions{Shadow: 1e-9})
	defer p.cache.Close()
	p.want(t, 1, "one", nil)
	_, err := p.GetMany(t.Context(), []int{2})
	noError(t, err)
	w.was(t, "get row 1", "load row 1 get", "get row 1", "load row 1 get")
}

// Names of loaders in Keys come from outside, so they could create any number of labels.
func TestObserverHidesForeignNames(t *testing.T) {
	w := &recordingObserver{}
	o := steady
	o.Observer = w
	_, b := embedded(t)
	p := startOn(t, b.client(t), newTable(nil), o, nil)
	foreign := []cacheaside.Key{{Loader: "foreign", Text: "1"}, {Loader: "foreign", Text: "2"}}
	noError(t, p.cache.InvalidateKeys(t.Context(), foreign...))
	noError(t, p.cache.InvalidateKeys(t.Context(), foreign[0], p.Key(1)))
	noError(t, p.cache.InvalidateKeys(t.Context(), cacheaside.Key{Loader: "foreign", All: true}))
	w.was(t, "invalidate  2", "invalidate  2", "invalidate  1")
}

// Each operation that begins ends exactly once, with any result.
func TestEachOperationEndsOnceInObserver(t *testing.T) {
	inBubbles(t, testEachEnd)
}

func testEachEnd(t *testing.T, rdb redis.UniversalClient) {
	w := &recordingObserver{}
	c, err := newCache(rdb, &cacheaside.Options{Observer: w, MaxLoads: 2, MaxQueue: 3,
		Logger: slog.New(slog.DiscardHandler)})
	noError(t, err)
	l, err := cacheaside.NewLoader(c, "row", func(ctx context.Context, key int) (int, error) {
		switch key % 4 {
		case 0:
			panic("boom")
		case 1:
			return 0, errBroken
		case 2:
			<-ctx.Done()
		}
		return key, ctx.Err()
	}, &cacheaside.LoaderOptions{LoadTimeout: 5 * time.Millisecond, TTL: cacheaside.MinTTL})
	noError(t, err)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 50 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*time.Millisecond)
				key := (g + i) % 8
				_, _ = l.Get(ctx, key)
				_, _ = l.GetMany(ctx, []int{key, key + 1, key + 2})
				_, _ = l.Refresh(ctx, key)
				_ = l.Invalidate(ctx, key)
				cancel()
			}
		})
	}
	all.Wait()
	c.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun == 0 || w.begun != w.ended || w.twice > 0 {
		t.Errorf("%d operations have begun, %d ended, %d more than once", w.begun, w.ended, w.twice)
	}
}

func TestObserverIsChecked(t *testing.T) {
	var none *recordingObserver
	if _, err := cacheaside.NewLocal(&cacheaside.Options{Observer: none}); err == nil ||
		!strings.Contains(err.Error(), "Options.Observer") {
		t.Error(err)
	}
}

func TestCacheLogsProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := embedded(t)
		log := &testenv.Log{}
		var fails atomic.Pointer[error]
		secret := "the value"
		p := startLoad(t, b.client(t), func(_ context.Context, key int) (string, error) {
			if key == 77 {
				panic("of " + secret)
			}
			if err := fails.Load(); err != nil {
				return "", *err
			}
			return secret, nil
		}, cacheaside.Options{Logger: log.Logger(),
			MaxStaleness: time.Minute}, &cacheaside.LoaderOptions{TTL: time.Minute, EarlyRefresh: -1})
		defer p.cache.Close()
		p.want(t, 1, secret, nil)
		log.Has(t, `level=WARN msg="cacheaside: the Redis client's ContextTimeoutEnabled is not set`)

		m.SetError("LOADING " + "the server")
		for key := range 5 {
			p.want(t, key, secret, nil)
		}
		log.Has(t, `level=WARN msg="cacheaside: Redis is down" error="command not sent, because Redis is down: LOADING`)
		m.SetError("")
		time.Sleep(time.Second)
		log.Has(t, `level=INFO msg="cacheaside: Redis is back"`)
		if out := p.Stats().RedisOut; out != 0 {
			t.Errorf("%d servers are unreachable", out)
		}

		if _, err := p.Get(t.Context(), 77); err == nil {
			t.Error("the load does not panic")
		}
		log.Has(t,
			`level=WARN msg="cacheaside: a load has panicked" loader=row error="the load panicked with a string" panic="of the value" stack="goroutine `)

		name, _ := readerOf(p.Loader).Keys.Name("1")
		noError(t, m.Set(name, "\x01"+secret))
		p.want(t, 1, secret, nil)
		log.Has(t, `level=WARN msg="cacheaside: an entry in Redis is unreadable, and is replaced" loader=row`)

		fails.Store(&errBroken)
		for key := range 200 {
			_, _ = p.Get(t.Context(), 100+key)
		}
		log.Has(t, `level=WARN msg="cacheaside: the circuit breaker is open: most loads have failed" loader=row`)
		if p.Stats().BreakersOpen != 1 || p.cache.Stats().BreakersOpen != 1 {
			t.Error("the breaker is closed")
		}
		for range 5 { // it stays open, and further tries are not logged
			time.Sleep(time.Second + time.Millisecond)
			_, _ = p.Get(t.Context(), 400)
		}
		log.Has(t)
		fails.Store(nil)
		time.Sleep(time.Second + time.Millisecond)
		p.want(t, 401, secret, nil)
		log.Has(t, `level=INFO msg="cacheaside: the circuit breaker is closed" loader=row`)
		if p.Stats().BreakersOpen != 0 {
			t.Error("the breaker is open")
		}
	})
}

// Missed and unreadable announcements are logged.
func TestCacheLogsMissedAnnouncements(t *testing.T) {
	server := testenv.SharedRedis(t)
	proxy, rdb := proxied(t, server)
	log := &testenv.Log{}
	p := startOn(t, rdb, newTable(map[int]string{1: "one"}), cacheaside.Options{Logger: log.Logger(),
		MaxStaleness: 400 * time.Millisecond, RedisTimeout: 50 * time.Millisecond}, nil)
	defer p.cache.Close()
	hear(t, p.Loader)
	all := "" // the log; each record at most once in 10 s
	says := func(what string, do func()) {
		t.Helper()
		testenv.Eventually(t, what, func() bool {
			do()
			all += strings.Join(log.Take(), "")
			return strings.Contains(all, what)
		})
	}
	admin := server.Client(t)
	// Repeated, because the process may not be subscribed at the moment.
	says("a message on the invalidation bus cannot be read", func() {
		noError(t, admin.Publish(t.Context(), "cacheaside::invalidations", "gibberish").Err())
	})
	says("invalidations were missed: memory was cleared", func() { // no process has announced it
		noError(t, admin.HSet(t.Context(), "cacheaside::announced:{"+tagOfAll+"}", "",
			fmt.Sprint(time.Now().UnixMicro()+1)).Err())
	})
	proxy.Hang(true)
	says("invalidations are not received", func() {})
	proxy.Hang(false)
}

package consistency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// relayCache stands for a Cache, and what is behind it.
type relayCache struct {
	mu    sync.Mutex
	takes time.Duration // of each call
	// why a key fails in "admit", "committed", "invalidate" or "refresh"
	fails   func(op string, k cacheaside.Key) error
	calls   int
	asked   int                    // keys of all calls
	largest int                    // of one call
	done    map[string][]time.Time // by op and text
	busy    map[cacheaside.Key]int // calls that are under way
	shared  int                    // times that a key was in two of them
	bounds  []time.Duration        // until the deadlines of calls
	closed  bool
	lacks   string // a loader

	ends      map[string]map[string]time.Time // of the registrations of relays, by queue and id
	uncounted bool                            // relays cannot be counted
	killed    bool                            // relays end without ending their registration

	// InsertingKeys succeeds though its context has ended
	late   bool
	before func(ctx context.Context, op string, keys []cacheaside.Key) // what "admit" and "refresh" begin with
}

func (r *relayCache) call(ctx context.Context, op string, keys []cacheaside.Key) error {
	if len(keys) == 0 {
		return nil
	}
	keys = once(keys)
	r.mu.Lock()
	r.calls++
	r.asked += len(keys)
	r.largest = max(r.largest, len(keys))
	if r.busy == nil {
		r.busy, r.done = map[cacheaside.Key]int{}, map[string][]time.Time{}
	}
	for _, k := range keys {
		if r.busy[k]++; r.busy[k] > 1 {
			r.shared++
		}
	}
	if deadline, ok := ctx.Deadline(); ok {
		r.bounds = append(r.bounds, time.Until(deadline))
	}
	fails, takes := r.fails, r.takes
	r.mu.Unlock()
	timedOut := false
	if takes > 0 {
		select {
		case <-ctx.Done():
			timedOut = true
		case <-time.After(takes):
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := map[cacheaside.Key]error{}
	for _, k := range keys {
		r.busy[k]--
		var err error
		switch {
		case timedOut || ctx.Err() != nil:
			err = fmt.Errorf("%w: %w", cacheaside.ErrRedis, context.Cause(ctx))
		case fails != nil:
			err = fails(op, k)
		}
		if err != nil {
			errs[k] = err
		} else {
			r.done[op+" "+k.Text] = append(r.done[op+" "+k.Text], time.Now())
		}
	}
	if len(errs) > 0 {
		return &cacheaside.BatchError[cacheaside.Key]{Errs: errs}
	}
	return nil
}

// once returns each of keys once, as a Cache takes them.
func once(keys []cacheaside.Key) []cacheaside.Key {
	var distinct []cacheaside.Key
	seen := map[cacheaside.Key]bool{}
	for _, k := range keys {
		if !seen[k] {
			distinct, seen[k] = append(distinct, k), true
		}
	}
	return distinct
}

func (r *relayCache) Closed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// CountRelays counts the relays of a queue.
func (r *relayCache) CountRelays(_ context.Context, queue, id string, life time.Duration) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.uncounted {
		return 0, cacheaside.ErrRedis
	}
	if r.ends == nil {
		r.ends = map[string]map[string]time.Time{}
	}
	if r.ends[queue] == nil {
		r.ends[queue] = map[string]time.Time{}
	}
	if life > 0 {
		r.ends[queue][id] = time.Now().Add(life)
	} else if !r.killed {
		delete(r.ends[queue], id)
	}
	maps.DeleteFunc(r.ends[queue], func(_ string, end time.Time) bool { return !end.After(time.Now()) })
	return len(r.ends[queue]), nil
}

// Loader says that all loaders are there, and have filters, but one.
func (r *relayCache) Loader(name string) (has, filter bool) { return name != r.lacks, name != r.lacks }

// InsertingKeys takes no time. It fails if its context has ended, unless late.
func (r *relayCache) InsertingKeys(ctx context.Context, keys ...cacheaside.Key) (func(context.Context) error, error) {
	r.begin(ctx, "admit", keys)
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := map[cacheaside.Key]error{}
	for _, k := range keys {
		var err error
		if r.fails != nil {
			err = r.fails("admit", k)
		}
		if err == nil && !r.late {
			err = context.Cause(ctx)
		}
		if err != nil {
			errs[k] = err
		}
	}
	if len(errs) > 0 {
		return nil, &cacheaside.BatchError[cacheaside.Key]{Errs: errs}
	}
	return func(ctx context.Context) error { return r.call(ctx, "committed", keys) }, nil
}

func (r *relayCache) InvalidateKeys(ctx context.Context, keys ...cacheaside.Key) error {
	return r.call(ctx, "invalidate", keys)
}

func (r *relayCache) RefreshKeys(ctx context.Context, keys ...cacheaside.Key) error {
	r.begin(ctx, "refresh", keys)
	return r.call(ctx, "refresh", keys)
}

func (r *relayCache) begin(ctx context.Context, op string, keys []cacheaside.Key) {
	r.mu.Lock()
	before := r.before
	r.mu.Unlock()
	if before != nil {
		before(ctx, op, keys)
	}
}

// fail has keys fail from now on.
func (r *relayCache) fail(fails func(op string, k cacheaside.Key) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails = fails
}

// slow makes each later call take the given time.
func (r *relayCache) slow(takes time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.takes = takes
}

// noRedis is how keys fail while Redis is out.
func noRedis(op string, _ cacheaside.Key) error {
	if op == "admit" {
		return nil
	}
	return fmt.Errorf("%w: connection refused", cacheaside.ErrRedis)
}

// times returns when op was done for a key, since began.
func (r *relayCache) times(op, text string, began time.Time) (since []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.done[op+" "+text] {
		since = append(since, at.Sub(began))
	}
	return since
}

// take returns the calls, the keys asked for, and the largest call since the last take.
func (r *relayCache) take() (calls, asked, largest int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls, asked, largest = r.calls, r.asked, r.largest
	r.calls, r.asked, r.largest = 0, 0, 0
	return calls, asked, largest
}

// station is relays in a bubble.
type station struct {
	*testing.T
	cache *relayCache
	queue Queue
	began time.Time
	logs  *testenv.Log

	mu     sync.Mutex
	alerts []Alert
	stops  []func() error
}

func inStation(t *testing.T, queue Queue, test func(s *station)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &station{T: t, cache: &relayCache{}, queue: queue, began: time.Now(), logs: &testenv.Log{}}
		if queue == nil {
			s.queue = NewMemoryQueue(100_000)
		}
		test(s)
		for _, stop := range s.stops {
			if err := stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
		}
		if strings.Contains(s.logs.String(), relayPrivate) {
			t.Errorf("a log shows a key: %s", s.logs)
		}
	})
}

// relayPrivate is in the text of each key, and must not be in any log.
const relayPrivate = "relayPrivate"

func relayKey(n int) cacheaside.Key {
	return cacheaside.Key{Loader: "user", Text: fmt.Sprint(relayPrivate, n)}
}

// start starts a relay; stop ends it.
func (s *station) start(o RelayOptions) (r *Relay, stop func() error) {
	s.Helper()
	o.Logger = slog.New(slog.NewTextHandler(s.logs, nil))
	if o.OnAlert == nil {
		o.OnAlert = s.alerted
	}
	r, err := newRelay(s.cache, s.queue, &o)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	s.stops = append(s.stops, stop)
	return r, stop
}

func (s *station) alerted(a Alert) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alerts = append(s.alerts, a)
}

// gotAlerts returns the alerts since its last call.
func (s *station) gotAlerts() []Alert {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	alerts := s.alerts
	s.alerts = nil
	return alerts
}

func (s *station) put(items ...Item) {
	s.Helper()
	if err := s.queue.Put(s.Context(), items...); err != nil {
		s.Fatal(err)
	}
}

func (s *station) depth() Depth {
	s.Helper()
	d, err := s.queue.Depth(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// drained waits until the queue is empty, and returns how long that took.
func (s *station) drained(limit time.Duration) time.Duration {
	s.Helper()
	began := time.Now()
	for s.depth().Items > 0 {
		if time.Since(began) > limit {
			s.Fatalf("after %v there are still %+v", limit, s.depth())
		}
		time.Sleep(50 * time.Millisecond)
	}
	return time.Since(began)
}

func (s *station) at(d time.Duration) {
	time.Sleep(time.Until(s.began.Add(d)))
	synctest.Wait() // other goroutines have done all work of this instant
}

// A relay does each item when it is due: it adds the key to filters and invalidates it, once for
// many items of the same key.
func TestRelayDoes(t *testing.T) {
	inStation(t, nil, func(s *station) {
		r, _ := s.start(RelayOptions{})
		for n := range 1234 {
			s.put(Item{Key: relayKey(n)})
		}
		synctest.Wait()
		s.put(Item{Key: relayKey(1), After: 3 * time.Second},
			Item{Key: cacheaside.Key{Loader: "user", All: true}, After: 4 * time.Second})
		s.at(3500 * time.Millisecond)
		for n := range 1234 {
			got := s.cache.times("committed", relayKey(n).Text, s.began)
			want := 1
			if n == 1 {
				want = 2
			}
			if len(got) != want || got[0] != 0 || got[want-1] != time.Duration(want-1)*3*time.Second {
				s.Errorf("%d was done after %v", n, got)
			}
		}
		s.at(4500 * time.Millisecond)
		if d := s.depth(); d != (Depth{}) {
			s.Errorf("left: %+v", d)
		}
		st := r.Stats()
		if st.Done != 1236 || st.Again != 0 || st.Failed+st.Retried+st.Alerts+st.QueueErrors != 0 || st.Out ||
			st.Depth.Items != 0 || st.DepthAge > time.Second {
			s.Errorf("%+v", st)
		}
		if st.MaxLag != 4*time.Second || st.Lag > 10*time.Millisecond {
			s.Errorf("lag %v, at most %v", st.Lag, st.MaxLag)
		}
	})
}

// Five minutes without Redis, and writes (200 a second, where figures are reported): few attempts,
// one alert a relay, and all is done as soon as Redis is back. What fails later is alerted again.
func TestRelayOutage(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.takes = 3 * time.Millisecond
		a, _ := s.start(RelayOptions{})
		b, _ := s.start(RelayOptions{})
		s.put(Item{Key: relayKey(0)})
		s.at(time.Second)
		s.cache.take()
		written, each := 0, 2
		if testenv.Accepting {
			each = 10
		}
		out := func(d time.Duration) {
			s.cache.fail(noRedis)
			before := written
			for range d / (50 * time.Millisecond) {
				for range each {
					written++
					s.put(Item{Key: relayKey(written)})
				}
				time.Sleep(50 * time.Millisecond)
			}
			if st := a.Stats(); !st.Out || st.Depth.Items < written-before-1000 {
				s.Errorf("while Redis is out: %+v", st)
			}
			// Each relay: some batches of what there was at first, and a probe each 1 to 2 s.
			if calls, asked, _ := s.cache.take(); calls > 2*(10+int(d/time.Second)) || asked > calls+20 {
				s.Errorf("%d calls for %d keys while Redis was out", calls, asked)
			}
			alerts := s.gotAlerts()
			if len(alerts) != 2 {
				s.Errorf("%d alerts of two relays", len(alerts))
			}
			for _, alert := range alerts {
				if alert.Attempts != 10 || !errors.Is(alert.Err, cacheaside.ErrRedis) || alert.Depth.Items < 200 ||
					alert.Depth.Oldest < 4*time.Second {
					s.Errorf("%+v", alert)
				}
			}
			s.cache.fail(nil)
			if took := s.drained(time.Minute); took > 3*time.Second {
				s.Errorf("%d writes drained %v after Redis' return", written-before, took)
			} else {
				s.Logf("%d writes drained %v after Redis' return", written-before, took)
			}
			if _, _, largest := s.cache.take(); largest != batch {
				s.Errorf("drained in batches of %d", largest)
			}
		}
		out(5 * time.Minute)
		// a relay that finds nothing to do knows after RelayOptions.ClaimFor that others have done
		// all
		time.Sleep(40 * time.Second)
		out(20 * time.Second)
		time.Sleep(40 * time.Second)
		if a, b := a.Stats(), b.Stats(); a.Done+b.Done != int64(1+written) || a.Out || b.Out || a.Alerts != 2 ||
			b.Alerts != 2 {
			s.Errorf("%+v\n%+v", a, b)
		}
		if n := s.cache.shared; n > 0 {
			s.Errorf("%d times two relays had the same key", n)
		}
	})
}

// After an outage of Redis of any length, an item does not wait for a minute, as it would after
// failing by itself. A relay that has had no work for long does not know that Redis is back while
// the queue has items: other relays may only have been quicker. A second failure raises no second
// alert, unless the relay has succeeded, or the queue was empty, in between.
func TestRelayThatGetsNothing(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.fail(noRedis)
		r, _ := s.start(RelayOptions{})
		id := NewID()
		s.put(Item{ID: id, Key: relayKey(1)})
		alerts := func(want int, out bool) {
			s.Helper()
			time.Sleep(2 * time.Minute)
			if got := s.gotAlerts(); len(got) != want || r.Stats().Out != out {
				s.Errorf("%d alerts, out: %v; want %d, %v", len(got), r.Stats().Out, want, out)
			}
		}
		alerts(1, true)
		for range 2 {
			if err := s.queue.Later(s.Context(), Item{ID: id, After: 3 * time.Minute}); err != nil { // another has it
				s.Fatal(err)
			}
			alerts(0, false)
			alerts(0, true)
		}
		if err := s.queue.Done(s.Context(), Item{ID: id}); err != nil { // another has done it
			s.Fatal(err)
		}
		alerts(0, false)
		s.put(Item{Key: relayKey(1)})
		alerts(1, true)
	})
}

func TestRelayLongOutage(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.fail(noRedis)
		r, _ := s.start(RelayOptions{})
		s.start(RelayOptions{})
		s.put(Item{Key: relayKey(1)})
		s.at(time.Hour)
		if calls, _, _ := s.cache.take(); calls < 1000 || calls > 8000 {
			s.Errorf("%d calls within an hour", calls)
		}
		if alerts := s.gotAlerts(); len(alerts) < 1 || len(alerts) > 2 {
			s.Errorf("%d alerts of two relays", len(alerts))
		}
		s.cache.fail(nil)
		if took := s.drained(10 * time.Minute); took > 5*time.Second {
			s.Errorf("done %v after Redis' return", took)
		}
		time.Sleep(40 * time.Second)
		if r.Stats().Out {
			s.Error("Redis is still out")
		}
	})
}

// An item that fails by itself is retried by itself, ever more rarely, and does not delay the
// others. It is alerted once; so is an item that fails later.
func TestRelayPartialFailure(t *testing.T) {
	q := &relayQueue{}
	inStation(t, q, func(s *station) {
		q.inner = NewMemoryQueue(0)
		bad := map[cacheaside.Key]bool{relayKey(0): true, relayKey(1): true}
		var tries []time.Duration
		s.cache.fail(func(op string, k cacheaside.Key) error {
			if op == "committed" && bad[k] {
				if k == relayKey(0) {
					tries = append(tries, time.Since(s.began))
				}
				return noRedis(op, k) // as of one master of a cluster
			}
			return nil
		})
		r, _ := s.start(RelayOptions{})
		writes := 0
		write := func(d time.Duration) { // so that each batch has others
			for until := time.Now().Add(d); time.Now().Before(until); writes++ {
				s.put(Item{Key: relayKey(100 + writes)})
				time.Sleep(50 * time.Millisecond)
			}
		}
		s.put(Item{Key: relayKey(0)}, Item{Key: relayKey(1)})
		write(10 * time.Minute)
		s.cache.mu.Lock()
		for n := range len(tries) - 1 {
			want := min(time.Minute, 100*time.Millisecond<<min(n, 20))
			if gap := tries[n+1] - tries[n]; gap < want/2 || gap > want+300*time.Millisecond {
				s.Errorf("try %d came %v after the one before, want half to all of %v", n+1, gap, want)
			}
		}
		if n := len(tries); n < 15 || n > 30 {
			s.Errorf("%d tries within ten minutes", n)
		}
		s.cache.mu.Unlock()
		if st := r.Stats(); st.Done < int64(writes-10) || st.MaxLag > 200*time.Millisecond || st.Out {
			s.Errorf("of %d writes: %+v", writes, st)
		}
		if alerts := s.gotAlerts(); len(alerts) != 1 || alerts[0].Attempts != 10 ||
			!errors.Is(alerts[0].Err, cacheaside.ErrRedis) {
			s.Fatalf("alerts: %+v", alerts)
		}
		s.cache.mu.Lock()
		clear(bad)
		s.cache.mu.Unlock()
		write(time.Minute)
		s.cache.mu.Lock()
		bad[relayKey(2)] = true
		s.cache.mu.Unlock()
		s.put(Item{Key: relayKey(2)})
		write(3 * time.Minute)
		if alerts := s.gotAlerts(); len(alerts) != 1 {
			s.Errorf("alerts of a later trouble: %+v", alerts)
		}
	})
}

// An item whose attempts fail only when it is alone, which is as if Redis were out, is alerted,
// too, although others work.
func TestRelayAlone(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.fail(func(op string, k cacheaside.Key) error {
			if k == relayKey(0) {
				return noRedis(op, k)
			}
			return nil
		})
		r, _ := s.start(RelayOptions{})
		s.put(Item{Key: relayKey(0)})
		for n := range 1000 {
			time.Sleep(300 * time.Millisecond)
			s.put(Item{Key: relayKey(1 + n)})
		}
		if st := r.Stats(); st.Done < 990 || st.MaxLag > 2*time.Second {
			s.Errorf("%+v", st)
		}
		if alerts := s.gotAlerts(); len(alerts) != 1 || alerts[0].Attempts < 10 {
			s.Errorf("alerts: %+v", alerts)
		}
		s.cache.fail(nil)
		s.drained(2 * time.Minute)
		if st := r.Stats(); st.Done != 1001 || st.Failed < 10 || st.Retried < 9 {
			s.Errorf("%+v", st)
		}
	})
}

// What is to be done twice is, the second time that much after the first, and each with attempts of
// its own.
func TestRelayDoubleDelete(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.fail(noRedis)
		r, _ := s.start(RelayOptions{})
		s.put(Item{Key: relayKey(1), Again: 5 * time.Second})
		s.at(time.Second)
		s.cache.fail(nil)
		s.at(20 * time.Second)
		got := s.cache.times("committed", relayKey(1).Text, s.began)
		if len(got) != 2 || got[0] > 3*time.Second || got[1]-got[0] != 5*time.Second {
			s.Fatalf("done after %v", got)
		}
		if st := r.Stats(); st.Done != 1 || st.Again != 1 {
			s.Errorf("%+v", st)
		}
	})
	inStation(t, nil, func(s *station) { // by hand, to see the item
		s.put(Item{Key: relayKey(1), Again: 5 * time.Second, Attempts: 7})
		r, err := newRelay(s.cache, s.queue, nil)
		if err != nil {
			s.Fatal(err)
		}
		run := newRelayRun(r)
		run.processBatch(s.Context())
		run.finishJob(s.Context(), <-run.ended)
		time.Sleep(5 * time.Second)
		got, err := s.queue.Claim(s.Context(), 10, time.Hour)
		if err != nil || len(got) != 1 || got[0].Attempts != 0 || got[0].Again != 0 {
			s.Errorf("claimed %+v, %v", got, err)
		}
	})
}

// What is to be reloaded is; what cannot be is invalidated, and not left as it was.
func TestRelayReload(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.fail(func(op string, k cacheaside.Key) error {
			switch {
			case op == "refresh" && k == relayKey(2):
				return errors.New("the database is away")
			case op == "invalidate" && k == relayKey(3) && time.Since(s.began) < time.Minute, op == "refresh" &&
				k == relayKey(3):
				return errors.New("nothing works")
			}
			return nil
		})
		r, _ := s.start(RelayOptions{})
		for n := range 4 {
			s.put(Item{Key: relayKey(n), Reload: true})
		}
		s.put(Item{Key: relayKey(1)})
		s.at(time.Second)
		for n, want := range []string{"refresh", "refresh", "invalidate", ""} {
			for _, op := range []string{"refresh", "invalidate"} {
				times := 0
				if op == want || n == 1 { // which is to be invalidated, too
					times = 1
				}
				if got := s.cache.times(op, relayKey(n).Text, s.began); len(got) != times {
					s.Errorf("%d: %s after %v", n, op, got)
				}
			}
		}
		if got := s.cache.times("committed", relayKey(1).Text, s.began); len(got) != 1 {
			s.Errorf("the filter had 1 after %v", got)
		}
		s.at(3 * time.Minute)
		if st := r.Stats(); st.Done != 5 || st.NotReloaded < 2 || st.Failed == 0 {
			s.Errorf("%+v", st)
		}
	})
}

// A filter that fails does not keep keys from being invalidated, nor those of other loaders from
// being done.
func TestRelayFilterFails(t *testing.T) {
	for _, reload := range []bool{false, true} {
		inStation(t, nil, func(s *station) {
			s.cache.fail(func(op string, k cacheaside.Key) error {
				if op == "admit" && k.Loader == "user" && time.Since(s.began) < time.Second {
					return errors.New("the filter cannot be updated")
				}
				return nil
			})
			r, _ := s.start(RelayOptions{})
			other := cacheaside.Key{Loader: "order", Text: relayPrivate}
			s.put(Item{Key: relayKey(1), Reload: reload}, Item{Key: other, Reload: reload})
			s.at(time.Millisecond)
			op := map[bool]string{false: "invalidate", true: "refresh"}[reload]
			if got := s.cache.times(op, relayKey(1).Text, s.began); len(got) != 1 {
				s.Errorf("%s was done after %v", op, got)
			}
			if st := r.Stats(); st.Done != 1 || st.Failed != 1 || st.Out {
				s.Errorf("%+v", st)
			}
			s.at(time.Minute)
			if st := r.Stats(); st.Done != 2 {
				s.Errorf("%+v", st)
			}
		})
	}
}

// No relay uses a key after its claim has expired, however slow the calls are: a batch ends
// earlier.
func TestRelaySlow(t *testing.T) {
	inStation(t, nil, func(s *station) {
		var relays []*Relay
		for range 4 {
			r, _ := s.start(RelayOptions{ClaimFor: 3 * time.Second})
			relays = append(relays, r)
		}
		s.cache.slow(time.Minute)
		for n := range 1500 {
			s.put(Item{Key: relayKey(n)})
		}
		s.at(5 * time.Minute)
		s.cache.mu.Lock()
		for _, bound := range s.cache.bounds {
			if bound > 2*time.Second {
				s.Errorf("a call may take %v of a claim of 3s", bound)
				break
			}
		}
		s.cache.mu.Unlock()
		s.cache.slow(100 * time.Millisecond)
		s.drained(time.Minute)
		if n := s.cache.shared; n > 0 {
			s.Errorf("%d times two relays had the same key", n)
		}
		done := int64(0)
		for _, r := range relays {
			done += r.Stats().Done
		}
		if done != 1500 {
			s.Errorf("%d done", done)
		}
	})
}

// More relays do more, and no key is done by two.
func TestRelaysTogether(t *testing.T) {
	const items = 4 * batch
	took := map[int]time.Duration{}
	for _, n := range []int{1, 2, 4} {
		inStation(t, nil, func(s *station) {
			s.cache.takes = 100 * time.Millisecond
			for n := range items {
				s.put(Item{Key: relayKey(n)})
			}
			for range n {
				s.start(RelayOptions{})
			}
			took[n] = s.drained(time.Hour)
			calls, asked, _ := s.cache.take()
			if s.cache.shared > 0 || asked != 2*items { // each key once before and once after the filter

				s.Errorf("%d relays: %d keys in %d calls, %d times a key was with two", n, asked, calls, s.cache.shared)
			}
		})
	}
	if took[1] < took[2] || took[2] < took[4] {
		t.Errorf("by relays: %v", took)
	}
}

// Run ends with its ctx. Items that it has not done are due again at once.
func TestRelayStops(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.takes = time.Second
		_, stop := s.start(RelayOptions{})
		for n := range 700 {
			s.put(Item{Key: relayKey(n), Attempts: 2})
		}
		s.at(500 * time.Millisecond)
		if err := stop(); err != nil {
			s.Fatal(err)
		}
		if at := time.Since(s.began); at != 500*time.Millisecond {
			s.Errorf("it has ended after %v", at)
		}
		if d := s.depth(); d.Items != 700 || d.Due != 700 {
			s.Errorf("left: %+v", d)
		}
		got, err := s.queue.Claim(s.Context(), 1000, time.Hour)
		if err != nil {
			s.Fatal(err)
		}
		for _, i := range got {
			if i.Attempts != 2 {
				s.Fatalf("%d attempts", i.Attempts)
			}
		}
	})
}

func TestRelayRunsOnce(t *testing.T) {
	inStation(t, nil, func(s *station) {
		r, stop := s.start(RelayOptions{})
		synctest.Wait()
		if err := r.Run(s.Context()); err == nil {
			s.Error("it ran twice")
		}
		if err := stop(); err != nil {
			s.Fatal(err)
		}
		ctx, cancel := context.WithCancel(s.Context())
		cancel()
		if err := r.Run(ctx); err != nil {
			s.Errorf("again: %v", err)
		}
	})
}

// When the cache is closed under it, a relay ends, and what it had is as it was.
func TestRelayClosedCache(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.fail(func(string, cacheaside.Key) error { return cacheaside.ErrClosed })
		s.cache.closed = true
		r, stop := s.start(RelayOptions{})
		s.stops = nil
		s.put(Item{Key: relayKey(1)})
		time.Sleep(time.Second)
		if err := stop(); !errors.Is(err, cacheaside.ErrClosed) {
			s.Errorf("Run: %v", err)
		}
		if alerts := s.gotAlerts(); len(alerts) != 1 || !errors.Is(alerts[0].Err, cacheaside.ErrClosed) ||
			!r.Stats().Ended || r.Stats().Alerts != 1 {
			s.Errorf("no alert: %+v, %+v", alerts, r.Stats())
		}
		if !strings.Contains(s.logs.String(), "a Relay has ended") {
			s.Error("it is not in the log")
		}
		got, err := s.queue.Claim(s.Context(), 10, time.Hour)
		if err != nil || len(got) != 1 || got[0].Attempts != 0 {
			s.Errorf("left: %+v, %v", got, err)
		}
	})
}

// relayQueue is a queue whose calls can fail, and that is polled.
type relayQueue struct {
	inner *MemoryQueue

	mu    sync.Mutex
	fails func(op string) error
	calls map[string]int
	extra []Item // that Claim gives first, as they are
	later []Item
}

func (r *relayQueue) call(op string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[string]int{}
	}
	r.calls[op]++
	if r.fails != nil {
		return r.fails(op)
	}
	return nil
}

func (r *relayQueue) set(fails func(op string) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails = fails
}

func (r *relayQueue) Put(ctx context.Context, items ...Item) error {
	return errors.Join(r.call("put"), r.inner.Put(ctx, items...))
}

func (r *relayQueue) Claim(ctx context.Context, most int, life time.Duration) ([]Item, error) {
	if err := r.call("claim"); err != nil {
		return nil, err
	}
	got, err := r.inner.Claim(ctx, most, life)
	r.mu.Lock()
	defer r.mu.Unlock()
	got, r.extra = append(r.extra, got...), nil
	return got, err
}

func (r *relayQueue) Done(ctx context.Context, items ...Item) error {
	if err := r.call("done"); err != nil {
		return err
	}
	return r.inner.Done(ctx, items...)
}

func (r *relayQueue) Later(ctx context.Context, items ...Item) error {
	if err := r.call("later"); err != nil {
		return err
	}
	r.mu.Lock()
	r.later = append(r.later, items...)
	r.mu.Unlock()
	return r.inner.Later(ctx, items...)
}

func (r *relayQueue) Depth(ctx context.Context) (Depth, error) {
	if err := r.call("depth"); err != nil {
		return Depth{}, err
	}
	return r.inner.Depth(ctx)
}

func (r *relayQueue) Maintain(context.Context, *slog.Logger) error { return r.call("maintain") }

func (*relayQueue) Bind(string, *sqlx.DB) error { return nil }
func (*relayQueue) Committed(...Item)           {}
func (*relayQueue) Flush()                      {}
func (*relayQueue) Listen(time.Duration, func() int, *slog.Logger) (run, wait func(context.Context)) {
	return nil, nil
}

var _ QueueHooks = (*relayQueue)(nil)

// A queue that cannot be reached is asked again, more and more rarely; that is counted, logged
// once, and alerted once. Nothing is lost.
func TestRelayQueueFails(t *testing.T) {
	for _, failing := range []string{"claim", "done", "all"} {
		t.Run(failing, func(t *testing.T) {
			q := &relayQueue{}
			inStation(t, q, func(s *station) {
				q.inner = NewMemoryQueue(0)
				for n := range 10 {
					s.put(Item{Key: relayKey(n)})
				}
				q.set(func(op string) error {
					if op == failing || failing == "all" {
						return errors.New("the database is away")
					}
					return nil
				})
				r, _ := s.start(RelayOptions{})
				s.at(2 * time.Minute)
				st := r.Stats()
				if failing == "done" { // it fails each time that the claims have run out
					if st.QueueErrors < 3 || st.QueueErrors > 5 || st.Done != 0 || st.Depth.Items != 10 {
						s.Errorf("%+v", st)
					}
				} else {
					if st.QueueErrors < 60 || st.QueueErrors > 160 || st.Alerts != 1 {
						s.Errorf("%+v", st)
					}
					if n := strings.Count(s.logs.String(), "the queue of a Relay fails"); n != 1 {
						s.Errorf("logged %d times", n)
					}
					if alerts := s.gotAlerts(); len(alerts) != 1 || alerts[0].Attempts != 10 || alerts[0].Err == nil {
						s.Errorf("%+v", alerts)
					}
				}
				q.set(nil)
				s.drained(time.Minute)
				time.Sleep(2 * time.Second)
				if st := r.Stats(); st.Done != 10 || st.Depth.Items != 0 || st.Failed != 0 {
					s.Errorf("%+v", st)
				}
				if strings.Count(s.logs.String(), "works again") == 0 {
					s.Error("its return was not logged")
				}
			})
		})
	}
}

// A queue whose depth cannot be read keeps no item waiting. That is alerted once.
func TestRelayDepthFails(t *testing.T) {
	q := &relayQueue{}
	inStation(t, q, func(s *station) {
		q.inner = NewMemoryQueue(0)
		q.set(func(op string) error {
			if op == "depth" {
				return errors.New("it takes too long")
			}
			return nil
		})
		r, _ := s.start(RelayOptions{})
		s.put(Item{Key: relayKey(1)})
		s.at(8*time.Second + 500*time.Millisecond)
		if alerts := s.gotAlerts(); len(alerts) > 0 || r.Stats().Done != 1 {
			s.Errorf("%+v, %+v", alerts, r.Stats())
		}
		q.mu.Lock()
		maintained := q.calls["maintain"]
		q.mu.Unlock()
		if maintained != 9 {
			s.Errorf("maintained %d times in 9 seconds", maintained)
		}
		s.at(2 * time.Minute)
		if alerts := s.gotAlerts(); len(alerts) != 1 || alerts[0].Attempts != 10 || alerts[0].Err == nil {
			s.Errorf("%+v", alerts)
		}
		q.set(nil)
		time.Sleep(2 * time.Second)
		if !strings.Contains(s.logs.String(), "has recovered") {
			s.Error("the end of the alarm was not logged")
		}
	})
}

// A queue without notifications is asked for items every Poll, and for its depth about once a
// second.
func TestRelayPolls(t *testing.T) {
	q := &relayQueue{}
	inStation(t, q, func(s *station) {
		q.inner = NewMemoryQueue(0)
		s.start(RelayOptions{Poll: 100 * time.Millisecond})
		s.at(10*time.Second + time.Millisecond)
		q.mu.Lock()
		claims, looks := q.calls["claim"], q.calls["depth"]
		q.mu.Unlock()
		if claims != 101 || looks != 11 {
			s.Errorf("%d claims and %d looks within 10s", claims, looks)
		}
		s.put(Item{Key: relayKey(1)})
		time.Sleep(100 * time.Millisecond)
		if got := s.cache.times("committed", relayKey(1).Text, s.began); len(got) != 1 {
			s.Errorf("done after %v", got)
		}
	})
}

// A row that another program wrote to the table, and that is no key, is reported once and postponed
// for long. It neither delays the other items nor hides their failures.
func TestRelayBadItems(t *testing.T) {
	q := &relayQueue{}
	inStation(t, q, func(s *station) {
		q.inner = NewMemoryQueue(0)
		bad := []Item{{ID: "x", Claim: "c", Key: cacheaside.Key{Loader: "a:b"}}, {ID: "y", Claim: "c"}}
		q.extra = bad
		s.put(Item{Key: relayKey(1)})
		r, _ := s.start(RelayOptions{})
		time.Sleep(time.Second)
		if st := r.Stats(); st.Done != 1 || st.Bad != 2 || st.Failed != 2 || st.Alerts != 1 || st.Out {
			s.Errorf("%+v", st)
		}
		if alerts := s.gotAlerts(); len(alerts) != 1 || alerts[0].Attempts != 1 ||
			!strings.Contains(alerts[0].Err.Error(), "Key.Loader") {
			s.Errorf("%+v", alerts)
		}
		if len(q.later) != 2 || q.later[0].After != time.Minute || q.later[0].Attempts != 1 {
			s.Errorf("put back: %+v", q.later)
		}
		s.cache.fail(noRedis)
		s.put(Item{Key: relayKey(2)})
		for range 30 { // they come again and again
			time.Sleep(time.Minute)
			q.mu.Lock()
			q.extra = bad
			q.mu.Unlock()
		}
		alerts := s.gotAlerts()
		if len(alerts) != 1 || !errors.Is(alerts[0].Err, cacheaside.ErrRedis) {
			s.Errorf("alerts: %+v", alerts)
		}
		s.cache.fail(nil)
		s.drained(3 * time.Second)
	})
}

// Neither a filter that panics nor an OnAlert that does ends a relay.
func TestRelayPanics(t *testing.T) {
	const text = "the text of a panic"
	for name, onAlert := range map[string]func(Alert){
		"panic":  func(Alert) { panic(text + " of OnAlert") },
		"Goexit": func(Alert) { runtime.Goexit() },
		"hangs":  func(Alert) { time.Sleep(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			inStation(t, nil, func(s *station) {
				s.cache.fail(func(op string, k cacheaside.Key) error {
					if op == "admit" {
						s.cache.mu.Unlock()
						defer s.cache.mu.Lock()
						panic(text)
					}
					return nil
				})
				r, _ := s.start(RelayOptions{AlertAt: 3, OnAlert: onAlert})
				s.put(Item{Key: relayKey(1)})
				s.at(20 * time.Second)
				st := r.Stats()
				if st.Alerts != 1 || st.Failed < 5 || st.Done != 0 || st.Panics != map[string]int64{"panic": 1}[name] {
					s.Errorf("%+v", st)
				}
				s.cache.fail(nil)
				s.drained(30 * time.Second)
				s.logged("a filter or a load function hung or panicked", text)
				s.logged("a Relay cannot handle its items", text)
				if name == "panic" {
					s.logged("RelayOptions.OnAlert panicked", text+" of OnAlert")
				}
			})
		})
	}
}

// logged checks that a record about a panic has its text and its stack in fields.
func (s *station) logged(message, text string) {
	s.Helper()
	for line := range strings.Lines(s.logs.String()) {
		if _, fields, ok := strings.Cut(line, message); ok {
			if strings.Count(line, text) != 1 ||
				!strings.Contains(fields, fmt.Sprintf(" panic=%q stack=\"goroutine ", text)) {
				s.Errorf("logged %s", line)
			}
			return
		}
	}
	s.Errorf("%q is not logged", message)
}

func TestAlarmIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all alarms
		all.init()
		a := &all[failingAlarm]
		failed := func(n int) bool {
			_, tell := a.Failed(relayKey(n).String(), nil)
			return tell
		}
		over := func(n int) bool {
			_, over := a.Works(relayKey(n).String())
			return over
		}
		known := func(n int) bool { // and works
			f, _ := a.Works(relayKey(n).String())
			return f.Times > 0
		}
		sounded := 0
		for n := range 10 * maxSubjects {
			if failed(n) {
				sounded++
			}
		}
		if sounded != 1 || known(maxSubjects) || !known(maxSubjects-1) {
			t.Errorf("it sounded %d times, or is about more, or less", sounded)
		}
		time.Sleep(subjectExpiry)
		failed(5)
		time.Sleep(time.Second)
		all.expire() // the others may have been done by another relay
		if failed(6) || known(4) {
			t.Error("it sounds again, or is about what was forgotten")
		}
		if over(7) || over(5) || !over(6) || over(6) {
			t.Error("it ends when all is over")
		}
		if !failed(7) {
			t.Error("it does not sound again")
		}
	})
}

func TestDelay(t *testing.T) {
	for n := 1; n < 100; n++ {
		want := longestDelay
		if n <= 10 {
			want = firstDelay << (n - 1) // 51 s, the tenth
		}
		for range 100 {
			if d := retry.Delay(n, firstDelay, longestDelay); d < want/2 || d > want {
				t.Fatalf("%v after %d attempts, want half to all of %v", d, n, want)
			}
		}
	}
}

func TestRelayOptions(t *testing.T) {
	queue := NewMemoryQueue(0)
	if _, err := NewRelay(nil, queue, nil); err == nil {
		t.Error("made without a cache")
	}
	if _, err := newRelay(&relayCache{}, nil, nil); err == nil {
		t.Error("made without a queue")
	}
	for field, o := range map[string]RelayOptions{
		"Poll":     {Poll: -1},
		"ClaimFor": {ClaimFor: time.Millisecond},
		"AlertAt":  {AlertAt: -1},
	} {
		if _, err := newRelay(&relayCache{}, queue, &o); err == nil ||
			!strings.Contains(err.Error(), "RelayOptions."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	var o *RelayOptions
	if d := o.withDefaults(); d.Poll != 200*time.Millisecond || d.ClaimFor != 30*time.Second || d.AlertAt != 10 ||
		d.Logger == nil || d.check() != nil {
		t.Errorf("%+v", d)
	}
}

package sqloutbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A listenedQueue is a queue in memory whose relays listen as those of an Outbox do.
type listenedQueue struct {
	*consistency.MemoryQueue
	looks, claims, depths, connects atomic.Int64

	mu  sync.Mutex
	due map[string]time.Time // by ID

	sent    chan string   // notifications on their way
	broken  chan struct{} // ends a connection
	silent  atomic.Bool   // notifications are lost
	down    atomic.Bool   // no connection is accepted
	panics  atomic.Bool
	ignores chan struct{} // unless nil: receive ignores its context until this is closed
	deaf    bool          // receive never listens
}

func (q *listenedQueue) set(life time.Duration, items []consistency.Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, item := range items {
		q.due[item.ID] = time.Now().Add(max(life, item.After))
	}
}

func (q *listenedQueue) Put(ctx context.Context, items ...consistency.Item) error {
	q.set(0, items)
	return q.MemoryQueue.Put(ctx, items...)
}

func (q *listenedQueue) Claim(ctx context.Context, limit int, life time.Duration) ([]consistency.Item, error) {
	q.claims.Add(1)
	items, err := q.MemoryQueue.Claim(ctx, limit, life)
	q.set(life, items)
	return items, err
}

func (q *listenedQueue) Later(ctx context.Context, items ...consistency.Item) error {
	q.set(0, items)
	return q.MemoryQueue.Later(ctx, items...)
}

func (q *listenedQueue) Done(ctx context.Context, items ...consistency.Item) error {
	q.mu.Lock()
	for _, item := range items {
		delete(q.due, item.ID)
	}
	q.mu.Unlock()
	return q.MemoryQueue.Done(ctx, items...)
}

func (q *listenedQueue) Depth(ctx context.Context) (consistency.Depth, error) {
	q.depths.Add(1)
	return q.MemoryQueue.Depth(ctx)
}

func (q *listenedQueue) Listen(
	poll time.Duration, relays func() int, log *slog.Logger,
) (run, wait func(context.Context)) {
	l := newListener(q, poll, relays, log)
	return l.run, l.wait
}

func (q *listenedQueue) Bind(string, *sqlx.DB) error                  { return nil }
func (q *listenedQueue) Committed(...consistency.Item)                {}
func (q *listenedQueue) Flush()                                       {}
func (q *listenedQueue) Maintain(context.Context, *slog.Logger) error { return nil }

func (q *listenedQueue) nextDue(_ context.Context, limit time.Duration) (time.Duration, error) {
	q.looks.Add(1)
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, due := range q.due {
		limit = min(limit, time.Until(due))
	}
	return limit, nil
}

func (q *listenedQueue) notify(_ context.Context, payload string) error {
	if !q.silent.Load() && len(q.sent) < cap(q.sent) {
		q.sent <- payload
	}
	return nil
}

func (q *listenedQueue) receive(ctx context.Context, received func(string)) error {
	q.connects.Add(1)
	if q.panics.Load() {
		panic("of a driver")
	}
	if q.down.Load() {
		return errors.New("refused")
	}
	for len(q.sent) > 0 { // to those that listened before
		<-q.sent
	}
	ended := ctx.Done()
	if q.ignores != nil {
		ended = q.ignores
	}
	if q.deaf {
		<-ended
		return nil
	}
	received("")
	for {
		select {
		case p := <-q.sent:
			received(p)
		case <-q.broken:
			if q.panics.Load() {
				panic("of a driver")
			}
			return errors.New("reset")
		case <-ended:
			return ctx.Err()
		}
	}
}

// listening is a Relay in a bubble whose queue listens. It is the filter of its loader, too.
type listening struct {
	*testing.T
	queue *listenedQueue
	rows  *cacheaside.Loader[string, string]
	began time.Time
	logs  testenv.Log
	stop  func() error // ends Run

	mu      sync.Mutex
	failing int                        // how often Inserting fails, after half a second
	done    map[string][]time.Duration // when keys were handled, since the beginning
}

func (l *listening) MightContain(context.Context, string) (bool, error) { return true, nil }

func (l *listening) MightContainMany(_ context.Context, keys []string) ([]bool, error) {
	return make([]bool, len(keys)), nil
}

func (l *listening) NotFound(int) {}

func (l *listening) Inserting(_ context.Context, keys []string) (committed func(context.Context) error, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failing > 0 {
		l.failing--
		time.Sleep(500 * time.Millisecond) // a look comes first
		return nil, errors.New("no filter")
	}
	return func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, key := range keys {
			l.done[key] = append(l.done[key], time.Since(l.began))
		}
		return nil
	}, nil
}

func (l *listening) check(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// at waits until some time after the beginning.
func (l *listening) at(d time.Duration) {
	time.Sleep(time.Until(l.began.Add(d)))
	synctest.Wait()
}

func (l *listening) put(key string, item consistency.Item) {
	l.Helper()
	item.ID, item.Key = consistency.NewID(), l.rows.Key(key)
	l.check(l.queue.Put(l.Context(), item))
}

// times returns when a key was handled.
func (l *listening) times(key string) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done[key]
}

// whileListening runs a test in a bubble with a Relay. change, unless nil, changes the queue
// before.
func whileListening(t *testing.T, change func(q *listenedQueue), test func(l *listening, q *listenedQueue)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &listening{T: t, began: time.Now(), done: map[string][]time.Duration{}}
		q := &listenedQueue{
			MemoryQueue: consistency.NewMemoryQueue(0), due: map[string]time.Time{},
			sent: make(chan string, 100), broken: make(chan struct{}),
		}
		l.queue = q
		if change != nil {
			change(q)
		}
		cache, err := cacheaside.NewLocal(nil)
		l.check(err)
		defer cache.Close()
		load := func(context.Context, string) (string, error) { return "", errors.New("nothing is loaded here") }
		l.rows, err = cacheaside.NewLoader(cache, "user", load, &cacheaside.LoaderOptions{Filter: l})
		l.check(err)
		relay, err := consistency.NewRelay(cache, q,
			&consistency.RelayOptions{Logger: slog.New(slog.NewTextHandler(&l.logs, nil))})
		l.check(err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		l.stop = sync.OnceValue(func() error { cancel(); return <-ended })
		test(l, q)
		l.check(l.stop())
	})
}

// TestListenerIdle: an idle Relay that listens calls its queue less often than once a second.
func TestListenerIdle(t *testing.T) {
	whileListening(t, nil, func(l *listening, q *listenedQueue) {
		l.at(time.Minute)
		q.looks.Store(0)
		q.claims.Store(0)
		q.depths.Store(0)
		l.at(61 * time.Minute)
		looks, claims, depths := q.looks.Load(), q.claims.Load(), q.depths.Load()
		t.Logf("in an hour: %d looks, %d claims, %d depths", looks, claims, depths)
		if looks > 30*60 || claims > 6*60 || depths > 6*60 {
			t.Error("too many")
		}
		if looks < 25*60 || q.connects.Load() != 1 {
			t.Errorf("%d connections", q.connects.Load())
		}
	})
}

// listeners are listeners of 1,000 relays that wait again and again.
type listeners struct {
	*testing.T
	all      [1000]*listener
	returned atomic.Int64 // times that one of them has returned
}

// inFleet runs a test with listeners, whose connections work if live is true. If hinted is true,
// each has received a notification before it waits.
func inFleet(t *testing.T, live, hinted bool, test func(l *listeners, q *listenedQueue)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		q, f := &listenedQueue{MemoryQueue: consistency.NewMemoryQueue(0)}, &listeners{T: t}
		ctx, stop := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		for i := range f.all {
			l := newListener(q, 200*time.Millisecond, func() int { return len(f.all) }, slog.New(slog.DiscardHandler))
			l.live.Store(live)
			if f.all[i] = l; hinted {
				l.hint()
			}
			ended.Go(func() {
				for ctx.Err() == nil {
					l.wait(ctx)
					f.returned.Add(1)
				}
			})
		}
		test(f, q)
		stop()
		ended.Wait()
	})
}

// rates returns the looks and the returns in a second.
func (l *listeners) rates(q *listenedQueue) (looks, returns int64) {
	time.Sleep(time.Minute)
	looks, returns = q.looks.Load(), l.returned.Load()
	const seconds = 600
	time.Sleep(seconds * time.Second)
	return (q.looks.Load() - looks) / seconds, (l.returned.Load() - returns) / seconds
}

// TestListenersAreIdle: 1,000 listeners look at the table, and return, each every 20 s on average
// or less often. So they do while their connections fail.
func TestListenersAreIdle(t *testing.T) {
	inFleet(t, true, false, func(l *listeners, q *listenedQueue) {
		looks, returns := l.rates(q)
		t.Logf("%d looks and %d returns a second", looks, returns)
		if looks > 60 || returns > 40 {
			t.Errorf("%d looks and %d returns a second", looks, returns)
		}
	})
	inFleet(t, false, false, func(l *listeners, q *listenedQueue) {
		if looks, returns := l.rates(q); looks > 0 || returns < 40 || returns > 60 {
			t.Errorf("without connections %d looks and %d returns a second", looks, returns)
		}
	})
}

// TestListenersNotified: of 1,000 listeners about five follow a notification, also if it arrives
// while they pause after a claim.
func TestListenersNotified(t *testing.T) {
	inFleet(t, true, false, func(l *listeners, _ *listenedQueue) {
		time.Sleep(time.Minute)
		followed := int64(0)
		const times = 200
		for range times {
			time.Sleep(time.Second)
			before := l.returned.Load()
			for _, one := range l.all {
				one.hint()
			}
			synctest.Wait()
			followed += l.returned.Load() - before
		}
		if followed < 3*times || followed > 8*times {
			t.Errorf("%d follow %d notifications", followed, times)
		}
	})
	inFleet(t, true, true, func(l *listeners, _ *listenedQueue) {
		time.Sleep(time.Second)
		if n := l.returned.Load(); n > 30 {
			t.Errorf("%d of 1,000 follow an earlier notification", n)
		}
	})
}

// TestListenerNotified: a Relay handles an item as soon as it is notified.
func TestListenerNotified(t *testing.T) {
	whileListening(t, nil, func(l *listening, q *listenedQueue) {
		for n := range 20 {
			at := 10*time.Second + time.Duration(n)*1777*time.Millisecond
			l.at(at)
			l.put(fmt.Sprint(n), consistency.Item{})
			if err := q.notify(l.Context(), notifyItems); err != nil {
				t.Fatal(err)
			}
			l.at(at + 200*time.Millisecond)
			if got := l.times(fmt.Sprint(n)); len(got) != 1 || got[0] > at+200*time.Millisecond {
				t.Errorf("put after %v, done after %v", at, got)
			}
		}
	})
}

// TestListenerLosesNotification: without a notification, a Relay handles an item at most
// listenInterval late, and at its time if it is due later than that.
func TestListenerLosesNotification(t *testing.T) {
	whileListening(t, nil, func(l *listening, q *listenedQueue) {
		for n := range 20 {
			at := 10*time.Second + time.Duration(n)*5777*time.Millisecond
			after := time.Duration(n%4) * 1100 * time.Millisecond
			l.at(at)
			l.put(fmt.Sprint(n), consistency.Item{After: after})
			l.at(at + 5*time.Second)
			got := l.times(fmt.Sprint(n))
			if len(got) != 1 {
				t.Fatalf("put after %v, done after %v", at, got)
			}
			switch late := got[0] - at - after; {
			case after >= listenInterval && late > 200*time.Millisecond: // the pause of Poll after a claim
				t.Errorf("put after %v, due %v later, done after %v", at, after, got)
			case late > listenInterval:
				t.Errorf("put after %v, due %v later, done after %v", at, after, got)
			}
		}
	})
}

// TestListenerPutsBack: a Relay that listens retries an item, or repeats it, as early as one that
// polls.
func TestListenerPutsBack(t *testing.T) {
	whileListening(t, nil, func(l *listening, q *listenedQueue) {
		l.mu.Lock()
		l.failing = 3
		l.mu.Unlock()
		l.at(10 * time.Second)
		l.put("1", consistency.Item{Again: 5 * time.Second})
		_ = q.notify(l.Context(), notifyItems)
		l.at(20 * time.Second)
		got := l.times("1")
		if len(got) != 2 || got[0] > 14*time.Second || got[1] < got[0]+5*time.Second ||
			got[1] > got[0]+5*time.Second+700*time.Millisecond {
			t.Errorf("done after %v", got)
		}
	})
}

// TestListenerPolls: as long as no notifications arrive, a Relay polls. It logs that once, and that
// it listens again.
func TestListenerPolls(t *testing.T) {
	type fault struct {
		name, logged string
		set          func(q *listenedQueue, on bool)
	}
	for _, f := range []fault{
		{"silent", "PgBouncer", func(q *listenedQueue, on bool) { q.silent.Store(on) }},
		{"down", "reset", func(q *listenedQueue, on bool) { q.down.Store(on) }},
		{"panics", "of a driver", func(q *listenedQueue, on bool) { q.panics.Store(on) }},
	} {
		t.Run(f.name, func(t *testing.T) {
			whileListening(t, nil, func(l *listening, q *listenedQueue) {
				l.at(10 * time.Second)
				f.set(q, true)
				if f.name != "silent" { // it has to find out that itself
					q.broken <- struct{}{}
				}
				l.at(time.Minute)
				claims, connects := q.claims.Load(), q.connects.Load()
				l.at(2 * time.Minute)
				if n := q.claims.Load() - claims; n < 290 {
					t.Errorf("%d claims in a minute", n)
				}
				if n := q.connects.Load() - connects; n > 20 {
					t.Errorf("%d connections in a minute", n)
				}
				if text := l.logs.String(); strings.Count(text, "cannot listen") != 1 ||
					!strings.Contains(text, f.logged) {
					t.Errorf("logged %s", text)
				}
				f.set(q, false)
				l.at(4 * time.Minute)
				claims = q.claims.Load()
				l.at(5 * time.Minute)
				if n := q.claims.Load() - claims; n > 7 {
					t.Errorf("%d claims in a minute", n)
				}
				if text := l.logs.String(); strings.Count(text, "a Relay listens") != 2 {
					t.Errorf("logged %s", text)
				}
			})
		})
	}
}

// TestListenerIgnoresContext: a function that ignores its context does not keep Run from returning.
func TestListenerIgnoresContext(t *testing.T) {
	var returns chan struct{}
	whileListening(t, func(q *listenedQueue) { returns = make(chan struct{}); q.ignores = returns },
		func(l *listening, _ *listenedQueue) {
			l.at(time.Second)
			if err := l.stop(); err != nil || time.Since(l.began) > time.Minute {
				t.Errorf("%v after %v", err, time.Since(l.began))
			}
			close(returns)
		})
}

// TestListenerDoesNotReturn: while a function does not return although its connection has failed,
// a Relay polls, and has logged why. The function is not called again until it returns.
func TestListenerDoesNotReturn(t *testing.T) {
	for _, c := range []struct {
		name, logged string
		listens      bool
	}{
		{"before it listens", "not connected", false},
		{"after it has listened", "PgBouncer", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var returns chan struct{}
			ignore := func(q *listenedQueue) {
				returns = make(chan struct{}) // of the bubble
				q.ignores, q.deaf = returns, !c.listens
			}
			whileListening(t, ignore, func(l *listening, q *listenedQueue) {
				l.at(10*time.Second - time.Millisecond)
				if live := strings.Contains(l.logs.String(), "a Relay listens"); live != c.listens {
					t.Errorf("logged %s", &l.logs)
				}
				q.silent.Store(true)
				l.at(time.Minute)
				claims := q.claims.Load()
				l.at(2 * time.Minute)
				if n := q.claims.Load() - claims; n < 290 {
					t.Errorf("%d claims in a minute", n)
				}
				if text := l.logs.String(); strings.Count(text, "cannot listen") != 1 ||
					!strings.Contains(text, c.logged) {
					t.Errorf("logged %s", text)
				}
				if n := q.connects.Load(); n != 1 {
					t.Errorf("%d connections", n)
				}
				close(returns)
				l.at(3 * time.Minute)
				if n := q.connects.Load(); n < 2 {
					t.Errorf("%d connections after it has returned", n)
				}
			})
		})
	}
}

package consistency

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A listenedQueue is a queue in memory whose relays listen as those of an SQLOutbox do.
type listenedQueue struct {
	*MemoryQueue
	looks, claims, depths, connects atomic.Int64

	sent   chan string   // notifications on their way
	broken chan struct{} // ends a connection
	silent atomic.Bool   // notifications are lost
	down   atomic.Bool   // no connection is accepted
	panics atomic.Bool
}

func newListenedQueue() *listenedQueue { return &listenedQueue{} }

// begin makes the parts that belong to a bubble.
func (q *listenedQueue) begin() *listenedQueue {
	q.MemoryQueue, q.sent, q.broken = NewMemoryQueue(0), make(chan string, 100), make(chan struct{})
	return q
}

func (q *listenedQueue) listener(poll time.Duration, log *slog.Logger) *listener {
	return newListener(q, poll, log)
}

func (q *listenedQueue) Claim(ctx context.Context, limit int, life time.Duration) ([]Item, error) {
	q.claims.Add(1)
	return q.MemoryQueue.Claim(ctx, limit, life)
}

func (q *listenedQueue) Depth(ctx context.Context) (Depth, error) {
	q.depths.Add(1)
	return q.MemoryQueue.Depth(ctx)
}

func (q *listenedQueue) nextDue(_ context.Context, limit time.Duration) (time.Duration, error) {
	q.looks.Add(1)
	q.mu.Lock()
	defer q.mu.Unlock()
	if due, ok := q.byDue.first(); ok {
		return min(limit, time.Until(due)), nil
	}
	return limit, nil
}

func (q *listenedQueue) notify(_ context.Context, payload string) error {
	if !q.silent.Load() && len(q.sent) < cap(q.sent) {
		q.sent <- payload
	}
	return nil
}

func (q *listenedQueue) receive(ctx context.Context, heard func(string)) error {
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
	heard("")
	for {
		select {
		case p := <-q.sent:
			heard(p)
		case <-q.broken:
			if q.panics.Load() {
				panic("of a driver")
			}
			return errors.New("reset")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// inListening runs a relay whose queue notifies.
func inListening(t *testing.T, test func(s *station, q *listenedQueue)) {
	t.Helper()
	q := newListenedQueue()
	inStation(t, q, func(s *station) {
		q.begin()
		s.start(RelayOptions{})
		test(s, q)
	})
}

// TestListenerIdle: an idle Relay that listens calls its queue less often than once a second.
func TestListenerIdle(t *testing.T) {
	inListening(t, func(s *station, q *listenedQueue) {
		s.at(time.Minute)
		q.looks.Store(0)
		q.claims.Store(0)
		q.depths.Store(0)
		s.at(61 * time.Minute)
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

// TestListenerNotified: a Relay handles an item as soon as it is notified.
func TestListenerNotified(t *testing.T) {
	inListening(t, func(s *station, q *listenedQueue) {
		for n := range 20 {
			at := 10*time.Second + time.Duration(n)*1777*time.Millisecond
			s.at(at)
			s.put(Item{Key: relayKey(n)})
			if err := q.notify(s.Context(), notifyItems); err != nil {
				t.Fatal(err)
			}
			s.at(at + 200*time.Millisecond)
			if got := s.cache.times("committed", relayKey(n).Text, s.began); len(got) != 1 || got[0] > at+200*time.Millisecond {
				t.Errorf("put after %v, done after %v", at, got)
			}
		}
	})
}

// TestListenerLosesNotification: without a notification, a Relay handles an item at most
// listenInterval late, and at its time if it is due later than that.
func TestListenerLosesNotification(t *testing.T) {
	inListening(t, func(s *station, q *listenedQueue) {
		for n := range 20 {
			at := 10*time.Second + time.Duration(n)*5777*time.Millisecond
			after := time.Duration(n%4) * 1100 * time.Millisecond
			s.at(at)
			s.put(Item{Key: relayKey(n), After: after})
			s.at(at + 5*time.Second)
			got := s.cache.times("committed", relayKey(n).Text, s.began)
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
	inListening(t, func(s *station, q *listenedQueue) {
		failing := 3
		s.cache.before = func(context.Context, string, []cacheaside.Key) { time.Sleep(500 * time.Millisecond) } // a look comes first
		s.cache.fail(func(op string, k cacheaside.Key) error {
			if op == "admit" && failing > 0 { // in the job of its loader
				failing--
				return errors.New("no filter")
			}
			return nil
		})
		s.at(10 * time.Second)
		s.put(Item{Key: relayKey(1), Again: 5 * time.Second})
		_ = q.notify(s.Context(), notifyItems)
		s.at(20 * time.Second)
		got := s.cache.times("committed", relayKey(1).Text, s.began)
		if len(got) != 2 || got[0] > 14*time.Second || got[1] < got[0]+5*time.Second || got[1] > got[0]+5*time.Second+700*time.Millisecond {
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
			inListening(t, func(s *station, q *listenedQueue) {
				s.at(10 * time.Second)
				f.set(q, true)
				if f.name != "silent" { // it has to find out that itself
					q.broken <- struct{}{}
				}
				s.at(time.Minute)
				claims, connects := q.claims.Load(), q.connects.Load()
				s.at(2 * time.Minute)
				if n := q.claims.Load() - claims; n < 290 {
					t.Errorf("%d claims in a minute", n)
				}
				if n := q.connects.Load() - connects; n > 20 {
					t.Errorf("%d connections in a minute", n)
				}
				if text := s.logs.String(); strings.Count(text, "cannot listen") != 1 || !strings.Contains(text, f.logged) {
					t.Errorf("logged %s", text)
				}
				f.set(q, false)
				s.at(4 * time.Minute)
				claims = q.claims.Load()
				s.at(5 * time.Minute)
				if n := q.claims.Load() - claims; n > 7 {
					t.Errorf("%d claims in a minute", n)
				}
				if text := s.logs.String(); strings.Count(text, "a Relay listens") != 2 {
					t.Errorf("logged %s", text)
				}
			})
		})
	}
}

// TestListenerIgnoresContext: a function that ignores its context does not keep Run from returning.
func TestListenerIgnoresContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		s := &station{T: t, cache: &relayCache{}, began: time.Now(), logs: &testenv.Log{}}
		q := newListenedQueue().begin()
		s.queue = ignoringQueue{listenedQueue: q, goOn: goOn}
		_, stop := s.start(RelayOptions{})
		s.at(time.Second)
		if err := stop(); err != nil || time.Since(s.began) > time.Minute {
			t.Errorf("%v after %v", err, time.Since(s.began))
		}
		close(goOn)
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
			q := newListenedQueue()
			inStation(t, q, func(s *station) {
				q.begin()
				goOn := make(chan struct{})
				s.queue = ignoringQueue{q, goOn, c.listens}
				s.start(RelayOptions{})
				s.at(10*time.Second - time.Millisecond)
				if live := strings.Contains(s.logs.String(), "a Relay listens"); live != c.listens {
					t.Errorf("logged %s", s.logs)
				}
				q.silent.Store(true)
				s.at(time.Minute)
				claims := q.claims.Load()
				s.at(2 * time.Minute)
				if n := q.claims.Load() - claims; n < 290 {
					t.Errorf("%d claims in a minute", n)
				}
				if text := s.logs.String(); strings.Count(text, "cannot listen") != 1 || !strings.Contains(text, c.logged) {
					t.Errorf("logged %s", text)
				}
				if n := q.connects.Load(); n != 1 {
					t.Errorf("%d connections", n)
				}
				close(goOn)
				s.at(3 * time.Minute)
				if n := q.connects.Load(); n < 2 {
					t.Errorf("%d connections after it has returned", n)
				}
			})
		})
	}
}

// An ignoringQueue has a function that ignores its context until goOn is closed.
type ignoringQueue struct {
	*listenedQueue
	goOn    chan struct{}
	listens bool
}

func (q ignoringQueue) listener(poll time.Duration, log *slog.Logger) *listener {
	return newListener(q, poll, log)
}

func (q ignoringQueue) receive(_ context.Context, received func(string)) error {
	q.connects.Add(1)
	if q.listens {
		received("")
	}
	for {
		select {
		case payload := <-q.sent:
			if q.listens {
				received(payload)
			}
		case <-q.goOn:
			return nil
		}
	}
}

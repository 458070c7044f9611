package consistency

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// An item's error that is another cache's, which its filter or load function uses, does not end a
// relay.
func TestRelayOfAnotherCache(t *testing.T) {
	for _, op := range []string{"admit", "refresh"} {
		t.Run(op, func(t *testing.T) {
			inStation(t, nil, func(s *station) {
				s.cache.fail(func(o string, k cacheaside.Key) error {
					if o == op && k == relayKey(1) {
						return fmt.Errorf("the filter's own cache: %w", cacheaside.ErrClosed)
					}
					return nil
				})
				r, _ := s.start(RelayOptions{})
				s.put(Item{Key: relayKey(1), Reload: op == "refresh"}, Item{Key: relayKey(2)})
				s.at(5 * time.Minute)
				s.put(Item{Key: relayKey(3)})
				time.Sleep(time.Second)
				s.done(relayKey(1), time.Second)
				s.done(relayKey(2), 0)
				s.done(relayKey(3), 5*time.Minute)
				want := 1
				if op == "refresh" { // what cannot be reloaded is invalidated
					want = 0
				}
				if alerts := s.gotAlerts(); len(alerts) != want || r.Stats().Ended {
					s.Errorf("%+v, %+v", alerts, r.Stats())
				}
				s.cache.fail(nil)
				s.drained(2 * time.Minute)
			})
		})
	}
}

// wakingQueue is a relayQueue that notifies the relay of new items.
type wakingQueue struct{ *relayQueue }

func (w wakingQueue) Wait(ctx context.Context) {
	_ = w.call("wait")
	w.inner.Wait(ctx)
}

// A queue that panics fails, and does not end a relay.
func TestRelayQueuePanics(t *testing.T) {
	for _, op := range []string{"claim", "done", "later", "depth", "wait"} {
		for how, end := range map[string]func(){"panic": func() { panic("of a queue") }, "Goexit": runtime.Goexit} {
			t.Run(op+" "+how, func(t *testing.T) {
				q := &relayQueue{inner: NewMemoryQueue(0)}
				inStation(t, wakingQueue{q}, func(s *station) {
					q.inner = NewMemoryQueue(0)
					q.set(func(o string) error {
						if o == op {
							q.mu.Unlock()
							defer q.mu.Lock()
							end()
						}
						return nil
					})
					s.cache.fail(func(o string, k cacheaside.Key) error {
						if k == relayKey(2) && time.Since(s.began) < time.Minute {
							return errors.New("so that it is put back")
						}
						return nil
					})
					r, _ := s.start(RelayOptions{})
					s.put(Item{Key: relayKey(1)}, Item{Key: relayKey(2)})
					s.at(2 * time.Minute)
					st := r.Stats()
					if st.Panics == 0 || st.QueueErrors != st.Panics || st.Ended {
						s.Errorf("%+v", st)
					}
					if op == "wait" && st.Panics != 1 { // it is not asked again
						s.Errorf("%+v", st)
					}
					if how == "panic" && op == "claim" {
						s.logged("the queue of a Relay fails", "of a queue")
					}
					q.set(nil)
					time.Sleep(time.Minute)
					if st := r.Stats(); st.Done != 2 {
						s.Errorf("%+v", st)
					}
				})
			})
		}
	}
}

// TestRelayQueueReturnsPanic: an error of a queue that wraps the panic of something else is not a
// panic of the queue, and its text is kept.
func TestRelayQueueReturnsPanic(t *testing.T) {
	q := &relayQueue{}
	inStation(t, q, func(s *station) {
		q.inner = NewMemoryQueue(0)
		q.set(func(string) error { return fmt.Errorf("the queue's own cache: %w", &cacheaside.PanicError{Value: 1}) })
		r, _ := s.start(RelayOptions{})
		s.at(time.Minute)
		if st := r.Stats(); st.Panics != 0 || st.QueueErrors == 0 {
			s.Errorf("%+v", st)
		}
		if !strings.Contains(s.logs.String(), "the queue's own cache") {
			s.Errorf("logged %s", s.logs)
		}
		q.set(nil)
	})
}

// TestRelayEndsWait: when Run ends, also because the cache was closed, it ends its call of the
// queue's Wait. A Wait that ignores its context does not keep Run from returning.
func TestRelayEndsWait(t *testing.T) {
	for _, closed := range []bool{false, true} {
		for _, ignores := range []bool{false, true} {
			t.Run(fmt.Sprintf("closed=%v ignores=%v", closed, ignores), func(t *testing.T) {
				q := &waitingQueue{relayQueue: &relayQueue{}}
				inStation(t, q, func(s *station) {
					q.inner = NewMemoryQueue(0)
					if ignores {
						q.ignores = make(chan struct{})
					}
					_, stop := s.start(RelayOptions{})
					s.at(100 * time.Millisecond)
					if n := q.waits.Load(); n != 1 {
						s.Fatalf("%d calls of Wait", n)
					}
					var want error
					if closed {
						s.stops, want = nil, cacheaside.ErrClosed
						s.cache.mu.Lock()
						s.cache.closed = true
						s.cache.mu.Unlock()
						s.cache.fail(func(string, cacheaside.Key) error { return cacheaside.ErrClosed })
						s.put(Item{Key: relayKey(1)})
						time.Sleep(3 * time.Second) // Run sees it; Wait does not
						if ignores {
							time.Sleep(10 * time.Second) // Run waits for it
						}
					}
					began := time.Now()
					if err := stop(); !errors.Is(err, want) {
						s.Errorf("Run: %v", err)
					}
					left := int64(0)
					if ignores {
						left = 1
					}
					if n := q.waits.Load(); n != left || time.Since(began) > 11*time.Second {
						s.Errorf("%d calls of Wait remain after %v", n, time.Since(began))
					}
					if ignores {
						close(q.ignores)
					}
				})
			})
		}
	}
}

// waitingQueue is a relayQueue whose Wait returns when its context ends, or ignores it.
type waitingQueue struct {
	*relayQueue
	waits   atomic.Int64  // calls that have not returned
	ignores chan struct{} // if set, a call returns when it is closed
}

func (w *waitingQueue) Wait(ctx context.Context) {
	w.waits.Add(1)
	defer w.waits.Add(-1)
	if w.ignores != nil {
		<-w.ignores
		return
	}
	<-ctx.Done()
}

// A Logger that panics does not end a relay either.
func TestRelayLoggerPanics(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.fail(noRedis)
		r, err := newRelay(s.cache, s.queue, &RelayOptions{Logger: testenv.PanickingLogger(relayPrivate),
			OnAlert: s.alerted})
		if err != nil {
			s.Fatal(err)
		}
		ctx, stop := context.WithCancel(s.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		s.put(Item{Key: relayKey(1)})
		s.at(time.Minute)
		if alerts := s.gotAlerts(); len(alerts) != 1 {
			s.Errorf("%+v", alerts)
		}
		s.cache.fail(nil)
		s.drained(time.Minute)
		if st := r.Stats(); st.Panics == 0 {
			s.Errorf("%+v", st)
		}
		stop()
		if err := <-ended; err != nil {
			s.Error(err)
		}
	})
}

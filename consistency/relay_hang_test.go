package consistency

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
)

// trap is a filter, or load function, that does not return.
type trap struct {
	deaf    bool          // it does not listen to its context
	healed  chan struct{} // then it does return
	caught  atomic.Int64  // calls that are in it
	most    atomic.Int64  // of them, at once
	catches func(op string, keys []cacheaside.Key) bool
}

func newTrap(s *station, deaf bool, catches func(op string, keys []cacheaside.Key) bool) *trap {
	h := &trap{deaf: deaf, healed: make(chan struct{}), catches: catches}
	s.cache.before = h.before
	return h
}

func (t *trap) before(ctx context.Context, op string, keys []cacheaside.Key) {
	if !t.catches(op, keys) {
		return
	}
	t.most.Store(max(t.most.Load(), t.caught.Add(1)))
	defer t.caught.Add(-1)
	done := ctx.Done()
	if t.deaf {
		done = nil
	}
	select {
	case <-t.healed:
	case <-done:
	}
}

// done fails unless a key was invalidated by that time.
func (s *station) done(k cacheaside.Key, by time.Duration) {
	s.Helper()
	var all []time.Duration
	for _, op := range []string{"committed", "invalidate", "refresh"} {
		all = append(all, s.cache.times(op, k.Text, s.began)...)
	}
	if len(all) == 0 || slices.Min(all) > by {
		s.Errorf("%v was done after %v, want %v", k, all, by)
	}
}

// TestHalf: the second step has half of the time, however long the first one hangs.
func TestHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		first, cancel := half(ctx)
		defer cancel()
		began := time.Now()
		<-first.Done()
		if hung := time.Since(began); hung != 5*time.Second || ctx.Err() != nil {
			t.Errorf("the first has ended after %v, and the whole: %v", hung, ctx.Err())
		}
		unbounded, cancel := half(t.Context())
		defer cancel()
		if _, ok := unbounded.Deadline(); ok {
			t.Error("what has no end has got one")
		}
	})
}

func keyOf(loader string, n int) cacheaside.Key {
	return cacheaside.Key{Loader: loader, Text: fmt.Sprint(relayPrivate, loader, n)}
}

// A filter, or load function, that hangs does not delay the items of other loaders. Its own keys
// are invalidated while it hangs, and are not given up.
func TestRelayHangs(t *testing.T) {
	for _, reload := range []bool{false, true} {
		for _, deaf := range []bool{false, true} {
			t.Run(fmt.Sprintf("reload=%v deaf=%v", reload, deaf), func(t *testing.T) {
				inStation(t, nil, func(s *station) {
					op := map[bool]string{false: "admit", true: "refresh"}[reload]
					h := newTrap(s, deaf, func(o string, keys []cacheaside.Key) bool {
						return o == op && slices.ContainsFunc(keys,
							func(k cacheaside.Key) bool { return k.Loader == "bad" })
					})
					for n := range 148 {
						k := keyOf(fmt.Sprint("good", n%3), n)
						if n%8 == 0 {
							k = keyOf("bad", n)
						}
						s.put(Item{Key: k, Reload: reload})
					}
					r, _ := s.start(RelayOptions{})
					s.at(5 * time.Second)
					s.put(Item{Key: keyOf("good0", 1000)}, Item{Key: keyOf("bad", 1001), Reload: reload})
					for n := range 148 {
						if n%8 != 0 {
							s.done(keyOf(fmt.Sprint("good", n%3), n), 0)
						}
					}
					s.at(5*time.Second + time.Millisecond)
					s.done(keyOf("good0", 1000), 5*time.Second)
					if st := r.Stats(); st.Done != 130 || st.Out || st.Failed > 0 {
						s.Errorf("%+v", st)
					}
					s.at(time.Minute)
					for n := range 148 {
						if n%8 == 0 {
							s.done(keyOf("bad", n), 30*time.Second)
						}
					}
					s.done(keyOf("bad", 1001), 30*time.Second)
					left := 20
					if reload && !deaf { // what cannot be reloaded is invalidated, and done by that
						left = 0
					}
					if d := s.depth(); d.Items != left {
						s.Errorf("%+v", d)
					}
					s.at(30 * time.Minute)
					if n := h.most.Load(); n > 2 && !deaf || n > 2*maxHung {
						s.Errorf("%d goroutines hang at once", n)
					}
					alerts := s.gotAlerts()
					if len(alerts) != min(left, 1) || left > 0 && deaf &&
						!strings.Contains(alerts[0].Err.Error(), "bad") || r.Stats().Out {
						s.Errorf("%+v", alerts)
					}
					s.put(Item{Key: keyOf("good1", 2000)})
					time.Sleep(4 * time.Second)
					// a round may just be waiting for its groups
					s.done(keyOf("good1", 2000), 30*time.Minute+3*time.Second)
					close(h.healed)
					s.drained(3 * time.Minute)
					if st := r.Stats(); st.Done != 151 || st.Bad+st.QueueErrors+st.Panics != 0 {
						s.Errorf("%+v", st)
					}
				})
			})
		}
	}
}

// The filter of a key to be reloaded is called before the key is reloaded or invalidated. If the
// filter hangs, the key is reloaded after a sixth of ClaimFor. If it also ignores its context, the
// Relay abandons the attempt after 7/12 of ClaimFor, and the retry invalidates the key first.
func TestRelayHangingAdmitDelaysReload(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf=%v", deaf), func(t *testing.T) {
			inStation(t, nil, func(s *station) {
				h := newTrap(s, deaf, func(op string, _ []cacheaside.Key) bool { return op == "admit" })
				k := keyOf("bad", 0)
				op, earliest, latest := "refresh", 5*time.Second, 5*time.Second
				if deaf {
					op, earliest, latest = "invalidate", 17500*time.Millisecond, 17500*time.Millisecond+firstDelay
				}
				s.put(Item{Key: k, Reload: true})
				s.start(RelayOptions{ClaimFor: 30 * time.Second})
				s.at(latest)
				s.done(k, latest)
				if at := s.cache.times(op, k.Text, s.began); len(at) != 1 || at[0] < earliest {
					s.Errorf("%s was called after %v, want once, after %v to %v", op, at, earliest, latest)
				}
				if d := s.depth(); d.Items != 1 { // the filter has not accepted the key
					s.Errorf("%+v", d)
				}
				close(h.healed)
				s.drained(3 * time.Minute)
			})
		})
	}
}

// One key that hangs, or panics, does not hold up the other keys of its loader for ever; and later
// ones not at all.
func TestRelayPoison(t *testing.T) {
	for _, how := range []string{"hangs", "is deaf", "panics", "exits"} {
		t.Run(how, func(t *testing.T) {
			q := &relayQueue{} // whose items come together
			inStation(t, q, func(s *station) {
				q.inner = NewMemoryQueue(0)
				poison := relayKey(77)
				h := newTrap(s, how == "is deaf", func(op string, keys []cacheaside.Key) bool {
					return op == "admit" && slices.Contains(keys, poison)
				})
				healed := false
				if how == "panics" || how == "exits" {
					s.cache.before = func(_ context.Context, op string, keys []cacheaside.Key) {
						switch {
						case healed || !h.catches(op, keys):
						case how == "panics":
							panic("of a load function")
						default:
							runtime.Goexit()
						}
					}
				}
				for n := range 400 {
					s.put(Item{Key: relayKey(n)})
				}
				r, _ := s.start(RelayOptions{})
				if how == "is deaf" { // a batch and a key of 17.5 s each, or else of 10 s
					s.at(2 * time.Minute)
				} else {
					s.at(65 * time.Second)
				}
				if st := r.Stats(); st.Done != 399 || st.Depth.Items != 1 {
					s.Fatalf("%+v", st)
				}
				s.at(5 * time.Minute)
				for n := range 400 { // the poison is tried each minute or so
					s.put(Item{Key: relayKey(1000 + n)})
					time.Sleep(time.Second)
				}
				for n := range 400 {
					// at the next poll
					s.done(relayKey(1000+n), 5*time.Minute+time.Duration(n)*time.Second+300*time.Millisecond)
				}
				if st := r.Stats(); st.Done != 799 || st.MaxLag > 5*time.Minute {
					s.Errorf("%+v", st)
				}
				if n := h.most.Load(); n > 1 && how == "hangs" || n > 5 {
					s.Errorf("%d goroutines hang at once", n)
				}
				if alerts := s.gotAlerts(); len(alerts) != 1 {
					s.Errorf("%+v", alerts)
				}
				synctest.Wait()
				healed = true
				close(h.healed)
				s.drained(2 * time.Minute)
			})
		})
	}
}

// TestRelayRetriesTogether: after a filter has returned errors for a minute, also long after it has
// hung, items that have failed are retried in batches. Until they are, the filter hides rows.
func TestRelayRetriesTogether(t *testing.T) {
	for _, hung := range []bool{false, true} {
		t.Run(fmt.Sprintf("hung=%v", hung), func(t *testing.T) {
			q := &relayQueue{} // whose items come together
			inStation(t, q, func(s *station) {
				const n = 5000
				q.inner = NewMemoryQueue(2 * n)
				var calls atomic.Int64
				h := newTrap(s, false, func(string, []cacheaside.Key) bool { return hung })
				s.cache.before = func(ctx context.Context, op string, keys []cacheaside.Key) {
					if op == "admit" {
						calls.Add(1)
						h.before(ctx, op, keys)
						time.Sleep(5 * time.Millisecond)
					}
				}
				r, _ := s.start(RelayOptions{})
				if hung {
					s.put(Item{Key: relayKey(0)})
					s.at(time.Minute)
					close(h.healed)
					s.drained(time.Minute)
					// the last attempt that hung was in the first minute, or took until the second
					s.at(8 * time.Minute)
				}
				s.cache.fail(func(op string, k cacheaside.Key) error {
					if op == "admit" {
						return errors.New("the filter is out of reach")
					}
					return nil
				})
				for i := range n {
					s.put(Item{Key: relayKey(i)})
				}
				time.Sleep(time.Minute)
				s.cache.fail(nil)
				calls.Store(0)
				if took := s.drained(2 * time.Minute); took > 65*time.Second {
					// an item waits up to a minute for its next attempt
					s.Errorf("it took %v", took)
				}
				if got := calls.Load(); got > n/8 {
					s.Errorf("%d calls for %d items", got, n)
				}
				if st := r.Stats(); st.Done < n || st.Panics+st.QueueErrors != 0 {
					s.Errorf("%+v", st)
				}
			})
		})
	}
}

// TestRelayLateAdmit: a filter that has a key later than it may is followed by an invalidation all
// the same, as its earlier one came too soon for that.
func TestRelayLateAdmit(t *testing.T) {
	inStation(t, nil, func(s *station) {
		s.cache.late = true
		h := newTrap(s, true, func(op string, keys []cacheaside.Key) bool {
			return op == "admit" && time.Since(s.began) < time.Minute
		})
		r, _ := s.start(RelayOptions{})
		s.put(Item{Key: relayKey(1)})
		s.at(25 * time.Second)
		s.done(relayKey(1), 0)
		if st := r.Stats(); st.Failed == 0 || st.Done != 0 || st.Depth.Items != 1 { // it was put back
			s.Errorf("%+v", st)
		}
		close(h.healed)
		s.at(25*time.Second + time.Millisecond)
		if got := s.cache.times("committed", relayKey(1).Text, s.began); len(got) != 2 {
			// of the job that was given up, and of the next one
			s.Errorf("invalidated after the filter had it: %v", got)
		}
		s.drained(time.Minute)
	})
}

// TestRelayManyHang: other loaders do not wait for one that hangs, however many items it has.
func TestRelayManyHang(t *testing.T) {
	inStation(t, nil, func(s *station) {
		const n = 2000
		h := newTrap(s, true, func(op string, keys []cacheaside.Key) bool {
			return op == "admit" && keys[0].Loader == "bad"
		})
		r, _ := s.start(RelayOptions{})
		for i := range n {
			s.put(Item{Key: keyOf("bad", i)})
		}
		s.at(5 * time.Second) // it has waited for the first batch
		for i := range n {
			s.done(keyOf("bad", i), 5*time.Second)
		}
		for second := 5; second < 60; second++ {
			s.cache.take()
			s.put(Item{Key: relayKey(second)})
			s.at(time.Duration(second+1) * time.Second)
			s.done(relayKey(second), time.Duration(second)*time.Second+300*time.Millisecond)
			if _, asked, _ := s.cache.take(); asked > 3*batch {
				s.Fatalf("%d keys were invalidated in second %d", asked, second)
			}
		}
		if n := h.most.Load(); n > 2*maxHung {
			s.Errorf("%d goroutines hang at once", n)
		}
		close(h.healed)
		s.drained(10 * time.Minute)
		if st := r.Stats(); st.Done != n+55 {
			s.Errorf("%+v", st)
		}
	})
}

// A filter that hangs when Run is to end does not keep it for longer than a third of a claim.
func TestRelayEndsThoughOneHangs(t *testing.T) {
	inStation(t, nil, func(s *station) {
		h := newTrap(s, true, func(op string, keys []cacheaside.Key) bool {
			return op == "admit" && slices.ContainsFunc(keys, func(k cacheaside.Key) bool { return k.Loader == "bad" })
		})
		s.put(Item{Key: keyOf("bad", 1), Attempts: 2}, Item{Key: relayKey(1)})
		_, stop := s.start(RelayOptions{})
		s.at(time.Second)
		if err := stop(); err != nil {
			s.Error(err)
		}
		if at := time.Since(s.began); at > 11*time.Second {
			s.Errorf("it has ended after %v", at)
		}
		close(h.healed)
		s.at(31 * time.Second) // when its claim has run out
		got, err := s.queue.Claim(s.Context(), 10, time.Hour)
		if err != nil || len(got) != 1 || got[0].Key != keyOf("bad", 1) || got[0].Attempts != 2 {
			s.Errorf("left: %+v, %v", got, err)
		}
	})
}

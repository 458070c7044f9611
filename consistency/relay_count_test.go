package consistency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// sharedQueue is a polled queue with an identity.
type sharedQueue struct {
	relayQueue
	identity func() (string, error)
}

func (q *sharedQueue) Identity(context.Context) (string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.identity()
}

// inFleet runs a test with n relays of one queue, which have counted each other.
func inFleet(t *testing.T, n int, test func(s *station, q *sharedQueue, relays []*Relay)) {
	t.Helper()
	q := &sharedQueue{identity: func() (string, error) { return "a queue", nil }}
	inStation(t, q, func(s *station) {
		q.inner = NewMemoryQueue(0)
		relays := make([]*Relay, n)
		for i := range relays {
			relays[i], _ = s.start(RelayOptions{})
		}
		s.at(time.Minute)
		for _, r := range relays {
			if got := r.Stats().Relays; got != n {
				s.Fatalf("%d relays are counted as %d", n, got)
			}
		}
		test(s, q, relays)
	})
}

// calls returns the calls of Claim and Depth in the next period.
func (s *station) calls(q *sharedQueue, period time.Duration) (claims, depths int) {
	read := func() (claims, depths int) {
		synctest.Wait()
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.relayQueue.calls["claim"], q.relayQueue.calls["depth"]
	}
	claims, depths = read()
	time.Sleep(period)
	afterwards, looks := read()
	return afterwards - claims, looks - depths
}

// claims returns the calls of Claim in the next period.
func (s *station) claims(q *sharedQueue, period time.Duration) int {
	n, _ := s.calls(q, period)
	return n
}

// delays puts n items at random times, and returns how long each waited, in order.
func (s *station) delays(n int) []time.Duration {
	s.Helper()
	took := make([]time.Duration, n)
	for i := range n {
		time.Sleep(time.Second + rand.N(time.Second))
		key, put := relayKey(i), time.Now()
		s.put(Item{Key: key})
		s.drained(time.Minute)
		got := s.cache.times("committed", key.Text, put)
		if len(got) == 0 {
			s.Fatalf("item %d was not handled", i)
		}
		took[i] = got[len(got)-1]
	}
	slices.Sort(took)
	return took
}

// TestRelaysPollTogether: up to five idle relays poll as if each were alone. More of them together
// poll about as often as five, and an item waits no longer than with one relay.
func TestRelaysPollTogether(t *testing.T) {
	for _, c := range []struct{ relays, claims, depths int }{ // in a minute
		{1, 300, 60}, {5, 1500, 300}, {6, 1500, 300}, {100, 1500, 300}, {1000, 3000, 3000},
	} {
		t.Run(fmt.Sprint(c.relays), func(t *testing.T) {
			inFleet(t, c.relays, func(s *station, q *sharedQueue, _ []*Relay) {
				claims, depths := s.calls(q, 2*time.Minute)
				claims, depths = claims/2, depths/2
				near := func(got, want int) bool {
					if c.relays <= 5 {
						return got == want
					}
					return got > want*3/4 && got < want*5/4
				}
				// Relays read the depth after a claim, so their intervals are somewhat longer.
				if !near(claims, c.claims) || depths > c.depths*5/4 || depths < c.depths/3 {
					s.Errorf("%d claims and %d readings of the depth in a minute, want about %d and %d", claims, depths,
						c.claims, c.depths)
				}
				took := s.delays(50)
				s.Logf("%d claims and %d readings of the depth in a minute; delays %v, %v", claims, depths, took[25],
					took[49])
				if took[25] > 150*time.Millisecond || took[49] > time.Second {
					s.Errorf("items waited %v to %v", took[25], took[49])
				}
			})
		})
	}
}

// TestRelaysAreKilled: when all relays of a fleet except one are killed, the last one handles each
// item within 30 s, and polls as if it were alone when their registrations have expired.
func TestRelaysAreKilled(t *testing.T) {
	inFleet(t, 1000, func(s *station, q *sharedQueue, relays []*Relay) {
		s.cache.mu.Lock()
		s.cache.killed = true
		s.cache.mu.Unlock()
		for _, stop := range s.stops[1:] {
			if err := stop(); err != nil {
				s.Error(err)
			}
		}
		began := time.Now()
		s.put(Item{Key: relayKey(0)})
		if took := s.drained(time.Minute); took > 30*time.Second {
			s.Errorf("an item waited %v", took)
		}
		for relays[0].Stats().Relays > 1 {
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took > 46*time.Second {
			s.Errorf("the others were counted for another %v", took)
		}
		time.Sleep(30 * time.Second) // the interval that had begun
		if n := s.claims(q, time.Minute); n != 300 {
			s.Errorf("%d claims in a minute", n)
		}
	})
}

// TestRelaysEnd: relays that end are not counted any more, so that processes that run for a moment
// do not slow down those that stay.
func TestRelaysEnd(t *testing.T) {
	inFleet(t, 100, func(s *station, _ *sharedQueue, relays []*Relay) {
		for _, stop := range s.stops[1:] {
			if err := stop(); err != nil {
				s.Error(err)
			}
		}
		time.Sleep(15*time.Second + time.Millisecond)
		if n := relays[0].Stats().Relays; n != 1 {
			s.Errorf("one relay counts %d", n)
		}
	})
}

// TestRelaysCannotBeCounted: while Redis cannot be reached, relays poll as often as before, and log
// why once.
func TestRelaysCannotBeCounted(t *testing.T) {
	inFleet(t, 100, func(s *station, q *sharedQueue, _ []*Relay) {
		s.cache.mu.Lock()
		s.cache.uncounted = true
		s.cache.mu.Unlock()
		time.Sleep(time.Hour)
		if n := s.claims(q, 10*time.Minute); n < 13_000 || n > 17_000 {
			s.Errorf("100 relays claim %d times in ten minutes", n)
		}
		r, _ := s.start(RelayOptions{}) // it has never counted them
		time.Sleep(time.Minute)
		if n := s.claims(q, 10*time.Minute); n < 16_000 || n > 20_000 {
			s.Errorf("100 relays and one that does not know of them claim %d times in ten minutes", n)
		}
		if n := strings.Count(s.logs.String(), "cannot count the relays"); n != 101 || r.Stats().Relays != 0 {
			s.Errorf("logged %d times; %+v", n, r.Stats())
		}
	})
}

// TestRelaysOfOtherQueues: only relays whose queues have the same identity are counted. Without an
// identity each polls as if it were alone.
func TestRelaysOfOtherQueues(t *testing.T) {
	n := 0
	for name, identity := range map[string]func() (string, error){
		"different": func() (string, error) { n++; return fmt.Sprint(n), nil },
		"empty":     func() (string, error) { return "", nil },
		"error":     func() (string, error) { return "", errors.New("no right") },
		"panic":     func() (string, error) { panic("of the queue") },
	} {
		t.Run(name, func(t *testing.T) {
			q := &sharedQueue{identity: identity}
			inStation(t, q, func(s *station) {
				q.inner = NewMemoryQueue(0)
				for range 20 {
					s.start(RelayOptions{})
				}
				s.at(time.Minute)
				if got := s.claims(q, time.Minute); got != 20*300 {
					s.Errorf("%d claims in a minute", got)
				}
			})
		})
	}
}

// TestRelaysOfAServerThatIsReplaced: relays notice within some ten minutes that their queue is on
// another server, and count only those that are there.
func TestRelaysOfAServerThatIsReplaced(t *testing.T) {
	inFleet(t, 20, func(s *station, q *sharedQueue, relays []*Relay) {
		moved := 0
		q.mu.Lock()
		q.identity = func() (string, error) {
			if moved++; moved > 10 {
				return "another server", nil
			}
			return "a queue", nil
		}
		q.mu.Unlock()
		time.Sleep(12 * time.Minute)
		for _, r := range relays {
			if n := r.Stats().Relays; n != 10 {
				s.Errorf("a relay counts %d", n)
			}
		}
	})
}

// TestRelayFindsItems: after a claim that has returned items, a relay of a large fleet claims again
// after Poll, as more items may follow.
func TestRelayFindsItems(t *testing.T) {
	q := &sharedQueue{identity: func() (string, error) { return "a queue", nil }}
	inStation(t, q, func(s *station) {
		q.inner = NewMemoryQueue(0)
		for i := range 999 {
			if _, err := s.cache.CountRelays(s.Context(), "a queue", fmt.Sprint(i), time.Hour); err != nil {
				s.Fatal(err)
			}
		}
		s.start(RelayOptions{})
		s.at(time.Minute)
		if n := s.claims(q, 10*time.Minute); n < 20 || n > 60 {
			s.Errorf("an idle relay claims %d times in ten minutes", n)
		}
		for i := range 20 {
			s.put(Item{Key: relayKey(2 * i)})
			s.drained(30 * time.Second)
			s.put(Item{Key: relayKey(2*i + 1)})
			if took := s.drained(time.Minute); took > 250*time.Millisecond {
				s.Errorf("the next item waited %v", took)
			}
		}
	})
}

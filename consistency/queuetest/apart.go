package queuetest

import (
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
)

// apart: items of two applications with the same ID are two different items. A call for one of them
// does not change the other.
func apart(s *suite) {
	a, b := s.openApart()
	named := func(application string) consistency.Item {
		return consistency.Item{ID: item(1).ID, Key: cacheaside.Key{Loader: "user", Version: "1", Text: application}}
	}
	both := func(n int) {
		s.Helper()
		s.holds(a, n)
		s.holds(b, n)
	}
	s.check(a.Put(s.ctx(), named("a")))
	s.check(b.Put(s.ctx(), named("b"), item(2)))
	s.holds(a, 1)
	s.holds(b, 2)
	ofA, ofB := s.one(a, long), s.claim(b, 2, long)
	s.same([]consistency.Item{ofA}, "a")
	s.same(ofB, "b", "2")
	if ofB[0].Key.Text != "b" {
		ofB[0], ofB[1] = ofB[1], ofB[0]
	}
	s.check(b.Done(s.ctx(), ofB[1]))
	both(1)

	ofA.After, ofA.Attempts = 0, 7
	s.check(a.Later(s.ctx(), ofA))
	s.none(b, "b's item is claimed, and a's is not b's")
	if ofA = s.one(a, long); ofA.Attempts != 7 {
		s.Errorf("%d attempts, want 7", ofA.Attempts)
	}
	s.check(a.Done(s.ctx(), ofB[0])) // with b's claim
	s.check(a.Later(s.ctx(), ofB[0]))
	both(1)
	if !s.b.ByDelivery {
		far := named("a")
		far.After = time.Hour
		s.check(a.Later(s.ctx(), far)) // with the ID only
		s.check(a.Done(s.ctx(), named("a")))
		s.holds(a, 0)
		s.check(a.Put(s.ctx(), named("a"), named("a")))
		both(1)
		ofA = s.one(a, long)
	}
	s.check(a.Done(s.ctx(), ofA))
	s.empty(a)
	ofB[0].After = 0
	s.check(b.Later(s.ctx(), ofB[0]))
	ofB[0] = s.one(b, long)
	s.same(ofB[:1], "b")
	s.check(b.Done(s.ctx(), ofB[0]))
	s.empty(b)
}

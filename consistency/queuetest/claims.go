package queuetest

import (
	"time"

	"github.com/cacheaside/cacheaside/consistency"
)

// exclusive: Claim does not return a claimed item to another caller.
func exclusive(s *suite) {
	a, b := s.openTwo()
	s.check(a.Put(s.ctx(), item(1), item(2)))
	first := s.one(a, long)
	second := s.one(b, long)
	if first.ID == second.ID {
		s.Fatal("both claimed the same item")
	}
	s.none(a, "claimed")
	s.none(b, "claimed")
	s.check(a.Done(s.ctx(), first))
	s.check(b.Done(s.ctx(), second))
	s.empty(a)
}

// claimEnds: if a claimer does not return its item, the item is due again when the claim ends, and
// not before.
func claimEnds(s *suite) {
	a, b := s.openTwo()
	s.check(a.Put(s.ctx(), item(1)))
	began := time.Now()
	first := s.one(a, short)
	second := s.one(b, long)
	if took := time.Since(began); took < short-clocks {
		s.Errorf("two claims within %v", took)
	}
	if first.Claim == second.Claim {
		s.Errorf("two claims with the name %q", first.Claim)
	}
	first.Claim = second.Claim
	first.Age, second.Age = 0, 0
	if first != second {
		s.Error("the second claim got something else")
	}
}

// overtaken returns the same item as a claimed it, and as b claimed it after a's claim had ended.
func (s *suite) overtaken(a, b consistency.Queue) (old, now consistency.Item) {
	s.Helper()
	s.check(a.Put(s.ctx(), item(1)))
	old = s.one(a, short)
	return old, s.one(b, long)
}

// lateDone: Done by a claimer whose claim has ended does not remove an item that another has
// claimed.
func lateDone(s *suite) {
	a, b := s.openTwo()
	old, now := s.overtaken(a, b)
	s.check(a.Done(s.ctx(), old))
	s.holds(a, 1)
	s.none(a, "claimed by b")
	now.Attempts, now.After = 7, 0
	s.check(b.Later(s.ctx(), now))
	again := s.one(a, long)
	if again.Attempts != 7 {
		s.Errorf("%d attempts, want 7", again.Attempts)
	}
	s.check(a.Done(s.ctx(), again))
	s.empty(b)
}

// lateLater: Later by a claimer whose claim has ended does not change when an item is due that
// another has claimed.
func lateLater(s *suite) {
	a, b := s.openTwo()
	old, now := s.overtaken(a, b)
	old.Attempts, old.After = 3, 0
	s.check(a.Later(s.ctx(), old))
	s.none(a, "claimed by b")
	old.After = time.Hour
	s.check(a.Later(s.ctx(), old))
	now.After = 0
	s.check(b.Later(s.ctx(), now))
	again := s.one(b, long)
	if again.Attempts != 0 {
		s.Errorf("%d attempts, want 0", again.Attempts)
	}
	s.check(b.Done(s.ctx(), again))
	s.empty(a)
}

// lateAlone: Done and Later after the end of a claim work if no other process has claimed the item.
// Otherwise a batch that takes longer than its claim would be repeated forever.
func lateAlone(s *suite) {
	q := s.open()
	for n, finish := range []func(consistency.Item) error{
		func(late consistency.Item) error { late.After = time.Hour; return q.Later(s.ctx(), late) },
		func(late consistency.Item) error { return q.Done(s.ctx(), late) },
	} {
		s.check(q.Put(s.ctx(), item(n)))
		late := s.one(q, short)
		time.Sleep(short + clocks)
		s.check(finish(late))
		s.none(q, "done, or far back")
	}
	s.holds(q, 1)
}

// later: Later changes only the fields that it documents.
func later(s *suite) {
	a, b := s.openTwo()
	put := item(1)
	put.Again, put.Reload = time.Minute, true
	s.check(a.Put(s.ctx(), put))
	got := s.one(a, long)
	got.After, got.Again, got.Attempts = 0, time.Second, 4
	s.check(a.Later(s.ctx(), got))
	again := s.one(b, long)
	if again.ID != got.ID || again.Key != put.Key || !again.Reload || again.Again != time.Second ||
		again.Attempts != 4 {
		s.Errorf("put back %+v, got %+v", got, again)
	}
	again.After, again.Again, again.Attempts = time.Hour, 0, 5
	s.check(b.Later(s.ctx(), again))
	s.none(b, "an hour later")
	s.holds(b, 1)
}

// laterKeepsClaims: when a claimer puts back one item of a batch, the others stay claimed.
func laterKeepsClaims(s *suite) {
	q := s.open()
	s.check(q.Put(s.ctx(), item(1), item(2), item(3)))
	got := s.claim(q, 3, long)
	got[1].After = 0
	s.check(q.Later(s.ctx(), got[1]))
	if again := s.one(q, long); again.ID != got[1].ID {
		s.Errorf("got %s, want %s", again.ID, got[1].ID)
	}
	s.none(q, "all are claimed")
}

// gone: a removed item does not come back, even if a claimer calls Later for it.
func gone(s *suite) {
	a, b := s.openTwo()
	old, now := s.overtaken(a, b)
	s.check(b.Done(s.ctx(), now))
	s.empty(a)
	s.check(a.Done(s.ctx(), old))
	s.check(b.Done(s.ctx(), now))
	old.After, now.After = 0, 0
	s.check(a.Later(s.ctx(), old))
	s.check(b.Later(s.ctx(), now))
	s.empty(a)
	s.empty(b)
}

// unclaimed: a process that has put an item may remove it, or put it back, without a claim, even if
// another process has claimed it.
func unclaimed(s *suite) {
	a, b := s.openTwo()
	put := func(n int) consistency.Item {
		i := item(n)
		i.After = time.Hour
		return i
	}
	one, two, three, never := put(1), put(2), item(3), put(4)
	s.check(a.Put(s.ctx(), one, two, three))
	claimed := s.one(b, long)
	s.same([]consistency.Item{claimed}, "3")
	s.check(a.Done(s.ctx(), one, three, never))
	s.holds(a, 1)
	s.check(b.Later(s.ctx(), claimed))
	s.none(b, "removed while it was claimed")
	two.After, two.Again = 0, time.Minute
	s.check(a.Later(s.ctx(), two, never))
	got := s.one(b, long)
	s.same([]consistency.Item{got}, "2")
	if got.Again != time.Minute {
		s.Errorf("again after %v", got.Again)
	}
	two.After = 0
	s.check(a.Later(s.ctx(), two)) // this ends the claim
	s.same([]consistency.Item{s.one(a, long)}, "2")
}

package queuetest

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside/consistency"
)

// order: Claim returns first the item that has been due for the longest time, no matter when it was
// put.
func order(s *suite) {
	wait := func() { time.Sleep(2 * clocks) }
	late := item(4)
	a, b := s.openTwo()
	for late.After = 300 * time.Millisecond; ; late.After *= 2 { // the others must be put before late is due
		s.check(a.Put(s.ctx(), late))
		put := time.Now()
		for n := range 3 {
			s.check(a.Put(s.ctx(), item(n+1)))
			wait()
		}
		if time.Since(put) < late.After-2*clocks {
			break
		}
		s.check(a.Done(s.ctx(), s.claim(a, 4, long)...))
	}
	time.Sleep(late.After)
	var got []consistency.Item
	for range 2 {
		got = append(got, s.claim(b, 2, long)...)
	}
	s.same(got, "1", "2", "3", "4")
	// A queue without order may have claimed them in another one.
	slices.SortFunc(got, func(a, b consistency.Item) int { return strings.Compare(a.Key.Text, b.Key.Text) })
	for _, n := range []int{2, 0, 1} {
		got[n].After = 0
		s.check(b.Later(s.ctx(), got[n]))
		wait()
	}
	s.same(s.claim(a, 3, long), "3", "1", "2")
}

// maximum: Claim returns no more items than requested, and repeated calls return all.
func maximum(s *suite) {
	q := s.open()
	for n := range 5 {
		s.check(q.Put(s.ctx(), item(n)))
	}
	seen := map[string]bool{}
	for ctx := s.ctx(); len(seen) < 5; {
		got, err := q.Claim(ctx, 2, long)
		s.check(err)
		if len(got) > 2 {
			s.Fatalf("asked for 2, got %d", len(got))
		}
		for _, i := range got {
			seen[i.ID] = true
		}
	}
	s.none(q, "all are claimed")
}

// after: Claim returns no item before it is due, after Put and after Later.
func after(s *suite) {
	a, b := s.openTwo()
	soon, far := item(1), item(2)
	soon.After, far.After = short, time.Hour
	for round, put := range []func(){
		func() { s.check(a.Put(s.ctx(), soon, far)) },
		func() { s.check(a.Later(s.ctx(), soon)) },
	} {
		began := time.Now()
		put()
		got := s.one(b, long)
		if took := time.Since(began); took < short-clocks {
			s.Errorf("round %d: due after %v, claimed after %v", round, short, took)
		}
		s.same([]consistency.Item{got}, "1")
		s.none(b, "the other is far back")
		soon = got
		soon.After = short
		a = b // b has claimed the item
	}
	s.holds(b, 2)
}

// age: Age counts from the Put, also after claims and Later.
func age(s *suite) {
	a, b := s.openTwo()
	began := time.Now()
	s.check(a.Put(s.ctx(), item(1)))
	put := time.Now()
	for range 3 {
		time.Sleep(2 * clocks)
		low := time.Since(put)
		got := s.one(b, long)
		if high := time.Since(began); got.Age < low-clocks || got.Age > high+clocks {
			s.Errorf("age %v, from %v to %v was wanted", got.Age, low, high)
		}
		got.After = 0
		s.check(b.Later(s.ctx(), got))
	}
}

// storm: many goroutines put items, and many claim, remove and put them back concurrently. No
// item is lost, no item has two claims at the same time, and attempts are counted correctly.
func storm(s *suite) {
	const writers, claimers, each = 4, 6, 50
	open := s.b.New(s.TB, 3)
	ctx := s.ctx()
	var put, work sync.WaitGroup
	for w := range writers {
		put.Go(func() {
			q := open[w%len(open)]
			for n := 0; n < each; {
				var items []consistency.Item
				for range min(1+rand.IntN(9), each-n) {
					items = append(items, item(w*each+n))
					n++
				}
				if err := q.Put(ctx, items...); err != nil {
					s.Error(err)
					return
				}
			}
		})
	}
	b := &stormBook{
		suite: s, all: writers * each, held: map[string]bool{}, failed: map[string]int{}, done: map[string]bool{},
	}
	for c := range claimers {
		work.Go(func() { b.claim(ctx, open[c%len(open)]) })
	}
	put.Wait()
	work.Wait()
	if !b.finished() {
		s.Errorf("%d of %d are done", len(b.done), b.all)
	}
	s.empty(open[0])
}

// stormBook is the state of all items of a storm.
type stormBook struct {
	*suite
	all int

	mu     sync.Mutex
	held   map[string]bool
	failed map[string]int // how often
	done   map[string]bool
}

// claim claims items until all are done, puts some back, and removes the others.
func (s *stormBook) claim(ctx context.Context, q consistency.Queue) {
	for !s.finished() {
		got, err := q.Claim(ctx, 1+rand.IntN(7), long)
		if err != nil {
			s.Error(err)
			return
		}
		s.take(got)
		var removed, back []consistency.Item
		for _, i := range got {
			if i.Attempts < 2 && rand.IntN(3) == 0 {
				i.Attempts++
				i.After = time.Duration(rand.IntN(2)) * time.Millisecond
				back = append(back, i)
			} else {
				removed = append(removed, i)
			}
		}
		s.give(back, false)
		if err := q.Later(ctx, back...); err != nil {
			s.Error(err)
			return
		}
		s.give(removed, true)
		if err := q.Done(ctx, removed...); err != nil {
			s.Error(err)
			return
		}
		if len(got) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

func (s *stormBook) take(items []consistency.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range items {
		text := i.Key.Text
		if s.held[text] {
			s.Errorf("%s has two claims at the same time", text)
		}
		s.held[text] = true
		if i.Attempts != s.failed[text] {
			s.Errorf("%s: %d attempts, want %d", text, i.Attempts, s.failed[text])
		}
	}
}

// give records that items are about to be put back or removed. It must be called before that,
// because another claimer may get them immediately.
func (s *stormBook) give(items []consistency.Item, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range items {
		s.held[i.Key.Text] = false
		s.failed[i.Key.Text] = i.Attempts
		if end {
			s.done[i.Key.Text] = true
		}
	}
}

func (s *stormBook) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.done) == s.all
}

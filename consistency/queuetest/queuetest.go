// Package queuetest tests implementations of consistency.Queue. It is for tests of your own queue,
// and all queues of this module run it:
//
//	func TestQueue(t *testing.T) {
//		queuetest.Run(t, queuetest.Backend{New: open})
//	}
//
// The suite starts no server. It checks what the comments of consistency.Queue promise: claims that
// exclude each other and end, late calls of processes whose claims have ended, the order and the
// fields of items, batches, concurrent callers, and contexts that end. It does not test
// TxQueue.PutIn, QueueWaiter.Wait, or that items survive a crash of the queue's server or of a
// process.
package queuetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
)

// A Backend describes the queue under test, and the promises that it does not make.
type Backend struct {
	// New creates an empty queue and opens it n times, as n processes would. A queue in memory is
	// returned n times. New ends the test if that fails. It registers a t.Cleanup that closes what
	// it has opened. Tests run in parallel, so New may be called concurrently. It is required.
	New func(t testing.TB, n int) []consistency.Queue

	// Apart creates empty queues of n applications that share their storage, such as a table, and
	// returns one for each application. If it is nil, each call of New creates the queue of another
	// application.
	Apart func(t testing.TB, n int) []consistency.Queue

	// Unordered: Claim returns due items in any order.
	Unordered bool

	// NoDepth: the results of Depth are not exact enough to be tested.
	NoDepth bool

	// ByDelivery: the queue identifies items by their claims only. A repeated Put adds the item
	// again, and Done and Later ignore items that were not claimed from the same Queue.
	ByDelivery bool

	// AtOnce is the maximum number of items that can be claimed at the same time. 0 means no limit.
	AtOnce int
}

// Run runs the suite, as parallel subtests of t. Each of them uses its own queue. A call that takes
// longer than a minute fails.
func Run(t *testing.T, b Backend) {
	for _, test := range b.tests() {
		if test.not {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			test.run(&suite{TB: t, b: b})
		})
	}
}

type test struct {
	name string
	run  func(*suite)
	not  bool // the backend does not make this promise
}

func (b Backend) tests() []test {
	return []test{
		{name: "Kept", run: kept},
		{name: "Admits", run: admits},
		{name: "Names", run: names},
		{name: "Order", run: order},
		{name: "Max", run: maximum},
		{name: "After", run: after},
		{name: "Age", run: age},
		{name: "Exclusive", run: exclusive},
		{name: "ClaimEnds", run: claimEnds},
		{name: "LateDone", run: lateDone},
		{name: "LateLater", run: lateLater},
		{name: "LateAlone", run: lateAlone},
		{name: "Later", run: later},
		{name: "LaterKeepsClaims", run: laterKeepsClaims},
		{name: "Gone", run: gone},
		{name: "Repeated", run: repeated, not: b.ByDelivery},
		{name: "Unclaimed", run: unclaimed, not: b.ByDelivery},
		{name: "Apart", run: apart},
		{name: "Nothing", run: nothing},
		{name: "Large", run: large},
		{name: "Depth", run: depth, not: b.NoDepth},
		{name: "Cancelled", run: cancelled},
		{name: "Storm", run: storm},
	}
}

type suite struct {
	testing.TB
	b Backend
}

const (
	// hang is how long the suite waits for what should not take time. Even a busy machine takes
	// less.
	hang = time.Minute

	// long is the lifetime of a claim that does not end during a test, short of one that does.
	long  = time.Hour
	short = 200 * time.Millisecond

	// clocks is the maximum difference between the clocks of a queue and a test, including their
	// resolution.
	clocks = 20 * time.Millisecond
)

func (s *suite) open() consistency.Queue { return s.b.New(s.TB, 1)[0] }

func (s *suite) openTwo() (a, b consistency.Queue) {
	two := s.b.New(s.TB, 2)
	return two[0], two[1]
}

// openApart opens the queues of two applications.
func (s *suite) openApart() (a, b consistency.Queue) {
	if s.b.Apart == nil {
		return s.open(), s.open()
	}
	two := s.b.Apart(s.TB, 2)
	return two[0], two[1]
}

func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), hang)
	s.Cleanup(cancel)
	return ctx
}

func (s *suite) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// key returns the nth key.
func key(n int) cacheaside.Key {
	return cacheaside.Key{Loader: "user", Version: "1", Text: fmt.Sprint(n)}
}

// item returns an item of the nth key, with an ID.
func item(n int) consistency.Item {
	return consistency.Item{ID: fmt.Sprintf("%032x", n+1), Key: key(n)}
}

// claim claims until it has n items, and no more. It ends the test if they are not due within
// hang.
func (s *suite) claim(q consistency.Queue, n int, life time.Duration) []consistency.Item {
	s.Helper()
	var got []consistency.Item
	for ctx := s.ctx(); len(got) < n; time.Sleep(time.Millisecond) {
		more, err := q.Claim(ctx, n-len(got), life)
		if err != nil {
			s.Fatalf("claimed %d of %d: %v", len(got), n, err)
		}
		got = append(got, more...)
	}
	return got
}

// one claims one item, which must be due.
func (s *suite) one(q consistency.Queue, life time.Duration) consistency.Item {
	s.Helper()
	return s.claim(q, 1, life)[0]
}

// none asserts that no item can be claimed now.
func (s *suite) none(q consistency.Queue, reason string) {
	s.Helper()
	got, err := q.Claim(s.ctx(), 10, long)
	s.check(err)
	if len(got) > 0 {
		s.Fatalf("%s: claimed %v", reason, keysOf(got))
	}
}

// empty asserts that the queue has no items, as far as the backend can report that.
func (s *suite) empty(q consistency.Queue) {
	s.Helper()
	s.none(q, "nothing is left")
	s.holds(q, 0)
}

// holds asserts the number of items in the queue, if the backend reports it.
func (s *suite) holds(q consistency.Queue, n int) {
	s.Helper()
	if s.b.NoDepth {
		return
	}
	d, err := q.Depth(s.ctx())
	s.check(err)
	if d.Items != n {
		s.Fatalf("%d items in the queue, want %d", d.Items, n)
	}
}

func keysOf(items []consistency.Item) []string {
	var texts []string
	for _, i := range items {
		texts = append(texts, i.Key.Text)
	}
	return texts
}

func (s *suite) same(items []consistency.Item, want ...string) {
	s.Helper()
	got := keysOf(items)
	if s.b.Unordered {
		slices.Sort(got)
		slices.Sort(want)
	}
	if !slices.Equal(got, want) {
		s.Errorf("got %q, want %q", got, want)
	}
}

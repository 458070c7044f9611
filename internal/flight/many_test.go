package flight

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// trip is one Fly of a group under test, controlled by the test.
type trip struct {
	n     int // from 1, in the order of their beginning
	ctx   context.Context
	f     *Flight[string, string]
	steps chan func()
	ended bool
}

// keys are those of its rounds.
func (t *trip) keys() string {
	var keys []string
	for _, r := range t.f.Rounds {
		keys = append(keys, r.Key)
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

// step has f called on the goroutine of Fly.
func (t *trip) step(f func()) {
	t.steps <- f
	synctest.Wait()
}

// with sets the results of rounds to their keys and the number of the flight.
func (t *trip) with(keys ...string) []*Round[string, string] {
	var rounds []*Round[string, string]
	for _, key := range keys {
		i := slices.IndexFunc(t.f.Rounds, func(r *Round[string, string]) bool { return r.Key == key })
		t.f.Rounds[i].Result = fmt.Sprint(key, t.n)
		rounds = append(rounds, t.f.Rounds[i])
	}
	return rounds
}

// complete completes rounds in one call.
func (t *trip) complete(keys ...string) {
	t.step(func() { t.f.Complete(t.with(keys...)) })
}

// end has Fly return.
func (t *trip) end() {
	t.ended = true
	close(t.steps)
	synctest.Wait()
}

// manyBench is a group whose flights wait for the test to complete them. It is used in a bubble.
type manyBench struct {
	t     *testing.T
	group *Group[string, string]
	late  func(string) bool

	mu    sync.Mutex
	trips []*trip // in the order of their beginning
	over  bool
}

// newManyBench makes one whose keys a to f are in different shards.
func newManyBench(t *testing.T, first func(context.Context, *Round[string, string]) bool) *manyBench {
	b := &manyBench{t: t}
	b.group = New(Hooks[string, string]{
		Inline:     oneByOne(first),
		Run:        b.fly,
		StillValid: func(s *string) bool { return b.late != nil && b.late(*s) },
		Caught:     func(recovered any) error { return fmt.Errorf("caught %v", recovered) },
	})
	apart(b.group, "a", "b", "c", "d", "e", "f")
	t.Cleanup(func() {
		b.mu.Lock()
		b.over = true
		trips := slices.Clone(b.trips)
		b.mu.Unlock()
		for _, tr := range trips {
			if !tr.ended {
				close(tr.steps)
			}
		}
		b.group.Close(errors.New("the test has ended"))
	})
	return b
}

// apart reseeds a new group until the keys are in different shards.
func apart[R any](g *Group[string, R], keys ...string) {
	for {
		shards := map[*shard[string, R]]bool{}
		for _, key := range keys {
			shards[g.shard(key)] = true
		}
		if len(shards) == len(keys) {
			return
		}
		g.seed = maphash.MakeSeed()
	}
}

func (m *manyBench) fly(ctx context.Context, f *Flight[string, string]) {
	m.mu.Lock()
	if m.over {
		m.mu.Unlock()
		return
	}
	tr := &trip{n: len(m.trips) + 1, ctx: ctx, f: f, steps: make(chan func())}
	m.trips = append(m.trips, tr)
	m.mu.Unlock()
	for step := range tr.steps {
		step()
	}
}

// flew waits until nothing moves any more, and returns the last of n flights, which must have these
// keys.
func (m *manyBench) flew(n int, keys string) *trip {
	m.t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.trips) != n {
		m.t.Fatalf("%d flights have begun, want %d", len(m.trips), n)
	}
	if n == 0 {
		return nil
	}
	last := m.trips[n-1]
	if got := last.keys(); got != keys {
		m.t.Fatalf("flight %d has the keys %s, want %s", n, got, keys)
	}
	return last
}

// asked is a Do or DoMany on a goroutine of its own.
type asked struct {
	done   chan []string // what each key got
	cancel context.CancelFunc
}

// told names a caller's result for a key: "left: " precedes an error of the caller, "err: " one of
// the round.
func told(result *string, failure, left error) string {
	switch {
	case left != nil:
		return "left: " + left.Error()
	case failure != nil:
		return "err: " + failure.Error()
	}
	return *result
}

func (m *manyBench) ask(ctx context.Context, f func(ctx context.Context) []string) *asked {
	ctx, cancel := context.WithCancel(ctx)
	m.t.Cleanup(cancel)
	a := &asked{make(chan []string, 1), cancel}
	go func() {
		got := []string{"gone"} // by Goexit
		defer func() { a.done <- got }()
		got = f(ctx)
	}()
	synctest.Wait()
	return a
}

// many asks for keys, and waits until the caller waits.
func (m *manyBench) many(keys ...string) *asked { return m.manyWith(context.Background(), keys...) }

func (m *manyBench) manyWith(ctx context.Context, keys ...string) *asked {
	return m.ask(ctx, func(ctx context.Context) []string {
		rounds, errs := doMany(m.group, ctx, keys)
		if len(rounds) != len(keys) || len(errs) != len(keys) {
			m.t.Errorf("%d keys got %d rounds, %d errors", len(keys), len(rounds), len(errs))
			return nil
		}
		got := make([]string, len(keys))
		for i, r := range rounds {
			switch {
			case errs[i] != nil:
				got[i] = told(nil, nil, errs[i])
			case r == nil:
				got[i] = "neither round nor error"
			case r.Key != keys[i]:
				m.t.Errorf("the round of key %s was given to %s", r.Key, keys[i])
			default:
				got[i] = told(&r.Result, r.Err, nil)
			}
		}
		return got
	})
}

// one asks for one key with Do.
func (m *manyBench) one(key string) *asked { return m.oneWith(context.Background(), key) }

func (m *manyBench) oneWith(ctx context.Context, key string) *asked {
	return m.ask(ctx, func(ctx context.Context) []string {
		r, err := do(m.group, ctx, key)
		if r == nil {
			return []string{told(nil, nil, err)}
		}
		return []string{told(r, err, nil)}
	})
}

// got fails unless the call has ended like that.
func (m *manyBench) got(a *asked, want ...string) {
	m.t.Helper()
	synctest.Wait()
	select {
	case got := <-a.done:
		if !slices.Equal(got, want) {
			m.t.Errorf("a caller got %q, want %q", got, want)
		}
	default:
		m.t.Errorf("a caller still waits for %q", want)
	}
}

func (m *manyBench) waits(callers ...*asked) {
	m.t.Helper()
	synctest.Wait()
	for _, a := range callers {
		if len(a.done) != 0 {
			m.t.Errorf("a caller has ended: %q", <-a.done)
		}
	}
}

// flies fails unless the flight's context is alive.
func (m *manyBench) flies(tr *trip) {
	m.t.Helper()
	synctest.Wait()
	if tr.ctx.Err() != nil {
		m.t.Errorf("the context of flight %d has ended: %v", tr.n, context.Cause(tr.ctx))
	}
}

// stopped fails unless the flight's context has ended for that reason.
func (m *manyBench) stopped(tr *trip, cause error) {
	m.t.Helper()
	synctest.Wait()
	if got := context.Cause(tr.ctx); got != cause {
		m.t.Errorf("the context of flight %d has ended with %v, want %v", tr.n, got, cause)
	}
}

// empty fails if anything is kept of any key.
func (m *manyBench) empty() {
	m.t.Helper()
	synctest.Wait()
	nothingKept(m.t, m.group)
}

func nothingKept[K comparable, R any](t *testing.T, g *Group[K, R]) {
	t.Helper()
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for key := range s.running {
			t.Errorf("%v is still there", key)
		}
		s.mu.Unlock()
	}
}

func manyBubble(t *testing.T, f func(t *testing.T, b *manyBench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newManyBench(t, nil)) })
}

const canceled = "left: context canceled"

// The keys of a DoMany that are not in flight fly together, in one Fly, and are returned at their
// indexes, for any order of completion.
func TestDoManyReturnsResultsByIndex(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		c := b.many("c", "a", "d", "b")
		one := b.flew(1, "a b c d")
		one.complete("b")
		one.complete("d", "c")
		b.waits(c)
		b.flies(one)
		one.complete("a")
		b.got(c, "c1", "a1", "d1", "b1")
		b.stopped(one, context.Canceled) // nothing is left to do
		one.end()
		b.flew(1, "a b c d")
		b.empty()
	})
}

// An error of one round reaches only the callers of its key, as the round's error.
func TestErrorOfARoundOfManyIsItsOwn(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		c := b.many("a", "b")
		one := b.flew(1, "a b")
		one.step(func() {
			rounds := one.with("a", "b")
			rounds[0].Err = errors.New("no database")
			one.f.Complete(rounds)
		})
		b.got(c, "err: no database", "b1")
		b.empty()
	})
}

// Keys that are under way gather, one by one, and only the others begin at once.
func TestDoManyGathersBehindWhatIsUnderWay(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		first := b.one("b")
		one := b.flew(1, "b")
		second := b.many("a", "b", "c")
		two := b.flew(2, "a c")
		third := b.many("c", "b", "a") // nothing of its own
		b.flew(2, "a c")
		two.complete("a", "c")
		three := b.flew(3, "a c") // the third's
		b.waits(first, second, third)
		three.complete("a", "c")
		b.waits(first, second, third)
		one.complete("b")
		b.got(first, "b1")
		b.waits(second, third)
		four := b.flew(4, "b") // of both
		four.complete("b")
		b.got(second, "a2", "b4", "c2")
		b.got(third, "c3", "b4", "a3")
		b.empty()
	})
}

// Rounds that gathered behind keys completed by one call of Complete begin in one flight, for any
// mix of callers.
func TestRoundsBehindWhatLandsTogetherFlyTogether(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		first := b.many("a", "b", "c", "d")
		one := b.flew(1, "a b c d")
		second, third, fourth := b.one("a"), b.many("b", "d"), b.many("a", "b")
		one.complete("a", "b", "c") // none waits for c, and d has not completed
		two := b.flew(2, "a b")
		b.waits(first, second, third, fourth)
		one.complete("d")
		three := b.flew(3, "d")
		b.got(first, "a1", "b1", "c1", "d1")
		three.complete("d")
		two.complete("b", "a")
		b.got(second, "a2")
		b.got(third, "b2", "d3")
		b.got(fourth, "a2", "b2")
		b.empty()
	})
}

// What gathered behind keys that complete in separate calls begins in separate flights, each at
// once: a slow key holds back only those who asked for it.
func TestSlowKeyDoesNotHoldBackTheNextRoundOfAFastOne(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		first := b.many("fast", "slow")
		one := b.flew(1, "fast slow")
		before := one
		for n := 2; n <= 4; n++ {
			fast := b.one("fast")
			before.complete("fast")
			before = b.flew(n, "fast")
			b.waits(fast)
		}
		slow := b.one("slow")
		before.complete("fast")
		b.flew(4, "fast")
		b.waits(first, slow)
		one.complete("slow")
		b.got(first, "fast1", "slow1")
		b.flew(5, "slow").complete("slow")
		b.got(slow, "slow5")
		b.empty()
	})
}

// A flight's results are never given to those who came while it ran, whether its rounds have
// completed or not.
func TestCallersDuringAFlightNeverGetItsResults(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		first := b.many("a", "b", "c")
		one := b.flew(1, "a b c")
		one.complete("a")
		during := b.many("a", "b") // a has completed, but the flight runs: a begins anew
		two := b.flew(2, "a")
		single := b.one("c")
		one.complete("b", "c")
		b.got(first, "a1", "b1", "c1")
		three := b.flew(3, "b c")
		again := b.many("a", "b", "c") // those of two and three run
		b.flew(3, "b c")
		two.complete("a")
		b.flew(4, "a").complete("a")
		three.complete("c", "b")
		b.got(during, "a2", "b3")
		b.got(single, "c3")
		b.flew(5, "b c").complete("b", "c")
		b.got(again, "a4", "b5", "c5")
		b.empty()
	})
}

// If Late allows it, exactly those who have gathered by the completing of their key share its
// result, without another Fly.
func TestLateServesExactlyThoseWhoHaveGathered(t *testing.T) {
	manyBubble(t, func(t *testing.T, b *manyBench) {
		var about []string
		b.late = func(s string) bool {
			about = append(about, s)
			return s == "a1"
		}
		first := b.many("a", "b", "c")
		one := b.flew(1, "a b c")
		second, third := b.many("a", "b"), b.one("a")
		one.complete("a", "b", "c")
		b.got(first, "a1", "b1", "c1")
		b.got(third, "a1")
		two := b.flew(2, "b") // b may not be shared, c has no other caller
		b.waits(second)
		if want := []string{"a1", "b1"}; !slices.Equal(about, want) {
			t.Errorf("asked about %q, want %q", about, want)
		}
		fourth := b.one("a") // too late
		three := b.flew(3, "a")
		two.complete("b")
		b.got(second, "a1", "b2")
		b.waits(fourth)
		three.complete("a")
		b.got(fourth, "a3")
		b.empty()
	})
}

// An error is never shared with callers that have gathered, and Late is not asked.
func TestLateIsNotAskedAboutAnErrorOfMany(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		b.late = func(string) bool { return true }
		first := b.many("a", "b")
		one := b.flew(1, "a b")
		second := b.many("a", "b")
		one.step(func() {
			rounds := one.with("a", "b")
			rounds[1].Err = errors.New("no database")
			one.f.Complete(rounds)
		})
		b.got(first, "a1", "err: no database")
		b.flew(2, "b").complete("b")
		b.got(second, "a1", "b2")
		b.empty()
	})
}

// A caller that leaves gets the completed results, and its context's error for the rest, of its own
// flight and of others'. Its flight, without callers now, is cancelled.
func TestCallerOfManyWhoLeavesGetsWhatHasLanded(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		others := b.many("e", "f")
		one := b.flew(1, "e f")
		c := b.many("a", "e", "b", "f", "c")
		two := b.flew(2, "a b c")
		one.complete("e")
		b.flew(3, "e").complete("e")
		two.complete("b")
		c.cancel()
		b.got(c, canceled, "e3", "b2", canceled, canceled)
		b.stopped(two, ErrAbandoned)
		b.flies(one)
		one.complete("f")
		b.got(others, "e1", "f1")
		b.flew(3, "e") // the round of f that gathered has been abandoned
		two.complete("a", "c")
		b.empty()
	})
}

// A deadline is that of its caller, not of the flight.
func TestDeadlineOfACallerOfManyIsHisOwn(t *testing.T) {
	manyBubble(t, func(t *testing.T, b *manyBench) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		begin := time.Now()
		c := b.manyWith(ctx, "a", "b")
		one := b.flew(1, "a b")
		if _, ok := one.ctx.Deadline(); ok {
			t.Error("the flight has the deadline of its caller")
		}
		patient := b.many("a", "b")
		one.complete("a")
		got := <-c.done
		if want := []string{"a1", "left: context deadline exceeded"}; !slices.Equal(got, want) ||
			time.Since(begin) != time.Second {
			t.Errorf("after %v: %q, want %q", time.Since(begin), got, want)
		}
		b.stopped(one, ErrAbandoned)
		one.complete("b")
		b.trips[1].complete("a")
		b.flew(3, "b").complete("b")
		b.got(patient, "a2", "b3")
		b.empty()
	})
}

// A flight continues while any caller waits for any of its rounds, and is cancelled when the last
// one has left.
func TestFlightGoesOnForTheCallersOfAnyOfItsRounds(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		gather := func() (one *trip, p, q, r *asked) {
			n := len(b.trips)
			first := b.many("a", "b", "c")
			one = b.flew(n+1, "a b c")
			p, q, r = b.many("a", "b", "c"), b.one("b"), b.many("c", "b")
			one.complete("a", "b", "c")
			b.got(first, fmt.Sprint("a", n+1), fmt.Sprint("b", n+1), fmt.Sprint("c", n+1))
			return b.flew(n+2, "a b c"), p, q, r
		}

		two, p, q, r := gather()
		p.cancel()
		b.got(p, canceled, canceled, canceled)
		b.flies(two)
		two.complete("a") // though no caller waits for it
		b.flies(two)
		r.cancel()
		b.got(r, canceled, canceled)
		b.flies(two)
		b.waits(q)
		two.complete("b", "c")
		b.got(q, "b2")
		b.stopped(two, context.Canceled)
		b.empty()

		two, p, q, r = gather()
		q.cancel()
		p.cancel()
		b.flies(two)
		b.waits(r)
		r.cancel()
		b.stopped(two, ErrAbandoned)
		b.got(p, canceled, canceled, canceled)
		b.got(q, canceled)
		b.got(r, canceled, canceled)
		two.complete("a", "b", "c")
		b.empty()
	})
}

// A flight whose last callers got a round that completes is cancelled: no caller waits for the
// rest.
func TestFlightStopsWhenOnlyAbandonedRoundsAreLeft(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		first := b.many("a", "b", "c")
		one := b.flew(1, "a b c")
		p, q, r := b.one("a"), b.many("b", "c"), b.one("c")
		one.complete("a", "b", "c")
		b.got(first, "a1", "b1", "c1")
		two := b.flew(2, "a b c")
		p.cancel()
		b.got(p, canceled)
		two.complete("b")
		b.flies(two) // q and r wait for c
		two.complete("c")
		b.got(q, "b2", "c2")
		b.got(r, "c2")
		b.stopped(two, ErrAbandoned)
		next := b.one("a") // a caller that comes now is not given its end
		two.complete("a")
		b.flew(3, "a").complete("a")
		b.got(next, "a3")
		b.empty()
	})
}

// A caller that leaves a round that gathers leaves the others in it alone; a round that all have
// left is dropped, and never flown.
func TestRoundsOfManyThatAreAbandonedWhileTheyGather(t *testing.T) {
	manyBubble(t, func(t *testing.T, b *manyBench) {
		waiting := func(want ...int) {
			t.Helper()
			synctest.Wait()
			if got := []int{b.group.Waiting("a"), b.group.Waiting("b"),
				b.group.Waiting("c")}; !slices.Equal(got, want) {
				t.Errorf("%v callers have gathered, want %v", got, want)
			}
		}
		first := b.many("a", "b", "c")
		one := b.flew(1, "a b c")
		p, q, r := b.many("a", "b", "c"), b.one("b"), b.many("c", "a")
		waiting(2, 2, 2)
		p.cancel()
		b.got(p, canceled, canceled, canceled)
		waiting(1, 1, 1)
		r.cancel()
		b.got(r, canceled, canceled)
		waiting(0, 1, 0)
		b.waits(q)
		b.flies(one)
		anew := b.one("c")
		one.complete("a", "b", "c")
		b.got(first, "a1", "b1", "c1")
		two := b.flew(2, "b c")
		b.flies(two)
		last := b.many("b", "c")
		last.cancel()
		b.got(last, canceled, canceled)
		two.complete("b", "c")
		b.got(q, "b2")
		b.got(anew, "c2")
		b.flew(2, "b c")
		b.empty()
	})
}

// A caller that leaves between the completion of one round and the start of the next flight is not
// waited for: the flight continues for the others, and without others it begins cancelled.
func TestCallersWhoLeaveBetweenLandingAndTheNextFlight(t *testing.T) {
	for _, others := range []bool{true, false} {
		manyBubble(t, func(_ *testing.T, b *manyBench) {
			inBetween := make(chan bool)
			b.late = func(s string) bool {
				if s == "b1" { // a has completed, and its next round has not begun
					<-inBetween
				}
				return s == "b1" && !others
			}
			first := b.many("a", "b")
			one := b.flew(1, "a b")
			p, q := b.one("a"), b.one("b")
			one.complete("a", "b")
			b.waits(p, q)
			b.flew(1, "a b")
			p.cancel()
			b.got(p, canceled)
			next := b.one("a") // gathers behind what begins now
			close(inBetween)
			b.got(first, "a1", "b1")
			if others {
				two := b.flew(2, "a b")
				b.flies(two)
				two.complete("a", "b")
				b.got(q, "b2")
			} else {
				b.got(q, "b1")
				two := b.flew(2, "a")
				b.stopped(two, ErrAbandoned)
				two.complete("a")
			}
			b.flew(3, "a").complete("a")
			b.got(next, "a3")
			b.empty()
		})
	}
}

// A flight that is being put together is not abandoned because the callers of its first rounds have
// left before the others are in it. (Without a bubble: it would wait for a lock.)
func TestCallersWhoLeaveWhileTheNextFlightIsPutTogether(t *testing.T) {
	contexts, goOn := make(chan context.Context), make(chan bool)
	completed, putTogether := make(chan bool), make(chan bool)
	g := New(Hooks[string, string]{
		Run: func(ctx context.Context, f *Flight[string, string]) {
			contexts <- ctx
			<-goOn
			for _, r := range f.Rounds {
				r.Result = r.Key
			}
			f.Complete(f.Rounds) // a, b, c
		},
		StillValid: func(s *string) bool {
			if *s == "c" {
				completed <- true // a and b
				<-putTogether
			}
			return false
		},
		Caught: func(any) error { return nil },
	})
	apart(g, "a", "b", "c")
	var callers sync.WaitGroup
	callers.Go(func() { doMany(g, context.Background(), []string{"a", "b", "c"}) })
	<-contexts
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	left := make(chan bool)
	go func() {
		do(g, ctx, "a")
		close(left)
	}()
	callers.Go(func() {
		if _, errs := doMany(g, context.Background(), []string{"b", "c"}); errs[0] != nil || errs[1] != nil {
			t.Error(errs)
		}
	})
	for _, key := range []string{"a", "b", "c"} {
		for g.Waiting(key) == 0 {
			runtime.Gosched()
		}
	}

	goOn <- true
	<-completed
	a, b := g.shard("a"), g.shard("b")
	b.mu.Lock() // so the next round of a is in the flight before that of b
	putTogether <- true
	for in := false; !in; runtime.Gosched() {
		a.mu.Lock()
		in = a.running["a"].flight != nil
		a.mu.Unlock()
	}
	leave()
	<-left
	b.mu.Unlock()
	if ctx := <-contexts; ctx.Err() != nil {
		t.Errorf("the flight was cancelled while a caller of b and c waits: %v", context.Cause(ctx))
	}
	goOn <- true
	callers.Wait()
	g.Close(errors.New("closed"))
}

// A Fly that panics or exits gives Caught's error to exactly those of its rounds that have not
// completed, and the keys go on: those who have gathered behind the others begin together.
func TestFlyThatDoesNotReturnKeepsWhatHasLanded(t *testing.T) {
	for name, c := range map[string]struct {
		run  func()
		want string
	}{
		"panic":      {func() { panic("boom") }, "err: caught boom"},
		"panic(nil)": {func() { panic(nil) }, "err: caught " + new(runtime.PanicNilError).Error()},
		"Goexit":     {runtime.Goexit, "err: caught <nil>"},
		"return":     {nil, "err: " + errNotCompleted.Error()}, // without completing them all
	} {
		t.Run(name, func(t *testing.T) {
			manyBubble(t, func(_ *testing.T, b *manyBench) {
				b.late = func(string) bool { return false }
				fail := func(tr *trip) {
					if c.run == nil {
						tr.end()
						return
					}
					tr.ended = true
					tr.step(c.run)
				}
				first := b.many("a", "b", "c", "d")
				one := b.flew(1, "a b c d")
				second := b.many("d", "c", "b", "a")
				one.complete("b")
				two := b.flew(2, "b")
				fail(one)
				b.got(first, c.want, "b1", c.want, c.want)
				b.stopped(one, context.Canceled)
				three := b.flew(3, "a c d")
				b.flies(three)
				two.complete("b")
				three.complete("c")
				fail(three) // also one that has gathered
				b.got(second, c.want, "c3", "b2", c.want)
				again := b.many("a", "b", "c", "d")
				four := b.flew(4, "a b c d")
				four.complete("d", "c", "b", "a")
				fail(four) // when there is nothing more to lose
				b.got(again, "a4", "b4", "c4", "d4")
				b.empty()

				none := b.many("a", "b")
				fail(b.flew(5, "a b")) // before anything has completed
				b.got(none, c.want, c.want)
				b.empty()
			})
		})
	}
}

// Complete may be called by several goroutines at once, for different rounds: all callers get
// theirs, the flight ends once, and what gathered behind begins, for each call on its own.
func TestLandBySeveralGoroutinesAtOnce(t *testing.T) {
	for range 50 {
		manyBubble(t, func(t *testing.T, b *manyBench) {
			var keys, want []string
			for i := range 20 {
				keys = append(keys, string(rune('a'+i)))
				want = append(want, keys[i]+"1")
			}
			all := b.many(keys...)
			one := b.flew(1, strings.Join(keys, " "))
			second := b.many(keys...)
			one.step(func() {
				begin := make(chan struct{})
				var completing sync.WaitGroup
				for rounds := range slices.Chunk(one.with(keys...), 2) {
					completing.Go(func() {
						<-begin
						one.f.Complete(rounds)
					})
				}
				close(begin)
				completing.Wait()
			})
			b.got(all, want...)
			b.waits(second)
			if one.ctx.Err() == nil {
				t.Error("the context of a flight that has completed still lives")
			}
			synctest.Wait()
			if len(b.trips) != 11 {
				t.Fatalf("%d flights have begun, want 11", len(b.trips))
			}
			flights := map[string]int{} // of each key
			for _, tr := range b.trips[1:] {
				if len(tr.f.Rounds) != 2 {
					t.Errorf("a flight of %s", tr.keys())
				}
				for _, r := range tr.f.Rounds {
					flights[r.Key] = tr.n
				}
				tr.complete(strings.Fields(tr.keys())...)
			}
			for i, key := range keys {
				want[i] = fmt.Sprint(key, flights[key])
			}
			b.got(second, want...)
			b.empty()
		})
	}
}

// Close gives the cause at once to those who wait for what has not completed, ends the contexts of
// the flights with it, and returns when the flights have ended. What has gathered is not flown.
func TestCloseEndsDoMany(t *testing.T) {
	manyBubble(t, func(t *testing.T, b *manyBench) {
		cause := errors.New("closing")
		first := b.many("a", "b", "c")
		one := b.flew(1, "a b c")
		second := b.many("b", "d", "c", "e")
		two := b.flew(2, "d e")
		third := b.one("d")
		one.complete("a", "c")
		three := b.flew(3, "c")
		two.complete("e")
		closed := make(chan struct{})
		go func() {
			b.group.Close(cause)
			close(closed)
		}()
		b.got(first, "a1", "left: closing", "c1")
		b.got(second, "left: closing", "left: closing", "left: closing", "e2")
		b.got(third, "left: closing")
		for _, tr := range []*trip{three, one, two} {
			b.stopped(tr, cause)
			select {
			case <-closed:
				t.Error("Close did not wait for a flight")
			default:
			}
			b.got(b.many("a", "f"), "left: closing", "left: closing")
			b.got(b.many())
			if tr == one { // the others end without completing
				tr.complete("b")
			}
			tr.end()
		}
		<-closed
		b.flew(3, "c") // those who had gathered are not flown
		b.got(b.many("a", "b"), "left: closing", "left: closing")
		b.got(b.one("a"), "left: closing")
		b.empty()
	})
}

// What has gathered behind a key that completes before Close, but has not begun by then, begins
// with the order to stop.
func TestCloseBetweenLandingAndTheNextFlight(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		index := func(key string) int {
			for i := range b.group.shards {
				if b.group.shard(key) == &b.group.shards[i] {
					return i
				}
			}
			return -1
		}
		for index("a") >= index("b") { // Close begins with a
			b.group.seed = maphash.MakeSeed()
		}
		cause := errors.New("closing")
		inBetween := make(chan bool)
		b.late = func(s string) bool {
			if s == "b1" {
				<-inBetween
			}
			return false
		}
		first := b.many("a", "b")
		one := b.flew(1, "a b")
		second, third := b.one("a"), b.one("b")
		one.complete("a", "b")
		b.flew(1, "a b")
		closed := make(chan struct{})
		go func() {
			b.group.Close(cause)
			close(closed)
		}()
		// a's next round has not begun; the shard of b is locked, so this is no time for
		// synctest.Wait
		a := b.group.shard("a")
		for isClosed := false; !isClosed; runtime.Gosched() {
			a.mu.Lock()
			isClosed = a.closed
			a.mu.Unlock()
		}
		close(inBetween)
		synctest.Wait()
		two := b.trips[1]
		b.stopped(two, cause)
		b.got(second, "left: closing")
		b.got(third, "left: closing")
		b.got(first, "a1", "b1")
		one.end()
		b.waits() // for Close
		select {
		case <-closed:
			b.t.Error("Close did not wait for the flight")
		default:
		}
		two.end()
		<-closed
		b.empty()
	})
}

// The context of a flight that Close ends has Close's cause, also if the flight completes rounds
// when its callers have just gone because of Close: it is not abandoned.
func TestFlightThatLandsDuringCloseHasItsCause(t *testing.T) {
	const flights = 2000
	cause := errors.New("closing")
	var gone [flights]chan struct{}
	var g *Group[int, int]
	var began, called sync.WaitGroup
	var wrong atomic.Int64
	began.Add(flights)
	g = New(Hooks[int, int]{
		Run: func(ctx context.Context, f *Flight[int, int]) {
			began.Done()
			<-gone[f.Rounds[0].Key/2]
			f.Complete(f.Rounds[:1])
			<-ctx.Done()
			if context.Cause(ctx) != cause {
				wrong.Add(1)
			}
		},
		StillValid: func(*int) bool { return false },
		Caught:     func(any) error { return nil },
	})
	for i := range flights {
		gone[i] = make(chan struct{})
		called.Go(func() {
			_, errs := doMany(g, context.Background(), []int{2 * i, 2*i + 1})
			if errs[1] != cause {
				t.Errorf("a caller got %v", errs[1])
			}
			close(gone[i])
		})
	}
	began.Wait()
	g.Close(cause)
	called.Wait()
	if n := wrong.Load(); n != 0 {
		t.Errorf("%d of %d flights were cancelled for another reason", n, flights)
	}
}

// Fly's context carries the values of the caller who began the flight; where callers have gathered,
// those of the first for the first of the keys that completed.
func TestFlightCarriesTheValuesOfItsFirstCaller(t *testing.T) {
	type key struct{}
	with := func(v string) context.Context { return context.WithValue(context.Background(), key{}, v) }
	manyBubble(t, func(t *testing.T, b *manyBench) {
		carries := func(tr *trip, want string) {
			t.Helper()
			if v := tr.ctx.Value(key{}); v != want {
				t.Errorf("flight %d carries %v, want %s", tr.n, v, want)
			}
		}
		first := b.manyWith(with("first"), "a", "b")
		one := b.flew(1, "a b")
		carries(one, "first")
		second := b.oneWith(with("second"), "b")
		third := b.manyWith(with("third"), "a", "b", "c")
		two := b.flew(2, "c")
		carries(two, "third")
		fourth := b.oneWith(with("fourth"), "a")
		one.complete("b", "a")
		three := b.flew(3, "a b")
		carries(three, "second")
		two.complete("c")
		three.complete("a", "b")
		b.got(first, "a1", "b1")
		b.got(second, "b3")
		b.got(third, "a3", "b3", "c2")
		b.got(fourth, "a3")
		b.empty()
	})
}

// No keys, no flight.
func TestDoManyOfNothing(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		b.got(b.many())
		b.flew(0, "")
		b.empty()
	})
}

// A caller whose context has ended gets its error for every key, disturbs no other caller, and
// starts no flight.
func TestDoManyOfAnEndedContextDoesNothing(t *testing.T) {
	manyBubble(t, func(t *testing.T, b *manyBench) {
		first := b.one("a")
		one := b.flew(1, "a")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		b.got(b.manyWith(ctx, "a", "b"), canceled, canceled)
		b.got(b.manyWith(ctx))
		if n := b.group.Waiting("a"); n != 0 {
			t.Errorf("%d have gathered", n)
		}
		one.complete("a")
		b.got(first, "a1")
		b.flew(1, "a")
		b.empty()
	})
}

// A key that is asked for twice has one round.
func TestKeyTwiceInOneDoMany(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		c := b.many("a", "b", "a", "a")
		one := b.flew(1, "a b")
		one.complete("b")
		b.waits(c)
		one.complete("a")
		b.got(c, "a1", "b1", "a1", "a1")

		c = b.many("a", "a", "a") // a caller that leaves leaves each
		two := b.flew(2, "a")
		c.cancel()
		b.got(c, canceled, canceled, canceled)
		b.stopped(two, ErrAbandoned)
		two.complete("a")
		b.flew(2, "a")

		first := b.one("a")
		three := b.flew(3, "a")
		c = b.many("a", "a") // both gather
		three.complete("a")
		b.got(first, "a3")
		four := b.flew(4, "a")
		c.cancel()
		b.got(c, canceled, canceled)
		b.stopped(four, ErrAbandoned)
		four.complete("a")
		b.empty()
	})
}

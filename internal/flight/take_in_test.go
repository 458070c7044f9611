package flight

import (
	"testing"
	"testing/synctest"
)

// takeIn takes in the callers that have gathered behind the rounds of keys.
func (t *trip) takeIn(keys ...string) {
	t.step(func() {
		for _, r := range t.f.Rounds {
			for _, key := range keys {
				if r.Key == key {
					t.f.TakeIn(r)
				}
			}
		}
	})
}

// Callers that have gathered when a flight takes them in get the results of its rounds. A caller
// that comes later does not, after any number of TakeIn calls, and neither do callers of keys that
// are not named.
func TestTakenInGetWhatTheRoundGets(t *testing.T) {
	manyBubble(t, func(t *testing.T, b *manyBench) {
		first := b.many("a", "b")
		one := b.flew(1, "a b")
		second, third := b.one("a"), b.many("b", "a")
		one.takeIn("a")
		if n := b.group.Waiting("a"); n != 0 {
			t.Errorf("%d still gather", n)
		}
		fourth := b.one("a")
		one.takeIn("a")
		fifth := b.one("a")
		one.complete("a")
		b.got(second, "a1")
		b.got(fourth, "a1")
		b.waits(first, third, fifth)
		two := b.flew(2, "a")
		one.complete("b")
		b.got(first, "a1", "b1")
		three := b.flew(3, "b")
		two.complete("a")
		b.got(fifth, "a2")
		b.waits(third)
		three.complete("b")
		b.got(third, "b3", "a1")
		b.empty()
	})
}

// A flight continues for the callers that it has taken in after its first callers have left.
func TestFlightGoesOnForThoseTakenIn(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		first := b.one("a")
		one := b.flew(1, "a")
		second, third := b.one("a"), b.many("a")
		one.takeIn("a")
		first.cancel()
		b.got(first, canceled)
		b.flies(one)
		second.cancel()
		b.got(second, canceled)
		b.flies(one)
		one.complete("a")
		b.got(third, "a1")
		b.empty()

		first = b.one("a")
		two := b.flew(2, "a")
		second = b.one("a")
		two.takeIn("a")
		first.cancel()
		second.cancel()
		b.got(second, canceled)
		b.stopped(two, ErrAbandoned)
		two.complete("a")
		b.empty()
	})
}

// A flight that all callers have left takes no callers in, since it was cancelled.
func TestAbandonedFlightAcceptsNoCallers(t *testing.T) {
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		first := b.one("a")
		one := b.flew(1, "a")
		first.cancel()
		b.stopped(one, ErrAbandoned)
		second := b.one("a")
		one.takeIn("a")
		one.complete("a")
		b.waits(second)
		two := b.flew(2, "a")
		b.flies(two)
		two.complete("a")
		b.got(second, "a2")
		b.empty()
	})
}

// When a flight panics, returns without completing, or is closed, the callers that it has taken in
// get the same error. A completed round takes no callers in.
func TestTakenInGetTheEndOfTheFlight(t *testing.T) {
	for want, end := range map[string]func(b *manyBench, tr *trip){
		"err: caught now":                 func(_ *manyBench, tr *trip) { tr.ended = true; tr.step(func() { panic("now") }) },
		"err: " + errNotCompleted.Error(): func(_ *manyBench, tr *trip) { tr.end() },
		"left: " + errStorm.Error(): func(b *manyBench,
			tr *trip) {
			go b.group.Close(errStorm)
			synctest.Wait()
			tr.end()
		},
	} {
		t.Run(want, func(t *testing.T) {
			manyBubble(t, func(_ *testing.T, b *manyBench) {
				first := b.one("a")
				one := b.flew(1, "a")
				second := b.one("a")
				one.takeIn("a")
				end(b, one)
				b.got(first, want)
				b.got(second, want)
				b.empty()
			})
		})
	}
	manyBubble(t, func(_ *testing.T, b *manyBench) {
		first := b.many("a", "b")
		one := b.flew(1, "a b")
		one.complete("a")
		two := b.flew(1, "a b")
		second := b.one("a")
		three := b.flew(2, "a")
		third := b.one("a")
		two.takeIn("a") // a round that has completed: those behind the next one are not its own
		b.waits(second, third)
		three.complete("a")
		b.got(second, "a2")
		b.flew(3, "a").complete("a")
		b.got(third, "a3")
		one.complete("b")
		b.got(first, "a1", "b1")
		b.empty()
	})
}

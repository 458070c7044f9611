package flight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// look is one First of a group under test, which waits until the test ends it.
type look struct {
	ctx       context.Context
	r         *Round[string, string]
	goroutine string
	end       chan func(r *Round[string, string]) bool
}

// firstBench is a manyBench whose group has First.
type firstBench struct {
	*manyBench
	mu    sync.Mutex
	looks []*look // in the order of their beginning
}

// firstBubble runs f in a bubble.
func firstBubble(t *testing.T, f func(t *testing.T, b *firstBench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &firstBench{}
		b.manyBench = newManyBench(t, func(ctx context.Context, r *Round[string, string]) bool {
			if r.startedBy != nil {
				return false // of a DoMany: see TestDoManyLooksFirst
			}
			l := &look{ctx, r, goroutine(), make(chan func(*Round[string, string]) bool)}
			b.mu.Lock()
			b.looks = append(b.looks, l)
			b.mu.Unlock()
			return (<-l.end)(r)
		})
		f(t, b)
	})
}

// goroutine returns the name of the current goroutine.
func goroutine() string {
	stack := make([]byte, 100)
	stack = stack[:runtime.Stack(stack, false)]
	name, _, _ := bytes.Cut(stack, []byte(" [")) // goroutine 7 [running]
	return string(name)
}

// looked waits until nothing moves any more, and returns the last of n first looks, which must be
// for key.
func (f *firstBench) looked(n int, key string) *look {
	f.t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.looks) != n {
		f.t.Fatalf("%d first looks have begun, want %d", len(f.looks), n)
	}
	if n == 0 {
		return nil
	}
	if got := f.looks[n-1].r.Key; got != key {
		f.t.Fatalf("first look %d is for %s, want %s", n, got, key)
	}
	return f.looks[n-1]
}

// finds has the look end the round with a value.
func (l *look) finds(value string) {
	l.ends(func(r *Round[string, string]) bool {
		r.Result = value
		return true
	})
}

// misses has the look send the round into a flight, with what it has put into Result.
func (l *look) misses(value string) {
	l.ends(func(r *Round[string, string]) bool {
		r.Result = value
		return false
	})
}

func (l *look) ends(f func(r *Round[string, string]) bool) {
	l.end <- f
	synctest.Wait()
}

// First runs on the goroutine of its caller, with the caller's own context.
func TestFirstLooksOnTheGoroutineOfItsCaller(t *testing.T) {
	firstBubble(t, func(t *testing.T, b *firstBench) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		caller := make(chan string, 1)
		c := b.ask(ctx, func(context.Context) []string {
			caller <- goroutine()
			r, err := do(b.group, ctx, "a")
			return []string{told(r, err, nil)}
		})
		one := b.looked(1, "a")
		if want := <-caller; one.goroutine != want {
			t.Errorf("First was called on %s, the caller's is %s", one.goroutine, want)
		}
		if one.ctx != ctx {
			t.Error("First was given another context than the caller's")
		}
		one.finds("here")
		b.got(c, "here")
	})
}

// A round that First completes ends without a Fly, and leaves nothing behind: the next caller looks
// itself.
func TestRoundThatFirstEndsIsNotFlown(t *testing.T) {
	firstBubble(t, func(_ *testing.T, b *firstBench) {
		c := b.one("a")
		other := b.one("b") // the looks of different keys do not wait for each other
		b.looked(2, "b").finds("b here")
		b.got(other, "b here")
		b.waits(c)
		b.looks[0].finds("a here")
		b.got(c, "a here")
		b.flew(0, "")
		b.empty()

		c = b.one("a")
		b.looked(3, "a").ends(func(r *Round[string, string]) bool {
			r.Err = errors.New("no database")
			return true
		})
		b.got(c, "err: no database")
		b.flew(0, "")
		b.empty()
	})
}

// Those who come during a first look gather, and get a flight of their own, which begins when the
// look has ended. First is not called for it, nor for those who gather behind a flight: only a
// caller that comes when nothing is under way looks itself.
func TestCallersDuringAFirstLookGetAFlight(t *testing.T) {
	firstBubble(t, func(t *testing.T, b *firstBench) {
		first := b.one("a")
		look := b.looked(1, "a")
		second, third := b.one("a"), b.many("a", "b")
		two := b.flew(1, "b") // b had nothing under way
		if n := b.group.Waiting("a"); n != 2 {
			t.Errorf("%d have gathered, want 2", n)
		}
		look.finds("here")
		b.got(first, "here")
		one := b.flew(2, "a")
		b.looked(1, "a")
		fourth := b.one("a") // gathers behind the flight
		b.waits(second, third, fourth)
		one.complete("a")
		two.complete("b")
		b.got(second, "a2")
		b.got(third, "a2", "b1")
		b.flew(3, "a").complete("a")
		b.got(fourth, "a3")
		b.looked(1, "a")
		fifth := b.one("a") // nothing is under way
		b.looked(2, "a").finds("again")
		b.got(fifth, "again")
		b.flew(3, "a")
		b.empty()
	})
}

// If Late allows it, what First has found is also given to those who have gathered, but not its
// error.
func TestLateServesWhatFirstHasFound(t *testing.T) {
	firstBubble(t, func(_ *testing.T, b *firstBench) {
		b.late = func(s string) bool { return s == "current" }
		for n, value := range []string{"current", "old", "current"} {
			first := b.one("a")
			look := b.looked(n+1, "a")
			second := b.one("a")
			look.ends(func(r *Round[string, string]) bool {
				r.Result = value
				if n == 2 {
					r.Err = errors.New("failed")
				}
				return true
			})
			switch n {
			case 0:
				b.got(first, "current")
				b.got(second, "current")
				b.flew(0, "")
			case 1:
				b.got(first, "old")
				b.flew(1, "a").complete("a")
				b.got(second, "a1")
			case 2:
				b.got(first, "err: failed")
				b.flew(2, "a").complete("a")
				b.got(second, "a2")
			}
			b.empty()
		}
	})
}

// A round that First does not complete continues in a flight: the same round, with the data that
// First has put into it, and the values of the caller's context, without its deadline. The caller
// gets this round.
func TestRoundThatFirstDoesNotEndIsFlown(t *testing.T) {
	type key struct{}
	firstBubble(t, func(t *testing.T, b *firstBench) {
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Hour)
		defer cancel()
		c := b.oneWith(ctx, "a")
		look := b.looked(1, "a")
		second := b.one("a")
		look.misses("half")
		one := b.flew(1, "a")
		b.waits(c, second)
		if r := one.f.Rounds[0]; r != look.r || r.Result != "half" {
			t.Errorf("the flight has %+v, First had %+v", r, look.r)
		}
		if v := one.ctx.Value(key{}); v != "value" {
			t.Errorf("the flight's context carries %v", v)
		}
		if _, ok := one.ctx.Deadline(); ok {
			t.Error("the flight has the deadline of its caller")
		}
		b.flies(one)
		one.step(func() {
			one.f.Rounds[0].Result += " and half"
			one.f.Complete(one.f.Rounds)
		})
		b.got(c, "half and half")
		b.flew(2, "a").complete("a")
		b.got(second, "a2")
		b.looked(1, "a")
		b.empty()
	})
}

// A panic in First is an error for its caller alone; a Goexit ends the caller. Either way, the
// callers that have gathered are served, and the key stays usable.
func TestFirstThatDoesNotReturn(t *testing.T) {
	for name, c := range map[string]struct {
		run  func()
		want string
	}{
		"panic":      {func() { panic("boom") }, "err: caught boom"},
		"panic(nil)": {func() { panic(nil) }, "err: caught " + new(runtime.PanicNilError).Error()},
		"Goexit":     {runtime.Goexit, "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			firstBubble(t, func(_ *testing.T, b *firstBench) {
				b.late = func(string) bool { return true } // of an error or nothing there is nothing to share
				end := func(r *Round[string, string]) bool {
					r.Result = "half"
					c.run()
					return true
				}
				first := b.one("a")
				look := b.looked(1, "a")
				second, third := b.one("a"), b.many("a")
				look.ends(end)
				b.got(first, c.want)
				one := b.flew(1, "a")
				b.flies(one)
				b.waits(second, third)
				one.complete("a")
				b.got(second, "a1")
				b.got(third, "a1")
				b.empty()

				first = b.one("a") // no caller has gathered now
				b.looked(2, "a").ends(end)
				b.got(first, c.want)
				b.empty()
				again := b.one("a")
				b.looked(3, "a").finds("here")
				b.got(again, "here")
				b.flew(1, "a")
				b.empty()
				one.end()
				b.group.Close(errors.New("closed")) // waits for none of the looks
			})
		})
	}
}

// A caller whose context ends while First looks leaves when First has returned: with First's
// result, or, if a flight follows, with its context's error, and the flight's context is cancelled.
// Callers that have gathered are not concerned.
func TestContextThatEndsDuringAFirstLook(t *testing.T) {
	for _, found := range []bool{true, false} {
		firstBubble(t, func(t *testing.T, b *firstBench) {
			c := b.one("a")
			look := b.looked(1, "a")
			second := b.one("a")
			c.cancel()
			b.waits(c, second)
			if look.ctx.Err() == nil {
				t.Error("First's context has not ended")
			}
			n := 1
			if found {
				look.finds("here")
				b.got(c, "here")
			} else {
				look.misses("half")
				b.got(c, canceled)
				one := b.flew(n, "a")
				b.stopped(one, ErrAbandoned)
				b.waits(second)
				one.complete("a")
				n++
			}
			next := b.flew(n, "a")
			b.flies(next)
			next.complete("a")
			b.got(second, map[bool]string{true: "a1", false: "a2"}[found])
			b.looked(1, "a")
			b.empty()
		})
	}
}

// A caller that has gathered behind a first look leaves at once; a round that all have left is not
// flown.
func TestGatheredCallersLeaveDuringAFirstLook(t *testing.T) {
	firstBubble(t, func(t *testing.T, b *firstBench) {
		first := b.one("a")
		look := b.looked(1, "a")
		second, third := b.one("a"), b.many("a")
		second.cancel()
		b.got(second, canceled)
		third.cancel()
		b.got(third, canceled)
		if n := b.group.Waiting("a"); n != 0 {
			t.Errorf("%d have gathered", n)
		}
		b.waits(first)
		look.finds("here")
		b.got(first, "here")
		b.flew(0, "")
		b.empty()
	})
}

// Close waits for a first look. Callers that have gathered behind it get the cause at once. If the
// look completes the round, its caller gets that result; otherwise it gets the cause, and the
// flight's context ends with the cause, too.
func TestCloseDuringAFirstLook(t *testing.T) {
	for _, found := range []bool{true, false} {
		firstBubble(t, func(t *testing.T, b *firstBench) {
			cause := errors.New("closing")
			first := b.one("a")
			look := b.looked(1, "a")
			second, third := b.one("a"), b.many("b", "a")
			b.flew(1, "b").complete("b")
			b.trips[0].end()
			closed := make(chan struct{})
			go func() {
				b.group.Close(cause)
				close(closed)
			}()
			waits := func() {
				t.Helper()
				synctest.Wait()
				select {
				case <-closed:
					t.Error("Close did not wait")
				default:
				}
			}
			b.got(second, "left: closing")
			b.got(third, "b1", "left: closing")
			b.waits(first)
			waits()
			if err := look.ctx.Err(); err != nil {
				t.Errorf("First's context is the caller's, but has ended: %v", err)
			}
			if found {
				look.finds("here")
				b.got(first, "here")
				b.flew(1, "b")
			} else {
				look.misses("half")
				b.got(first, "left: closing")
				two := b.flew(2, "a")
				b.stopped(two, cause)
				waits()
				two.end()
			}
			<-closed
			b.got(b.one("a"), "left: closing")
			b.looked(1, "a")
			b.empty()
		})
	}
}

// DoMany looks once, for all rounds that begin with it. Rounds that the look completes end at once,
// also for a caller that gathers behind it, and the others form one flight.
func TestDoManyLooksFirst(t *testing.T) {
	manyBubble(t, func(t *testing.T, b *manyBench) {
		var looks [][]string
		b.group.hooks.Inline = func(_ context.Context, rounds []*Round[string, string]) (over,
			rest []*Round[string, string]) {
			var keys []string
			for _, r := range rounds {
				keys = append(keys, r.Key)
			}
			looks = append(looks, keys)
			if keys[0] == "e" {
				rounds[1].Result = "a value that nobody may get"
				panic("look")
			}
			for _, r := range rounds {
				if r.Key == "b" || r.Key == "d" {
					r.Result = "found"
					over = append(over, r)
				} else {
					rest = append(rest, r)
				}
			}
			return over, rest
		}
		single := b.one("a") // under way
		many := b.many("a", "b", "c", "d")
		b.flew(2, "c")
		other := b.many("b")
		b.got(other, "found")
		b.trips[0].complete("a")
		b.got(single, "a1")
		b.flew(3, "a").complete("a") // a caller that gathers is not looked for
		b.waits(many)
		b.trips[1].complete("c")
		b.got(many, "a3", "found", "c2", "found")
		b.got(b.many("b", "d"), "found", "found") // nothing is left to fly
		if want := "[[a] [b c d] [b] [b d]]"; fmt.Sprint(looks) != want {
			t.Errorf("looked for %v, want %s", looks, want)
		}
		b.got(b.many("e", "f"), "err: caught look", "err: caught look")
		b.empty()
	})
}

// Rounds of first looks that miss, of different keys, fly each on its own: the looks of many
// callers do not wait for each other.
func TestFirstLooksThatMissFlyAlone(t *testing.T) {
	firstBubble(t, func(t *testing.T, b *firstBench) {
		var callers []*asked
		for _, key := range []string{"a", "b", "c"} {
			callers = append(callers, b.one(key))
		}
		b.looked(3, "c")
		for i, l := range slices.Backward(b.looks) {
			l.misses("")
			b.flew(3-i, l.r.Key)
		}
		for i, key := range []string{"a", "b", "c"} {
			b.trips[2-i].complete(key)
			b.got(callers[i], key+string(rune('3'-i)))
		}
		b.empty()
	})
}

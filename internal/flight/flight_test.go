package flight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type outcome struct {
	value string
	err   error
}

// load is one run of a group under test, which waits until the test sets its outcome.
type load struct {
	ctx context.Context
	key string
	end chan outcome
}

// bench is a group whose runs wait for the test to end them. It is used in a bubble.
type bench struct {
	t     *testing.T
	group simple[string, string]
	loads []*load // in the order of their beginning
	late  func(string) bool
	mu    sync.Mutex
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t}
	b.group = newSimple(b.run, func(s string) bool { return b.late != nil && b.late(s) }, func(recovered any) error {
		return fmt.Errorf("caught %v", recovered)
	})
	t.Cleanup(func() {
		synctest.Wait()
		for _, l := range b.all() {
			select {
			case l.end <- outcome{}:
			default: // it has ended
			}
		}
		b.group.Close(errors.New("the test has ended"))
	})
	return b
}

func (b *bench) run(ctx context.Context, key string) (string, error) {
	l := &load{ctx, key, make(chan outcome, 1)}
	b.mu.Lock()
	b.loads = append(b.loads, l)
	b.mu.Unlock()
	o := <-l.end
	return o.value, o.err
}

func (b *bench) all() []*load {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.loads)
}

// began waits until nothing moves any more, and returns the last of n loads.
func (b *bench) began(n int) *load {
	b.t.Helper()
	synctest.Wait()
	loads := b.all()
	if len(loads) != n {
		b.t.Fatalf("%d loads have begun, want %d", len(loads), n)
	}
	return loads[n-1]
}

// call is a Do on a goroutine of its own.
type call struct {
	done   chan outcome
	cancel context.CancelFunc
}

// do asks for key, and waits until the caller waits.
func (b *bench) do(key string) *call { return b.doWith(context.Background(), key) }

func (b *bench) doWith(ctx context.Context, key string) *call {
	ctx, cancel := context.WithCancel(ctx)
	b.t.Cleanup(cancel)
	c := &call{make(chan outcome, 1), cancel}
	go func() {
		v, err := b.group.Do(ctx, key)
		c.done <- outcome{v, err}
	}()
	synctest.Wait()
	return c
}

// got fails unless the call has ended like that.
func (b *bench) got(c *call, value string, err error) {
	b.t.Helper()
	synctest.Wait()
	select {
	case o := <-c.done:
		if o.value != value || !errors.Is(o.err, err) {
			b.t.Errorf("a caller got %q, %v, want %q, %v", o.value, o.err, value, err)
		}
	default:
		b.t.Error("a caller still waits")
	}
}

func (b *bench) waits(c *call) {
	b.t.Helper()
	synctest.Wait()
	if len(c.done) != 0 {
		b.t.Errorf("a caller has ended: %+v", <-c.done)
	}
}

func bubble(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newBench(t)) })
}

func TestCallersOfARunningRoundGetTheNextOne(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		first := b.do("k")
		one := b.began(1)
		second, third := b.do("k"), b.do("k")
		b.began(1) // they gather
		if n := b.group.Waiting("k"); n != 2 {
			t.Errorf("%d callers wait for the next round", n)
		}
		one.end <- outcome{"one", nil}
		b.got(first, "one", nil)
		two := b.began(2)
		b.waits(second)
		fourth := b.do("k") // the second round has begun
		two.end <- outcome{"two", nil}
		b.got(second, "two", nil)
		b.got(third, "two", nil)
		three := b.began(3)
		b.waits(fourth)
		three.end <- outcome{"three", nil}
		b.got(fourth, "three", nil)
		fifth := b.do("k") // nothing is kept
		b.began(4).end <- outcome{"four", nil}
		b.got(fifth, "four", nil)
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		callers := map[string]*call{}
		for i := range 200 { // more than there are shards
			key := fmt.Sprint(i)
			callers[key] = b.do(key)
		}
		b.began(200)
		for _, l := range b.all() {
			l.end <- outcome{l.key, nil}
			b.got(callers[l.key], l.key, nil)
		}
	})
}

func TestErrorReachesAllCallersOfItsRoundOnly(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.late = func(string) bool { return true }
		failure := errors.New("no database")
		running := b.do("k")
		gathered := []*call{b.do("k"), b.do("k")}
		b.began(1).end <- outcome{"", failure}
		b.got(running, "", failure)
		two := b.began(2) // an error is not shared with those who came late
		two.end <- outcome{"partial", failure}
		for _, c := range gathered {
			b.got(c, "partial", failure)
		}
	})
}

func TestLateCallersShareAResultThatIsStillCurrent(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		current := true
		b.late = func(s string) bool {
			if s != "one" {
				t.Errorf("asked about %q", s)
			}
			return current
		}
		first := b.do("k")
		second, third := b.do("k"), b.do("k")
		b.began(1).end <- outcome{"one", nil}
		for _, c := range []*call{first, second, third} {
			b.got(c, "one", nil)
		}
		b.began(1)

		current = false
		first = b.do("k")
		second = b.do("k")
		b.began(2).end <- outcome{"one", nil}
		b.got(first, "one", nil)
		b.waits(second)
		b.began(3).end <- outcome{"two", nil}
		b.got(second, "two", nil)
	})
}

func TestCancelledCallerLeavesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		leader, other := b.do("k"), b.do("other")
		second, third := b.do("k"), b.do("k")
		loads := b.all()
		b.began(2)

		third.cancel()
		b.got(third, "", context.Canceled)
		b.waits(second)
		loads[0].end <- outcome{"one", nil}
		b.got(leader, "one", nil)
		two := b.began(3)
		if err := two.ctx.Err(); err != nil {
			t.Errorf("the round's context has ended: %v", err)
		}
		two.end <- outcome{"two", nil}
		b.got(second, "two", nil)
		loads[1].end <- outcome{"other", nil}
		b.got(other, "other", nil)
	})
}

// The leader began the round, but other callers have joined it.
func TestLeaderWhoLeavesDoesNotEndTheRound(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		first := b.do("k")
		leader, second := b.do("k"), b.do("k")
		b.began(1).end <- outcome{"one", nil}
		b.got(first, "one", nil)
		two := b.began(2)
		leader.cancel()
		b.got(leader, "", context.Canceled)
		b.waits(second)
		if err := two.ctx.Err(); err != nil {
			t.Errorf("the round's context has ended: %v, %v", err, context.Cause(two.ctx))
		}
		two.end <- outcome{"two", nil}
		b.got(second, "two", nil)

		// Nor before it begins.
		first = b.do("k")
		leader, second = b.do("k"), b.do("k")
		leader.cancel()
		b.got(leader, "", context.Canceled)
		b.began(3).end <- outcome{"three", nil}
		b.got(first, "three", nil)
		four := b.began(4)
		if err := four.ctx.Err(); err != nil {
			t.Errorf("the round's context has ended: %v", err)
		}
		four.end <- outcome{"four", nil}
		b.got(second, "four", nil)
	})
}

func TestDeadlineOfACallerIsHisOwn(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		first := b.do("k")
		short, patient := b.doWith(ctx, "k"), b.do("k")
		begin := time.Now()
		if o := <-short.done; !errors.Is(o.err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("after %v: %v", time.Since(begin), o.err)
		}
		b.waits(patient)
		b.began(1).end <- outcome{"one", nil}
		b.got(first, "one", nil)
		two := b.began(2)
		if _, ok := two.ctx.Deadline(); ok {
			t.Error("the round has the deadline of its first caller")
		}
		two.end <- outcome{"two", nil}
		b.got(patient, "two", nil)
	})
}

func TestDoOfAnEndedContextDoesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		b.got(b.doWith(ctx, "k"), "", context.Canceled)
		if n := len(b.all()); n != 0 {
			t.Errorf("%d loads have begun", n)
		}
	})
}

func TestLastCallerWhoLeavesEndsTheRound(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		first := b.do("k")
		second, third := b.do("k"), b.do("k")
		b.began(1).end <- outcome{"one", nil}
		b.got(first, "one", nil)
		two := b.began(2)
		second.cancel()
		synctest.Wait()
		if err := two.ctx.Err(); err != nil {
			t.Errorf("the context has ended while a caller waits: %v", err)
		}
		third.cancel()
		b.got(third, "", context.Canceled)
		if cause := context.Cause(two.ctx); cause != ErrAbandoned {
			t.Errorf("the cause is %v", cause)
		}

		// It continues by itself. A caller that comes later does not get its result.
		next := b.do("k")
		b.began(2)
		two.end <- outcome{"", two.ctx.Err()}
		three := b.began(3)
		if err := three.ctx.Err(); err != nil {
			t.Errorf("the next context has ended: %v", err)
		}
		three.end <- outcome{"three", nil}
		b.got(next, "three", nil)
	})
}

func TestRoundThatWasAbandonedBeforeItsBeginningIsNotRun(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		first := b.do("k")
		second, third := b.do("k"), b.do("k")
		second.cancel()
		third.cancel()
		b.got(second, "", context.Canceled)
		b.got(third, "", context.Canceled)
		if n := b.group.Waiting("k"); n != 0 {
			t.Errorf("%d callers wait for the next round", n)
		}
		one := b.began(1)
		one.end <- outcome{"one", nil}
		b.got(first, "one", nil)
		b.began(1)

		// A caller that comes after them gathers anew.
		first = b.do("k")
		b.do("k").cancel()
		fourth := b.do("k")
		b.began(2).end <- outcome{"two", nil}
		b.got(first, "two", nil)
		three := b.began(3)
		if err := three.ctx.Err(); err != nil {
			t.Errorf("the context has ended: %v", err)
		}
		three.end <- outcome{"three", nil}
		b.got(fourth, "three", nil)
	})
}

func TestRoundCarriesTheValuesOfItsFirstCaller(t *testing.T) {
	type key struct{}
	with := func(v string) context.Context { return context.WithValue(context.Background(), key{}, v) }
	bubble(t, func(t *testing.T, b *bench) {
		first := b.doWith(with("a"), "k")
		second := b.doWith(with("b"), "k")
		third := b.doWith(with("c"), "k")
		one := b.began(1)
		if v := one.ctx.Value(key{}); v != "a" {
			t.Errorf("the first round has %v", v)
		}
		one.end <- outcome{"one", nil}
		b.got(first, "one", nil)
		two := b.began(2)
		if v := two.ctx.Value(key{}); v != "b" {
			t.Errorf("the second round has %v", v)
		}
		two.end <- outcome{"two", nil}
		b.got(second, "two", nil)
		b.got(third, "two", nil)
		if two.ctx.Err() == nil {
			t.Error("the context of a round that has ended still lives")
		}
	})
}

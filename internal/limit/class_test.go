package limit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// order notes who is let in, and leaves at once.
type order struct {
	mu sync.Mutex
	in []string
	wg sync.WaitGroup
}

func (o *order) begin(t *testing.T, d *Admission, name string, call Call) {
	t.Helper()
	o.wg.Go(func() {
		p, err := d.Acquire(t.Context(), call)
		o.mu.Lock()
		if err != nil {
			name += ": " + err.Error()
		}
		o.in = append(o.in, name)
		o.mu.Unlock()
		if err == nil {
			p.Leave()
		}
	})
	synctest.Wait()
}

func (o *order) want(t *testing.T, names ...string) {
	t.Helper()
	o.wg.Wait()
	if !slices.Equal(o.in, names) {
		t.Errorf("%q, want %q", o.in, names)
	}
}

// Loads that continue come first, then loads that other loads need, then loads that a caller waits
// for. The background is last.
func TestClasses(t *testing.T) {
	for name, o := range map[string][2]Options{
		"shared": {{}, {AtOnce: 1, Queue: 10}},
		"own":    {{AtOnce: 1, Queue: 10}, {}},
		"both":   {{AtOnce: 1, Queue: 10}, {AtOnce: 1, Queue: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &Admission{Loader: New(o[0]), Shared: New(o[1]), MaxWait: time.Minute}
				outer := enter(t, d)
				over := outer.Lend(t.Context())
				first := enter(t, d)
				var got order
				got.begin(t, d, "background 1", Call{Background: true})
				got.begin(t, d, "background 2", Call{Background: true})
				got.begin(t, d, "foreground 1", Call{})
				got.begin(t, d, "foreground 2", Call{})
				got.begin(t, d, "nested 1", Call{Within: outer})
				got.begin(t, d, "nested 2", Call{Within: outer, Background: true})
				got.wg.Go(func() {
					over()
					got.mu.Lock()
					got.in = append(got.in, "outer")
					got.mu.Unlock()
					outer.Leave()
				})
				synctest.Wait()
				first.Leave()
				got.want(t, "outer", "nested 1", "nested 2", "foreground 1", "foreground 2", "background 1",
					"background 2")
				refusedNone(t, d)
			})
		})
	}
}

// Where the queue is full, the newest in the background makes room for a call that is waited for;
// and what is within other loads needs no room.
func TestBackgroundMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Shared: New(Options{AtOnce: 1, Queue: 2}), MaxWait: time.Minute}
		first := enter(t, d)
		var got order
		got.begin(t, d, "background 1", Call{Background: true})
		got.begin(t, d, "background 2", Call{Background: true})
		got.begin(t, d, "background 3", Call{Background: true}) // refused at once
		got.begin(t, d, "foreground 1", Call{})
		got.begin(t, d, "nested", Call{Within: first})
		got.begin(t, d, "foreground 2", Call{})
		got.begin(t, d, "foreground 3", Call{})
		first.Leave()
		full := ": " + ErrFull.Error()
		got.want(t, "background 3"+full, "background 2"+full, "background 1"+full, "foreground 3"+full, "nested",
			"foreground 1", "foreground 2")
		refusedNone(t, d)
	})
}

// While a call in the background waits for the places of the process it keeps none of its loader's,
// and the other way round.
func TestBackgroundHoldsNothingWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := New(Options{AtOnce: 2, Queue: 10})
		d := &Admission{Loader: New(Options{AtOnce: 1, Queue: 10}), Shared: shared, MaxWait: time.Minute}
		other := &Admission{Shared: shared, MaxWait: time.Minute}
		a, b := enter(t, other), enter(t, other)
		var got order
		got.begin(t, d, "background", Call{Background: true}) // has its own place, but none of the process
		pass := &Pass{from: &Admission{Loader: d.Loader}, placed: true}
		if err := d.Loader.enter(nil, nil, foreground); err != nil {
			t.Fatal("its own place is taken")
		}
		a.Leave() // now it could have that, but not its own
		c := enter(t, other)
		pass.Leave()
		b.Leave()
		got.want(t, "background")
		c.Leave()
		refusedNone(t, d)
	})
}

// A call in the background does not wait for the rate: another call that comes then would wait
// behind it.
func TestBackgroundDoesNotWaitForTheRate(t *testing.T) {
	for _, limit := range []*Limit{nil, New(Options{AtOnce: 5})} {
		synctest.Test(t, func(t *testing.T) {
			d := &Admission{Loader: limit, Shared: New(Options{AtOnce: 5, Rate: 1, Queue: 10}), MaxWait: time.Minute}
			enter(t, d).Leave()
			if _, err := d.Acquire(t.Context(), Call{Background: true}); err != ErrRate {
				t.Error(err)
			}
			began := time.Now()
			enter(t, d).Leave()
			if took := time.Since(began); took != time.Second {
				t.Error("after", took)
			}
			time.Sleep(time.Second)
			p, err := d.Acquire(t.Context(), Call{Background: true})
			if err != nil {
				t.Fatal(err)
			}
			p.Leave()
			refusedNone(t, d)
		})
	}
}

// A call that has several waits under way lends its place once, and has it again after the last of
// them.
func TestPlaceIsLentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Shared: New(Options{AtOnce: 2, Queue: 10}), MaxWait: time.Minute}
		p, other := enter(t, d), enter(t, d)
		one, two := p.Lend(t.Context()), p.Lend(t.Context())
		third := enter(t, d) // in its place
		refused(t, slowNow(d), ErrLate, time.Millisecond)
		one()
		var back atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			two()
			back.Store(true)
		})
		synctest.Wait()
		if back.Load() {
			t.Error("it continues without a place")
		}
		three := p.Lend(t.Context()) // it is waiting for its place, and lends that, too
		third.Leave()
		wg.Wait()
		fourth := enter(t, d)
		fourth.Leave()
		three()
		refused(t, slowNow(d), ErrLate, time.Millisecond)
		p.Leave()
		other.Leave()
		enter(t, d)
		enter(t, d)
		refused(t, slowNow(d), ErrLate, time.Millisecond)
	})
}

// A call whose context has ended continues at once. Until its end its place stays taken.
func TestEndedCallIsCountedUntilItLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Shared: New(Options{AtOnce: 1, Queue: 10}), MaxWait: time.Minute}
		ctx, cancel := context.WithCancel(t.Context())
		p := enter(t, d)
		over := p.Lend(ctx)
		inner := enter(t, d)
		time.AfterFunc(time.Second, cancel)
		over()
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Error("it did not wait")
		}
		inner.Leave()
		refused(t, slowNow(d), ErrLate, time.Millisecond)
		p.Leave()
		enter(t, d).Leave()
		p = enter(t, d) // one that has left while it waits is not let in again
		over = p.Lend(t.Context())
		p.Leave()
		over()
		enter(t, d).Leave()
	})
}

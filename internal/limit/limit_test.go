package limit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// enter fails unless a call is let in, and returns it.
func enter(t *testing.T, d *Admission) *Pass {
	t.Helper()
	p, err := d.Acquire(t.Context(), Call{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// refused fails unless a call is refused with want after exactly the time after.
func refused(t *testing.T, d *Admission, want error, after time.Duration) {
	t.Helper()
	began := time.Now()
	p, err := d.Acquire(t.Context(), Call{})
	if err != want || time.Since(began) != after {
		t.Errorf("%v after %v, want %v after %v", err, time.Since(began), want, after)
	}
	if err == nil {
		p.Leave()
	}
}

// callers begin calls one after the other, and note the order of their admission.
type callers struct {
	mu   sync.Mutex
	in   []int
	pass []*Pass
	wg   sync.WaitGroup
}

func (c *callers) begin(t *testing.T, d *Admission, n int) {
	for i := range n {
		c.wg.Go(func() {
			p, err := d.Acquire(t.Context(), Call{})
			if err != nil {
				t.Errorf("call %d: %v", i, err)
				return
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.in, c.pass = append(c.in, i), append(c.pass, p)
		})
		synctest.Wait()
	}
}

// wantIn fails unless n calls have been let in, in their order.
func (c *callers) wantIn(t *testing.T, n int) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.in) != n || !slices.IsSorted(c.in) {
		t.Fatalf("the calls %v are in, want the first %d", c.in, n)
	}
}

// leave ends the n-th call.
func (c *callers) leave(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pass[n].Leave()
}

func TestPlacesAreGivenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Shared: New(Options{AtOnce: 3, Queue: 10}), MaxWait: time.Minute}
		var c callers
		c.begin(t, d, 10)
		for n := 3; n <= 10; n++ {
			c.wantIn(t, n)
			c.leave(n - 3)
		}
		c.wg.Wait()
		refusedNone(t, d)
	})
}

// refusedNone fails unless the limits are as empty as a new one's, except for two calls.
func refusedNone(t *testing.T, d *Admission) {
	t.Helper()
	for _, l := range []*Limit{d.Loader, d.Shared} {
		if l != nil && (l.waiting.Load() != 0 || l.waitingForRate.Load() != 0) {
			t.Errorf("%d wait, %d for the rate", l.waiting.Load(), l.waitingForRate.Load())
		}
	}
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Shared: New(Options{AtOnce: 1, Queue: 2}), MaxWait: time.Minute}
		var c callers
		c.begin(t, d, 3)
		refused(t, d, ErrFull, 0)
		c.leave(0)
		c.wantIn(t, 2)
		c.begin(t, d, 0)
		c.leave(1)
		c.wantIn(t, 3)
		c.leave(2)
		c.wg.Wait()
		refusedNone(t, d)
	})
}

func TestNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, o := range []Options{{AtOnce: 1, Queue: -1}, {Rate: 1, Queue: -1}} {
			d := &Admission{Shared: New(o), MaxWait: time.Minute}
			p := enter(t, d)
			refused(t, d, ErrFull, 0)
			p.Leave()
			time.Sleep(time.Second)
			enter(t, d).Leave()
		}
	})
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Shared: New(Options{AtOnce: 1, Queue: 1}), MaxWait: time.Second}
		p := enter(t, d)
		refused(t, d, ErrLate, time.Second)
		refused(t, d, ErrLate, time.Second) // the call that has given up is no longer in the queue
		p.Leave()
		enter(t, d).Leave()
	})
}

// One boundedWait is for all that a call waits for.
func TestWaitIsForAllTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Loader: New(Options{AtOnce: 1, Queue: 1}), Shared: New(Options{AtOnce: 1, Queue: 5}),
			MaxWait: time.Second}
		other := enter(t, &Admission{Shared: d.Shared})
		pass := &Pass{from: &Admission{Loader: d.Loader}, placed: true}
		if err := d.Loader.enter(nil, nil, foreground); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(600*time.Millisecond, pass.Leave)
		refused(t, d, ErrLate, time.Second)
		other.Leave()
		enter(t, d).Leave()
		refusedNone(t, d)
	})
}

func TestContextEndsTheWait(t *testing.T) {
	cause := errors.New("the cause")
	for name, o := range map[string]Options{"place": {AtOnce: 1, Queue: 1}, "rate": {Rate: 0.1, Queue: 2},
		"turn": {Rate: 0.1, Queue: 2}} {
		synctest.Test(t, func(t *testing.T) {
			d := &Admission{Shared: New(o), MaxWait: time.Minute}
			first := enter(t, d)
			var ahead sync.WaitGroup
			before, leave := context.WithCancel(t.Context())
			if name == "turn" {
				ahead.Go(func() { d.Acquire(before, Call{}) })
				synctest.Wait()
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(cause) })
			began := time.Now()
			if _, err := d.Acquire(ctx, Call{}); err != cause || time.Since(began) != time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
			leave()
			ahead.Wait()
			first.Leave()
			refusedNone(t, d)
		})
	}
}

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Shared: New(Options{AtOnce: 3, Rate: 50, Queue: 100}), MaxWait: time.Minute}
		began := time.Now()
		var c callers
		c.begin(t, d, 5) // the burst is its tenth
		c.wantIn(t, 3)   // but there are places for three only
		c.leave(0)
		c.wantIn(t, 4)
		c.leave(1)
		c.wantIn(t, 5)
		if time.Since(began) != 0 {
			t.Error("after", time.Since(began))
		}
		for n := 2; n < 5; n++ {
			c.leave(n)
		}
		c.wg.Wait()

		c = callers{}
		for range 30 {
			c.wg.Go(func() {
				enter(t, d).Leave()
			})
		}
		c.wg.Wait()
		if took := time.Since(began); took < 599*time.Millisecond || took > 601*time.Millisecond {
			t.Error("30 at 50 a second took", took)
		}
		refusedNone(t, d)
	})
}

func TestRateIsGivenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Shared: New(Options{Rate: 1, Queue: 100}), MaxWait: time.Minute}
		var c callers
		c.begin(t, d, 10)
		for n := 1; n <= 10; n++ {
			c.wantIn(t, n)
			time.Sleep(time.Second)
		}
		c.wg.Wait()
	})
}

// A call that leaves early takes nothing from those behind it.
func TestRateIsNotUsedUpByThoseWhoLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Shared: New(Options{Rate: 1, Queue: 100}), MaxWait: time.Minute}
		enter(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		var left sync.WaitGroup
		for range 20 {
			left.Go(func() {
				if _, err := d.Acquire(ctx, Call{}); err != context.Canceled {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		var c callers
		c.begin(t, d, 1)
		time.Sleep(500 * time.Millisecond)
		cancel()
		left.Wait()
		c.wantIn(t, 0)
		time.Sleep(500 * time.Millisecond)
		c.wantIn(t, 1)
		c.wg.Wait()
	})
}

// Where the rate cannot let a call in in time, it is not kept waiting.
func TestRateRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Shared: New(Options{AtOnce: 5, Rate: 0.1, Queue: 2}), MaxWait: time.Second}
		enter(t, d).Leave()
		refused(t, d, ErrRate, 0)
		time.Sleep(9500 * time.Millisecond)
		enter(t, d).Leave() // half a second later

		d = &Admission{Shared: New(Options{Rate: 1, Queue: 2}), MaxWait: 1500 * time.Millisecond}
		enter(t, d)
		var c callers
		c.begin(t, d, 1)
		refused(t, d, ErrRate, time.Second) // when it is the next
		c.wantIn(t, 1)
		c.wg.Wait()
		refusedNone(t, d)
	})
}

// Those who wait for their loader's own limit take no places of the others.
func TestOwnLimitComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := New(Options{AtOnce: 3, Queue: 1})
		slow := &Admission{Loader: New(Options{AtOnce: 1, Queue: 20}), Shared: shared, MaxWait: time.Minute}
		other := &Admission{Shared: shared, MaxWait: time.Minute}
		var c callers
		c.begin(t, slow, 10)
		a, b := enter(t, other), enter(t, other)
		refused(t, slowNow(other), ErrLate, time.Millisecond)
		a.Leave()
		b.Leave()
		for n := range 10 {
			c.wantIn(t, n+1)
			c.leave(n)
		}
		c.wg.Wait()
		refusedNone(t, slow)
	})
}

// slowNow is d for one who has no time.
func slowNow(d *Admission) *Admission { return &Admission{Shared: d.Shared, MaxWait: time.Millisecond} }

func TestUnlimited(t *testing.T) {
	for _, o := range []Options{{}, {AtOnce: -1, Rate: 0, Queue: -1}} {
		d := &Admission{Shared: New(o), Breaker: NewBreaker(-1, 0, nil)}
		if d.Shared != nil || d.Breaker != nil {
			t.Error("a limit of nothing was made")
		}
		for range 1000 {
			enter(t, d).End(Failed)
		}
	}
}

// With calls that end, leave early and time out, the maximum is never exceeded, and the limits are
// empty at the end.
func TestMaximumIsNeverExceeded(t *testing.T) {
	const most, ofLoader = 7, 3
	shared := New(Options{AtOnce: most, Queue: 40, Rate: 1e6})
	var now, ownNow, tops, ownTops, calls atomic.Int64
	raise := func(top *atomic.Int64, n int64) {
		for old := top.Load(); n > old && !top.CompareAndSwap(old, n); old = top.Load() {
		}
	}
	var wg sync.WaitGroup
	for i := range 64 {
		d := &Admission{Shared: shared, MaxWait: time.Duration(i%7+1) * 100 * time.Microsecond}
		wg.Go(func() {
			for j := range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(j%5)*50*time.Microsecond+time.Microsecond)
				if j%3 == 0 {
					ctx = t.Context()
				}
				if p, err := d.Acquire(ctx, Call{}); err == nil {
					raise(&tops, now.Add(1))
					calls.Add(1)
					time.Sleep(time.Duration(j%3) * 10 * time.Microsecond)
					now.Add(-1)
					p.Leave()
				} else if _, ok := err.(Refusal); !ok && ctx.Err() == nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	slow := &Admission{Loader: New(Options{AtOnce: ofLoader, Queue: 100}), Shared: shared, MaxWait: time.Second}
	for range 20 {
		wg.Go(func() {
			for range 50 {
				if p, err := slow.Acquire(t.Context(), Call{}); err == nil {
					raise(&tops, now.Add(1))
					raise(&ownTops, ownNow.Add(1))
					calls.Add(1)
					time.Sleep(10 * time.Microsecond)
					ownNow.Add(-1)
					now.Add(-1)
					p.Leave()
				}
			}
		})
	}
	wg.Wait()
	if tops.Load() > most || ownTops.Load() > ofLoader || calls.Load() == 0 {
		t.Errorf("%d at once, %d of them of one loader, %d calls", tops.Load(), ownTops.Load(), calls.Load())
	}
	refusedNone(t, slow)
	for range most {
		if !shared.places.tryAcquire() {
			t.Fatal("a place is missing")
		}
	}
}

func BenchmarkEnter(b *testing.B) {
	for name, d := range map[string]*Admission{
		"unlimited": {},
		"places":    {Shared: New(Options{AtOnce: 100, Queue: 1000})},
		"default":   {Shared: New(Options{AtOnce: 100, Queue: 1000}), Breaker: NewBreaker(0.9, time.Second, nil)},
		"all":       {Loader: New(Options{AtOnce: 100}), Shared: New(Options{AtOnce: 100, Rate: 1e9, Queue: 1000}), Breaker: NewBreaker(0.9, time.Second, nil)},
	} {
		d.MaxWait = time.Second
		for _, n := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetParallelism(n)
				ctx := context.Background()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						p, err := d.Acquire(ctx, Call{})
						if err != nil {
							b.Error(err)
							return
						}
						p.Leave()
						p.End(Succeeded)
					}
				})
			})
		}
	}
}

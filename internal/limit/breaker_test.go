package limit

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// calls makes n calls that end at once.
func calls(t *testing.T, d *Admission, n int, v Verdict) {
	t.Helper()
	for range n {
		p := enter(t, d)
		p.Leave()
		p.End(v)
	}
}

// tripped is a Admission whose breaker has just opened, for a second.
func tripped(t *testing.T) *Admission {
	t.Helper()
	d := &Admission{Breaker: NewBreaker(0.9, time.Second, nil)}
	calls(t, d, 20, Failed)
	refused(t, d, ErrOpen, 0)
	return d
}

func TestBreakerOpensAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Breaker: NewBreaker(0.9, time.Second, nil)}
		calls(t, d, 2, Succeeded)
		calls(t, d, 17, Failed)
		calls(t, d, 100, Stopped) // is nothing
		calls(t, d, 1, Failed)    // 18 of 20
		refused(t, d, ErrOpen, 0)
		time.Sleep(time.Second)
		refused(t, d, ErrOpen, 0)
		time.Sleep(time.Millisecond)

		probe := enter(t, d)
		refused(t, d, ErrOpen, 0) // one only
		probe.End(Failed)
		refused(t, d, ErrOpen, 0)

		time.Sleep(time.Second + time.Millisecond)
		calls(t, d, 1, Succeeded)
		calls(t, d, 19, Failed) // it has begun anew
		calls(t, d, 1, Failed)
		refused(t, d, ErrOpen, 0)
	})
}

func TestBreakerStaysClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Breaker: NewBreaker(0.9, time.Second, nil)}
		calls(t, d, 19, Failed) // too few
		time.Sleep(11 * time.Second)
		calls(t, d, 19, Failed) // those before are forgotten
		calls(t, d, 3, Succeeded)
		calls(t, d, 7, Failed)
		enter(t, d)
		d = &Admission{Breaker: NewBreaker(1, time.Second, nil)}
		calls(t, d, 1, Succeeded)
		calls(t, d, 100, Failed)
		enter(t, d)
	})
}

// Calls that take longer than the breaker looks back count when they end.
func TestBreakerCountsSlowCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Breaker: NewBreaker(0.9, time.Second, nil)}
		var under []*Pass
		for range 25 {
			under = append(under, enter(t, d))
		}
		time.Sleep(time.Minute)
		for i, p := range under {
			if i == 20 {
				refused(t, d, ErrOpen, 0)
				time.Sleep(time.Second + time.Millisecond)
			}
			p.End(Failed) // from the 21st on it is half open, and they are not the one that tries
		}
		calls(t, d, 1, Succeeded)
		calls(t, d, 19, Failed)
		enter(t, d)
	})
}

// A call from before the breaker opened, that ends after it has closed, says nothing of now.
func TestBreakerForgetsWhatIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Admission{Breaker: NewBreaker(0.9, time.Second, nil)}
		var under []*Pass
		for range 60 {
			under = append(under, enter(t, d))
		}
		for _, p := range under[:20] {
			p.End(Failed)
		}
		refused(t, d, ErrOpen, 0)
		time.Sleep(time.Second + time.Millisecond)
		probe := enter(t, d)
		under[20].End(Succeeded) // which does not close it
		refused(t, d, ErrOpen, 0)
		probe.End(Succeeded)
		for _, p := range under[21:] {
			p.End(Failed)
		}
		enter(t, d)
	})
}

// A probe that is stopped, or not made, leaves its place to the next.
func TestProbeIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := tripped(t)
		time.Sleep(time.Second + time.Millisecond)
		for range 5 {
			p := enter(t, d)
			refused(t, d, ErrOpen, 0)
			p.End(Stopped)
		}
		d.Shared = New(Options{AtOnce: 1})
		other := enter(t, &Admission{Shared: d.Shared})
		for range 5 {
			refused(t, d, ErrFull, 0)
		}
		other.Leave()
		calls(t, d, 1, Succeeded)
		calls(t, d, 1, Succeeded)
	})
}

// Calls that waited while the breaker opened are not made, and use nothing of the rate.
func TestBreakerOpensOnThoseWhoWait(t *testing.T) {
	for _, rate := range []float64{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			shared := New(Options{AtOnce: 1, Rate: rate, Queue: 100})
			d := &Admission{Breaker: NewBreaker(0.9, time.Hour, nil), Shared: shared, MaxWait: time.Minute}
			p := enter(t, d)
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() { refused(t, d, ErrOpen, 3*time.Second) })
			}
			synctest.Wait()
			for range 20 {
				d.Breaker.end(ticket{}, Failed)
			}
			time.Sleep(3 * time.Second)
			p.Leave()
			wg.Wait()
			enter(t, &Admission{Shared: shared, MaxWait: time.Nanosecond}).Leave()
			refusedNone(t, d)
		})
	}
}

// A call that waits in the queue does not keep others from trying.
func TestWaitingIsNotProbing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := tripped(t)
		time.Sleep(time.Second + time.Millisecond)
		full := &Admission{Breaker: d.Breaker, Shared: New(Options{AtOnce: 1, Queue: 1}), MaxWait: time.Minute}
		other := enter(t, &Admission{Shared: full.Shared})
		var wg sync.WaitGroup
		wg.Go(func() { calls(t, full, 1, Succeeded) })
		synctest.Wait()
		calls(t, d, 1, Succeeded)
		other.Leave()
		wg.Wait()
	})
}

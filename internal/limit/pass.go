package limit

import (
	"context"
	"sync"
	"time"
)

// An Admission admits the calls of one load function.
type Admission struct {
	Breaker *Breaker
	Loader  *Limit        // of the load function
	Shared  *Limit        // of all load functions in the process
	MaxWait time.Duration // maximum time that a call waits in total
}

// Acquire admits a call, immediately or after a wait. It returns a Refusal, or the cause of ctx
// if ctx has ended.
//
// The function's own limit comes first, so that a call that waits for it takes no shared place.
// The breaker is checked before and after the wait, because it may open during the wait, and
// because a waiting call must not occupy the place of the probe.
func (a *Admission) Acquire(ctx context.Context, call Call) (*Pass, error) {
	breaker, class := a.Breaker, call.class()
	if call.Within.isProbe(breaker) {
		breaker = nil
	}
	if err := breaker.Check(); err != nil {
		return nil, err
	}
	p := boundedWait{ctx: ctx, limit: a.MaxWait}
	defer p.end()
	if class == background && a.Loader != nil && a.Shared != nil {
		if err := a.enterInBackground(&p, breaker); err != nil {
			return nil, err
		}
	} else {
		first, second := a.Loader, a.Shared
		if err := first.enter(&p, breaker, class); err != nil {
			return nil, err
		}
		if err := second.enter(&p, breaker, class); err != nil {
			first.leave()
			return nil, err
		}
	}
	t, err := breaker.begin()
	if err != nil {
		a.leave()
		return nil, err
	}
	return &Pass{from: a, breaker: breaker, ticket: t, within: call.Within, placed: true}, nil
}

// enterInBackground admits background calls where there are two limits. While such a call waits
// for one limit, it has no place of the other, because a foreground call may need that place.
func (a *Admission) enterInBackground(p *boundedWait, b *Breaker) error {
	for first, second := a.Loader, a.Shared; ; first, second = second, first {
		queued, err := first.enterPlace(p, background)
		if queued {
			first.waiting.Add(-1)
		}
		if err != nil {
			return err
		}
		if second.tryPlace() {
			break
		}
		first.leave()
	}
	_, err := a.Shared.enterRate(p, b, background, false)
	if err != nil {
		a.leave()
	}
	return err
}

// Idle reports whether a call would be admitted immediately, without delaying others. It changes
// nothing.
func (a *Admission) Idle() bool {
	return a.Breaker.Check() == nil && a.Loader.idle() && a.Shared.idle()
}

func (a *Admission) leave() {
	a.Shared.leave()
	a.Loader.leave()
}

// reacquire takes the places of a call that has lent them.
func (a *Admission) reacquire(ctx context.Context) {
	a.Loader.reacquire(ctx)
	a.Shared.reacquire(ctx)
}

// A Call describes a call to Acquire.
type Call struct {
	Background bool  // no caller waits, or the callers can be served a stale value
	Within     *Pass // the load that makes the call, or nil
}

func (c Call) class() class {
	switch {
	case c.Within.Live():
		return nested
	case c.Background:
		return background
	default:
		return foreground
	}
}

// A Pass is a call that was admitted. The caller must call Leave and End, each once, in any
// order.
//
// A call that waits for other loads does not use the database. So it lends its place to another
// call, and continues when it has a place again. No call that has a place waits for another call
// to get one. So all calls that have started can end, even if they wait for each other, in this
// process or in others.
type Pass struct {
	from    *Admission
	breaker *Breaker // counts the call; nil if none does
	ticket  ticket
	within  *Pass

	mu        sync.Mutex
	lent      int           // number of waits in progress, for which it has lent its place
	placed    bool          // the call has its place
	left      bool          // Leave was called
	regaining chan struct{} // closed when a wait for the place has ended; nil if there is none in progress
}

// Leave releases the place of a call. It is called when the load function has returned, which may
// be long after the timeout of the load.
func (p *Pass) Leave() {
	p.mu.Lock()
	p.left = true
	placed := p.placed
	p.placed = false
	p.mu.Unlock()
	if placed {
		p.from.leave()
	}
}

// End reports the outcome of the call.
func (p *Pass) End(v Verdict) { p.breaker.end(p.ticket, v) }

// Live reports whether the call has not left. A nil Pass is not live.
func (p *Pass) Live() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.left
}

// Lend lends the place of a call while it waits for other loads. done is called when such a wait
// has ended. The done of the last wait in progress blocks until the call has its place again. If
// ctx, the call's own context, has ended, done does not block, because the call is about to end.
// The call still counts until it has left.
func (p *Pass) Lend(ctx context.Context) (done func()) {
	p.mu.Lock()
	p.lent++
	lends := p.placed
	p.placed = false
	p.mu.Unlock()
	if lends {
		p.from.leave()
	}
	return func() { p.regain(ctx) }
}

func (p *Pass) regain(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent--
	for p.lent == 0 && !p.placed && !p.left {
		if running := p.regaining; running != nil {
			p.mu.Unlock()
			<-running
			p.mu.Lock()
			continue
		}
		running := make(chan struct{})
		p.regaining = running
		p.mu.Unlock()
		p.from.reacquire(ctx)
		p.mu.Lock()
		p.regaining = nil
		close(running)
		if p.lent > 0 || p.left { // another wait has begun, or the call has left
			p.from.leave()
		} else {
			p.placed = true
		}
	}
}

// isProbe reports whether the call, or a call that it is nested in, is the probe of b. Then its
// own calls are part of the probe.
func (p *Pass) isProbe(b *Breaker) bool {
	for ; p.Live(); p = p.within {
		if b != nil && p.breaker == b && p.ticket.probe != nil {
			return true
		}
	}
	return false
}

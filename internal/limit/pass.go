package limit

import (
	"context"
	"sync"
	"time"
)

// Admission is what each call of one load function passes.
type Admission struct {
	Breaker *Breaker
	Own     *Limit        // of the load function
	Shared  *Limit        // of all in the process
	MaxWait time.Duration // how long a call waits at most, for all that it waits for
}

// Acquire lets a call in, at once or after it has waited. It returns a Refusal, or the cause of ctx
// if that has ended.
//
// The function's own limit comes first: a call that waits for that takes nothing from others. The
// breaker is asked twice, for those who have waited while it opened; and a call that waits does not
// hold the place of the one that tries whether the database is back.
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
	if class == background && a.Own != nil && a.Shared != nil {
		if err := a.enterInBackground(&p, breaker); err != nil {
			return nil, err
		}
	} else {
		first, second := a.Own, a.Shared
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

// enterBehind is for calls in the background, where there are two limits: while they wait for one
// they have no place of the other, which a caller with nothing to show may be waiting for.
func (a *Admission) enterInBackground(p *boundedWait, b *Breaker) error {
	for first, second := a.Own, a.Shared; ; first, second = second, first {
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

// Idle tells whether a call would be let in at once, and take nothing from others. It changes
// nothing.
func (a *Admission) Idle() bool {
	return a.Breaker.Check() == nil && a.Own.idle() && a.Shared.idle()
}

func (a *Admission) leave() {
	a.Shared.leave()
	a.Own.leave()
}

// resume takes the places of a call that has lent them.
func (a *Admission) reacquire(ctx context.Context) {
	a.Own.reacquire(ctx)
	a.Shared.reacquire(ctx)
}

// Call is what a Admission is to know of a call.
type Call struct {
	Background bool  // nobody waits for it, or its callers have something to show
	Within     *Pass // of the load that asks for it, or nil
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

// Pass is a call that was let in. Leave and End must be called, once, in any order.
//
// A call that waits for other loads does not ask the database: it lends its place to a call that
// needs one, and goes on when it has one again. So a call that has a place never waits for another
// to get one, and what has begun comes to its end, however calls wait for each other, here or in
// other processes.
type Pass struct {
	from    *Admission
	breaker *Breaker // that counts it; nil: none does
	ticket  ticket
	within  *Pass

	mu        sync.Mutex
	lent      int           // for how many waits it has lent its place
	placed    bool          // it has its place
	left      bool          // it has left
	regaining chan struct{} // closed when a wait for its place is over; nil: there is none under way
}

// Leave gives the place of a call to others. It is called when the load function has returned,
// which may be long after its time was up.
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

// End tells what the call has come to.
func (p *Pass) End(v Verdict) { p.breaker.end(p.ticket, v) }

// Live tells whether the call has not left. A nil Pass has.
func (p *Pass) Live() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.left
}

// Lend lends the place of a call, as long as it waits for other loads. over is called when such a
// wait is over: it waits until the call has its place again, which it needs when its last wait is
// over. If ctx, the call's own, has ended, over does not wait: the call is to end now; it counts
// until it has left.
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
		if p.lent > 0 || p.left { // meanwhile
			p.from.leave()
		} else {
			p.placed = true
		}
	}
}

// probes tells whether the call, or one that it is within, is the one that tries whether b can
// close: then what it asks for is part of that.
func (p *Pass) isProbe(b *Breaker) bool {
	for ; p.Live(); p = p.within {
		if b != nil && p.breaker == b && p.ticket.probe != nil {
			return true
		}
	}
	return false
}

package limit

import (
	"context"
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
func (d *Admission) Acquire(ctx context.Context, call Call) (*Pass, error) {
	breaker, class := d.Breaker, call.class()
	if call.Within.probes(breaker) {
		breaker = nil
	}
	if err := breaker.Check(); err != nil {
		return nil, err
	}
	p := boundedWait{ctx: ctx, limit: d.MaxWait}
	defer p.end()
	if class == background && d.Own != nil && d.Shared != nil {
		if err := d.enterBehind(&p, breaker); err != nil {
			return nil, err
		}
	} else {
		first, second := d.Own, d.Shared
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
		d.leave()
		return nil, err
	}
	return &Pass{from: d, breaker: breaker, ticket: t, within: call.Within, placed: true}, nil
}

// enterBehind is for calls in the background, where there are two limits: while they wait for one
// they have no place of the other, which a caller with nothing to show may be waiting for.
func (d *Admission) enterBehind(p *boundedWait, b *Breaker) error {
	for first, second := d.Own, d.Shared; ; first, second = second, first {
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
	_, err := d.Shared.begin(p, b, background, false)
	if err != nil {
		d.leave()
	}
	return err
}

// Idle tells whether a call would be let in at once, and take nothing from others. It changes
// nothing.
func (d *Admission) Idle() bool {
	return d.Breaker.Check() == nil && d.Own.idle() && d.Shared.idle()
}

func (d *Admission) leave() {
	d.Shared.leave()
	d.Own.leave()
}

// resume takes the places of a call that has lent them.
func (d *Admission) resume(ctx context.Context) {
	d.Own.resume(ctx)
	d.Shared.resume(ctx)
}

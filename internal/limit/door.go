package limit

import (
	"context"
	"time"
)

// Door is what each call of one load function passes.
type Door struct {
	Breaker  *Breaker
	Own      *Limit        // of the load function
	Shared   *Limit        // of all in the process
	Patience time.Duration // how long a call waits at most, for all that it waits for
}

// Pass is a call that was let in. Both its methods must be called, once, in any order.
type Pass struct {
	door   *Door
	ticket ticket
}

// Enter lets a call in, at once or after it has waited. It returns a Refusal, or the cause of ctx if that has ended.
//
// The function's own limit comes first: who waits for that takes nothing from others. The breaker is asked twice, for those who have waited
// while it opened; and who waits does not hold the place of the one that tries whether the database is back.
func (d *Door) Enter(ctx context.Context) (Pass, error) {
	if err := d.Breaker.Check(); err != nil {
		return Pass{}, err
	}
	p := patience{ctx: ctx, limit: d.Patience}
	defer p.end()
	first, second := d.Own, d.Shared
	if err := first.enter(&p, d.Breaker); err != nil {
		return Pass{}, err
	}
	if err := second.enter(&p, d.Breaker); err != nil {
		first.leave()
		return Pass{}, err
	}
	t, err := d.Breaker.begin()
	if err != nil {
		d.leave()
		return Pass{}, err
	}
	return Pass{d, t}, nil
}

// Idle tells whether a call would be let in at once, and take nothing from others. It changes
// nothing.
func (d *Door) Idle() bool {
	return d.Breaker.Check() == nil && d.Own.idle() && d.Shared.idle()
}

func (d *Door) leave() {
	d.Shared.leave()
	d.Own.leave()
}

// Leave gives the place of a call to others. It is called when the load function has returned, which may be long after its time was up.
func (p Pass) Leave() { p.door.leave() }

// End tells what the call has come to.
func (p Pass) End(v Verdict) { p.door.Breaker.end(p.ticket, v) }

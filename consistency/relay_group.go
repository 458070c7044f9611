package consistency

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside"
)

// group is what is done together, by a goroutine of its own.
type group struct {
	lane
	tasks   []task
	claimed time.Time
	until   time.Time // it is to have ended: two thirds of its claims' life are over
	errs    []error   // why tasks are not done, when it is over
	over    bool
}

// result is how a group has ended.
type result struct {
	*group
	errs []error
}

// giveUp is when one is not waited for any more that does not listen to its context.
func (s *shift) giveUp(g *group) time.Time {
	return g.until.Add(s.options.ClaimFor / 12)
}

// begin has a group done.
func (s *shift) begin(ctx context.Context, g *group) {
	l := s.lanes[g.lane]
	l.active = g
	clear(l.told)
	go func() {
		ctx, cancel := context.WithDeadline(ctx, g.until)
		defer cancel()
		r := result{g, make([]error, len(g.tasks))}
		defer func() {
			select {
			case s.ended <- r:
			case <-s.gone:
			}
		}()
		s.try(ctx, g, r.errs)
	}()
}

// try does it, whatever that does: filters, and load functions, are the user's.
func (s *shift) try(ctx context.Context, g *group, errs []error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		p := recover() // nil: runtime.Goexit
		err := &cacheaside.PanicError{Value: p, Goexit: p == nil, Stack: debug.Stack()}
		for i := range errs {
			errs[i] = err
		}
	}()
	s.do(ctx, g, errs)
	returned = true
}

// note takes a group that has ended for over, and has the next of its lane begin. It returns nil if
// its items have been put back already.
func (s *shift) note(ctx context.Context, r result) *group {
	g, l := r.group, s.lanes[r.lane]
	if g.over {
		delete(l.lost, g)
		if len(g.tasks) == 1 {
			delete(s.stuck, workOf(&g.tasks[0].Item))
		}
		return nil
	}
	s.isOver(ctx, g, r.errs, s.hung(g, r.errs) || panicked(r.errs))
	s.next(ctx, g.lane, l)
	return g
}

func (s *shift) isOver(ctx context.Context, g *group, errs []error, bad bool) {
	l := s.lanes[g.lane]
	g.over, g.errs, l.active = true, errs, nil
	s.learn(ctx, l, g, bad)
}

// hung tells whether a group has taken long, and in vain. That Redis has not answered is another
// matter.
func (s *shift) hung(g *group, errs []error) bool {
	if time.Since(g.claimed) < s.options.ClaimFor/waits {
		return false
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, cacheaside.ErrRedis) {
			return true
		}
	}
	return false
}

func panicked(errs []error) bool {
	for _, err := range errs {
		if _, ok := errors.AsType[*cacheaside.PanicError](err); ok {
			return true
		}
	}
	return false
}

// overdue returns the groups that have not ended, though their time is over. Their goroutines are
// left to themselves; their keys are invalidated by others, as there is still time for that.
func (s *shift) overdue(ctx context.Context) (groups []*group) {
	for of, l := range s.lanes {
		g := l.active
		if g == nil || time.Until(s.giveUp(g)) > 0 {
			continue
		}
		hangs := s.hangs(of)
		s.isOver(ctx, g, slices.Repeat([]error{hangs}, len(g.tasks)), true)
		l.lost[g] = struct{}{}
		if len(g.tasks) == 1 {
			s.stuck[workOf(&g.tasks[0].Item)] = struct{}{}
		}
		if forgets := (lane{forgets: true}); of.loader != "" && s.state(forgets).active == nil {
			again := &group{lane: forgets, claimed: g.claimed, until: s.giveUp(g).Add(s.options.ClaimFor / 12)}
			for _, t := range g.tasks {
				again.tasks = append(again.tasks, task{t.Item, hangs})
			}
			s.begin(ctx, again)
			continue
		}
		groups = append(groups, g)
	}
	return groups
}

// untilOverdue is how long it is until the next group is.
func (s *shift) untilOverdue() time.Duration {
	d := s.options.ClaimFor
	for _, l := range s.lanes {
		if l.active != nil {
			d = min(d, time.Until(s.giveUp(l.active)))
		}
	}
	return max(0, d)
}

// busy tells whether something is under way for which there is still time.
func (s *shift) busy() bool {
	for _, l := range s.lanes {
		if l.active != nil {
			return true
		}
	}
	return false
}

// leave waits a little for what is under way when ctx has ended, and gives it back.
func (s *shift) leave(ctx context.Context) {
	var groups []*group
	enough := time.NewTimer(s.options.ClaimFor / 3)
	defer enough.Stop()
	for waiting := true; waiting && s.busy(); {
		select {
		case r := <-s.ended:
			groups = append(groups, s.note(ctx, r))
		case <-enough.C:
			waiting = false
		}
	}
	s.finish(ctx, groups...)
}

package consistency

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// shift is a Relay from the begin of Run to its end. Only the goroutine of Run touches it.
type shift struct {
	*Relay
	outage     int           // how often in a row nothing worked for want of Redis
	nextProbe  time.Duration // how long to wait then
	lastDue    time.Time     // when there was something to do
	queueFails int           // how often in a row a round failed for want of the queue
	closed     bool          // the cache is
	waiting    chan error    // for the queue's Wait; nil: it is not under way
	polls      bool          // the queue's Wait is of no use
	crew
	alarms
	told     limitedlog.Teller[Alert]
	nextLook time.Time

	nextForeign time.Time // when the next item for other relays may be due
	aheadTold   time.Time // when rows from a clock that is ahead were logged last
}

// crew is what a shift has under way.
type crew struct {
	lanes    map[lane]*laneState
	isolated map[work]struct{} // what hangs, or panics, by itself
	stuck    map[work]struct{} // what hangs so just now, and does not listen to its context
	ended    chan result
	gone     chan struct{} // closed when nobody listens to that any more
}

func newShift(r *Relay) *shift {
	s := &shift{Relay: r, crew: crew{
		lanes: map[lane]*laneState{}, isolated: map[work]struct{}{}, stuck: map[work]struct{}{},
		ended: make(chan result), gone: make(chan struct{}),
	}}
	s.alarms.init()
	s.told.To, s.told.Panicked = r.options.OnAlert, s.alertPanicked
	return s
}

// verdict is what becomes of groups.
type verdict struct {
	done  []Item
	lags  []time.Duration // how long those were in the queue
	back  []Item
	again int64 // of back, those that were done for the first of two times
	tried int   // those that could be done
}

// judge says what becomes of the items of groups that are over.
func (s *shift) judge(ctx context.Context, groups []*group) verdict {
	var v verdict
	v.tried = s.judgeRedis(ctx, groups)
	for _, g := range groups {
		held := time.Since(g.claimed)
		for i, t := range g.tasks {
			if t.Attempts > 0 && !g.forgets {
				s.counters.retried.Add(1)
			}
			s.judgeTask(ctx, &v, g, t, g.errs[i], held)
		}
	}
	return v
}

func (s *shift) judgeTask(ctx context.Context, v *verdict, g *group, t task, err error, held time.Duration) {
	item := t.Item
	switch {
	case g.forgets && err == nil:
		item = s.putOff(ctx, s.laneOf(&item), t)
	case err == nil && item.Again > 0:
		s.over(&s.failing, item.Key.String())
		item.After, item.Again, item.Attempts = item.Again, 0, 0
		v.again++
	case err == nil:
		s.over(&s.failing, item.Key.String())
		v.done, v.lags = append(v.done, item), append(v.lags, item.Age+held)
		return
	case errors.Is(err, cacheaside.ErrClosed) && s.cache.Closed(): // it may be another cache that a filter, or a load function, has asked
		s.closed = true
		item.After = 0
	case ctx.Err() != nil: // it was not let finish
		item.After = 0
	case errors.Is(t.why, errForeign): // with no attempt more, so that its key is invalidated the next time
		attempts := item.Attempts
		item = s.failed(ctx, item, errors.Join(t.why, err))
		item.Attempts = attempts
	default:
		item = s.failed(ctx, item, errors.Join(t.why, err))
	}
	v.back = append(v.back, item)
}

// judgeRedis finds out whether Redis is out: whatever was tried has failed for want of it.
func (s *shift) judgeRedis(ctx context.Context, groups []*group) (tried int) {
	var out int
	var err error
	for _, g := range groups {
		if _, lost := s.lanes[g.lane].lost[g]; lost {
			continue
		}
		for i, t := range g.tasks {
			if t.Key.Check() != nil {
				continue
			}
			tried++
			if errors.Is(g.errs[i], cacheaside.ErrRedis) {
				out++
				err = g.errs[i]
			}
		}
	}
	switch {
	case ctx.Err() != nil || tried == 0: // which shows nothing
	case out < tried:
		s.redisWorks()
	default:
		s.outage++
		s.nextProbe = retry.Delay(s.outage, firstDelay, longestProbe)
		s.counters.out.Store(true)
		if s.outage >= s.options.AlertAt {
			s.alert(ctx, &s.service, redisOut, s.outage, err)
		}
	}
	return tried
}

// nothingDue is for a relay that has had nothing to do for so long that others must have done its
// items, for those that it could not do would have come back to it. It tries all items again that
// come. But it does not know that they work as long as the queue has items that were there then:
// the others may only have been quicker each time.
func (s *shift) nothingDue() {
	s.tryAll()
	if seen := s.counters.seen.Load(); seen != nil && seen.at.Sub(s.lastDue) > s.options.ClaimFor && seen.Oldest < seen.at.Sub(s.lastDue) {
		s.over(&s.service, redisOut)
	}
}

func (s *shift) tryAll() {
	s.outage = 0
	s.counters.out.Store(false)
}

func (s *shift) redisWorks() {
	s.tryAll()
	s.over(&s.service, redisOut)
}

// failed says when an item that has failed is tried again.
func (s *shift) failed(ctx context.Context, item Item, err error) Item {
	s.counters.failed.Add(1)
	item.Attempts++
	switch {
	case item.Key.Check() != nil: // somebody may repair it, or remove it
		item.After = longestDelay
		s.counters.bad.Add(1)
		s.alert(ctx, &s.bad, item.Key.String(), item.Attempts, err)
		return item
	case s.outage > 0: // no longer than all others, but what comes meanwhile is the next to be tried: it may be only this one that fails
		item.After = s.nextProbe
	default:
		item.After = retry.Delay(item.Attempts, firstDelay, longestDelay)
	}
	if item.Attempts >= s.options.AlertAt && !s.service.Sounds() {
		if s.alert(ctx, &s.failing, item.Key.String(), item.Attempts, err) && s.outage > 0 {
			s.service.Failed(redisOut, err) // and nobody is told of that, too
		}
	}
	return item
}

// giveBack tells the queue of a verdict; also if ctx has ended.
func (s *shift) giveBack(ctx context.Context, v verdict) error {
	ctx = context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, s.options.ClaimFor/3)
	defer cancel()
	var done, later error
	if len(v.done) > 0 {
		if done = s.ask(func() error { return s.queue.Done(ctx, v.done...) }); done == nil {
			s.counters.finished(v.lags)
		}
	}
	if len(v.back) > 0 {
		if later = s.ask(func() error { return s.queue.Later(ctx, v.back...) }); later == nil {
			s.counters.again.Add(v.again)
		}
	}
	return errors.Join(done, later)
}

// queueFailed answers how long to leave a queue alone that has failed.
func (s *shift) queueFailed(ctx context.Context, err error) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	s.counters.queueErrors.Add(1)
	s.queueFails++
	if s.queueFails == 1 {
		s.log(ctx, slog.LevelWarn, "cacheaside: the queue of a Relay fails, and is tried again", "err", err)
	}
	if s.queueFails >= s.options.AlertAt {
		s.alert(ctx, &s.service, queueOut, s.queueFails, err)
	}
	return retry.Delay(s.queueFails, firstDelay, longestProbe)
}

func (s *shift) queueWorks() {
	if s.queueFails > 0 {
		s.log(context.Background(), slog.LevelInfo, "cacheaside: the queue of a Relay works again", "failures", s.queueFails)
	}
	s.queueFails = 0
	s.over(&s.service, queueOut)
}

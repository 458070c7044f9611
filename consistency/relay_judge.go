package consistency

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cacheaside/cacheaside"
)

// shift is a Relay from the begin of Run to its end.
type shift struct {
	*Relay
	outage     int           // how often in a row nothing worked for want of Redis
	nextProbe  time.Duration // how long to wait then
	lastDue    time.Time     // when there was something to do
	queueFails int           // how often in a row a round failed for want of the queue
	service    alarm         // of Redis and the queue, which all items need
	failing    alarm         // of items that have failed AlertAt times
	bad        alarm         // of items that can never be done, which would keep that one from sounding
	alerting   sync.WaitGroup
	nextLook   time.Time
}

// verdict is what becomes of a batch.
type verdict struct {
	done   []Item
	back   []Item
	again  int64 // of back, those that were done for the first of two times
	tried  int   // those that could be done
	closed bool  // the cache is
}

// judge says what becomes of items, of which errs says why they are not done.
func (s *shift) judge(ctx context.Context, items []Item, errs []error) verdict {
	var v verdict
	v.tried = s.judgeRedis(ctx, items, errs)
	for i, item := range items {
		if item.Attempts > 0 {
			s.counters.retried.Add(1)
		}
		switch err := errs[i]; {
		case err == nil && item.Again > 0:
			s.over(&s.failing, item.Key.String())
			item.After, item.Again, item.Attempts = item.Again, 0, 0
			v.again++
		case err == nil:
			s.over(&s.failing, item.Key.String())
			v.done = append(v.done, item)
			continue
		case errors.Is(err, cacheaside.ErrClosed):
			v.closed = true
			item.After = 0
		case ctx.Err() != nil: // it was not let finish
			item.After = 0
		default:
			item = s.failed(ctx, item, err)
		}
		v.back = append(v.back, item)
	}
	return v
}

// judgeRedis finds out whether Redis is out: whatever was tried has failed for want of it.
func (s *shift) judgeRedis(ctx context.Context, items []Item, errs []error) (tried int) {
	var out int
	var err error
	for i, item := range items {
		if item.Key.Check() != nil {
			continue
		}
		tried++
		if errors.Is(errs[i], cacheaside.ErrRedis) {
			out++
			err = errs[i]
		}
	}
	switch {
	case ctx.Err() != nil || tried == 0: // which shows nothing
	case out < tried:
		s.redisWorks()
	default:
		s.outage++
		s.nextProbe = delay(s.outage, longestProbe)
		s.counters.out.Store(true)
		if s.outage >= s.options.AlertAt {
			s.alert(ctx, &s.service, redisOut, s.outage, err)
		}
	}
	return tried
}

// nothingDue is for who has had nothing to do for so long that others must have, for what he could not do would have come back to him. He tries all again that comes. But that it works he does not know as long as there is in the queue what was there then: the
// others may only have been quicker each time.
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
		item.After = delay(item.Attempts, longestDelay)
	}
	if item.Attempts >= s.options.AlertAt && !s.service.sounds() {
		if s.alert(ctx, &s.failing, item.Key.String(), item.Attempts, err) && s.outage > 0 {
			s.service.failed(redisOut) // and nobody is told of that, too
		}
	}
	return item
}

// giveBack tells the queue of a verdict; also if ctx has ended.
func (s *shift) giveBack(ctx context.Context, v verdict, claimed time.Time) error {
	ctx = context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, s.options.ClaimFor/3)
	defer cancel()
	var done, later error
	if len(v.done) > 0 {
		if done = s.queue.Done(ctx, v.done...); done == nil {
			s.counters.finished(v.done, claimed)
		}
	}
	if len(v.back) > 0 {
		if later = s.queue.Later(ctx, v.back...); later == nil {
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
		s.options.Logger.WarnContext(ctx, "cacheaside: the queue of a Relay fails, and is tried again", "err", err)
	}
	if s.queueFails >= s.options.AlertAt {
		s.alert(ctx, &s.service, queueOut, s.queueFails, err)
	}
	return delay(s.queueFails, longestProbe)
}

func (s *shift) queueWorks() {
	if s.queueFails > 0 {
		s.options.Logger.Info("cacheaside: the queue of a Relay works again", "failures", s.queueFails)
	}
	s.queueFails = 0
	s.over(&s.service, queueOut)
}

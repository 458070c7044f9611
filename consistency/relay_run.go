package consistency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside"
)

// Run works until ctx ends; then it returns nil. Run puts back the items that it has claimed and
// not done by then. That takes at most a third of RelayOptions.ClaimFor for items under way, and
// another third for the queue; items that it cannot put back are due again when their claim has run
// out. Run returns an error at once if the Relay is running already, and cacheaside.ErrClosed when
// its cache has been closed, which is alerted, too. Nothing else ends Run, not even a panic of a
// queue, a filter or a load function.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("consistency: the Relay is running already")
	}
	defer r.running.Store(false)
	r.count(func(c *counted) { c.Ended = false })
	run := newRelayRun(r)
	defer run.notified.Wait()
	defer close(run.gone)
	for ctx.Err() == nil && !run.closed {
		run.turn(ctx)
	}
	run.leave(ctx)
	if ctx.Err() != nil {
		return nil
	}
	r.count(func(c *counted) { c.Ended = true })
	run.notify("cacheaside: a Relay has ended, and does nothing any more", 1, cacheaside.ErrClosed)
	return fmt.Errorf("consistency: the Relay: %w", cacheaside.ErrClosed)
}

func newRelayRun(r *Relay) *relayRun {
	run := &relayRun{Relay: r, workers: map[workerName]*worker{}, ended: make(chan jobResult), gone: make(chan struct{})}
	run.alarms.init()
	run.notified.To, run.notified.Panicked = r.options.OnAlert, run.alertPanicked
	return run
}

// turn does one round. It waits a little for the workers, so that they are not given more than they
// can do, and then for something to do.
func (r *relayRun) turn(ctx context.Context) {
	pause := r.round(ctx)
	for until := r.busyUntil(); time.Now().Before(until) && r.wait(ctx, until, nil); {
		until = r.busyUntil()
	}
	r.look(ctx)
	r.rest(ctx, pause)
}

// round claims a batch, invalidates its keys, gives items to workers and gives the others back. It
// returns how long to pause then.
func (r *relayRun) round(ctx context.Context) (pause time.Duration) {
	most := batch
	if r.outage > 0 {
		most = 1
	}
	claimed := time.Now()
	var items []Item
	err := r.ask(ctx, func(ctx context.Context) (err error) {
		items, err = r.queue.Claim(ctx, most, r.options.ClaimFor)
		return err
	})
	if err != nil {
		return r.queueFailed(ctx, err)
	}
	if len(items) == 0 {
		r.queueWorks()
		if time.Since(r.lastDue) > r.options.ClaimFor {
			r.nothingDue()
		}
		return idle
	}
	r.lastDue = claimed
	var o outcomes
	tried := r.distribute(ctx, &o, items, claimed)
	if err := r.giveBack(ctx, &o); err != nil {
		return r.queueFailed(ctx, err)
	}
	r.queueWorks()
	switch {
	case r.outage > 0 && tried:
		return r.nextProbe
	case len(items) < most:
		return idle
	}
	return 0
}

// distribute invalidates the keys of claimed items. Then it settles the items that need no code of
// the user's, and gives the others to workers. It reports whether it invalidated any key.
func (r *relayRun) distribute(ctx context.Context, o *outcomes, items []Item, claimed time.Time) (tried bool) {
	var tasks []task
	var stale []cacheaside.Key
	for _, item := range items {
		t := task{item, claimed}
		unknown := r.unknownLoader(&item)
		switch err := item.Key.Check(); {
		case err != nil:
			r.settle(ctx, o, t, err)
			continue
		case unknown != nil && item.Attempts > 0: // its key was invalidated at the first attempt
			r.settle(ctx, o, t, unknown)
			continue
		case !r.reloadsNow(&item):
			stale = append(stale, item.Key)
		}
		tasks = append(tasks, t)
	}
	failed := r.invalidate(ctx, stale, claimed.Add(r.options.ClaimFor*2/3))
	for _, t := range tasks {
		w, err := r.workerFor(&t.Item), failed[t.Key]
		if err == nil {
			err = r.unknownLoader(&t.Item)
		}
		switch {
		case err != nil || w == nil:
			r.settle(ctx, o, t, err)
		case len(w.queue) >= 2*batch:
			r.postpone(o, w, t)
		default:
			w.queue = append(w.queue, t)
		}
	}
	for _, w := range r.workers {
		r.start(ctx, o, w)
	}
	return len(stale) > 0
}

// invalidate invalidates keys in one call, and returns those that have failed. It notes whether
// Redis can be reached.
func (r *relayRun) invalidate(ctx context.Context, keys []cacheaside.Key, until time.Time) keyErrors {
	if len(keys) == 0 {
		return nil
	}
	limited, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	failed := keyErrorsOf(keys, r.cache.InvalidateKeys(limited, keys...))
	if ctx.Err() == nil {
		r.judgeRedis(ctx, keys, failed)
	}
	return failed
}

// rest pauses, until ctx ends at most. idle is a pause until the queue has something to do.
func (r *relayRun) rest(ctx context.Context, pause time.Duration) {
	var woken <-chan error
	if pause == idle {
		pause = r.options.Poll
		if woken = r.woken(ctx); woken != nil {
			pause = betweenLooks
		}
	}
	for until := time.Now().Add(pause); r.wait(ctx, until, woken); {
	}
}

// wait returns at until, when woken receives, when ctx ends, or after it has dealt with a job that
// has ended or is overdue. It returns true only in the last case: the caller may wait on.
func (r *relayRun) wait(ctx context.Context, until time.Time, woken <-chan error) (job bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case err := <-woken:
		r.waiting = nil
		if err != nil { // it panics: the queue is polled from now on
			r.polls = true
			r.queueFailed(ctx, err)
		}
	case result := <-r.ended:
		r.finish(ctx, result)
		return true
	case <-timer.C:
	}
	return false
}

// woken returns a channel that receives when a queue that can Wait has something to do, or has
// waited for long. It returns nil for other queues.
func (r *relayRun) woken(ctx context.Context) <-chan error {
	q, ok := r.queue.(interface{ Wait(context.Context) })
	if !ok || r.polls {
		return nil
	}
	if r.waiting == nil { // else the last one is still running
		woken := make(chan error, 1)
		r.waiting = woken
		go func() {
			woken <- r.ask(ctx, func(ctx context.Context) error { q.Wait(ctx); return nil })
		}()
	}
	return r.waiting
}

// leave waits a little for jobs that are under way when Run is to end, and puts back the items that
// are not done.
func (r *relayRun) leave(ctx context.Context) {
	var o outcomes
	for _, w := range r.workers {
		for _, t := range w.queue {
			r.settle(ctx, &o, t, cmp.Or(ctx.Err(), error(cacheaside.ErrClosed)))
		}
		w.queue = nil
	}
	_ = r.giveBack(ctx, &o) // else they are due again when their claim has run out
	enough := time.NewTimer(r.options.ClaimFor / 3)
	defer enough.Stop()
	for _, w := range r.workers {
		for w.active != nil {
			select {
			case result := <-r.ended:
				r.finish(ctx, result)
			case <-enough.C:
				return
			}
		}
	}
}

package consistency

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/sharing"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// Run handles items until ctx ends; then it returns nil. Before it returns, it puts back claimed
// items that it has not completed. That takes at most a third of RelayOptions.ClaimFor for items in
// progress and for a Wait of the queue, and another third to put items back. A queue that listens
// and ignores its context can take another third, and so can its Identity. Items that it cannot put
// back are due again when their claim expires.
//
// Run returns an error immediately if the Relay is already running. If the cache is closed, Run
// raises an alert and returns cacheaside.ErrClosed. Nothing else ends Run, not even a panic of a
// queue, a filter or a load function.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("consistency: the Relay is already running")
	}
	defer r.running.Store(false)
	r.count(func(c *counted) { c.Ended, c.Relays = false, 0 })
	run := newRelayRun(r)
	defer run.notified.Wait()
	defer close(run.stopped)
	defer run.countRelays(ctx)()
	defer run.listen(ctx)()
	for ctx.Err() == nil && !run.closed {
		run.iterate(ctx)
	}
	run.shutDown(ctx)
	if ctx.Err() != nil {
		return nil
	}
	r.count(func(c *counted) { c.Ended = true })
	run.notify("cacheaside: a Relay has ended because its cache was closed", 1, cacheaside.ErrClosed)
	return wording.Errorf("consistency: the Relay: %w", cacheaside.ErrClosed)
}

func newRelayRun(r *Relay) *relayRun {
	run := &relayRun{
		Relay: r, workers: map[workerName]*worker{}, troubleAt: map[string]time.Time{}, ended: make(chan jobResult),
		stopped: make(chan struct{}),
	}
	run.alarms.init()
	run.notified.To, run.notified.Panicked = r.options.OnAlert, run.alertPanicked
	return run
}

// listen finds out how the queue waits, and starts what QueueHooks.Listen has returned. stop stops
// that, and waits a limited time for it.
func (r *relayRun) listen(ctx context.Context) (stop func()) {
	if q, ok := r.queue.(QueueWaiter); ok {
		r.wait = q.Wait
	}
	var run func(context.Context)
	if r.hooks != nil {
		var wait func(context.Context)
		if run, wait = r.hooks.Listen(r.options.Poll, r.relays, r.log); run != nil {
			r.wait, r.listens = wait, true
		}
	}
	if run == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := protect(func() error { run(ctx); return nil })
	return func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(r.options.ClaimFor / 3): // run ignores its context
		}
	}
}

// iterate handles one batch. After that it waits for busy workers, for a limited time, so that it
// does not claim more than they can do. Finally it waits for due items.
func (r *relayRun) iterate(ctx context.Context) {
	pause := r.processBatch(ctx)
	for until := r.busyUntil(); time.Now().Before(until) && r.await(ctx, until, nil); {
		until = r.busyUntil()
	}
	r.updateDepth(ctx)
	r.sleep(ctx, pause)
}

// processBatch handles one batch in four steps: it claims items, invalidates their keys, lets
// workers run the code of the user that some items need, and settles the items that are handled. It
// returns how long to pause then.
func (r *relayRun) processBatch(ctx context.Context) (pause time.Duration) {
	limit := batch
	if r.outage > 0 {
		limit = 1
	}
	tasks, err := r.claim(ctx, limit)
	if err != nil {
		return r.queueFailed(ctx, err)
	}
	if len(tasks) == 0 {
		r.queueWorks()
		if time.Since(r.lastDue) > r.options.ClaimFor {
			r.nothingDue()
		}
		return idle
	}
	var out outcomes
	invalidated, tried := r.invalidateTasks(ctx, &out, tasks)
	r.runUserCode(ctx, &out, invalidated)
	if err := r.settle(ctx, &out); err != nil {
		return r.queueFailed(ctx, err)
	}
	r.queueWorks()
	switch {
	case r.outage > 0 && tried:
		return r.nextProbe
	case len(tasks) < limit:
		return found
	}
	return 0
}

// claim claims at most limit items that are due.
func (r *relayRun) claim(ctx context.Context, limit int) (tasks []task, err error) {
	claimedAt := time.Now()
	var items []Item
	err = r.callQueue(ctx, func(ctx context.Context) (err error) {
		items, err = r.queue.Claim(ctx, limit, r.options.ClaimFor)
		return err
	})
	if err != nil || len(items) == 0 {
		return nil, err
	}
	r.lastDue = claimedAt
	for _, item := range items {
		tasks = append(tasks, task{item, claimedAt})
	}
	return tasks, nil
}

// invalidateTasks invalidates the keys of claimed items in one call, except those that can be
// reloaded at once. It records the outcome of items for which that fails or makes no sense, and
// returns the others. tried reports whether it invalidated any key.
func (r *relayRun) invalidateTasks(ctx context.Context, out *outcomes, tasks []task) (invalidated []task, tried bool) {
	var valid []task
	var stale []cacheaside.Key
	for _, t := range tasks {
		unknown := r.unknownLoader(&t.Item)
		switch err := t.Key.Check(); {
		case err != nil:
			r.record(ctx, out, t, err)
			continue
		case unknown != nil && t.Attempts > 0: // its key was invalidated at the first attempt
			r.record(ctx, out, t, unknown)
			continue
		case !r.canReloadNow(&t.Item):
			stale = append(stale, t.Key)
		}
		valid = append(valid, t)
	}
	failed := r.invalidate(ctx, stale, tasks[0].claimedAt.Add(r.options.ClaimFor*2/3))
	for _, t := range valid {
		if err := failed[t.Key]; err != nil {
			r.record(ctx, out, t, err)
		} else {
			invalidated = append(invalidated, t)
		}
	}
	return invalidated, len(stale) > 0
}

// runUserCode passes items whose loader has a filter, and those to be reloaded, to workers of their
// loader, and starts these. It records the outcome of the other items.
func (r *relayRun) runUserCode(ctx context.Context, out *outcomes, tasks []task) {
	for _, t := range tasks {
		w, unknown := r.workerFor(&t.Item), r.unknownLoader(&t.Item)
		switch {
		case unknown != nil || w == nil:
			r.record(ctx, out, t, unknown)
		case len(w.queue) >= 2*batch:
			r.postpone(out, w, t)
		default:
			w.queue = append(w.queue, t)
		}
	}
	for _, w := range r.workers {
		r.startJob(ctx, out, w)
	}
}

// invalidate invalidates keys in one call, and returns those that have failed. It records whether
// Redis was reachable.
func (r *relayRun) invalidate(ctx context.Context, keys []cacheaside.Key, until time.Time) failures {
	if len(keys) == 0 {
		return nil
	}
	limited, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	failed := failuresOf(keys, r.cache.InvalidateKeys(limited, keys...))
	if ctx.Err() == nil {
		r.updateOutage(ctx, keys, failed)
	}
	return failed
}

// sleep pauses for the duration, or until ctx ends. If pause is idle or found, it pauses until the
// queue has something to do.
func (r *relayRun) sleep(ctx context.Context, pause time.Duration) {
	var woken <-chan error
	if pause < 0 {
		relays := 1
		if pause == idle {
			relays = r.relays()
		}
		switch woken = r.woken(ctx); {
		case woken == nil:
			pause = sharing.Interval(r.options.Poll, relays)
		case r.listens:
			pause = listenPause
		default:
			pause = depthInterval
		}
	}
	for until := time.Now().Add(pause); r.await(ctx, until, woken); {
	}
}

// await returns at the time until, when woken receives a value, when ctx ends, or after it has
// handled a job that has ended or is overdue. It returns true only in the last case: then the
// caller may wait again.
func (r *relayRun) await(ctx context.Context, until time.Time, woken <-chan error) (job bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case err := <-woken:
		r.waiting = nil
		if err != nil { // wait has panicked: poll the queue from now on
			r.wait = nil
			r.queueFailed(ctx, err)
		}
	case result := <-r.ended:
		r.finishJob(ctx, result)
		return true
	case <-timer.C:
	}
	return false
}

// woken returns a channel that receives when the queue's wait returns or times out. It returns nil
// for a queue that is polled.
func (r *relayRun) woken(ctx context.Context) <-chan error {
	if r.wait == nil {
		return nil
	}
	if r.waiting == nil { // otherwise the last call is still running
		woken, wait := make(chan error, 1), r.wait
		ctx, cancel := context.WithCancel(ctx)
		r.waiting, r.stopWaiting = woken, cancel
		go func() {
			defer cancel()
			woken <- r.callQueue(ctx, func(ctx context.Context) error { wait(ctx); return nil })
		}()
	}
	return r.waiting
}

// shutDown puts back the items that have not started, and waits a limited time for the jobs in
// progress and for the queue's wait.
func (r *relayRun) shutDown(ctx context.Context) {
	if r.waiting != nil {
		r.stopWaiting()
	}
	var out outcomes
	for _, w := range r.workers {
		for _, t := range w.queue {
			r.record(ctx, &out, t, cmp.Or(ctx.Err(), cacheaside.ErrClosed))
		}
		w.queue = nil
	}
	_ = r.settle(ctx, &out) // if this fails, they are due again when their claim expires
	timeout := time.NewTimer(r.options.ClaimFor / 3)
	defer timeout.Stop()
	for _, w := range r.workers {
		for w.active != nil {
			select {
			case result := <-r.ended:
				r.finishJob(ctx, result)
			case <-timeout.C:
				return
			}
		}
	}
	if r.waiting != nil {
		select {
		case <-r.waiting:
		case <-timeout.C: // it ignores its context
		}
	}
}

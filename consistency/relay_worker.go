package consistency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/retry"
)

const (
	// maxHung is the maximum number of hung jobs of a worker. A worker with that many starts no
	// more.
	maxHung = 16

	// separateFor is how long the failed items of a loader are retried one at a time after its code
	// has hung or panicked. It is longer than such an item waits for its next attempt.
	separateFor = 5 * time.Minute
)

// A workerName identifies a worker. There are at most four for each loader of the process, so the
// number of goroutines is bounded.
type workerName struct {
	loader  string
	reload  bool // runs the load function, not only the filter
	retries bool // handles items that have failed
}

// A worker runs user code for the items of one loader, one job at a time. It puts back an item
// that it cannot start within a third of the item's claim.
type worker struct {
	workerName
	queue     []task            // not started; at most 2*batch
	active    *job              // nil if no job runs
	hung      map[*job]struct{} // jobs that are still running after their timeout
	failures  int               // jobs in a row that were out of time or panicked
	postponed time.Time         // the due time of the next item that is put back untried
}

// A job is a group of tasks that are handled together.
type job struct {
	worker *worker
	tasks  []task
	begun  time.Time
}

// A jobResult reports that a job has ended, or that it has timed out.
type jobResult struct {
	*job
	failed    failures
	outOfTime bool // the user code used all its time
	stillRuns bool // the job has timed out and has not ended
}

// workerFor returns the worker that handles an item, or nil if the item needs no user code.
// Failed items have a separate worker, so that one hanging key does not delay the others.
func (r *relayRun) workerFor(item *Item) *worker {
	has, filter := r.cache.Loader(item.Key.Loader)
	if !has || !isOne(item.Key) || !filter && !item.Reload {
		return nil
	}
	name := workerName{item.Key.Loader, item.Reload, item.Attempts > 0}
	w := r.workers[name]
	if w == nil {
		w = &worker{workerName: name, hung: map[*job]struct{}{}}
		r.workers[name] = w
	}
	return w
}

// canReloadNow reports whether an item can be reloaded immediately, so that it need not be
// invalidated first.
func (r *relayRun) canReloadNow(item *Item) bool {
	if !item.Reload || item.Attempts > 0 || r.outage > 0 {
		return false
	}
	w := r.workerFor(item)
	return w != nil && w.active == nil && w.failures == 0
}

// startJob starts the next job of a worker, with the tasks that have failed least often first.
func (r *relayRun) startJob(ctx context.Context, out *outcomes, w *worker) {
	if w.active != nil || len(w.queue) == 0 {
		return
	}
	slices.SortStableFunc(w.queue, func(a, b task) int { return cmp.Compare(a.Attempts, b.Attempts) })
	now, limit := time.Now(), batch
	if w.retries && r.separates(w.loader) {
		limit = 1
	}
	w.queue = slices.DeleteFunc(w.queue, func(t task) bool { return r.giveUp(ctx, out, w, t, now) })
	if limit = min(limit, len(w.queue)); limit == 0 {
		return
	}
	w.active = &job{worker: w, tasks: slices.Clone(w.queue[:limit]), begun: now}
	w.queue = slices.Delete(w.queue, 0, limit)
	go r.superviseJob(ctx, w.active)
}

// giveUp records the outcome of a task that its worker cannot try now. It returns false if the
// worker can.
func (r *relayRun) giveUp(ctx context.Context, out *outcomes, w *worker, t task, now time.Time) bool {
	switch {
	case ctx.Err() != nil:
		r.record(ctx, out, t, ctx.Err())
	case len(w.hung) >= maxHung || w.retries && w.hangsOn(t.Key):
		r.troubleAt[w.loader] = now
		r.record(ctx, out, t, r.hangError(w))
	case now.Sub(t.claimedAt) > r.options.ClaimFor/3:
		r.postpone(out, w, t)
	default:
		return false
	}
	return true
}

// separates reports whether failed items of a loader are retried one at a time, because its code
// has recently hung or panicked: one of them may be the reason.
func (r *relayRun) separates(loader string) bool {
	trouble, ok := r.troubleAt[loader]
	return ok && time.Since(trouble) < separateFor
}

// hangsOn reports whether a job for key k alone still hangs. If a batch hangs, it is unknown which
// of its keys is the reason.
func (w *worker) hangsOn(k cacheaside.Key) bool {
	for j := range w.hung {
		if len(j.tasks) == 1 && j.tasks[0].Key == k {
			return true
		}
	}
	return false
}

func (r *relayRun) hangError(w *worker) error {
	return fmt.Errorf("loader %s: its filter or its load function has not returned within %v", w.loader,
		r.options.ClaimFor*7/12)
}

// postpone puts back an item for which its worker has no time.
func (r *relayRun) postpone(out *outcomes, w *worker, t task) {
	t.After = max(retry.Delay(1, r.options.ClaimFor/12, longestDelay), paced(&w.postponed))
	out.returned = append(out.returned, t.Item)
}

// busyUntil returns until when to wait for workers whose queue has no room for a batch: a tenth
// of ClaimFor from the start of their job. It does not wait for workers whose last job has hung
// or panicked, or that retry one item at a time.
func (r *relayRun) busyUntil() (until time.Time) {
	for _, w := range r.workers {
		if w.active == nil || w.failures > 0 || w.retries && r.separates(w.loader) || len(w.queue) < batch {
			continue
		}
		if d := w.active.begun.Add(r.options.ClaimFor / 10); d.After(until) {
			until = d
		}
	}
	return until
}

// superviseJob runs a job and reports its result. If user code ignores its context, it reports a
// timeout after 7/12 of ClaimFor: a third for that code, a sixth for the invalidation after it,
// and a twelfth as a margin. It reports again when the job ends.
func (r *relayRun) superviseJob(ctx context.Context, j *job) {
	report := func(result jobResult) {
		select {
		case r.ended <- result:
		case <-r.stopped:
		}
	}
	result := jobResult{job: j}
	ended := protect(func() error {
		result.failed, result.outOfTime = r.runJob(ctx, j)
		return nil
	})
	select {
	case err := <-ended:
		if err != nil {
			result.failed = allFailed(j.keys(), err)
		}
		report(result)
	case <-time.After(r.options.ClaimFor * 7 / 12):
		report(jobResult{job: j, failed: allFailed(j.keys(), r.hangError(j.worker)), outOfTime: true, stillRuns: true})
		<-ended
		report(jobResult{job: j})
	}
}

// protect calls f, which may run user code, on its own goroutine. The channel receives the error
// of f, or a *cacheaside.PanicError after a panic or runtime.Goexit.
func protect(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() {
		var err error
		returned := false
		defer func() {
			if !returned {
				p := recover() // nil: runtime.Goexit
				err = &cacheaside.PanicError{Value: p, Goexit: p == nil, Stack: debug.Stack()}
			}
			result <- err
		}()
		err = f()
		returned = true
	}()
	return result
}

// finishJob handles a jobResult, and starts the next job of the worker.
func (r *relayRun) finishJob(ctx context.Context, result jobResult) {
	var out outcomes
	w := result.worker
	if w.active == result.job {
		r.recordJob(ctx, &out, result)
	} else { // it had hung, and its items have been put back
		delete(w.hung, result.job)
	}
	r.startJob(ctx, &out, w)
	if err := r.settle(ctx, &out); err != nil {
		r.queueFailed(ctx, err)
	}
}

// recordJob records the outcomes of the tasks of a job.
func (r *relayRun) recordJob(ctx context.Context, out *outcomes, result jobResult) {
	w := result.worker
	w.active = nil
	if result.stillRuns {
		w.hung[result.job] = struct{}{}
	}
	var failure error
	for _, err := range result.failed {
		if _, panicked := errors.AsType[*cacheaside.PanicError](err); panicked || result.outOfTime {
			failure = err
		}
	}
	switch {
	case ctx.Err() != nil:
	case failure == nil:
		w.failures = 0
		r.clearAlarm(failingAlarm, fmt.Sprint(w.workerName))
	default:
		r.troubleAt[w.loader] = time.Now()
		if w.failures++; w.failures == 1 {
			r.log.Warn("cacheaside: a filter or a load function hung or panicked in a Relay; its failed items "+
				"are retried one at a time", "loader", w.loader, "err", failure)
		}
		if w.failures >= r.options.AlertAt {
			r.alert(ctx, failingAlarm, fmt.Sprint(w.workerName), w.failures, failure)
		}
	}
	for _, t := range result.tasks {
		r.record(ctx, out, t, result.failed[t.Key])
	}
}

func (j *job) keys() []cacheaside.Key {
	keys := make([]cacheaside.Key, len(j.tasks))
	for i, t := range j.tasks {
		keys[i] = t.Key
	}
	return keys
}

// runJob adds the keys of a job to their filter and then invalidates them, or reloads them. It
// returns the keys that have failed, and whether the user code used all its time. The invalidation
// has its own time, so that keys are also invalidated if the filter has used all its time.
func (r *Relay) runJob(ctx context.Context, j *job) (failed failures, outOfTime bool) {
	limited, cancel := context.WithTimeout(ctx, r.options.ClaimFor/3)
	defer cancel()
	if j.worker.reload {
		return r.reload(ctx, limited, j.keys())
	}
	committed, admitted, failed := admit(limited, r.cache.InsertingKeys, j.keys())
	outOfTime = limited.Err() != nil
	after, cancel := context.WithTimeout(ctx, r.options.ClaimFor/6)
	defer cancel()
	maps.Copy(failed, failuresOf(admitted, committed(after)))
	return failed, outOfTime
}

// reload reloads keys, and invalidates those that cannot be reloaded. It returns the keys for
// which neither succeeded, and those that their filter has not admitted. The rows are committed,
// so reload does not call the function that the admission returns.
func (r *Relay) reload(ctx, limited context.Context, keys []cacheaside.Key) (failed failures, outOfTime bool) {
	admitting, cancel := half(limited)
	_, _, notAdmitted := admit(admitting, r.cache.InsertingKeys, keys)
	cancel()
	failed = failuresOf(keys, r.cache.RefreshKeys(limited, keys...))
	outOfTime = limited.Err() != nil
	var stale []cacheaside.Key
	for k, err := range failed {
		if (outOfTime || !errors.Is(err, cacheaside.ErrRedis)) && ctx.Err() == nil {
			stale = append(stale, k)
			delete(failed, k)
		}
	}
	if len(stale) > 0 {
		r.count(func(c *counted) { c.NotReloaded += int64(len(stale)) })
		after, cancel := context.WithTimeout(ctx, r.options.ClaimFor/6)
		defer cancel()
		maps.Copy(failed, failuresOf(stale, r.cache.InvalidateKeys(after, stale...)))
	}
	failed.join(notAdmitted)
	return failed, outOfTime
}

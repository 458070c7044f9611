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

// lostAtMost is the maximum number of jobs of a worker that hang for good. After that it starts no
// more.
const lostAtMost = 16

// workerName names a worker. As there are at most four for each loader of the process, the number
// of goroutines is bounded.
type workerName struct {
	loader string
	reload bool // it runs the load function, and not only the filter
	alone  bool // it does items that have failed, one at a time
}

// worker does the items of one loader that run code of the user's, one job after the other. It puts
// back an item that it cannot begin within a third of the life of the item's claim.
type worker struct {
	workerName
	queue     []task            // not begun; at most 2*batch
	active    *job              // nil: none
	lost      map[*job]struct{} // jobs that have not ended in time, nor since
	failures  int               // jobs in a row that hung or panicked
	postponed time.Time         // when the next item that is put back untried may be due
}

// job is tasks that are done together.
type job struct {
	worker *worker
	tasks  []task
	begun  time.Time
}

// jobResult says that a job has ended, or that it has not ended in time.
type jobResult struct {
	*job
	failed keyErrors
	late   bool // the user's code took all its time
	hangs  bool // it has not ended
}

// workerFor returns the worker that does an item, or nil if that runs no code of the user's. Items
// that have failed have a worker of their own: one whose key hangs does not hold up the others.
func (r *relayRun) workerFor(item *Item) *worker {
	has, filter := r.cache.Loader(item.Key.Loader)
	if !has || item.Key.All || !filter && !item.Reload {
		return nil
	}
	name := workerName{item.Key.Loader, item.Reload, item.Attempts > 0}
	w := r.workers[name]
	if w == nil {
		w = &worker{workerName: name, lost: map[*job]struct{}{}}
		r.workers[name] = w
	}
	return w
}

// reloadsNow reports whether an item can be reloaded at once, so that it is not invalidated first.
func (r *relayRun) reloadsNow(item *Item) bool {
	if !item.Reload || item.Attempts > 0 || r.outage > 0 {
		return false
	}
	w := r.workerFor(item)
	return w != nil && w.active == nil && w.failures == 0
}

// start begins the next job of a worker. It settles tasks that are not to be tried.
func (r *relayRun) start(ctx context.Context, o *outcomes, w *worker) {
	if w.active != nil || len(w.queue) == 0 {
		return
	}
	slices.SortStableFunc(w.queue, func(a, b task) int { return cmp.Compare(a.Attempts, b.Attempts) })
	j := &job{worker: w, begun: time.Now()}
	most := batch
	if w.alone {
		most = 1
	}
	var rest []task
	for _, t := range w.queue {
		switch {
		case ctx.Err() != nil:
			r.settle(ctx, o, t, ctx.Err())
		case len(w.lost) >= lostAtMost || w.alone && w.hangsOn(t.Key):
			r.settle(ctx, o, t, r.hangs(w))
		case j.begun.Sub(t.claimed) > r.options.ClaimFor/3:
			r.postpone(o, w, t)
		case len(j.tasks) == most:
			rest = append(rest, t)
		default:
			j.tasks = append(j.tasks, t)
		}
	}
	w.queue = rest
	if len(j.tasks) > 0 {
		w.active = j
		go r.work(ctx, j)
	}
}

// hangsOn reports whether the job of this key still hangs. The worker does one key at a time.
func (w *worker) hangsOn(k cacheaside.Key) bool {
	for j := range w.lost {
		if j.tasks[0].Key == k {
			return true
		}
	}
	return false
}

func (r *relayRun) hangs(w *worker) error {
	return fmt.Errorf("loader %s: its filter or its load function has not returned within %v", w.loader, r.options.ClaimFor*7/12)
}

// postpone puts an item back that its worker has no time for.
func (r *relayRun) postpone(o *outcomes, w *worker, t task) {
	t.After = max(retry.Delay(1, r.options.ClaimFor/12, longestDelay), paced(&w.postponed))
	o.back = append(o.back, t.Item)
}

// busyUntil returns how long to wait for workers that have no room for a batch, before one is
// claimed: a tenth of the life of a claim. It does not wait for workers whose code has hung.
func (r *relayRun) busyUntil() (until time.Time) {
	for _, w := range r.workers {
		if w.active == nil || w.alone || w.failures > 0 || len(w.queue) < batch {
			continue
		}
		if d := w.active.begun.Add(r.options.ClaimFor / 10); d.After(until) {
			until = d
		}
	}
	return until
}

// work does a job, and reports its end. It reports also a job that has not ended in time, as its
// code does not obey its context: a third of the life of a claim for that code, a sixth for the
// invalidation after it, and a twelfth more.
func (r *relayRun) work(ctx context.Context, j *job) {
	report := func(result jobResult) {
		select {
		case r.ended <- result:
		case <-r.gone:
		}
	}
	result := jobResult{job: j}
	ended := protect(func() error {
		result.failed, result.late = r.do(ctx, j)
		return nil
	})
	select {
	case err := <-ended:
		if err != nil {
			result.failed = allFailed(j.keys(), err)
		}
		report(result)
	case <-time.After(r.options.ClaimFor * 7 / 12):
		report(jobResult{job: j, failed: allFailed(j.keys(), r.hangs(j.worker)), late: true, hangs: true})
		<-ended
		report(jobResult{job: j})
	}
}

// protect runs code of the user's on a goroutine of its own. The channel receives its error: a
// *cacheaside.PanicError after a panic or runtime.Goexit.
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

// finish settles a job that has ended, or has not ended in time, and starts the next one of its
// worker.
func (r *relayRun) finish(ctx context.Context, result jobResult) {
	var o outcomes
	w := result.worker
	if w.active == result.job {
		r.end(ctx, &o, result)
	} else { // its items have been put back
		delete(w.lost, result.job)
	}
	r.start(ctx, &o, w)
	if err := r.giveBack(ctx, &o); err != nil {
		r.queueFailed(ctx, err)
	}
}

// end settles the tasks of a job.
func (r *relayRun) end(ctx context.Context, o *outcomes, result jobResult) {
	w := result.worker
	w.active = nil
	if result.hangs {
		w.lost[result.job] = struct{}{}
	}
	var failure error
	for _, err := range result.failed {
		if _, panicked := errors.AsType[*cacheaside.PanicError](err); panicked || result.late {
			failure = err
		}
	}
	switch {
	case ctx.Err() != nil:
	case failure == nil:
		w.failures = 0
		r.over(failingAlarm, fmt.Sprint(w.workerName))
	default:
		if w.failures++; w.failures == 1 {
			r.log.Warn("cacheaside: a filter, or a load function, that a Relay has called has hung or panicked; the items are tried again, one at a time", "loader", w.loader)
		}
		if w.failures >= r.options.AlertAt {
			r.alert(ctx, failingAlarm, fmt.Sprint(w.workerName), w.failures, failure)
		}
	}
	for _, t := range result.tasks {
		r.settle(ctx, o, t, result.failed[t.Key])
	}
}

func (j *job) keys() []cacheaside.Key {
	keys := make([]cacheaside.Key, len(j.tasks))
	for i, t := range j.tasks {
		keys[i] = t.Key
	}
	return keys
}

// do adds the keys of a job to their filter and invalidates them after that, or reloads them. It
// returns the keys that have failed, and whether the user's code took all its time. The
// invalidation has time of its own, so that it follows an Admit that was late, too.
func (r *Relay) do(ctx context.Context, j *job) (failed keyErrors, late bool) {
	limited, cancel := context.WithTimeout(ctx, r.options.ClaimFor/3)
	defer cancel()
	if j.worker.reload {
		return r.reload(ctx, limited, j.keys())
	}
	committed, admitted, failed := admit(limited, r.cache.InsertingKeys, j.keys())
	late = limited.Err() != nil
	after, cancel := context.WithTimeout(ctx, r.options.ClaimFor/6)
	defer cancel()
	maps.Copy(failed, keyErrorsOf(admitted, committed(after)))
	return failed, late
}

// reload reloads keys, and invalidates those that cannot be reloaded. It returns the keys for which
// neither was done, and those that their filter has not admitted. Their rows have been committed,
// so to admit them is all that a filter needs.
func (r *Relay) reload(ctx, limited context.Context, keys []cacheaside.Key) (failed keyErrors, late bool) {
	admitting, cancel := half(limited)
	_, _, refused := admit(admitting, r.cache.InsertingKeys, keys)
	cancel()
	failed = keyErrorsOf(keys, r.cache.RefreshKeys(limited, keys...))
	late = limited.Err() != nil
	var stale []cacheaside.Key
	for k, err := range failed {
		if (late || !errors.Is(err, cacheaside.ErrRedis)) && ctx.Err() == nil {
			stale = append(stale, k)
			delete(failed, k)
		}
	}
	if len(stale) > 0 {
		r.count(func(c *counted) { c.NotReloaded += int64(len(stale)) })
		after, cancel := context.WithTimeout(ctx, r.options.ClaimFor/6)
		defer cancel()
		maps.Copy(failed, keyErrorsOf(stale, r.cache.InvalidateKeys(after, stale...)))
	}
	failed.join(refused)
	return failed, late
}

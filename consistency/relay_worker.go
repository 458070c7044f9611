package consistency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/retry"
)

const (
	// lostAtMost is the maximum number of goroutines of a worker that hang for good. After that it
	// starts no more.
	lostAtMost = 16

	// hungFor is how long a loader's failed items are done one at a time, after its code has last
	// hung or panicked. It is longer than such an item waits for its next attempt.
	hungFor = 5 * time.Minute
)

// errBusy is why an item is put back untried.
var errBusy = errors.New("other items of its loader are slow")

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
	queue     []task            // not begun; at most batch
	active    *job              // nil: none
	lost      map[*job]struct{} // jobs that have not ended in time, nor since
	failures  int               // jobs in a row that hung or panicked
	postponed time.Time         // when the next item that is put back untried may be due
}

// job is tasks that a goroutine of their own does together.
type job struct {
	worker *worker
	tasks  []task
	begun  time.Time
	errs   []error // by task, when it has ended
	late   bool    // the user's code took all its time
}

// workerFor returns the worker that does an item, or nil if that runs no code of the user's.
func (r *relayRun) workerFor(item *Item) *worker {
	has, filter := r.cache.Loader(item.Key.Loader)
	if !has || item.Key.All || !filter && !item.Reload {
		return nil
	}
	name := workerName{item.Key.Loader, item.Reload, item.Attempts > 0 && r.troubled(item.Key.Loader)}
	w := r.workers[name]
	if w == nil {
		w = &worker{workerName: name, lost: map[*job]struct{}{}}
		r.workers[name] = w
	}
	return w
}

// troubled reports whether code of a loader has hung or panicked a while ago.
func (r *relayRun) troubled(loader string) bool { return time.Since(r.hung[loader]) < hungFor }

// reloadsNow reports whether an item can be reloaded at once, so that it is not invalidated first.
func (r *relayRun) reloadsNow(item *Item) bool {
	if !item.Reload || item.Attempts > 0 || r.outage > 0 {
		return false
	}
	w := r.workerFor(item)
	return w != nil && w.active == nil && !r.troubled(w.loader)
}

// start begins the next job of a worker. It settles tasks that are not to be tried.
func (r *relayRun) start(ctx context.Context, o *outcomes, w *worker) {
	if w.active != nil || len(w.queue) == 0 {
		return
	}
	slices.SortStableFunc(w.queue, func(a, b task) int { return cmp.Compare(a.Attempts, b.Attempts) })
	j := &job{worker: w, begun: time.Now()}
	var rest []task
	for _, t := range w.queue {
		switch {
		case ctx.Err() != nil:
			r.settle(ctx, o, t, ctx.Err())
		case len(w.lost) >= lostAtMost || w.alone && w.hangsOn(t.Key):
			r.hung[w.loader] = j.begun
			r.settle(ctx, o, t, r.hangs(w))
		case j.begun.Sub(t.claimed) > r.options.ClaimFor/3:
			r.postpone(o, w, t)
		case w.alone && len(j.tasks) > 0:
			rest = append(rest, t)
		default:
			j.tasks = append(j.tasks, t)
		}
	}
	w.queue = rest
	if len(j.tasks) == 0 {
		return
	}
	w.active = j
	go func() {
		defer func() {
			select {
			case r.ended <- j:
			case <-r.gone:
			}
		}()
		r.try(ctx, j)
	}()
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

// busyUntil returns how long to wait for workers before the next items are claimed: a tenth of the
// life of a claim. It does not wait for workers whose code has hung.
func (r *relayRun) busyUntil() (until time.Time) {
	for _, w := range r.workers {
		if w.active == nil || w.alone || r.troubled(w.loader) {
			continue
		}
		if d := w.active.begun.Add(r.options.ClaimFor / 10); d.After(until) {
			until = d
		}
	}
	return until
}

// finish settles a job that has ended, and starts the next one of its worker.
func (r *relayRun) finish(ctx context.Context, j *job) {
	var o outcomes
	if j.worker.active == j {
		r.end(ctx, &o, j)
	} else { // its items have been put back
		delete(j.worker.lost, j)
	}
	r.start(ctx, &o, j.worker)
	if err := r.giveBack(ctx, &o); err != nil {
		r.queueFailed(ctx, err)
	}
}

// abandon puts back the items of jobs that have not ended in time, as their code does not obey its
// context. It leaves the goroutines to themselves.
func (r *relayRun) abandon(ctx context.Context) {
	for _, w := range r.workers {
		j := w.active
		if j == nil || time.Now().Before(r.overdue(j)) {
			continue
		}
		given := &job{worker: w, tasks: j.tasks, late: true, errs: slices.Repeat([]error{r.hangs(w)}, len(j.tasks))}
		w.active, w.lost[j] = given, struct{}{}
		r.finish(ctx, given)
	}
}

// overdue returns when a job must have ended: it has a third of the life of a claim for the user's
// code, a sixth for the invalidation after it, and a twelfth more.
func (r *relayRun) overdue(j *job) time.Time { return j.begun.Add(r.options.ClaimFor * 7 / 12) }

// end settles the tasks of a job.
func (r *relayRun) end(ctx context.Context, o *outcomes, j *job) {
	w := j.worker
	w.active = nil
	var failure error
	for _, err := range j.errs {
		if _, panicked := errors.AsType[*cacheaside.PanicError](err); panicked || err != nil && j.late {
			failure = err
		}
	}
	switch {
	case ctx.Err() != nil:
	case failure == nil:
		w.failures = 0
		r.over(&r.failing, fmt.Sprint(w.workerName))
	default:
		if !r.troubled(w.loader) {
			r.log(ctx, slog.LevelWarn, "cacheaside: a filter, or a load function, that a Relay has called has hung or panicked; items of its loader that have failed are tried one at a time", "loader", w.loader)
		}
		r.hung[w.loader] = time.Now()
		if w.failures++; w.failures >= r.options.AlertAt {
			r.alert(ctx, &r.failing, fmt.Sprint(w.workerName), w.failures, failure)
		}
	}
	for i, t := range j.tasks {
		r.settle(ctx, o, t, j.errs[i])
	}
}

// try does a job. A panic of the user's code, or runtime.Goexit, is an error of all its tasks.
func (r *relayRun) try(ctx context.Context, j *job) {
	j.errs = make([]error, len(j.tasks))
	returned := false
	defer func() {
		if returned {
			return
		}
		p := recover() // nil: runtime.Goexit
		err := &cacheaside.PanicError{Value: p, Goexit: p == nil, Stack: debug.Stack()}
		for i := range j.errs {
			j.errs[i] = err
		}
	}()
	distinct := map[cacheaside.Key]struct{}{}
	for _, t := range j.tasks {
		distinct[t.Key] = struct{}{}
	}
	failed := r.do(ctx, j, slices.Collect(maps.Keys(distinct)))
	for i, t := range j.tasks {
		j.errs[i] = failed[t.Key]
	}
	returned = true
}

// do adds keys to their filter and invalidates them after that, or reloads them. It returns the
// keys that have failed. The invalidation has time of its own, so that it follows an Admit that was
// late, too.
func (r *Relay) do(ctx context.Context, j *job, keys []cacheaside.Key) map[cacheaside.Key]error {
	limited, cancel := context.WithTimeout(ctx, r.options.ClaimFor/3)
	defer cancel()
	if j.worker.reload {
		return r.reload(ctx, limited, j, keys)
	}
	committed, admitted, failed := admit(limited, r.cache.InsertingKeys, keys)
	j.late = limited.Err() != nil
	after, cancel := context.WithTimeout(ctx, r.options.ClaimFor/6)
	defer cancel()
	maps.Copy(failed, leftOf(admitted, committed(after)))
	return failed
}

// reload reloads keys, and invalidates those that cannot be reloaded. It returns the keys for which
// neither was done, and those that their filter has not admitted. Their rows have been committed,
// so to admit them is all that a filter needs.
func (r *Relay) reload(ctx, limited context.Context, j *job, keys []cacheaside.Key) map[cacheaside.Key]error {
	admitting, cancel := half(limited)
	_, _, refused := admit(admitting, r.cache.InsertingKeys, keys)
	cancel()
	failed := leftOf(keys, r.cache.RefreshKeys(limited, keys...))
	j.late = limited.Err() != nil
	var stale []cacheaside.Key
	for k, err := range failed {
		if (j.late || !errors.Is(err, cacheaside.ErrRedis)) && ctx.Err() == nil {
			stale = append(stale, k)
			delete(failed, k)
		}
	}
	if len(stale) > 0 {
		r.count(func(c *counted) { c.NotReloaded += int64(len(stale)) })
		after, cancel := context.WithTimeout(ctx, r.options.ClaimFor/6)
		defer cancel()
		maps.Copy(failed, leftOf(stale, r.cache.InvalidateKeys(after, stale...)))
	}
	for k, err := range refused {
		failed[k] = errors.Join(err, failed[k])
	}
	return failed
}

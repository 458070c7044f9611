package bloom

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// MaintainOptions are the settings of Maintain. The zero value and nil use the defaults.
type MaintainOptions struct {
	// Every is the maximum age of a filter. An older filter is rebuilt, to remove the keys of
	// deleted rows and to add rows that were inserted without Add. Default: 24 hours. At least 1
	// second; negative: no maximum. Raise it for a large table that changes little. Lower it if
	// rows are often deleted without calls of Deleted.
	Every time.Duration

	// Check is the approximate interval at which each process checks whether a rebuild is due.
	// After a restart of Redis (see Maintain), the filter may return "maybe" for this long before
	// it is rebuilt. Default: 1 minute. From 100 ms to 24 hours.
	Check time.Duration

	// Rebuild are the settings of each rebuild. Default: the defaults of Rebuild.
	Rebuild *RebuildOptions

	// Failed is called with each error of a check or a rebuild. Maintain continues and checks
	// again after Check. Failed must not block. Stats.Failures counts these errors. Default:
	// Error of Options.Logger, or of the default logger for a Local, at most once in 10 s. If the
	// Source panics, that record has the text of the panic in the field "panic" and its stack in
	// "stack". Both may contain keys: see cacheaside.Options.Logger.
	Failed func(error)
}

func (m *MaintainOptions) withDefaults() MaintainOptions {
	var d MaintainOptions
	if m != nil {
		d = *m
	}
	d.Every = cmp.Or(d.Every, 24*time.Hour)
	d.Check = cmp.Or(d.Check, time.Minute)
	return d
}

func (m MaintainOptions) check() error {
	if m.Every > 0 && m.Every < time.Second {
		return fmt.Errorf("MaintainOptions.Every %v: at least 1s, or negative", m.Every)
	}
	err := wording.Range("MaintainOptions.Check", m.Check, 100*time.Millisecond, 24*time.Hour)
	if r := m.Rebuild.withDefaults().check(); err == nil && r != nil {
		err = fmt.Errorf("MaintainOptions.Rebuild: %w", r)
	}
	return err
}

// maintainable is a filter that Maintain can rebuild.
type maintainable interface {
	// wakeups returns a channel that receives a value when the filter is to be checked early, or
	// nil if that never happens.
	wakeups() <-chan struct{}
	// identify finds out what the source reads, and fails if the filter is another application's.
	identify(ctx context.Context, source Source) error
	// due reports whether the filter is to be rebuilt now. It updates w.
	due(ctx context.Context, o MaintainOptions, w *maintainState) (bool, error)
	Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error)
	// logger logs failures.
	logger() *slog.Logger
}

// maintainState holds the results of a process's last check of a filter.
type maintainState struct {
	activeID string // active generation when the filter was found to be due
	empty    bool   // there was no filter, and there were no rows to build one of

	countedAt time.Time     // when Redis last counted the bits
	countTime time.Duration // how long that took
}

// maintain rebuilds a filter when necessary, and counts the failures, until ctx ends or the
// filter is closed.
func maintain(
	ctx context.Context, m maintainable, failures *atomic.Int64, source Source, options *MaintainOptions,
) error {
	o := options.withDefaults()
	if source == nil {
		return errors.New("bloom: the source is nil")
	}
	if err := o.check(); err != nil {
		return wording.Errorf("bloom: %w", err)
	}
	if o.Failed == nil {
		o.Failed = logFailures(m.logger())
	}
	var w maintainState
	for ctx.Err() == nil {
		began := time.Now()
		err := checkOnce(ctx, m, source, o, &w)
		if errors.Is(err, errClosed) {
			return err
		}
		switch {
		case err == nil, ctx.Err() != nil, errors.Is(err, ErrRebuilding):
		case errors.Is(err, errEmpty): // normal for a new table
			if !w.empty {
				limitedlog.Guarded(m.logger()).Info("cacheaside: bloom: the table is empty; " +
					"the filter is built when there are rows")
			}
		default:
			failures.Add(1)
			o.Failed(err)
		}
		w.empty = errors.Is(err, errEmpty)
		pause := o.Check*3/4 + rand.N(o.Check/2) // random, so that processes do not check at the same time
		switch {
		case errors.Is(err, ErrFewer):
			pause = max(pause, pauseFactor*time.Since(began))
		case err != nil:
			pause = max(pause, time.Since(began)) // so that failing rebuilds do not read the table all the time
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-m.wakeups():
		case <-ctx.Done():
		}
		wait.Stop()
	}
	return context.Cause(ctx)
}

// quietFor is the minimum time between two log lines about a filter that keeps failing.
const quietFor = limitedlog.QuietFor

// logFailures returns a function that logs failures, at most once in quietFor.
func logFailures(log *slog.Logger) func(error) {
	limit := limitedlog.Limit[string]{Quiet: quietFor}
	const failed = "cacheaside: bloom: maintaining a filter failed"
	return func(err error) {
		if times, due := limit.Count(failed); due {
			limitedlog.Guarded(log).Error(failed, "error", err, "times", times)
			limit.Pass(failed)
		}
	}
}

// checkOnce checks the filter once, and rebuilds it if that is due.
func checkOnce(ctx context.Context, m maintainable, source Source, o MaintainOptions, w *maintainState) error {
	if err := m.identify(ctx, source); err != nil {
		return err
	}
	due, err := m.due(ctx, o, w)
	if err != nil || !due {
		return err
	}
	var r RebuildOptions
	if o.Rebuild != nil {
		r = *o.Rebuild
	}
	r.replaces = &w.activeID
	_, err = m.Rebuild(ctx, source, &r)
	return err
}

// nextCapacity returns the capacity that a rebuild would give the filter.
func (m MaintainOptions) nextCapacity(capacity uint64, rate float64, s State) uint64 {
	if m.Rebuild != nil && m.Rebuild.Capacity > 0 {
		return m.Rebuild.Capacity
	}
	return grownCapacity(capacity, rate, s)
}

// needsRebuild reports whether a filter has lost segments, has too many keys of deleted rows, or
// has too many keys and the next one would have a larger capacity. capacity is that of the
// filter's constructor.
func (m MaintainOptions) needsRebuild(s State, capacity uint64, rate float64) bool {
	full := float64(s.Keys) > 1.1*float64(s.Capacity) && m.nextCapacity(capacity, rate, s) > s.Capacity
	gone := s.Deleted > s.Keys/2 && s.Deleted >= minDeleted
	return full || gone || s.LostSegments > 0
}

// minDeleted is the minimum number of deleted rows that can cause a rebuild.
const minDeleted = 1000

// pauseFactor is the length of the pause after a rebuild, as a multiple of its duration. Maintain
// pauses after a rebuild whose filter was rejected, and before a rebuild that is not due because of
// the filter's age.
const pauseFactor = 5

// recentlyBuilt reports whether a generation is too new to be replaced, except because of its
// age. took is the duration of its rebuild.
func recentlyBuilt(begun time.Time, took time.Duration) bool {
	return time.Since(begun) < (1+pauseFactor)*took
}

// Maintain rebuilds the filter when necessary, until ctx ends or the filter is closed. It returns
// the cause of ctx, or an error that the filter is closed. It rebuilds the filter if there is
// none, if Hidden has disabled it, and if it is too old, too full, or has too many keys of
// deleted rows: see Redis.Maintain.
func (l *Local) Maintain(ctx context.Context, source Source, options *MaintainOptions) error {
	return maintain(ctx, l, &l.counts.failures, source, options)
}

func (l *Local) logger() *slog.Logger { return slog.Default() }

func (l *Local) wakeups() <-chan struct{} { return l.wakeup }

func (l *Local) identify(context.Context, Source) error { return nil }

func (l *Local) due(_ context.Context, o MaintainOptions, _ *maintainState) (bool, error) {
	h := l.current.Load()
	g := h.active
	switch {
	case l.closed.Load():
		return false, errClosed
	case g == nil:
		return !h.falseNegative.delaysRebuild(time.Now()), nil
	case o.Every > 0 && time.Since(g.begun) >= o.Every:
		return true, nil
	}
	return !recentlyBuilt(g.begun, g.rebuildTime) && o.needsRebuild(l.state(g), l.capacity, l.rate), nil
}

// Maintain rebuilds the filter when necessary, until ctx ends or the filter is closed. It returns
// the cause of ctx, or an error that the filter is closed. Run it in a goroutine in every process
// that can read the source: one of them does the work. It rebuilds the filter
//
//   - if there is none, or a rebuild was interrupted;
//   - if the filter has refused a key whose row exists (Hidden);
//   - if a part of it has been lost;
//   - if it is older than MaintainOptions.Every;
//   - if it holds a tenth more keys than it was built for, and the next one would be larger
//     (RebuildOptions.Capacity);
//   - if Deleted has reported at least a thousand rows, and more than half as many as the filter
//     holds keys;
//   - if a master of Redis has restarted, has been replaced by another server, or has joined,
//     because added keys may have been lost. The filter returns "maybe" until it is rebuilt;
//   - if an earlier version of this package has built it, and its prefix is not that of the
//     loaders' Cache: it may belong to another application;
//   - if it was built without the run IDs of the masters, by an earlier version of this package
//     or because INFO was not permitted, and the masters report them now.
//
// If there is no filter, and the source has no keys, there is nothing to build: that is logged once
// as information, and is no failure. Lookups return "maybe". The next check that finds rows builds
// the filter.
//
// A filter of another application with the same name is not rebuilt: each check fails with
// ErrForeign, and lookups return "maybe", until one of the two has another name or prefix.
//
// After a rebuild, Maintain waits at least five times as long as it took before it rebuilds the
// filter because of lost parts, the number of keys or the number of deleted rows.
//
// Each process that uses the filter detects within a second that a server has restarted, if INFO
// is permitted, or that Redis was rolled back to an earlier state (Stats.RolledBack). Until then,
// lookups may miss lost keys. To rule that out, configure Redis to keep all writes that it
// acknowledges: appendfsync always and, with failover to replicas, WAIT.
func (r *Redis) Maintain(ctx context.Context, source Source, options *MaintainOptions) error {
	return maintain(ctx, r, &r.counts.failures, source, options)
}

func (r *Redis) logger() *slog.Logger { return r.options.Logger }

func (r *Redis) wakeups() <-chan struct{} { return nil }

func (r *Redis) due(ctx context.Context, o MaintainOptions, w *maintainState) (bool, error) {
	due, err := r.isDue(ctx, o, w)
	if errors.Is(err, conn.ErrClosed) {
		return false, errClosed
	}
	return due, r.wrapError(err)
}

func (r *Redis) isDue(ctx context.Context, o MaintainOptions, w *maintainState) (bool, error) {
	d, err := r.fetchDescriptor(ctx, r.longTimeout())
	if err != nil {
		return false, err
	}
	var removeErr error
	if len(d.Old) > 0 { // left by a rebuild that was interrupted
		removeErr = r.remove(ctx) // a failure does not prevent the check
	}
	w.activeID = d.activeID()
	due, err := r.isDueNow(ctx, d, o, w)
	if err == nil && !due { // otherwise the rebuild tries again
		err = removeErr
	}
	return due, err
}

func (r *Redis) isDueNow(ctx context.Context, d *cachedDescriptor, o MaintainOptions, w *maintainState) (bool, error) {
	g := d.Active
	if g == nil {
		return !d.FalseNegative.delaysRebuild(time.Now()), nil
	}
	if err := r.foreign(g); err != nil {
		return false, err
	}
	runs, err := r.serverRuns(ctx)
	switch {
	case err != nil:
		return false, err
	case g.runsEnded(runs):
		w.activeID = ""
		return true, r.dropSuspect(ctx, g)
	case len(g.ServerRuns) == 0 && len(runs) > 0:
		// without its own record no restart can be detected; a rebuild records the servers
		return true, nil
	case r.unowned(g):
		return true, nil
	case d.Building != nil: // if its rebuild is in progress, it holds the lock
		return true, nil
	case o.Every > 0 && time.Since(g.Begun) >= o.Every:
		return true, nil
	}
	began := time.Now()
	if recentlyBuilt(g.Begun, min(g.RebuildTime, 24*time.Hour)) ||
		began.Sub(w.countedAt) < min(countingShare*w.countTime, maxCountPause) {
		return false, nil
	}
	s, err := r.state(ctx, &d.descriptor)
	w.countedAt, w.countTime = began, time.Since(began)
	if err != nil {
		w.countTime = 0 // mostly the time that Redis did not reply
	}
	return err == nil && o.needsRebuild(s, r.capacity, r.rate), err
}

const (
	// countingShare limits the cost of Maintain for Redis with a very large filter. Each process
	// lets Redis count bits for at most one part in countingShare of the time.
	countingShare = 100

	// maxCountPause is the maximum time between two counts by one process. The measured duration
	// of a count includes delays of the network, and the time that the process was suspended for.
	maxCountPause = time.Hour
)

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

	"github.com/cacheaside/cacheaside/internal/check"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
)

// MaintainOptions are the settings of Maintain. The zero value, and nil, are good defaults.
type MaintainOptions struct {
	// Every is how old a filter may become before it is built anew, for the keys of deleted rows,
	// and for rows that nobody has told of. Default: 24 hours. At least 1 second; negative: any
	// age. Raise it for a large table that changes little; lower it if rows are often deleted where
	// nobody calls Deleted.
	Every time.Duration

	// Check is about how often each process looks whether a rebuild is due. After a restart of
	// Redis, see Maintain, the filter may answer "maybe" for so long before it is built again.
	// Default: 1 minute. From 100 ms to 24 hours.
	Check time.Duration

	// Rebuild are the settings of each rebuild. Default: those of a Rebuild with nil.
	Rebuild *RebuildOptions

	// Failed is called with each error of a check, or a rebuild, after which Maintain goes on, and
	// looks again after Check. Failed must not block. Stats.Failures counts these errors. Default:
	// slog.Error of the default logger.
	Failed func(error)
}

func (m *MaintainOptions) withDefaults() MaintainOptions {
	var d MaintainOptions
	if m != nil {
		d = *m
	}
	d.Every = cmp.Or(d.Every, 24*time.Hour)
	d.Check = cmp.Or(d.Check, time.Minute)
	if d.Failed == nil {
		d.Failed = logger()
	}
	return d
}

func (m MaintainOptions) check() error {
	if m.Every > 0 && m.Every < time.Second {
		return fmt.Errorf("MaintainOptions.Every %v: at least 1s, or negative", m.Every)
	}
	err := check.Range("MaintainOptions.Check", m.Check, 100*time.Millisecond, 24*time.Hour)
	if r := m.Rebuild.withDefaults().check(); err == nil && r != nil {
		err = fmt.Errorf("MaintainOptions.Rebuild: %w", r)
	}
	return err
}

// maintained is a filter that is looked after.
type maintainable interface {
	// early returns a channel that receives when the filter is to be looked at before the time;
	// nil: never.
	wakeups() <-chan struct{}
	// due reports whether the filter is to be rebuilt now, and keeps in w what it has seen.
	due(ctx context.Context, o MaintainOptions, w *maintainState) (bool, error)
	Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error)
}

// watched is what a process has seen of a filter at the last check.
type maintainState struct {
	activeID string // the generation that answered when the filter was found to be due

	countedAt time.Time     // when Redis was last asked to count the bits
	countTime time.Duration // how long that took
}

// maintain looks after a filter, whose failures it counts, until ctx ends, or the filter is closed.
func maintain(ctx context.Context, m maintainable, failures *atomic.Int64, source Source, options *MaintainOptions) error {
	o := options.withDefaults()
	if source == nil {
		return errors.New("bloom: the source is nil")
	}
	if err := o.check(); err != nil {
		return fmt.Errorf("bloom: %w", err)
	}
	var w maintainState
	for ctx.Err() == nil {
		began := time.Now()
		err := checkOnce(ctx, m, source, o, &w)
		if errors.Is(err, errClosed) {
			return err
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrRebuilding) {
			failures.Add(1)
			o.Failed(err)
		}
		pause := o.Check*3/4 + rand.N(o.Check/2) // not all processes at once
		switch {
		case isRefusal(err):
			pause = max(pause, pauseFactor*time.Since(began))
		case err != nil:
			pause = max(pause, time.Since(began)) // what fails does not read the table all the time
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

// quietFor is for how long nothing more is logged of a filter that keeps failing.
const quietFor = limitedlog.QuietFor

// logger logs failures, at most once in quietFor.
func logger() func(error) {
	limit := limitedlog.Limit[string]{Quiet: quietFor}
	const failed = "cacheaside: a filter could not be looked after"
	return func(err error) {
		if times, due := limit.Count(failed); due {
			slog.Error(failed, "error", err, "times", times)
			limit.Pass(failed)
		}
	}
}

// look is one check.
func checkOnce(ctx context.Context, m maintainable, source Source, o MaintainOptions, w *maintainState) error {
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

// next is the capacity that a rebuild would give a filter.
func (m MaintainOptions) nextCapacity(capacity uint64, rate float64, s State) uint64 {
	if m.Rebuild != nil && m.Rebuild.Capacity > 0 {
		return m.Rebuild.Capacity
	}
	return grownCapacity(capacity, rate, s)
}

// worn reports whether a filter has lost segments, has too many keys, where the next would be for
// more, or has too many keys of deleted rows. capacity is that of the filter's constructor.
func (m MaintainOptions) needsRebuild(s State, capacity uint64, rate float64) bool {
	full := float64(s.Keys) > 1.1*float64(s.Capacity) && m.nextCapacity(capacity, rate, s) > s.Capacity
	gone := s.Deleted > s.Keys/2 && s.Deleted >= minDeleted
	return full || gone || s.LostSegments > 0
}

// minDeleted is how many rows must have been deleted before they are a reason for a rebuild.
const minDeleted = 1000

// rest is how many times as long as a rebuild took Maintain waits before the next one that is not
// for the age of the filter, or after one that was refused.
const pauseFactor = 5

// young reports whether a generation, whose rebuild took so long, was built just now.
func recentlyBuilt(begun time.Time, took time.Duration) bool {
	return time.Since(begun) < (1+pauseFactor)*took
}

// Maintain looks after the filter until ctx ends, whose error it returns, or the filter is closed.
// It rebuilds the filter when there is none, when Hidden ended it, when it is too old, too full, or
// has too many keys of deleted rows: see Redis.Maintain.
func (l *Local) Maintain(ctx context.Context, source Source, options *MaintainOptions) error {
	return maintain(ctx, l, &l.counts.failures, source, options)
}

func (l *Local) wakeups() <-chan struct{} { return l.wakeup }

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

// Maintain looks after the filter until ctx ends, whose error it returns, or the filter is closed.
// Run it in a goroutine in every process that can read the source: one of them does the work. It
// rebuilds the filter
//
//   - when there is none, or a rebuild was ended before it was through;
//   - when it was ended because it had refused a key whose row exists (Hidden);
//   - when a part of it has been lost;
//   - when it is older than MaintainOptions.Every;
//   - when it holds a tenth more keys than it was made for, and would be made larger
//     (RebuildOptions.Capacity);
//   - when Deleted has told of a thousand rows, and of more than half as many as it holds keys;
//   - when a master of Redis has restarted, or another server has taken its place, or joined them:
//     they may have lost what had been added. Until it is built again, the filter answers "maybe".
//
// Between two rebuilds for a lost part, or for the number of keys or of deleted rows, there is at
// least five times the time that the first took.
//
// Each process that uses the filter notices within a second that a server has restarted, if INFO is
// permitted, or that Redis has gone back to an earlier state (Stats.WentBack). Until then, lost
// keys are missed. To exclude that, have Redis keep what it has acknowledged: appendfsync always
// and, where replicas take over, WAIT.
func (r *Redis) Maintain(ctx context.Context, source Source, options *MaintainOptions) error {
	return maintain(ctx, r, &r.counts.failures, source, options)
}

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
	if len(d.Old) > 0 { // of a rebuild that was cut off
		removeErr = r.remove(ctx) // which is no reason not to look
	}
	w.activeID = d.activeID()
	due, err := r.isDueNow(ctx, d, o, w)
	if err == nil && !due { // else the rebuild tries again
		err = removeErr
	}
	return due, err
}

func (r *Redis) isDueNow(ctx context.Context, d *cachedDescriptor, o MaintainOptions, w *maintainState) (bool, error) {
	g := d.Active
	if g == nil {
		return !d.FalseNegative.delaysRebuild(time.Now()), nil
	}
	restarted, err := r.restarted(ctx, g)
	switch {
	case err != nil:
		return false, err
	case restarted:
		w.activeID = ""
		return true, r.dropSuspect(ctx, g)
	case d.Building != nil: // if its rebuild still goes on, that has the lock
		return true, nil
	case o.Every > 0 && time.Since(g.Begun) >= o.Every:
		return true, nil
	}
	began := time.Now()
	if recentlyBuilt(g.Begun, min(g.RebuildTime, 24*time.Hour)) || began.Sub(w.countedAt) < countingShare*w.countTime {
		return false, nil
	}
	s, err := r.state(ctx, &d.descriptor)
	w.countedAt, w.countTime = began, time.Since(began)
	return err == nil && o.needsRebuild(s, r.capacity, r.rate), err
}

// countingShare bounds what Maintain costs Redis for a very large filter: each process has its bits
// counted for one part in so many of the time.
const countingShare = 100

package bloom

import (
	"context"
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Maintain looks after the filter until ctx ends, whose error it returns, or the filter is closed.
// Run it in a goroutine in every process that can read the source: one of them does the work. It
// rebuilds the filter
//
//   - when there is none, or a rebuild was ended before it was through;
//   - when it was ended because it had refused a key whose row exists (Hidden);
//   - when a part of it has been lost: those who ask for that, or add to it, find that out;
//   - when it is older than MaintainOptions.Every;
//   - when it holds a tenth more keys than it was made for, and would be made larger
//     (RebuildOptions.Capacity);
//   - when Deleted has told of a thousand rows, and of more than half as many as it holds keys;
//   - when this process measures too many false positives (MaintainOptions.MaxRate; at most once an
//     hour);
//   - when a master of Redis has restarted, or another server has taken its place, or joined them:
//     they may have lost what had been added. Until it is built again, the filter answers "maybe".
//
// But for the first, the fourth and the last, only when that has not been done just now: five times
// as long as it took is between two rebuilds, at least.
//
// A restart is noticed within a second, by each process that uses the filter, if INFO is permitted,
// and so is a Redis that has gone back to an earlier state otherwise (Stats.WentBack); Maintain
// builds the filter again at the next check. Until it is noticed, what was lost is missed. Where
// that must not be, have Redis keep what it has acknowledged: appendfsync always and, where
// replicas take over, WAIT.
func (f *Redis) Maintain(ctx context.Context, source Source, options *MaintainOptions) error {
	return maintain(ctx, f, source, options)
}

func (f *Redis) failing() { f.counts.failures.Add(1) }

func (f *Redis) due(ctx context.Context, o MaintainOptions, w *watched) (bool, error) {
	due, err := f.isDue(ctx, o, w)
	if errors.Is(err, conn.ErrClosed) {
		return false, errClosed
	}
	return due, f.failed(err)
}

func (f *Redis) isDue(ctx context.Context, o MaintainOptions, w *watched) (bool, error) {
	d, tallied, err := f.look(ctx)
	if err != nil {
		return false, err
	}
	var left error
	if len(d.Old) > 0 { // of a rebuild that was cut off
		left = f.remove(ctx) // which is no reason not to look
	}
	w.active = d.active()
	due, err := f.isDueNow(ctx, d, tallied, o, w)
	if err == nil && !due { // else the rebuild tries again
		err = left
	}
	return due, err
}

func (f *Redis) isDueNow(ctx context.Context, d *known, tallied tally, o MaintainOptions, w *watched) (bool, error) {
	g := d.Active
	if g == nil {
		return !d.Hiding.rests(time.Now()), nil
	}
	restarted, err := f.restarted(ctx, g)
	switch {
	case err != nil:
		return false, err
	case restarted:
		w.active = ""
		return true, f.doubt(ctx, g)
	case d.Building != nil: // if its rebuild still goes on, that has the lock
		return true, nil
	case o.Every > 0 && time.Since(g.Begun) >= o.Every:
		return true, nil
	}
	notes, err := f.notesOf(ctx, g)
	if err != nil {
		return false, err
	}
	took := min(notes.count("took:"), uint64(24*time.Hour/time.Millisecond))
	age := generationAge{id: g.ID, age: time.Since(g.Begun), took: time.Duration(took) * time.Millisecond}
	s, now := f.state(&d.descriptor, tallied), f.Stats()
	if w.worn(o, age, s, now, o.next(f.capacity, f.rate, s)) {
		return true, nil
	}
	missed := now.Lost + now.LostAdds
	if missed == w.lost || age.young() {
		return false, nil
	}
	err = f.whole(ctx, g) // for keys are "lost" also while a filter is not built
	if errors.Is(err, errLost) {
		return true, nil
	}
	if err == nil {
		w.lost = missed
	}
	return false, err
}

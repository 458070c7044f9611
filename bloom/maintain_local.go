package bloom

import (
	"context"
	"time"
)

// Maintain looks after the filter until ctx ends, whose error it returns, or the filter is closed.
// It rebuilds the filter
//
//   - when there is none, or a rebuild was ended before it was through;
//   - when it was ended because it had refused a key whose row exists (Hidden);
//   - when it is older than MaintainOptions.Every;
//   - when it holds a tenth more keys than it was made for, and would be made larger
//     (RebuildOptions.Capacity);
//   - when Deleted has told of a thousand rows, and of more than half as many as it holds keys;
//   - when too many false positives are measured (MaintainOptions.MaxRate; at most once an hour).
//
// Of the last three, none when that has just been done: five times as long as it took is between
// two rebuilds, at least.
func (l *Local) Maintain(ctx context.Context, source Source, options *MaintainOptions) error {
	return maintain(ctx, l, source, options)
}

// early is when there is something to look for before the time: it must be rebuilt, or can be now,
// or is closed.
func (l *Local) early() <-chan struct{} { return l.woken }

func (l *Local) failing() { l.counts.failures.Add(1) }

func (l *Local) due(_ context.Context, o MaintainOptions, w *watched) (bool, error) {
	h := l.holds.Load()
	g := h.active
	switch {
	case l.closed.Load():
		return false, errClosed
	case g == nil && l.hiding.Load().rests(time.Now()):
		return false, nil
	case g == nil, h.unbuilt():
		return true, nil
	case o.Every > 0 && time.Since(g.begun) >= o.Every:
		return true, nil
	}
	age := generationAge{id: g.id, age: time.Since(g.begun), took: time.Duration(l.took.Load())}
	s := l.state(g)
	return w.worn(o, age, s, l.Stats(), o.next(l.capacity, l.rate, s)), nil
}

package bloom

import (
	"cmp"
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/wording"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
	"github.com/cacheaside/cacheaside/bloom/internal/fill"
)

// Rebuild reads all keys of the source into a new filter, and replaces the present one when the
// new one is complete. During the rebuild the present filter serves lookups, and Adds go to both.
// nil options are the defaults, except that Rebuild does not wait before it reads
// (RebuildOptions.Settle): all callers of Inserting are in this process, and call committed.
//
// One Rebuild runs at a time: while another runs, Rebuild returns ErrRebuilding at once.
// A Rebuild that fails leaves nothing behind, and the next one starts from the beginning. Like
// Redis.Rebuild, Rebuild calls a source that fails again, and fails with ErrFewer if the new filter
// has too few keys.
func (l *Local) Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error) {
	if !l.rebuilding.TryLock() {
		return Report{}, wording.Errorf("bloom: %w", ErrRebuilding)
	}
	defer l.rebuilding.Unlock()
	var o RebuildOptions
	if options != nil {
		o = *options
	}
	o.Settle = cmp.Or(o.Settle, -1)
	report, err := rebuild(ctx, l, source, &o)
	if err != nil {
		l.discard()
		l.counts.countRejection(err)
		return report, wording.Errorf("bloom: the rebuild: %w", err)
	}
	report.State, _ = l.State(ctx)
	return report, nil
}

// build begins a new generation.
func (l *Local) build(ctx context.Context, capacity uint64) (next fill.Generation, expected uint64, err error) {
	if l.closed.Load() {
		return nil, 0, errClosed
	}
	present, _ := l.State(ctx)
	if capacity == 0 {
		capacity = grownCapacity(l.capacity, l.rate, present)
	}
	s, err := bitmap.ShapeFor(capacity, l.rate)
	if err != nil {
		return nil, 0, err
	}
	return l.begin(l.newGeneration(bitmap.New(s), capacity, l.rate)), present.Keys, nil
}

// begin makes additions also go to g.
func (l *Local) begin(g *localGeneration) localBuilding {
	l.change(func(h *localState) { h.building = g })
	return localBuilding{l, g}
}

// localBuilding is a generation that is being filled.
type localBuilding struct {
	filter *Local
	g      *localGeneration
}

func (l localBuilding) Add(_ context.Context, keys []string) error {
	if l.filter.closed.Load() {
		return errClosed
	}
	l.g.addAll(bitmap.HashesOf(keys))
	return nil
}

func (l localBuilding) Check(ctx context.Context, allowFewer bool) error {
	if allowFewer {
		return nil
	}
	present, _ := l.filter.State(ctx)
	return checkKeyCount(present, l.g.Shape, l.g.Count())
}

// Drop ends additions to the generation.
func (l localBuilding) Drop(context.Context) error {
	l.filter.discard()
	return nil
}

// discard ends additions to the generation that is being built, if there is one.
func (l *Local) discard() {
	l.change(func(h *localState) { h.building = nil })
}

func (l localBuilding) Finish(context.Context) error {
	l.g.rebuildTime = time.Since(l.g.begun)
	l.filter.change(func(h *localState) { h.active, h.building = l.g, nil })
	return nil
}

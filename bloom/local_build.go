package bloom

import (
	"cmp"
	"context"
	"fmt"
)

// Rebuild reads all keys of the source into new bits, which take the place of the present ones when
// they are complete. Until then the present bits serve, and Adds go to both. nil options are the
// defaults, except that Rebuild does not wait before it reads (RebuildOptions.Settle): all callers of
// Admit are in this process, and call committed.
//
// One Rebuild or Load runs at a time: while another runs, Rebuild returns ErrRebuilding at once. A
// Rebuild that fails leaves nothing behind, and the next one begins anew. Rebuild asks the source
// again where it fails, or panics, behind the last key that was added; a few times, for as long as
// some seconds without a key, then Rebuild returns the source's error. The new filter is checked
// before it takes its place, as by Redis.Rebuild.
func (l *Local) Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error) {
	if !l.rebuilding.TryLock() {
		return Report{}, fmt.Errorf("bloom: %w", ErrRebuilding)
	}
	defer l.rebuilding.Unlock()
	var o RebuildOptions
	if options != nil {
		o = *options
	}
	o.Settle = cmp.Or(o.Settle, -1)
	report, err := rebuild(ctx, l, source, &o)
	if err != nil {
		l.abandon()
		l.counts.refuse(err)
		return report, fmt.Errorf("bloom: the rebuild: %w", err)
	}
	l.took.Store(int64(report.Took))
	report.State, _ = l.State(ctx)
	return report, nil
}

// abandon discards what a failed rebuild has built. Maintain builds it anew.
func (l *Local) abandon() {
	l.change(func(h *holding) bool {
		if h.building == nil {
			return false
		}
		h.building, h.abandoned = nil, true
		return true
	})
}

// build begins a new generation. It replaces one that another rebuild has left.
func (l *Local) build(ctx context.Context, capacity uint64) (next building, about uint64, err error) {
	present, _ := l.State(ctx)
	if capacity == 0 {
		capacity = grown(l.capacity, l.rate, present)
	}
	s, err := shapeFor(capacity, l.rate)
	if err != nil {
		return nil, 0, err
	}
	b := l.begin(l.newGeneration(newBitmap(s), capacity, l.rate))
	return b, present.Keys, b.current(l.holds.Load())
}

// begin makes additions go to g, too.
func (l *Local) begin(g *localGeneration) localBuilding {
	hidden := l.hiding.Load()
	l.change(func(h *holding) bool {
		h.building = g
		return true
	})
	return localBuilding{l, g, hidden.id()}
}

// localBuilding is a generation that is being filled.
type localBuilding struct {
	l      *Local
	g      *localGeneration
	hidden string // the drop that it has begun after
}

func (b localBuilding) add(_ context.Context, keys []string) error {
	if err := b.current(b.l.holds.Load()); err != nil {
		return err
	}
	b.g.addAll(hashesOf(keys))
	return nil
}

// current fails if the generation is not the one that is being built any more.
func (b localBuilding) current(h *holding) error {
	switch {
	case b.l.closed.Load():
		return errClosed
	case h.building == b.g, h.active == b.g: // the latter where another build has made the same
		return nil
	default:
		return errReplaced
	}
}

func (b localBuilding) check(ctx context.Context, allowFewer bool, listed []string) error {
	l, g := b.l, b.g
	g.listed = listed
	if !allowFewer {
		var present *estimated
		deleted := uint64(0)
		if active := l.holds.Load().active; active != nil {
			e := active.estimated(active.set.Load())
			present, deleted = &e, uint64(max(0, l.deleted.Load()-active.deletedBefore))
		}
		if err := enough(present, deleted, g.shape, g.set.Load()); err != nil {
			return err
		}
	}
	return l.checkers.accept(ctx, listed, g.holds)
}

// holds reports for each of keys whether the generation may hold it.
func (g *localGeneration) holds(_ context.Context, keys []string) ([]bool, error) {
	holds := make([]bool, len(keys))
	for i, h := range hashesOf(keys) {
		holds[i] = g.has(&h)
	}
	return holds, nil
}

// drop ends additions to the generation. Maintain does not build it anew.
func (b localBuilding) drop(context.Context) error {
	b.l.change(func(h *holding) bool {
		if h.building != b.g {
			return false
		}
		h.building, h.abandoned = nil, false
		return true
	})
	return nil
}

func (b localBuilding) finish(context.Context) (err error) {
	b.l.change(func(h *holding) bool {
		if err = b.current(h); err != nil || h.active == b.g {
			return false
		}
		if last := b.l.hiding.Load(); last.id() != b.hidden && !b.g.has(&last.Key) {
			err = errHiddenSince
			return false
		}
		*h = holding{active: b.g}
		return true
	})
	return err
}

package bloom

import (
	"context"
	"errors"
	"fmt"
)

// errMissed ends a rebuild of a shared filter: it has not heard of all that was added meanwhile.
var errMissed = errors.New("an announcement of another process was lost during the rebuild")

// Rebuild reads all keys of the source into new bits, which take the place of the present ones when
// they are complete. Until then the present bits serve, and Adds go to both. nil options are the
// defaults, but a filter that is not shared waits for nothing (RebuildOptions.Settle): all callers
// of Admit are in this process, and call committed.
//
// One rebuild runs at a time: while another does, the error is ErrRebuilding, at once. If it is
// ended, the next one begins anew. The source is asked again where it fails, or panics, behind the
// last key that was added; a few times, for as long as some seconds without a key, then its error
// is returned. That of a shared filter fails if others cannot be heard, and is begun anew, twice,
// if something was missed. The new filter is checked before it takes its place, as by
// Redis.Rebuild.
func (l *Local) Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error) {
	if !l.rebuilding.TryLock() {
		return Report{}, l.wrap(ErrRebuilding)
	}
	defer l.rebuilding.Unlock()
	var o RebuildOptions
	if options != nil {
		o = *options
	}
	if o.Settle == 0 && l.shared == nil {
		o.Settle = -1
	}
	for tries := 1; ; tries++ {
		report, err := rebuild(ctx, l, source, &o)
		if errors.Is(err, errMissed) && ctx.Err() == nil && tries < maxTries {
			continue
		}
		if err == nil {
			l.took.Store(int64(report.Took))
			report.State, _ = l.State(ctx)
		} else {
			l.abandon()
			l.counts.refuse(err)
			err = l.wrap(fmt.Errorf("the rebuild: %w", err))
		}
		return report, err
	}
}

// abandon frees what was being built: nobody goes on with it. Maintain builds it anew.
func (l *Local) abandon() {
	l.change(func(h *holding) bool {
		if h.building == nil {
			return false
		}
		h.building, h.abandoned = nil, true
		return true
	})
}

// wrap tells of which filter an error is.
func (l *Local) wrap(err error) error {
	if l.shared != nil {
		return fmt.Errorf("bloom: shared filter %s: %w", l.shared.name, err)
	}
	return fmt.Errorf("bloom: %w", err)
}

// about is how many keys there are, by what is held.
func (l *Local) about() uint64 {
	s, _ := l.State(context.Background())
	return s.Keys
}

// build has a new generation added to, in the place of one that another rebuild has left. A shared
// filter must hear first: what is announced before that is in what is read then, and what is
// announced after that is heard, or is known to have been missed.
func (l *Local) build(ctx context.Context, capacity uint64) (building, error) {
	if l.closed.Load() {
		return nil, errClosed
	}
	if capacity == 0 {
		s, _ := l.State(ctx)
		capacity = grown(l.capacity, l.rate, s)
	}
	s, err := shapeFor(capacity, l.rate)
	if err != nil {
		return nil, err
	}
	if l.shared != nil {
		if err := l.shared.hear(ctx); err != nil {
			return nil, err
		}
	}
	g := l.newGeneration(newBitmap(s), capacity, l.rate)
	hidden := l.hiding.Load()
	l.change(func(h *holding) bool {
		h.building, h.abandoned = g, false
		return true
	})
	return localBuilding{l, g, hidden.id()}, nil
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
	hashes := make([]hash, len(keys))
	for i, key := range keys {
		hashes[i] = hashOf(key)
	}
	b.g.addAll(hashes)
	return nil
}

// current tells whether it is still the one that is being built.
func (b localBuilding) current(h *holding) error {
	switch {
	case b.l.closed.Load():
		return errClosed
	case h.building == b.g, h.active == b.g: // the latter where another build has made the same
		return nil
	case h.building == nil && b.l.shared != nil:
		return errMissed
	default:
		return errReplaced
	}
}

func (b localBuilding) check(ctx context.Context, allowFewer bool, listed []string) error {
	b.g.listed = listed
	return b.l.fit(ctx, b.g, allowFewer)
}

// fit tells whether a generation may take the place of the active one.
func (l *Local) fit(ctx context.Context, g *localGeneration, allowFewer bool) error {
	if !allowFewer {
		var present *estimated
		deleted := uint64(0)
		if active := l.holds.Load().active; active != nil {
			e := active.estimated(active.set.Load())
			present, deleted = &e, uint64(max(0, l.deleted.Load()-active.deletedBefore))
		}
		set := g.set.Load()
		if err := enough(present, deleted, g.shape, set); err != nil {
			return err
		}
	}
	return l.checkers.accept(ctx, g.listed, g.holds)
}

// holds reports for each of keys whether the generation may hold it.
func (g *localGeneration) holds(_ context.Context, keys []string) ([]bool, error) {
	holds := make([]bool, len(keys))
	for i, key := range keys {
		h := hashOf(key)
		holds[i] = g.has(&h)
	}
	return holds, nil
}

// drop has nobody add to it any more.
func (b localBuilding) drop(context.Context) error {
	b.l.change(func(h *holding) bool {
		if h.building != b.g {
			return false
		}
		h.building = nil
		return true
	})
	return nil
}

func (b localBuilding) finish(context.Context) (err error) {
	b.l.change(func(h *holding) bool {
		if err = b.current(h); err != nil || h.active == b.g {
			return false
		}
		if hidden := b.l.hiding.Load(); hidden.id() != b.hidden {
			if key, ok := hidden.key(); ok && !b.g.has(&key) {
				err = errHiddenSince
				return false
			}
		}
		h.active, h.building = b.g, nil
		return true
	})
	return err
}

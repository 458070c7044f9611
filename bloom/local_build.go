package bloom

import (
	"context"
	"errors"
	"fmt"
)

// errMissed ends a rebuild of a shared filter: it has not heard of all that was added meanwhile.
var errMissed = errors.New("an announcement of another process was missed while it was being built")

// Rebuild reads all keys of the source into new bits, which take the place of the present ones when they are complete. Until then the present ones serve, and who adds adds to both. nil options are the defaults, but that a filter which is not
// shared waits for nothing (RebuildOptions.Settle): whoever has called Admit is in this process, and calls committed.
//
// One rebuild runs at a time: while another does, the error is ErrRebuilding, at once. If it is ended, the next one goes on behind the last keys that were added, as long as it is for a filter of the same size. The source is asked again where it fails, or panics, a
// few times, for as long as some seconds without a key, then its error is returned. That of a shared filter fails if others cannot be heard, and is begun anew, twice, if something was missed.
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
			err = l.wrap(fmt.Errorf("the rebuild: %w", err))
		}
		return report, err
	}
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

// build has a new generation added to, or takes up the one that another rebuild has left. A shared filter must hear first: what is announced before that is in what is read then, and
// what is announced after that is heard, or is known to have been missed.
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
	if g := l.holds.Load().building; g != nil && g.shape == s && g.capacity == capacity {
		return localBuilding{l, g}, nil
	}
	g := l.newGeneration(newBitmap(s), capacity, l.rate)
	l.change(func(h *holding) bool {
		h.building = g
		return true
	})
	return localBuilding{l, g}, nil
}

// localBuilding is a generation that is being filled.
type localBuilding struct {
	l *Local
	g *localGeneration
}

func (b localBuilding) progress() (after string, keys uint64) {
	b.g.mu.Lock()
	defer b.g.mu.Unlock()
	return b.g.after, b.g.keys
}

func (b localBuilding) save(_ context.Context, after string, keys uint64) error {
	b.g.mu.Lock()
	defer b.g.mu.Unlock()
	b.g.after, b.g.keys = after, keys
	return nil
}

func (b localBuilding) add(_ context.Context, keys []string) error {
	if err := b.check(b.l.holds.Load()); err != nil {
		return err
	}
	hashes := make([]hash, len(keys))
	for i, key := range keys {
		hashes[i] = hashOf(key)
	}
	b.g.addAll(hashes)
	return nil
}

// check tells whether it is still the one that is being built.
func (b localBuilding) check(h *holding) error {
	switch {
	case b.l.closed.Load():
		return errClosed
	case h.building == b.g, h.active == b.g: // the latter by another who has built the same
		return nil
	case h.building == nil && b.l.shared != nil:
		return errMissed
	default:
		return errReplaced
	}
}

func (b localBuilding) finish(context.Context) (err error) {
	b.l.change(func(h *holding) bool {
		if err = b.check(h); err != nil || h.active == b.g {
			return false
		}
		h.active, h.building = b.g, nil
		return true
	})
	return err
}

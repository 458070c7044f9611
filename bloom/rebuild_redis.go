package bloom

import (
	"context"
	"errors"
	"fmt"

	"github.com/cacheaside/cacheaside/lock"
)

// maxTries is how often a rebuild is begun anew, where Redis loses what it builds.
const maxTries = 3

// Rebuild reads all keys of the source into a new filter, which takes the place of the present one
// when it is complete: the first time, when the filter was lost, to forget the keys of deleted
// rows, or to make it larger. Until then the present filter serves, and Adds go to both. Rebuild
// returns when the new filter is in place and the one that it has replaced is removed. nil options
// are the defaults.
//
// One process rebuilds at a time: while another does, Rebuild returns ErrRebuilding at once. Where
// the source fails or panics, or Redis fails, Rebuild asks the source again for what is behind the
// last key that was added. After some seconds without a key it returns the error, with the number
// of keys that were added. The error of a source that has yielded no key is returned at once. Where
// Redis loses a part of the new filter, Rebuild begins anew, twice. If Rebuild is ended, by ctx, an
// error or SIGKILL, the next Rebuild begins anew.
//
// Before it takes its place, the new filter is checked: it must have nine tenths of the keys of the
// present one (ErrFewer, RebuildOptions.AllowFewer), and those of all rows that loaders of this
// process have read (ErrHides). If it lacks them, it is removed, and the present filter serves on.
//
// Memory: up to 262,144 keys at once here, or 8 MB of them, about 30 MB in all; and a second filter
// in Redis.
func (f *Redis) Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error) {
	for tries := 1; ; tries++ {
		report, err := f.rebuild(ctx, source, options)
		again := errors.Is(err, errLost) || errors.Is(err, errReplaced) || errors.Is(err, lock.ErrLost)
		if ctx.Err() == nil && again && tries < maxTries {
			continue
		}
		if err != nil {
			f.counts.refuse(err)
			err = fmt.Errorf("bloom: filter %s: the rebuild: %w", f.name, err)
		}
		return report, err
	}
}

func (f *Redis) rebuild(ctx context.Context, source Source, options *RebuildOptions) (report Report, err error) {
	err = f.underLock(ctx, func(ctx context.Context) error {
		if err := f.stillDue(ctx, options); err != nil {
			return err
		}
		if report, err = rebuild(ctx, f, source, options); err != nil {
			return err
		}
		report.State, _ = f.State(ctx)
		return nil
	})
	return report, err
}

// stillDue fails if the generation that serves is not the one that a schedule found to be due:
// another process may have rebuilt the filter since.
func (f *Redis) stillDue(ctx context.Context, options *RebuildOptions) error {
	if options == nil || options.instead == nil {
		return nil
	}
	d, err := f.fetch(ctx, f.allTries())
	if err == nil && d.active() != *options.instead {
		err = ErrRebuilding
	}
	return err
}

// build begins a new generation in Redis.
func (f *Redis) build(ctx context.Context, capacity uint64) (next building, about uint64, err error) {
	if err := f.knowPast(ctx); err != nil {
		return nil, 0, err
	}
	_ = f.remove(ctx) // what others have left; if it fails that is tried again at the end
	s, err := f.State(ctx)
	if err != nil {
		return nil, 0, err
	}
	if capacity == 0 {
		capacity = grown(f.capacity, f.rate, s)
	}
	g, err := f.begin(ctx, capacity)
	if err != nil {
		return nil, 0, err
	}
	return &redisBuilding{f, g}, s.Keys, f.prepare(ctx, g)
}

// redisBuilding is a generation that this process fills.
type redisBuilding struct {
	f *Redis
	g *generation
}

// add writes keys to this generation only. It announces nothing, because no lookup asks this
// generation.
func (r *redisBuilding) add(ctx context.Context, keys []string) error {
	missing, err := r.f.fill(ctx, r.g, hashesOf(keys), true)
	if err == nil && missing > 0 {
		return r.lost(ctx)
	}
	return err
}

// check compares the generation with the active one by their bits.
func (r *redisBuilding) check(ctx context.Context, allowFewer bool, listed []string) error {
	set, err := r.intact(ctx)
	if err != nil {
		return err
	}
	if !allowFewer {
		if err := r.enough(ctx, set); err != nil {
			return err
		}
	}
	if err := r.f.checkers.accept(ctx, listed, r.holds); err != nil {
		return err
	}
	r.g.Listed = make([][]byte, len(listed)) // a key need not be UTF-8
	for i, key := range listed {
		r.g.Listed[i] = []byte(key)
	}
	return nil
}

// intact makes sure that nothing of the generation was lost: it would seem to have too few keys. It
// returns how many bits are set.
func (r *redisBuilding) intact(ctx context.Context) (set uint64, err error) {
	restarted, err := r.f.restarted(ctx, r.g)
	missing := uint64(0)
	if err == nil && !restarted {
		set, missing, err = r.f.count(ctx, r.g)
	}
	if restarted || missing > 0 {
		return 0, r.lost(ctx)
	}
	return set, err
}

// enough fails with ErrFewer if so many bits are of too few keys.
func (r *redisBuilding) enough(ctx context.Context, set uint64) error {
	s, err := r.f.State(ctx)
	if err != nil {
		return err
	}
	return enough(s, r.g.shape(), set)
}

// holds reports for each of keys whether this generation may hold it. finish finds out if another
// has taken its place.
func (r *redisBuilding) holds(ctx context.Context, keys []string) ([]bool, error) {
	return r.f.holds(ctx, r.g, hashesOf(keys))
}

// drop has nobody add to it any more, and removes it.
func (r *redisBuilding) drop(ctx context.Context) error {
	return errors.Join(r.f.dropBuilding(ctx, r.g), r.f.remove(ctx))
}

// lost ends a build whose segments are not whole.
func (r *redisBuilding) lost(ctx context.Context) error {
	return errors.Join(errLost, r.f.dropBuilding(ctx, r.g))
}

func (r *redisBuilding) finish(ctx context.Context) error {
	if _, err := r.intact(ctx); err != nil {
		return err
	}
	if err := r.f.activate(ctx, r.g); err != nil {
		return err
	}
	return r.f.remove(ctx)
}

// CheckRebuilt makes Rebuild call check with each filter that it builds in this process, before the
// filter takes its place. If check returns more than 0, the Rebuild fails with ErrHides; if check
// itself fails, it is tried again. Hidden calls check with the filter that serves. A
// cacheaside.Loader calls CheckRebuilt by itself, for the rows that its loads return. remove ends
// these calls, and may be called again.
func (f *Redis) CheckRebuilt(check Check) (remove func()) {
	return f.checkers.add(check)
}

// underLock calls work, unless it is being done elsewhere: then it is ErrRebuilding. work's context
// ends when the lock is lost, with lock.ErrLost.
func (f *Redis) underLock(ctx context.Context, work func(context.Context) error) error {
	_, name := f.lockName()
	lease, err := f.locker.TryAcquire(ctx, name, nil)
	switch {
	case errors.Is(err, lock.ErrHeld):
		return ErrRebuilding
	case errors.Is(err, lock.ErrClosed):
		return errClosed
	case err != nil:
		return err
	}
	defer lease.Release() //nolint:errcheck // if it was lost, the descriptor has kept the two apart
	err = work(lease.Context())
	switch cause := context.Cause(lease.Context()); {
	case err == nil || ctx.Err() != nil || cause == nil:
		return err
	case errors.Is(cause, lock.ErrReleased): // by Close
		return errClosed
	default:
		return cause
	}
}

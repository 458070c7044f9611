package bloom

import (
	"context"
	"errors"
	"fmt"

	"github.com/cacheaside/cacheaside/lock"
)

// maxTries is how often a rebuild is begun anew, where Redis loses what it builds.
const maxRebuilds = 3

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
func (r *Redis) Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error) {
	for tries := 1; ; tries++ {
		report, err := r.rebuild(ctx, source, options)
		again := errors.Is(err, errLost) || errors.Is(err, errReplaced) || errors.Is(err, lock.ErrLost)
		if ctx.Err() == nil && again && tries < maxRebuilds {
			continue
		}
		if err != nil {
			r.counts.countRefusal(err)
			err = fmt.Errorf("bloom: filter %s: the rebuild: %w", r.name, err)
		}
		return report, err
	}
}

func (r *Redis) rebuild(ctx context.Context, source Source, options *RebuildOptions) (report Report, err error) {
	err = r.underLock(ctx, func(ctx context.Context) error {
		if err := r.stillDue(ctx, options); err != nil {
			return err
		}
		if report, err = rebuild(ctx, r, source, options); err != nil {
			return err
		}
		report.State, _ = r.State(ctx)
		return nil
	})
	return report, err
}

// stillDue fails if the generation that serves is not the one that a schedule found to be due:
// another process may have rebuilt the filter since.
func (r *Redis) stillDue(ctx context.Context, options *RebuildOptions) error {
	if options == nil || options.replaces == nil {
		return nil
	}
	d, err := r.fetchDescriptor(ctx, r.longTimeout())
	if err == nil && d.activeID() != *options.replaces {
		err = ErrRebuilding
	}
	return err
}

// build begins a new generation in Redis.
func (r *Redis) build(ctx context.Context, capacity uint64) (next building, about uint64, err error) {
	if err := r.handleRollback(ctx); err != nil {
		return nil, 0, err
	}
	_ = r.remove(ctx) // what others have left; if it fails that is tried again at the end
	s, err := r.State(ctx)
	if err != nil {
		return nil, 0, err
	}
	if capacity == 0 {
		capacity = grownCapacity(r.capacity, r.rate, s)
	}
	g, err := r.begin(ctx, capacity)
	if err != nil {
		return nil, 0, err
	}
	return &redisBuilding{r, g}, s.Keys, r.prepare(ctx, g)
}

// redisBuilding is a generation that this process fills.
type redisBuilding struct {
	filter *Redis
	g      *generation
}

// add writes keys to this generation only. It announces nothing, because no lookup asks this
// generation.
func (r *redisBuilding) add(ctx context.Context, keys []string) error {
	missing, err := r.filter.fill(ctx, r.g, hashesOf(keys), true)
	if err == nil && missing > 0 {
		return r.abandon(ctx)
	}
	return err
}

// check compares the generation with the active one by their bits.
func (r *redisBuilding) check(ctx context.Context, allowFewer bool, sampledKeys []string) error {
	set, err := r.checkIntact(ctx)
	if err != nil {
		return err
	}
	if !allowFewer {
		if err := r.checkKeyCount(ctx, set); err != nil {
			return err
		}
	}
	if err := r.filter.checkers.accept(ctx, sampledKeys, r.holds); err != nil {
		return err
	}
	r.g.SampledKeys = make([][]byte, len(sampledKeys)) // a key need not be UTF-8
	for i, key := range sampledKeys {
		r.g.SampledKeys[i] = []byte(key)
	}
	return nil
}

// intact makes sure that nothing of the generation was lost: it would seem to have too few keys. It
// returns how many bits are set.
func (r *redisBuilding) checkIntact(ctx context.Context) (set uint64, err error) {
	restarted, err := r.filter.restarted(ctx, r.g)
	missing := uint64(0)
	if err == nil && !restarted {
		set, missing, err = r.filter.count(ctx, r.g)
	}
	if restarted || missing > 0 {
		return 0, r.abandon(ctx)
	}
	return set, err
}

// enough fails with ErrFewer if so many bits are of too few keys.
func (r *redisBuilding) checkKeyCount(ctx context.Context, set uint64) error {
	s, err := r.filter.State(ctx)
	if err != nil {
		return err
	}
	return checkKeyCount(s, r.g.shape(), set)
}

// holds reports for each of keys whether this generation may hold it. finish finds out if another
// has taken its place.
func (r *redisBuilding) holds(ctx context.Context, keys []string) ([]bool, error) {
	return r.filter.holds(ctx, r.g, hashesOf(keys))
}

// drop has nobody add to it any more, and removes it.
func (r *redisBuilding) drop(ctx context.Context) error {
	return errors.Join(r.filter.dropBuilding(ctx, r.g), r.filter.remove(ctx))
}

// lost ends a build whose segments are not whole.
func (r *redisBuilding) abandon(ctx context.Context) error {
	return errors.Join(errLost, r.filter.dropBuilding(ctx, r.g))
}

func (r *redisBuilding) finish(ctx context.Context) error {
	if _, err := r.checkIntact(ctx); err != nil {
		return err
	}
	if err := r.filter.activate(ctx, r.g); err != nil {
		return err
	}
	return r.filter.remove(ctx)
}

// CheckRebuilt makes Rebuild call check with each filter that it builds in this process, before the
// filter takes its place. If check returns more than 0, the Rebuild fails with ErrHides; if check
// itself fails, it is tried again. Hidden calls check with the filter that serves. A
// cacheaside.Loader calls CheckRebuilt by itself, for the rows that its loads return. remove ends
// these calls, and may be called again.
func (r *Redis) CheckRebuilt(check Check) (remove func()) {
	return r.checkers.add(check)
}

// underLock calls work, unless it is being done elsewhere: then it is ErrRebuilding. work's context
// ends when the lock is lost, with lock.ErrLost.
func (r *Redis) underLock(ctx context.Context, work func(context.Context) error) error {
	_, name := r.lockName()
	lease, err := r.locker.TryAcquire(ctx, name, nil)
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

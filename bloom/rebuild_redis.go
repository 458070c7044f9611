package bloom

import (
	"context"
	"errors"

	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/lock"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
	"github.com/cacheaside/cacheaside/bloom/internal/fill"
)

// maxRebuilds is the maximum number of generations that one Rebuild begins because Redis loses
// them.
const maxRebuilds = 3

// Rebuild reads all keys of the source into a new filter, and replaces the present one when the
// new one is complete. A rebuild builds the filter for the first time or after a loss, removes
// the keys of deleted rows, or increases the capacity. During the rebuild the present filter
// serves lookups, and Adds go to both. Rebuild returns when the new filter is in place and the
// old one is removed. nil options are the defaults.
//
// One process rebuilds at a time. While another does, Rebuild returns ErrRebuilding at once. If
// the source fails or panics, or if Redis fails, Rebuild calls the source again with the last key
// that it has added. If no key is added for some seconds, it returns the error with the number of
// keys added. It returns the error of a source that has yielded no key at once. If Redis loses a
// part of the new filter, Rebuild begins again, at most twice. If Rebuild is interrupted by ctx,
// an error or SIGKILL, the next Rebuild starts from the beginning.
//
// Before the new filter replaces the present one, their numbers of keys are compared. The new
// filter must have nine tenths of the keys of the present one. Otherwise Rebuild fails with
// ErrFewer, removes the new filter, and the present one continues to serve. See
// RebuildOptions.AllowFewer.
//
// Memory: in this process up to 262,144 keys at a time, or 8 MB of them, about 30 MB in all; in
// Redis a second filter.
func (r *Redis) Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error) {
	for tries := 1; ; tries++ {
		report, err := r.rebuild(ctx, source, options)
		again := errors.Is(err, errLost) || errors.Is(err, errReplaced) || errors.Is(err, lock.ErrLost)
		if ctx.Err() == nil && again && tries < maxRebuilds {
			continue
		}
		if err != nil {
			r.counts.countRejection(err)
			err = wording.Errorf("bloom: filter %s: the rebuild: %w", r.name, err)
		}
		return report, err
	}
}

func (r *Redis) rebuild(ctx context.Context, source Source, options *RebuildOptions) (report Report, err error) {
	err = r.underLock(ctx, func(ctx context.Context) error {
		if err := r.stillDue(ctx, options); err != nil {
			return err
		}
		if options != nil && options.AllowForeign {
			r.identity.replaced.Store(true)
			defer r.identity.replaced.Store(false)
		}
		if err := r.identify(ctx, source); errors.Is(err, ErrForeign) {
			return err // other errors of the source fail the rebuild, which may repeat them
		}
		if report, err = rebuild(r.identified(ctx), r, source, options); err != nil {
			return err
		}
		report.State, _ = r.State(ctx)
		return nil
	})
	return report, err
}

// stillDue returns ErrRebuilding if the active generation is not the one that Maintain found to
// be due, because another process has rebuilt the filter since.
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
func (r *Redis) build(ctx context.Context, capacity uint64) (next fill.Generation, expected uint64, err error) {
	if err := r.handleRollback(ctx); err != nil {
		return nil, 0, err
	}
	_ = r.remove(ctx) // generations that others have left; finish tries again if this fails
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

// redisBuilding is a generation in Redis that this process fills.
type redisBuilding struct {
	filter *Redis
	g      *generation
}

// Add writes keys to this generation only. It announces nothing, because no lookup uses this
// generation.
func (r *redisBuilding) Add(ctx context.Context, keys []string) error {
	missing, err := r.filter.fill(ctx, r.g, bitmap.HashesOf(keys), true)
	if err == nil && missing > 0 {
		return r.abandon(ctx)
	}
	return err
}

// Check compares the generation with the active one, by the number of bits that are set.
func (r *redisBuilding) Check(ctx context.Context, allowFewer bool) error {
	set, err := r.checkIntact(ctx)
	if err != nil || allowFewer {
		return err
	}
	return r.checkKeyCount(ctx, set)
}

// checkIntact fails with errLost if Redis has lost a part of the generation, which would then
// appear to have too few keys. It returns the number of bits that are set.
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

// checkKeyCount fails with ErrFewer if this number of set bits means too few keys.
func (r *redisBuilding) checkKeyCount(ctx context.Context, set uint64) error {
	s, err := r.filter.State(ctx)
	if err != nil {
		return err
	}
	return checkKeyCount(s, r.g.shape(), set)
}

// Drop ends additions to the generation, and removes it.
func (r *redisBuilding) Drop(ctx context.Context) error {
	return errors.Join(r.filter.dropBuilding(ctx, r.g), r.filter.remove(ctx))
}

// abandon ends the build of a generation that has lost segments.
func (r *redisBuilding) abandon(ctx context.Context) error {
	return errors.Join(errLost, r.filter.dropBuilding(ctx, r.g))
}

func (r *redisBuilding) Finish(ctx context.Context) error {
	if _, err := r.checkIntact(ctx); err != nil {
		return err
	}
	if err := r.filter.activate(ctx, r.g); err != nil {
		return err
	}
	return r.filter.remove(ctx)
}

// underLock calls work while it holds the lock of the rebuild. It returns ErrRebuilding if
// another process or call holds the lock. If the lock is lost, work's context ends with the cause
// lock.ErrLost.
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
	defer lease.Release() //nolint:errcheck // if the lock was lost, the descriptor has kept the rebuilds apart
	err = work(lease.Context())
	switch cause := context.Cause(lease.Context()); {
	case err == nil || ctx.Err() != nil || cause == nil:
		return err
	case errors.Is(cause, lock.ErrReleased): // released by Close
		return errClosed
	default:
		return cause
	}
}

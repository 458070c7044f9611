package bloom

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cacheaside/cacheaside/lock"
)

// maxTries is how often a rebuild is begun anew, where Redis loses what it builds.
const maxTries = 3

// Rebuild reads all keys of the source into a new filter, which takes the place of the present one when it is complete: the first time, when the filter was lost, to forget the keys of deleted
// rows, or to make it larger. Until then the present one serves, and who adds adds to both. It returns when that is done and what was replaced is removed; nil options are the defaults.
//
// One process rebuilds at a time: where another does, the error is ErrRebuilding, at once. If it is ended, by ctx, an error or SIGKILL, the next Rebuild, in any process, goes on behind the last keys that were saved, as long as it
// is for a filter of the same size. The source is asked again where it fails, or panics, a few times, for as long as some seconds without a key, then its error is returned, with how many keys were added;
// so is Redis. Where Redis loses a part of what is being built, it is begun anew, twice.
//
// Memory: up to 262,144 keys at once here, or 8 MB of them, about 30 MB in all; and a second filter in Redis.
func (f *Redis) Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error) {
	for tries := 1; ; tries++ {
		report, err := f.rebuild(ctx, source, options)
		again := errors.Is(err, errLost) || errors.Is(err, errReplaced) || errors.Is(err, lock.ErrLost)
		if ctx.Err() == nil && again && tries < maxTries {
			continue
		}
		if err != nil {
			err = fmt.Errorf("bloom: filter %s: the rebuild: %w", f.name, err)
		}
		return report, err
	}
}

func (f *Redis) rebuild(ctx context.Context, source Source, options *RebuildOptions) (report Report, err error) {
	err = f.alone(ctx, func(ctx context.Context) error {
		t := &redisTarget{f: f}
		if report, err = rebuild(ctx, t, source, options); err != nil {
			return err
		}
		_ = f.saved(ctx, t.g, 0, "took:", report.Took.Milliseconds()) // for a schedule only
		if d, tallied, err := f.look(ctx); err == nil {
			report.State = f.state(&d.descriptor, tallied)
			f.filled(d, tallied)
		}
		return nil
	})
	return report, err
}

// redisTarget is a filter in Redis that is being rebuilt.
type redisTarget struct {
	f     *Redis
	g     *generation
	holds uint64 // keys, in the generation that is replaced
}

func (t *redisTarget) about() uint64 { return t.holds }

func (t *redisTarget) build(ctx context.Context, capacity uint64) (building, error) {
	f := t.f
	_ = f.remove(ctx) // what others have left; if it fails that is tried again at the end
	d, tallied, err := f.look(ctx)
	if err != nil {
		return nil, err
	}
	s := f.state(&d.descriptor, tallied)
	t.holds = s.Keys
	if capacity == 0 {
		capacity = grown(f.capacity, f.rate, s)
	}
	b := &redisBuilding{f: f, rows: tallied.count("deleted")}
	if g := d.Building; g != nil && f.fits(g, capacity) {
		if err := f.whole(ctx, g); err == nil {
			t.g, b.g = g, g
			return b, f.resume(ctx, b)
		} else if !errors.Is(err, errLost) {
			return nil, err
		}
	}
	if b.g, err = f.begin(ctx, capacity); err != nil {
		return nil, err
	}
	t.g = b.g
	if err := f.remember(ctx, b.g, b.rows); err != nil {
		return nil, err
	}
	return b, f.prepare(ctx, b.g)
}

// fits tells whether a generation that was begun is what would be begun now.
func (f *Redis) fits(g *generation, capacity uint64) bool {
	s, err := shapeFor(capacity, f.rate)
	return err == nil && g.Ready && g.shape() == s && g.Capacity == capacity && g.Rate == f.rate
}

// grown is the capacity of the next generation of a filter for so many: doubled, so that it stays the same while rows come.
func grown(capacity uint64, rate float64, s State) uint64 {
	if s.Keys <= capacity {
		return capacity
	}
	keys := min(s.Keys, 32*max(s.Capacity, 1)) // no more can be told by bits that are all set
	for capacity < keys+keys/4 && capacity < math.MaxUint64/2 {
		if _, err := shapeFor(2*capacity, rate); err != nil {
			break
		}
		capacity *= 2
	}
	return capacity
}

// redisBuilding is a generation that this process fills.
type redisBuilding struct {
	f     *Redis
	g     *generation
	after string
	keys  uint64
	rows  uint64 // that had been deleted when it was begun
	set   uint64 // bits that were not counted yet
}

func (b *redisBuilding) progress() (after string, keys uint64) { return b.after, b.keys }

// add writes keys to this generation only. Nobody is told of them, for nobody asks it.
func (b *redisBuilding) add(ctx context.Context, keys []string) error {
	hashes := make([]hash, len(keys))
	for i, key := range keys {
		hashes[i] = hashOf(key)
	}
	set, missing, err := b.f.fill(ctx, b.g, hashes, true)
	b.set += set
	if err == nil && missing > 0 {
		return b.lost(ctx)
	}
	return err
}

// lost has nobody take up what is not whole.
func (b *redisBuilding) lost(ctx context.Context) error {
	return errors.Join(errLost, b.f.dropBuilding(ctx, b.g))
}

func (b *redisBuilding) finish(ctx context.Context) error {
	if restarted, err := b.f.restarted(ctx, b.g); err != nil {
		return err
	} else if restarted {
		return b.lost(ctx)
	}
	if err := b.f.activate(ctx, b.g); err != nil {
		if errors.Is(err, errLost) {
			return b.lost(ctx)
		}
		return err
	}
	b.f.discount(ctx, b.rows)
	b.rows = 0
	return b.f.remove(ctx)
}

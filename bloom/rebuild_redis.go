package bloom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
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
// One process rebuilds at a time: where another does, the error is ErrRebuilding, at once. The
// source is asked again where it fails, or panics, from behind the last key that was added: a few
// times, for some seconds without a key. Then its error is returned, with how many keys were added.
// So it is with Redis. Where Redis loses a part of the new filter, Rebuild begins anew, twice. If
// Rebuild is ended, by ctx, an error or SIGKILL, the next Rebuild begins anew: nobody could tell
// what has become of the rows before the last key meanwhile.
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
		if d, tallied, err := f.look(ctx); err == nil {
			report.State = f.state(&d.descriptor, tallied)
			f.filled(d, tallied)
		}
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
	d, tallied, err := f.look(ctx)
	if err != nil {
		return nil, 0, err
	}
	s := f.state(&d.descriptor, tallied)
	if capacity == 0 {
		capacity = grown(f.capacity, f.rate, s)
	}
	b := &redisBuilding{f: f, rows: tallied.count("deleted")}
	if b.g, err = f.begin(ctx, capacity); err != nil {
		return nil, 0, err
	}
	if err := f.remember(ctx, b.g, b.rows); err != nil {
		return nil, 0, err
	}
	return b, s.Keys, f.prepare(ctx, b.g)
}

// redisBuilding is a generation that this process fills.
type redisBuilding struct {
	f    *Redis
	g    *generation
	rows uint64 // that had been deleted when it was begun
	set  uint64 // bits that were not counted yet
}

// add writes keys to this generation only, and counts the bits. Nobody is told of them, for nobody
// asks it.
func (b *redisBuilding) add(ctx context.Context, keys []string) error {
	hashes := hashesOf(keys)
	set, missing, err := b.f.fill(ctx, b.g, hashes, true)
	b.set += set
	if err == nil && missing > 0 {
		return b.lost(ctx)
	}
	if err != nil {
		return err
	}
	err = b.f.note(ctx, b.g, b.set)
	if err == nil {
		b.set = 0
	}
	return err
}

// check compares the generation with the active one by their bits, as Redis holds them: what is
// tallied of them may be lost, or miss what was set by commands whose answers were.
func (b *redisBuilding) check(ctx context.Context, allowFewer bool, listed []string) error {
	if err := b.intact(ctx); err != nil {
		return err
	}
	if !allowFewer {
		if err := b.enough(ctx); err != nil {
			return err
		}
	}
	if err := b.f.checkers.accept(ctx, listed, b.holds); err != nil {
		return err
	}
	raw := make([][]byte, len(listed)) // a key need not be UTF-8
	for i, key := range listed {
		raw[i] = []byte(key)
	}
	text, err := json.Marshal(raw)
	if err != nil {
		return err
	}
	return b.f.note(ctx, b.g, 0, noteListed, string(text))
}

// intact makes sure that nothing was lost of the generation: it would seem to have too few keys.
func (b *redisBuilding) intact(ctx context.Context) error {
	restarted, err := b.f.restarted(ctx, b.g)
	if err == nil && !restarted {
		err = b.f.whole(ctx, b.g)
	}
	if restarted || errors.Is(err, errLost) {
		return b.lost(ctx)
	}
	return err
}

func (b *redisBuilding) enough(ctx context.Context) error {
	d, tallied, err := b.f.look(ctx)
	if err != nil {
		return err
	}
	set, err := b.f.bitsOf(ctx, b.g)
	if err != nil {
		return err
	}
	var present *estimated
	if g := d.Active; g != nil {
		bits, err := b.f.bitsOf(ctx, g)
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") { // in the place of a segment: it cannot be compared
			return err
		}
		e := g.shape().estimated(bits)
		present = &e
	}
	return enough(present, tallied.count("deleted"), b.g.shape(), set)
}

// holds reports for each of keys whether this generation may hold it. finish finds out if another
// has taken its place.
func (b *redisBuilding) holds(ctx context.Context, keys []string) ([]bool, error) {
	return b.f.holds(ctx, b.g, hashesOf(keys))
}

// drop has nobody add to it any more, and removes it.
func (b *redisBuilding) drop(ctx context.Context) error {
	return errors.Join(b.f.dropBuilding(ctx, b.g), b.f.remove(ctx))
}

// countedAtOnce is about how many bytes of segments are counted by one trip: a quarter of a
// millisecond of a server's time.
const countedAtOnce = 1 << 20

// bitsOf counts the bits that are set in a generation. Segments that are lost have none. The range
// ends before the tag: it is empty in a segment without bits.
func (f *Redis) bitsOf(ctx context.Context, g *generation) (set uint64, err error) {
	step := min(max(1, countedAtOnce/(g.Bits/8)), conn.MaxPipeline)
	for from := uint64(0); from < g.Segments; from += step {
		var cmds []redis.Cmder
		for s := from; s < min(from+step, g.Segments); s++ {
			cmds = append(cmds, redis.NewIntCmd(ctx, "bitcount", segmentKey(f.options.Prefix, f.name, g.ID, s), headerBytes, -1-tagBytes))
		}
		bounded, cancel := context.WithTimeout(ctx, f.allTries())
		err := send(bounded, f.conn, cmds)
		cancel()
		if err != nil {
			return 0, err
		}
		for _, cmd := range cmds {
			set += uint64(cmd.(*redis.IntCmd).Val())
		}
	}
	return set, nil
}

// lost ends a build whose segments are not whole.
func (b *redisBuilding) lost(ctx context.Context) error {
	return errors.Join(errLost, b.f.dropBuilding(ctx, b.g))
}

func (b *redisBuilding) finish(ctx context.Context) error {
	if err := b.intact(ctx); err != nil {
		return err
	}
	if err := b.f.activate(ctx, b.g); err != nil {
		return err
	}
	b.f.discount(ctx, b.rows)
	b.rows = 0
	_ = b.f.note(ctx, b.g, 0, "took:", time.Since(b.g.Begun).Milliseconds()) // for a schedule only
	return b.f.remove(ctx)
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

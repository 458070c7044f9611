package cacheaside

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/cacheaside/cacheaside/internal/hold"
)

// Hold keeps keys from being cached while their rows are being written (Options.StrictWrites): from
// when Cache.Hold has returned until Release, no process serves anything of them from Redis, or
// stores it there; reads load from the database, shared within a process only. (The memory tier of
// another process may serve what it has for as long as after an Invalidate.) A Hold renews itself.
// Hold rows before their transaction commits, call Check just before the commit, and Release when
// the transaction is over, whatever its outcome. A process that is killed holds its keys for
// Options.LeaseTTL more at the most.
//
// Holds do not exclude each other: any number of writers may hold a key. Package consistency does
// all of this by itself. A Hold is safe for concurrent use.
type Hold struct {
	cache *Cache
	held  *hold.Hold
}

var (
	errNotStrict = errors.New("cacheaside: Cache.Hold needs Options.StrictWrites, in all processes")
	errHeldAll   = errors.New("all keys of a loader cannot be held")
)

// Hold puts keys on hold. Keys of whole loaders cannot be held. If it returns an error (with
// Options.StrictWrites a *BatchError[Key]), nothing is on hold (or only for Options.LeaseTTL, where
// Redis did not answer). Hold ends with ctx, and has a time-out as Invalidate has. It may be called
// again and again; it announces the keys as an Invalidate does.
func (c *Cache) Hold(ctx context.Context, keys ...Key) (*Hold, error) {
	if !c.options.StrictWrites {
		return nil, errNotStrict
	}
	h := &Hold{cache: c, held: hold.New(c.forHolds())}
	if err := h.Add(ctx, keys...); err != nil {
		return nil, err
	}
	return h, nil
}

// Add holds more keys. If it returns an error, none of them is held, and those from before are as
// they were.
func (h *Hold) Add(ctx context.Context, keys ...Key) error {
	accepted, failed := h.cache.accept("hold", keys)
	for _, k := range accepted {
		if k.All {
			failed.add("hold", k, errHeldAll)
		}
	}
	if len(failed) > 0 {
		return failed.err()
	}
	notHeld, err := h.held.Add(ctx, h.cache.keysToHold(accepted))
	if err != nil {
		return err
	}
	return holdErrors(notHeld).err()
}

// Check asks Redis whether all keys have been on hold all the time, and holds them for another
// life. If one was not, the error is ErrHoldLost: do not commit then, for values read meanwhile may
// have been stored. If Redis does not answer, the error is ErrRedis: do not commit then, either.
// Check is one trip, and ends with ctx, and with Options.RedisTimeout.
func (h *Hold) Check(ctx context.Context) error {
	if h.cache.isClosed() {
		return fmt.Errorf("cacheaside: check of a hold: %w", ErrClosed)
	}
	lost, err := h.held.Check(ctx)
	if err != nil {
		return err
	}
	return holdErrors(lost).err()
}

// Release invalidates the keys as InvalidateKeys does, and then ends the hold. Its error is that of
// InvalidateKeys; after an error call Release again, or InvalidateKeys. A key that cannot be
// released stays on hold until the hold's end, and is counted (Stats.HoldsLeft).
func (h *Hold) Release(ctx context.Context) error {
	held := h.held.End()
	keys := keysOf(held)
	accepted, failed := h.cache.accept("release", keys)
	if len(accepted) == 0 {
		return failed.err()
	}
	for i, err := range h.held.Release(ctx, held) {
		failed.add("release", keys[i], err)
	}
	return failed.err()
}

// Abandon ends the renewal, and leaves the keys on hold until the hold's end: for a transaction of
// which nobody knows whether it will yet be committed. Abandon does no I/O.
func (h *Hold) Abandon() { h.held.Abandon() }

// forHolds is the cache as package hold has it.
func (c *Cache) forHolds() *hold.Cache {
	return &hold.Cache{
		Store: c.store, Conn: c.conn, Bus: c.bus, InProcess: c.holds, LeaseTTL: c.options.LeaseTTL, Left: &c.counts.holdsLeft,
		Forget: func(k *hold.Key) { c.forget(k.As.(Key), k.Hash) },
		Lost: func() {
			c.counts.holdsLost.Add(1)
			c.log.Warn("a hold was lost", "", nil)
		},
		Failed: func(loader string) {
			if l := c.known(loader); l != nil {
				l.Counts().Fetch.RedisErrors.Add(1)
			}
		},
		Invalidate: func(keys []*hold.Key, send func(names []string, hashes []uint64) []error) []error {
			return c.changeSingle(keysOf(keys), send)
		},
		Delete: func(ctx context.Context, hashes []uint64) []error { return c.delete(ctx, nil, hashes) },
	}
}

// keysToHold are keys as package hold has them.
func (c *Cache) keysToHold(keys []Key) []*hold.Key {
	names, hashes := c.named(keys)
	held := make([]*hold.Key, len(keys))
	for i, k := range keys {
		held[i] = &hold.Key{ID: k.versioned(), As: k, Loader: k.Loader, Name: names[i], Hash: hashes[i]}
		if l := c.known(k.Loader); l != nil && c.conn != nil {
			held[i].Since = l.Generation(names[i])
		}
	}
	return held
}

func keysOf(held []*hold.Key) []Key {
	keys := make([]Key, len(held))
	for i, k := range held {
		keys[i] = k.As.(Key)
	}
	return keys
}

func holdErrors(failed []hold.Failure) keyErrors {
	errs := make(keyErrors)
	for _, f := range failed {
		err := f.Err
		if !errors.Is(err, ErrHoldLost) {
			err = redisError(err)
		}
		errs.add("hold", f.Key.As.(Key), err)
	}
	return errs
}

// versioned is k with its Version written out, and no more than names it.
func (k Key) versioned() Key {
	k.existing = false
	k.Version = cmp.Or(k.Version, "1")
	return k
}

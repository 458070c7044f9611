package cacheaside

import (
	"cmp"
	"context"
	"errors"

	"github.com/cacheaside/cacheaside/internal/hold"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// A Hold keeps keys from being cached while their rows are written (Options.StrictWrites). From
// the return of Cache.Hold until Invalidate, no process serves values of these keys from Redis, or
// stores them there. Reads load from the database, and share loads only within a process. (The
// memory tier of another process may serve its value for as long as after an Invalidate.)
//
// Hold rows before their transaction commits. Call Check immediately before the commit, and
// Invalidate after the transaction has ended, with any outcome. The Hold is renewed automatically
// until then. If its process is killed, the keys stay on hold for at most Options.LeaseTTL.
//
// Holds do not exclude each other: several writers may hold a key. Package consistency makes all
// these calls. A Hold is safe for concurrent use.
type Hold struct {
	cache *Cache
	held  *hold.Hold
}

var (
	errNotStrict = errors.New("cacheaside: Cache.Hold needs Options.StrictWrites, in all processes")
	errHeldAll   = errors.New("all keys, or a group, of a loader cannot be held")
)

// Hold puts keys on hold, and announces them like an Invalidate. It requires
// Options.StrictWrites. Keys of whole loaders and groups cannot be held. If Hold returns an error,
// which is a *BatchError[Key] if StrictWrites is set, no key is on hold, except that keys for which
// Redis did not reply may be on hold for Options.LeaseTTL. Hold ends with ctx, and has the same
// timeout as Invalidate. It may be repeated.
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

// Add puts more keys on hold. If it returns an error, none of them is on hold, and the earlier
// keys are unchanged.
func (h *Hold) Add(ctx context.Context, keys ...Key) error {
	accepted, failed := h.cache.accept(OpHold, keys)
	for _, k := range accepted {
		if !k.single() {
			failed.add(OpHold, k, errHeldAll)
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

// Check verifies that all keys have been on hold for the whole time, and renews the Hold. Do not
// commit if it returns an error: ErrHoldLost means that a hold was lost, so values read in that
// time may have been stored; ErrRedis means that Redis did not reply. Check makes one round trip.
// It ends with ctx, or after Options.RedisTimeout.
func (h *Hold) Check(ctx context.Context) error {
	if h.cache.isClosed() {
		return wording.Errorf("cacheaside: check of a hold: %w", ErrClosed)
	}
	lost, err := h.held.Check(ctx)
	if err != nil {
		return err
	}
	return holdErrors(lost).err()
}

// Invalidate invalidates the keys like InvalidateKeys, and then ends the Hold. Its errors are those
// of InvalidateKeys. After an error, call Invalidate again, or InvalidateKeys. A key whose hold
// cannot be ended stays on hold until the hold expires, and is counted (Stats.HoldsLeft).
func (h *Hold) Invalidate(ctx context.Context) error {
	held := h.held.End()
	keys := keysOf(held)
	accepted, failed := h.cache.accept(OpInvalidate, keys)
	if len(accepted) == 0 {
		return failed.err()
	}
	for i, err := range h.held.Release(ctx, held) {
		failed.add(OpInvalidate, keys[i], err)
	}
	return failed.err()
}

// Abandon stops the renewal, and leaves the keys on hold until the hold expires. Use it if it is
// unknown whether the transaction will be committed. Abandon does no I/O.
func (h *Hold) Abandon() { h.held.Abandon() }

// forHolds returns the parts of the cache that package hold uses.
func (c *Cache) forHolds() *hold.Cache {
	return &hold.Cache{
		Store: c.store, Conn: c.conn, Bus: c.bus, InProcess: c.holds, LeaseTTL: c.options.LeaseTTL,
		Left:   &c.counts.holdsLeft,
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

// keysToHold converts keys for package hold.
func (c *Cache) keysToHold(keys []Key) []*hold.Key {
	names, hashes := c.named(keys)
	held := make([]*hold.Key, len(keys))
	for i, k := range keys {
		held[i] = &hold.Key{ID: k.versioned(), As: k, Loader: k.Loader, Name: names[i], Hash: hashes[i]}
		if l := c.known(k.Loader); l != nil && c.conn != nil {
			held[i].Known = l.Known(names[i]) // before the generation, which is unknown until the log has been read
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
		errs.add(OpHold, f.Key.As.(Key), err)
	}
	return errs
}

// versioned returns k with an explicit Version, and without fields that do not identify the key.
func (k Key) versioned() Key {
	k.existing = false
	k.Version = cmp.Or(k.Version, "1")
	return k
}

// storeInHold implements writeside.Loader.StoreHeld.
func (l *Loader[K, V]) storeInHold(ctx context.Context, h *Hold, key K, value V) (stored bool, err error) {
	named := l.Key(key)
	key, text, err := l.rows.Keys.Named(key)
	switch {
	case err != nil:
		return false, l.wrap(OpStore, key, err)
	case l.rows.Closed():
		return false, l.wrap(OpStore, key, ErrClosed)
	}
	if h == nil || h.cache != l.cache {
		return false, l.wrap(OpStore, key, hold.ErrNotHeld)
	}
	held, err := h.held.Last(named.versioned())
	if err != nil {
		return false, l.wrap(OpStore, key, err)
	}
	if held == nil || l.cache.store == nil || l.rows.Bypassed() {
		return false, nil
	}
	generation := held.Since
	if generation == nil {
		l.cache.bus.Poll() // the next call needs the generation
		return false, nil
	}
	e, life, err := l.rows.Fetch.Entry(&key, text, generation, held.Known, &value)
	switch {
	case l.rows.Fetch.Unfit(err):
		return false, nil
	case err != nil:
		return false, l.wrap(OpStore, key, err)
	}
	if stored, err = l.cache.store.Exchange(ctx, held.Name, held.Token(), e, life); err != nil {
		l.rows.Fetch.CountWrite(err)
		return false, l.wrap(OpStore, key, redisError(err))
	}
	if stored {
		l.rows.Counters.StoredHeld.Add(1)
		h.held.Remove(held)
	}
	return stored, nil
}

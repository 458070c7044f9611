package cacheaside

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/local"
)

// Hold keeps keys from being cached while their rows are being written (Options.StrictWrites): from
// when Cache.Hold has returned until Release, nothing of them is served from Redis, and nothing
// stored, by whatever process; reads load from the database, shared within a process only. (The
// memory tier of another process may serve what it has for as long as after an Invalidate.) It
// renews itself. Hold rows before their transaction commits, ask Check just before it does, and
// Release when it is over, whatever its outcome. A process that is killed holds its keys for
// Options.LeaseTTL more at the most.
//
// Holds do not exclude each other: any number of writers may hold a key. Package consistency does
// all of this by itself. It is safe for concurrent use.
type Hold struct {
	cache *Cache

	mu    sync.Mutex
	keys  map[Key]*heldKey // with their versions
	lost  keyErrors
	ended bool
	timer *time.Timer // of the next renewal; nil: none is needed yet
}

// heldKey is a key on hold. The Hold's lock is for what changes of it.
type heldKey struct {
	key     Key // as the caller has named it
	name    string
	hash    uint64
	token   string
	era     *local.Era // of its loader when it was put on hold; nil: not known
	since   time.Time  // when Redis was last asked to hold it for another life, and has
	lost    bool
	leaving bool // storeInHold has ended its hold, or has tried to
}

var (
	errNotStrict = errors.New("cacheaside: Cache.Hold needs Options.StrictWrites, in all processes")
	errHeldAll   = errors.New("all keys of a loader cannot be held")
	errNotHeld   = errors.New("the key is not held by this Hold")
	errHoldEnded = errors.New("cacheaside: the Hold has been released or abandoned")
)

// Hold puts keys on hold. Keys of whole loaders cannot be held. If it returns an error, a
// *BatchError[Key], nothing is on hold (or only for Options.LeaseTTL, where Redis did not answer).
// It ends with ctx, and has a time-out as Invalidate has. It may be called again and again; it
// announces the keys as an Invalidate does.
func (c *Cache) Hold(ctx context.Context, keys ...Key) (*Hold, error) {
	if !c.options.StrictWrites {
		return nil, errNotStrict
	}
	h := &Hold{cache: c, keys: make(map[Key]*heldKey), lost: make(keyErrors)}
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
	added := h.missing(accepted)
	if len(added) == 0 {
		return nil
	}
	if failed = h.cache.hold(ctx, added); len(failed) > 0 {
		h.cache.undo(added)
		return failed.err()
	}
	return h.enter(added)
}

// missing are those of keys that are not held yet.
func (h *Hold) missing(keys []Key) (missing []*heldKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := make(map[Key]struct{}, len(keys))
	for _, k := range keys {
		own := k.versioned()
		if _, again := seen[own]; again || h.keys[own] != nil {
			continue
		}
		seen[own] = struct{}{}
		missing = append(missing, &heldKey{key: k})
	}
	for _, k := range missing {
		names, hashes := h.cache.named([]Key{k.key})
		k.name, k.hash = names[0], hashes[0]
		k.era = h.cache.eraOf(k)
	}
	return missing
}

// enter has keys renewed from now on; those that another call has added meanwhile are not needed
// twice.
func (h *Hold) enter(added []*heldKey) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		h.cache.undo(added)
		return errHoldEnded
	}
	for _, k := range added {
		if own := k.key.versioned(); h.keys[own] == nil {
			h.keys[own] = k
		} else {
			h.cache.undo([]*heldKey{k})
		}
	}
	if h.timer == nil && h.cache.store != nil {
		h.timer = time.AfterFunc(h.cache.options.LeaseTTL/3, func() { h.cache.conn.Apart(h.renew) }) // not after Close, which waits for it
	}
	return nil
}

// renew holds the keys for another life, at each third of it.
func (h *Hold) renew() {
	life := h.cache.options.LeaseTTL
	ctx, cancel := context.WithTimeout(context.Background(), life/4) // so that there is time for another try
	defer cancel()
	failed := h.ask(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended, !slices.ContainsFunc(slices.Collect(maps.Values(h.keys)), (*heldKey).renewable):
		h.timer = nil
	case len(failed) > 0:
		h.timer.Reset(life / 20)
	default:
		h.timer.Reset(life / 3)
	}
}

func (k *heldKey) renewable() bool { return !k.lost && !k.leaving }

// ask asks Redis to hold the keys for another life, and notes which were lost. It returns those of
// which nobody can say.
func (h *Hold) ask(ctx context.Context) (failed keyErrors) {
	c := h.cache
	h.mu.Lock()
	var asked []*heldKey
	for _, k := range h.keys {
		if k.renewable() {
			asked = append(asked, k)
		}
	}
	h.mu.Unlock()
	failed = make(keyErrors)
	if c.store == nil || len(asked) == 0 {
		return failed
	}
	names, tokens, _ := namesOf(asked)
	now := time.Now()
	held, errs := c.channel.Renew(ctx, names, tokens, c.options.LeaseTTL, func(ctx context.Context, name, token string) redis.Cmder {
		return lease.KeepMark(ctx, name, token, c.options.LeaseTTL)
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, k := range asked {
		if k.lost || k.leaving || h.ended { // it was lost or left meanwhile
			continue
		}
		if held[i] && k.since.Before(now) {
			k.since = now
		}
		switch {
		case !held[i] && errs[i] == nil, time.Since(k.since) >= c.options.LeaseTTL: // also if the answer was that long in coming
			k.lost = true
			c.holdsLost.Add(1)
			c.log.Warn("a hold was lost", "", nil)
			h.lost.add("hold", k.key, ErrHoldLost)
		case !held[i]:
			c.countError(k.key)
			failed.add("hold", k.key, redisError(errs[i]))
		}
	}
	return failed
}

// Check asks Redis whether all keys have been on hold all the time, and holds them for another
// life. Its error is ErrHoldLost if one was not: do not commit then, for what was read meanwhile
// may have been stored. If Redis does not answer it is ErrRedis: do not commit then, either. It is
// one trip, and ends with ctx, and with Options.RedisTimeout.
func (h *Hold) Check(ctx context.Context) error {
	h.mu.Lock()
	ended, lost := h.ended, len(h.lost) > 0
	h.mu.Unlock()
	switch {
	case h.cache.isClosed():
		return fmt.Errorf("cacheaside: check of a hold: %w", ErrClosed)
	case ended:
		return errHoldEnded
	}
	failed := make(keyErrors)
	if !lost {
		failed = h.ask(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.Copy(failed, h.lost)
	return failed.err()
}

// Release ends the hold, after it has invalidated the keys as InvalidateKeys does; its error is
// that one's, and then it may be called again, or InvalidateKeys. A key that cannot be released is
// released by its end, and counted (Stats.HoldsLeft).
func (h *Hold) Release(ctx context.Context) error {
	keys := h.end()
	accepted, failed := h.cache.accept("release", keysOf(keys))
	if len(accepted) == 0 {
		return failed.err()
	}
	for i, err := range h.cache.release(ctx, keys) {
		failed.add("release", keys[i].key, err)
		if err == nil {
			h.remove(keys[i])
		}
	}
	return failed.err()
}

func (h *Hold) remove(k *heldKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.keys, k.key.versioned())
}

// Abandon ends the renewal, and leaves the keys on hold until their end: for a transaction of which
// nobody knows whether it will yet be committed. It does no I/O.
func (h *Hold) Abandon() {
	keys := h.end()
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.keys)
	h.cache.holdsLeft.Add(int64(len(keys)))
	if h.cache.store == nil {
		_, _, hashes := namesOf(keys)
		h.cache.holds.Leave(hashes, h.cache.options.LeaseTTL)
	}
}

// end ends the renewal, and returns what is still held.
func (h *Hold) end() []*heldKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	if h.timer != nil {
		h.timer.Stop()
	}
	keys := slices.Collect(maps.Values(h.keys))
	if h.cache.store == nil {
		clear(h.keys) // they are counted, and left once
	}
	return keys
}

// maxHolds is how often a hold is asked for where Redis does not answer: each time under another
// token, for what was sent first may yet come.
const maxHolds = 2

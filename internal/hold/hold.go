// Package hold implements cacheaside.Hold: it prevents keys from being cached while writers write
// their rows.
package hold

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// The errors of a Hold.
var (
	ErrLost    = errors.New("cacheaside: the key is no longer on hold")
	ErrNotHeld = errors.New("cacheaside: the key is not held by this Hold")
	ErrEnded   = errors.New("cacheaside: the Hold has been released or abandoned")
)

// A Key is a key on hold. The caller sets the exported fields.
type Key struct {
	ID     any // identifies the key within the Hold; comparable
	As     any // the key as the caller has passed it
	Loader string
	Name   string             // the name in Redis
	Hash   uint64             // the stable hash
	Since  *memory.Generation // the loader's generation before the key was put on hold; nil if unknown
	Known  uint64             // the last number of the loader's log of groups, then

	// Guarded by the lock of the Hold, once the key is in it.
	token      string
	renewedAt  time.Time // when the last successful command to hold the key was sent
	lost       bool
	exchanging bool // Last has returned the key
}

// Token returns the token of the hold.
func (k *Key) Token() string { return k.token }

// renewable reports whether the key is to be renewed. The Hold must be locked.
func (k *Key) renewable() bool { return !k.lost && !k.exchanging }

// A Failure is the error of a key.
type Failure struct {
	Key *Key
	Err error // the error of the Redis client, or ErrLost
}

// A Hold is a set of keys on hold. It is safe for concurrent use.
type Hold struct {
	cache *Cache

	mu    sync.Mutex
	keys  map[any]*Key // by ID
	lost  []Failure
	ended bool
	timer *time.Timer // for the next renewal; nil if no key needs one
}

// New returns a Hold without keys.
func New(c *Cache) *Hold { return &Hold{cache: c, keys: make(map[any]*Key)} }

// Add puts more keys on hold. If one of them fails, Add holds none of them, and does not change
// the keys that were held before.
func (h *Hold) Add(ctx context.Context, keys []*Key) (failed []Failure, err error) {
	added := h.missing(keys)
	if len(added) == 0 {
		return nil, nil
	}
	if failed = h.cache.take(ctx, added); len(failed) > 0 {
		h.cache.undo(added)
		return failed, nil
	}
	return nil, h.register(added)
}

// missing returns the keys that h does not hold, without duplicates.
func (h *Hold) missing(keys []*Key) (missing []*Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := make(map[any]struct{}, len(keys))
	for _, k := range keys {
		if _, again := seen[k.ID]; again || h.keys[k.ID] != nil {
			continue
		}
		seen[k.ID] = struct{}{}
		missing = append(missing, k)
	}
	return missing
}

// register adds keys to h, which renews them from now on. It ends the new holds of keys that a
// concurrent call has added first.
func (h *Hold) register(added []*Key) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		h.cache.undo(added)
		return ErrEnded
	}
	for _, k := range added {
		if h.keys[k.ID] == nil {
			h.keys[k.ID] = k
		} else {
			h.cache.undo([]*Key{k})
		}
	}
	if h.timer == nil && h.cache.Store != nil {
		// not after Close, which waits for the goroutine
		h.timer = time.AfterFunc(h.cache.LeaseTTL/3, func() { h.cache.Conn.Apart(h.renew) })
	}
	return nil
}

// renew holds the keys for another life. It runs each third of a life.
func (h *Hold) renew() {
	life := h.cache.LeaseTTL
	ctx, cancel := context.WithTimeout(context.Background(), life/4) // leaves time for another attempt
	defer cancel()
	failed := h.renewKeys(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended, !slices.ContainsFunc(slices.Collect(maps.Values(h.keys)), (*Key).renewable):
		h.timer = nil
	case len(failed) > 0:
		h.timer.Reset(life / 20)
	default:
		h.timer.Reset(life / 3)
	}
}

// renewKeys holds the keys for another life in Redis, and records lost keys. It returns those for
// which Redis has not replied.
func (h *Hold) renewKeys(ctx context.Context) (failed []Failure) {
	c := h.cache
	h.mu.Lock()
	var asked []*Key
	for _, k := range h.keys {
		if k.renewable() {
			asked = append(asked, k)
		}
	}
	h.mu.Unlock()
	if c.Store == nil || len(asked) == 0 {
		return nil
	}
	names, tokens, _ := namesOf(asked)
	now := time.Now()
	held, errs := c.Bus.Renew(ctx, names, tokens, c.LeaseTTL,
		func(ctx context.Context, name, token string) redis.Cmder {
			return lease.KeepMark(ctx, name, token, c.LeaseTTL)
		})
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, k := range asked {
		if k.lost || k.exchanging || h.ended { // since the command was sent
			continue
		}
		if held[i] && k.renewedAt.Before(now) {
			k.renewedAt = now
		}
		switch {
		case !held[i] && errs[i] == nil, time.Since(k.renewedAt) >= c.LeaseTTL: // also if the reply took that long
			k.lost = true
			c.Lost()
			h.lost = append(h.lost, Failure{k, ErrLost})
		case !held[i]:
			c.Failed(k.Loader)
			failed = append(failed, Failure{k, errs[i]})
		}
	}
	return failed
}

// Check verifies in Redis that all keys have been on hold without interruption, and holds them
// for another life. It returns the lost keys, and those for which Redis has not replied.
func (h *Hold) Check(ctx context.Context) ([]Failure, error) {
	h.mu.Lock()
	ended, lost := h.ended, len(h.lost) > 0
	h.mu.Unlock()
	if ended {
		return nil, ErrEnded
	}
	var failed []Failure
	if !lost {
		failed = h.renewKeys(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(failed, h.lost...), nil
}

// End stops the renewal, and returns the keys that are still held.
func (h *Hold) End() []*Key {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	if h.timer != nil {
		h.timer.Stop()
	}
	keys := slices.Collect(maps.Values(h.keys))
	if h.cache.Store == nil {
		clear(h.keys) // so that another call does not release them again
	}
	return keys
}

// Release invalidates keys that End has returned, and ends their holds. The i-th error is that of
// the invalidation of keys[i].
func (h *Hold) Release(ctx context.Context, keys []*Key) []error {
	errs := h.cache.release(ctx, keys)
	for i, k := range keys {
		if errs[i] == nil {
			h.Remove(k)
		}
	}
	return errs
}

// Remove removes a key that is not on hold any more.
func (h *Hold) Remove(k *Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.keys, k.ID)
}

// Abandon stops the renewal. The keys stay on hold until their holds expire. Abandon does no I/O.
func (h *Hold) Abandon() {
	keys := h.End()
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.keys)
	h.cache.Left.Add(int64(len(keys)))
	if h.cache.Store == nil {
		_, _, hashes := namesOf(keys)
		h.cache.InProcess.Leave(hashes, h.cache.LeaseTTL)
	}
}

// Last returns the key with this ID, whose hold is about to be exchanged for a value, and stops
// its renewal. It returns nil if the key was lost, or if Last has returned it before.
func (h *Hold) Last(id any) (*Key, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.keys[id]
	switch {
	case h.ended:
		return nil, ErrEnded
	case held == nil:
		return nil, ErrNotHeld
	case !held.renewable():
		return nil, nil
	}
	held.exchanging = true
	return held, nil
}

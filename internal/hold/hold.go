// Package hold keeps keys from being cached while writers write their rows: the inside of
// cacheaside.Hold.
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
	ErrLost    = errors.New("the key is no longer on hold")
	ErrNotHeld = errors.New("the key is not held by this Hold")
	ErrEnded   = errors.New("cacheaside: the Hold has been released or abandoned")
)

// Key is a key on hold. Its owner sets the exported fields.
type Key struct {
	ID     any // comparable; by it the Hold finds the key
	As     any // how the caller has named it
	Loader string
	Name   string             // in Redis
	Hash   uint64             // the stable one
	Since  *memory.Generation // the loader's generation before the key was put on hold; nil: not known

	// Guarded by the lock of the Hold, once the key is in it.
	token   string
	asked   time.Time // when Redis was last asked to hold it for another life, and has
	lost    bool
	leaving bool // Last has returned it
}

// Token is the token of the hold.
func (k *Key) Token() string { return k.token }

func (k *Key) renewable() bool { return !k.lost && !k.leaving }

// Failure is the error of a key.
type Failure struct {
	Key *Key
	Err error // of Redis' client, or ErrLost
}

// Hold is some keys on hold. It is safe for concurrent use.
type Hold struct {
	cache *Cache

	mu    sync.Mutex
	keys  map[any]*Key // by ID
	lost  []Failure
	ended bool
	timer *time.Timer // of the next renewal; nil: none is needed yet
}

// New makes a Hold of no keys.
func New(c *Cache) *Hold { return &Hold{cache: c, keys: make(map[any]*Key)} }

// Add puts more keys on hold. If some have failed, none of them is held, and those from before are
// as they were.
func (h *Hold) Add(ctx context.Context, keys []*Key) (failed []Failure, err error) {
	added := h.missing(keys)
	if len(added) == 0 {
		return nil, nil
	}
	if failed = h.cache.take(ctx, added); len(failed) > 0 {
		h.cache.undo(added)
		return failed, nil
	}
	return nil, h.enter(added)
}

// missing are those of keys that are not held yet.
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

// enter has keys renewed from now on. Keys that another call has added meanwhile are undone.
func (h *Hold) enter(added []*Key) error {
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
		h.timer = time.AfterFunc(h.cache.LeaseTTL/3, func() { h.cache.Conn.Apart(h.renew) }) // not after Close, which waits for it
	}
	return nil
}

// renew holds the keys for another life, at each third of it.
func (h *Hold) renew() {
	life := h.cache.LeaseTTL
	ctx, cancel := context.WithTimeout(context.Background(), life/4) // so that there is time for another try
	defer cancel()
	failed := h.ask(ctx)
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

// ask asks Redis to hold the keys for another life, and notes lost keys. It returns those for which
// Redis has not answered.
func (h *Hold) ask(ctx context.Context) (failed []Failure) {
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
	held, errs := c.Bus.Renew(ctx, names, tokens, c.LeaseTTL, func(ctx context.Context, name, token string) redis.Cmder {
		return lease.KeepMark(ctx, name, token, c.LeaseTTL)
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, k := range asked {
		if k.lost || k.leaving || h.ended { // it was lost or left meanwhile
			continue
		}
		if held[i] && k.asked.Before(now) {
			k.asked = now
		}
		switch {
		case !held[i] && errs[i] == nil, time.Since(k.asked) >= c.LeaseTTL: // also if the answer was that long in coming
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

// Check asks Redis whether all keys have been on hold all the time, and holds them for another
// life. It returns the keys that were lost, and those for which Redis has not answered.
func (h *Hold) Check(ctx context.Context) ([]Failure, error) {
	h.mu.Lock()
	ended, lost := h.ended, len(h.lost) > 0
	h.mu.Unlock()
	if ended {
		return nil, ErrEnded
	}
	var failed []Failure
	if !lost {
		failed = h.ask(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(failed, h.lost...), nil
}

// End ends the renewal, and returns the keys that are still held.
func (h *Hold) End() []*Key {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	if h.timer != nil {
		h.timer.Stop()
	}
	keys := slices.Collect(maps.Values(h.keys))
	if h.cache.Store == nil {
		clear(h.keys) // they are counted, and left once
	}
	return keys
}

// Release invalidates keys that End has returned, and ends their holds. Its errors are those of
// invalidate, by the index of the key.
func (h *Hold) Release(ctx context.Context, keys []*Key) []error {
	errs := h.cache.release(ctx, keys)
	for i, k := range keys {
		if errs[i] == nil {
			h.Remove(k)
		}
	}
	return errs
}

// Remove forgets a key that is not on hold any more.
func (h *Hold) Remove(k *Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.keys, k.ID)
}

// Abandon ends the renewal, and leaves the keys on hold until their end. It does no I/O.
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

// Last returns the key with this ID, which is not renewed any more: its hold is about to be
// exchanged for a value. It is nil if the key was lost, or Last has returned it before.
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
	held.leaving = true
	return held, nil
}

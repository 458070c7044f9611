package hold

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// A Cache contains the parts of a cache that a Hold uses.
type Cache struct {
	Store     *lease.Store // nil if there is no Redis
	Conn      *conn.Conn
	Bus       *invalidation.Bus
	InProcess *memory.Holds // replaces Redis if there is none
	LeaseTTL  time.Duration
	Left      *atomic.Int64 // the number of keys whose holds were left to expire

	Forget func(k *Key)        // removes a key from the memory of the process
	Lost   func()              // is called when a hold was lost
	Failed func(loader string) // is called when a command for a key of this loader has failed

	// Invalidate is Cache.InvalidateKeys with send instead of the command to Redis.
	Invalidate func(keys []*Key, send func(names []string, hashes []uint64) []error) []error

	// Delete performs an invalidation without Redis.
	Delete func(ctx context.Context, hashes []uint64) []error
}

// maxSends is the maximum number of requests for a hold if Redis does not reply. Each has a
// different token, because the first command may still arrive.
const maxSends = 2

// take puts keys on hold, and then removes them from the memory of this process.
func (c *Cache) take(ctx context.Context, keys []*Key) (failed []Failure) {
	var errs []error
	if c.Store == nil {
		_, _, hashes := namesOf(keys)
		c.InProcess.Take(hashes)
	} else {
		errs = c.takeInRedis(ctx, keys)
	}
	for _, k := range keys {
		c.Forget(k)
	}
	for i, err := range errs {
		if err != nil {
			failed = append(failed, Failure{keys[i], err})
		}
	}
	return failed
}

// takeInRedis puts keys on hold in Redis, and returns the error of each.
func (c *Cache) takeInRedis(ctx context.Context, keys []*Key) []error {
	errs := make([]error, len(keys))
	stale := 0
	for i := 0; i < maxSends && (i+stale == 0 || ctx.Err() == nil); i++ {
		token, now := lease.NewToken(), time.Now()
		var asked []*Key
		var positions []int
		for j, k := range keys {
			if i+stale == 0 || errs[j] != nil && !conn.IsReply(errs[j]) {
				k.token, k.renewedAt = token, now
				asked, positions = append(asked, k), append(positions, j)
			}
		}
		if len(asked) == 0 {
			break
		}
		once, cancel := context.WithTimeout(ctx, 2*c.Conn.Timeout())
		names, _, hashes := namesOf(asked)
		onlyStale := true
		for j, err := range c.Bus.Hold(once, names, hashes, token, c.LeaseTTL, lease.Mark(token, c.LeaseTTL)) {
			errs[positions[j]] = err
			if err != nil && !conn.Stale(err) {
				c.Failed(asked[j].Loader)
				onlyStale = onlyStale && conn.IsReply(err)
			}
		}
		cancel()
		if onlyStale && stale < conn.MaxStale { // a request on a closed connection does not count
			stale++
			i--
		}
	}
	return errs
}

// undo ends new holds that are not needed. It does not wait for Redis.
func (c *Cache) undo(keys []*Key) {
	names, tokens, hashes := namesOf(keys)
	if c.Store == nil {
		c.InProcess.Leave(hashes, 0)
		return
	}
	c.Conn.Apart(func() {
		_, released := c.Bus.Release(context.Background(), names, hashes, tokens)
		c.countLeft(released)
	})
}

// release invalidates keys, ends their holds, and returns the error of each key that was not
// invalidated.
func (c *Cache) release(ctx context.Context, keys []*Key) []error {
	_, tokens, hashes := namesOf(keys)
	if c.Store == nil {
		defer c.InProcess.Leave(hashes, 0)
		return c.Invalidate(keys, func(_ []string, hashes []uint64) []error { return c.Delete(ctx, hashes) })
	}
	var released []bool
	errs := c.Invalidate(keys, func(names []string, hashes []uint64) []error {
		var errs []error
		errs, released = c.Bus.Release(ctx, names, hashes, tokens)
		return errs
	})
	for i, err := range errs {
		released[i] = released[i] || err != nil // the caller tries such a key again
	}
	c.countLeft(released)
	return errs
}

// countLeft counts the keys whose holds could not be ended.
func (c *Cache) countLeft(released []bool) {
	for _, ok := range released {
		if !ok {
			c.Left.Add(1)
		}
	}
}

func namesOf(held []*Key) (names, tokens []string, hashes []uint64) {
	names, tokens, hashes = make([]string, len(held)), make([]string, len(held)), make([]uint64, len(held))
	for i, k := range held {
		names[i], tokens[i], hashes[i] = k.Name, k.token, k.Hash
	}
	return names, tokens, hashes
}

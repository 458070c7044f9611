package cacheaside

import (
	"cmp"
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// hold puts keys on hold, and forgets what this process has of them.
func (c *Cache) hold(ctx context.Context, keys []*heldKey) keyErrors {
	errs := inOrder(func() []error {
		if c.store == nil {
			_, _, hashes := namesOf(keys)
			c.holds.Take(hashes)
			return nil
		}
		return c.holdInRedis(ctx, keys)
	}, func() {
		for _, k := range keys {
			c.forget(k.key, k.hash)
		}
	})
	failed := make(keyErrors)
	for i, err := range errs {
		if err != nil {
			failed.add("hold", keys[i].key, redisError(err))
		}
	}
	return failed
}

func (c *Cache) holdInRedis(ctx context.Context, keys []*heldKey) []error {
	errs := make([]error, len(keys))
	for i := 0; i < maxHolds && (i == 0 || ctx.Err() == nil); i++ {
		token, now := lease.NewToken(), time.Now()
		var asked []*heldKey
		var at []int
		for j, k := range keys {
			if i == 0 || errs[j] != nil && !conn.IsReply(errs[j]) {
				k.token, k.since = token, now
				asked, at = append(asked, k), append(at, j)
			}
		}
		if len(asked) == 0 {
			break
		}
		once, cancel := context.WithTimeout(ctx, 2*c.conn.Timeout())
		names, _, hashes := namesOf(asked)
		for j, err := range c.channel.Hold(once, names, hashes, token, c.options.LeaseTTL, lease.Mark(token, c.options.LeaseTTL)) {
			if errs[at[j]] = err; err != nil {
				c.countError(asked[j].key)
			}
		}
		cancel()
	}
	return errs
}

// undo ends what may have been put on hold in vain. Nobody waits for that.
func (c *Cache) undo(keys []*heldKey) {
	names, tokens, hashes := namesOf(keys)
	if c.store == nil {
		c.holds.Leave(hashes, 0)
		return
	}
	c.conn.Apart(func() {
		_, left := c.channel.Release(context.Background(), names, hashes, tokens)
		c.countLeft(left)
	})
}

// release invalidates keys, ends their holds, and returns for each why it was not invalidated.
func (c *Cache) release(ctx context.Context, keys []*heldKey) []error {
	_, tokens, hashes := namesOf(keys)
	if c.store == nil {
		defer c.holds.Leave(hashes, 0)
		return c.changeSingle(keysOf(keys), func(_ []string, hashes []uint64) []error { return c.delete(ctx, nil, hashes) })
	}
	var left []bool
	errs := c.changeSingle(keysOf(keys), func(names []string, hashes []uint64) []error {
		var errs []error
		errs, left = c.channel.Release(ctx, names, hashes, tokens)
		return errs
	})
	for i, err := range errs {
		left[i] = left[i] || err != nil // which will be tried again
	}
	c.countLeft(left)
	return errs
}

// countLeft counts keys that had to be left on hold.
func (c *Cache) countLeft(released []bool) {
	for _, ok := range released {
		if !ok {
			c.holdsLeft.Add(1)
		}
	}
}

// countError counts a command that has failed, for the loader of its key.
func (c *Cache) countError(k Key) {
	if l := c.known(k.Loader); l != nil {
		l.Counts().Fetch.RedisErrors.Add(1)
	}
}

func keysOf(held []*heldKey) []Key {
	keys := make([]Key, len(held))
	for i, k := range held {
		keys[i] = k.key
	}
	return keys
}

func namesOf(held []*heldKey) (names, tokens []string, hashes []uint64) {
	names, tokens, hashes = make([]string, len(held)), make([]string, len(held)), make([]uint64, len(held))
	for i, k := range held {
		names[i], tokens[i], hashes[i] = k.name, k.token, k.hash
	}
	return names, tokens, hashes
}

// versioned is k with its Version written out, and no more than names it.
func (k Key) versioned() Key {
	k.existing = false
	k.Version = cmp.Or(k.Version, "1")
	return k
}

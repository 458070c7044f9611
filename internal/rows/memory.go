package rows

import (
	"errors"
	"time"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// Remembered looks up key in the memory tier, unless it is bypassed. It runs on each hit, so it
// tests a single word.
func (r *Reader[K, V]) Remembered(key K) (*memory.Item[K, V], bool) {
	return r.inMemory(key, bypassing|shadowing|noTier)
}

// inMemory looks up key in the memory tier, unless the tier is bypassed for one of reasons.
func (r *Reader[K, V]) inMemory(key K, reasons uint32) (*memory.Item[K, V], bool) {
	if r.memory.bypass.Load()&reasons != 0 {
		return nil, false
	}
	var item *memory.Item[K, V]
	var now time.Duration
	var ok bool
	if r.Keys.byText {
		item, now, ok = r.getByText(key)
	} else {
		item, now, ok = memory.Get[K, V](r.memory.tier, r.Keys.hash(key), &r.memory.generations, key)
	}
	if !ok {
		return nil, false
	}
	r.Counters.MemoryHits.Add()
	if item.Near(now) {
		r.tryEarlyRefresh(&item.Header)
	}
	if item.Null {
		r.Counters.MemoryNulls.Add(1)
	}
	return item, true
}

// getByText is memory.Get for keys that are compared by their texts. It compares the text of the
// item's key, which a caller may have changed.
func (r *Reader[K, V]) getByText(key K) (item *memory.Item[K, V], now time.Duration, ok bool) {
	text, err := r.Keys.Text(key)
	if err != nil {
		return nil, 0, false
	}
	h, now := r.memory.tier.Get(r.Keys.hashOf(key, text), &r.memory.generations)
	if h == nil {
		return nil, 0, false
	}
	if item = memory.ItemOf[K, V](h); item == nil {
		return nil, 0, false
	}
	again, err := r.Keys.Text(item.Key)
	return item, now, err == nil && again == text
}

// tierCopy returns the copy of a key in the memory tier, for a shadow.
func (r *Reader[K, V]) tierCopy(key any, reasons uint32) (audit.Copy, bool) {
	item, ok := r.inMemory(*key.(*K), reasons)
	if !ok {
		return audit.Copy{}, false
	}
	return audit.Copy{Value: &item.Value, Null: item.Null, There: true}, true
}

// tryEarlyRefresh may start an early refresh after a hit whose TTL is about to end.
func (c *Core) tryEarlyRefresh(item *memory.Header) {
	if item.Kept() { // Redis has no entry of it
		c.Counters.HitsWhileDown.Add(1)
		return
	}
	left := c.memory.tier.Left(item)
	if !c.Fetch.DueEarly(item.Hash(), left, time.Duration(item.Delta)*time.Microsecond) {
		return
	}
	key, _ := c.typed.Pair(item)
	if text, err := c.typed.Text(key); err == nil {
		c.Fetch.RefreshEarly(&c.roundOf(key, text).Result, left)
	}
}

// Forget discards what this process holds of a key, including the failure of a load.
func (r *Reader[K, V]) Forget(key K, text string) { r.forget(r.Keys.hashOf(key, text), text) }

// Expire ends the TTL of a key in memory, in a process without Redis. With Redis it is the same
// as Forget.
func (r *Reader[K, V]) Expire(key K, text string) { r.expire(r.Keys.hashOf(key, text), text) }

func (c *Core) forget(hash uint64, text string) {
	c.ForgetFailure(text)
	if c.memory.tier != nil {
		c.memory.tier.Invalidate(hash, c.names.Hash(text))
	}
}

func (c *Core) expire(hash uint64, text string) {
	if c.cache.Store == nil && c.memory.tier != nil {
		if item, _, ok := c.memory.tier.GetStale(hash, &c.memory.generations); ok {
			key, value := c.typed.Pair(item)
			if found, err := c.typed.Text(key); err == nil && found == text {
				again, weight := c.typed.New(key, value, nil, item.Null, 0)
				c.memory.tier.Expire(item, again, c.names.Hash(text), weight)
				return
			}
		}
	}
	c.forget(hash, text)
}

// New returns an item of the memory tier, and its weight. It uses the item unused if value is part
// of it.
func (r *Reader[K, V]) New(key, value any, unused *memory.Header, null bool, encoded int) (*memory.Header, int64) {
	var item *memory.Item[K, V]
	if unused != nil {
		item = memory.ItemOf[K, V](unused)
	}
	if item == nil || value != any(&item.Value) {
		item = &memory.Item[K, V]{Value: Value[V](value)}
	}
	item.Key, item.Null = *key.(*K), null
	r.Keys.detach(&item.Key)
	return item.Whole(), r.weight(item, encoded)
}

// Pair returns the key and the value of an item, or nil if they have other types.
func (r *Reader[K, V]) Pair(header *memory.Header) (key, value any) {
	item := memory.ItemOf[K, V](header)
	if item == nil {
		return nil, nil
	}
	return &item.Key, &item.Value
}

// unreadFactor is the number of bytes of memory that are assumed for each byte of an encoding, if
// a value cannot be weighed completely. See docs/decisions/in-process.md.
const unreadFactor = 8

var errWeight = errors.New("LoaderOptions.Weight returned a negative number")

// weight returns the weight of an item's key and value in bytes. encoded is the length of the
// value's encoding, or 0 if the value was not encoded.
func (r *Reader[K, V]) weight(item *memory.Item[K, V], encoded int) int64 {
	largest := r.memory.tier.Largest()
	keyWeight, _ := memory.Weigh(&item.Key, largest)
	if r.options.Weight != nil && !item.Null {
		return keyWeight + r.ownWeight(item.Value, largest)
	}
	weight, whole := memory.Weigh(&item.Value, largest)
	if whole || item.Null {
		return keyWeight + weight
	}
	if encoded == 0 && r.cache.Store != nil { // Redis is down, so the value was not encoded
		if p, err := r.options.Codec.Lossy().Encode(item.Value); err == nil {
			encoded = p.Len()
		}
	}
	return keyWeight + max(weight, unreadFactor*int64(encoded))
}

// ownWeight returns the result of LoaderOptions.Weight. An invalid result makes the value too
// heavy.
func (r *Reader[K, V]) ownWeight(value V, largest int64) (weight int64) {
	failed := func(err error) int64 {
		r.cache.Warn("a value was not weighed, and is not kept in memory", r.options.Fetch.Name, err)
		return memory.TooHeavy
	}
	returned := false
	defer func() {
		if !returned {
			weight = failed(limitedlog.Panicked("LoaderOptions.Weight", recover()))
		}
	}()
	weight = r.options.Weight(value)
	returned = true
	if weight < 0 {
		return failed(errWeight)
	}
	return min(weight, memory.TooHeavy)
}

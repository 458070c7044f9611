package memory

import (
	"time"
)

// GetStale is Get for what may have ended: it answers how long ago the item's TTL has, which is
// negative if it has not. It heeds no trust, and no Clear, which is a doubt; but all that is known
// to have been invalidated, by this process, or by another one that was heard.
func GetStale[K comparable, V any](t *Tier, hash uint64, generations *Generations, key K) (item *Item[K, V], ago time.Duration, ok bool) {
	h := find[K, V](t, hash)
	if h == nil || h.Key != key || h.Generation != generations.Of(h.Range) {
		return nil, 0, false
	}
	item = &h.Item
	if !t.versions.firm(item.Range, item.Stripe, item.Version, h.doubts) {
		return nil, 0, false
	}
	return item, time.Since(t.start) - item.soft, true
}

// Expire makes the item of key stale from now on, and ends whatever else has its stable hash, also
// what is being loaded. weight returns the weight of an item, as for Set.
func Expire[K comparable, V any](t *Tier, hash uint64, generations *Generations, key K, stable uint64, weight func(*Item[K, V]) int64) {
	item, ago, ok := GetStale[K, V](t, hash, generations, key)
	if !ok {
		t.Forget(stable)
		return
	}
	next := *item
	if next.Version, ok = t.Advance(item.Range, stable, item.Version); !ok {
		t.Forget(stable)
		return
	}
	next.Range |= expiredBit
	Set(t, hash, next, weight(&next), 0, min(-ago, 0))
}

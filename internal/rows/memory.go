package rows

import (
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// Remembered looks into the memory tier, unless it is passed by. It is on the way of each hit: one
// word tells whether that is so.
func (r *Reader[K, V]) Remembered(key K) (*memory.Item[K, V], bool) {
	return r.inMemory(key, bypassing|shadowing|forgetful)
}

// inMemory looks into the memory tier, unless it is bypassed for one of these reasons.
func (r *Reader[K, V]) inMemory(key K, reasons uint32) (*memory.Item[K, V], bool) {
	if r.memory.bypass.Load()&reasons != 0 {
		return nil, false
	}
	var hash uint64
	if !r.Keys.byText {
		hash = r.Keys.hash(key)
	} else if text, err := r.Keys.Text(key); err != nil {
		return nil, false
	} else if at, as, ok := r.kept(key, text); ok {
		hash, key = at, as
	} else {
		return nil, false
	}
	item, now, ok := memory.Get[K, V](r.memory.tier, hash, &r.memory.generations, key)
	if !ok {
		return nil, false
	}
	r.Counters.MemoryHits.Add()
	if item.Near(now) {
		r.nearEnd(item)
	}
	if item.Null {
		r.Counters.MemoryNulls.Add(1)
	}
	return item, true
}

// inTier returns the copy of a key in the memory tier, for a shadow.
func (r *Reader[K, V]) inTier(key any, reasons uint32) (audit.Copy, bool) {
	item, ok := r.inMemory(*key.(*K), reasons)
	if !ok {
		return audit.Copy{}, false
	}
	return copyOf(item), true
}

// kept returns the hash of a key in the memory tier, and the key of the item there. They are ==,
// unless keys are compared by their texts. Then ok is false if the item's key has another text, as
// when a caller has changed it.
func (r *Reader[K, V]) kept(key K, text string) (hash uint64, as K, ok bool) {
	hash = r.Keys.hashOf(key, text)
	if !r.Keys.byText {
		return hash, key, true
	}
	if as, ok = memory.Stored[K, V](r.memory.tier, hash); !ok {
		return hash, key, false
	}
	again, err := r.Keys.Text(as)
	return hash, as, err == nil && again == text
}

// nearEnd has the fetcher throw the die for a hit whose TTL is about to end.
func (r *Reader[K, V]) nearEnd(item *memory.Item[K, V]) {
	if item.Kept() { // nothing of it is in Redis
		r.Counters.HitsWhileDown.Add(1)
		return
	}
	left := item.Left(r.memory.tier)
	var text string
	if r.Keys.byText {
		text, _ = r.Keys.Text(item.Key) // it had one
	}
	if !r.Fetch.DueEarly(r.Keys.hashOf(item.Key, text), left, time.Duration(item.Delta)*time.Microsecond) {
		return
	}
	if of, err := r.Lone(item.Key); err == nil {
		r.Fetch.RefreshEarly(of, left)
	}
}

// Forget ends what this process holds of a key, also the memory of a failed load.
func (r *Reader[K, V]) Forget(key K, text string) {
	r.ForgetFailure(text)
	if r.memory.tier != nil {
		r.memory.tier.Invalidate(r.Keys.hashOf(key, text), r.Keys.Hash(text))
	}
}

// Expire ends the TTL of a key in the memory of a process without Redis; with Redis, Forget does.
func (r *Reader[K, V]) Expire(key K, text string) {
	if r.cache.Store == nil && r.memory.tier != nil {
		if hash, as, ok := r.kept(key, text); ok {
			weight := func(item *memory.Item[K, V]) int64 { return r.weight(item, 0) }
			memory.Expire(r.memory.tier, hash, &r.memory.generations, as, r.Keys.Hash(text), weight)
			return
		}
	}
	r.Forget(key, text)
}

// Hash returns the hash of a round's key in the memory tier.
func (r *Reader[K, V]) Hash(of *fetch.Round) uint64 { return r.Keys.hashOf(keyOf[K](of), of.Text()) }

// Past returns what the tier holds of a round's key, trusted or not, and how long ago its TTL has
// ended.
func (r *Reader[K, V]) Past(of *fetch.Round) (item fetch.Item, ago time.Duration, ok bool) {
	hash, key, ok := r.kept(keyOf[K](of), of.Text())
	if !ok {
		return item, 0, false
	}
	found, ago, ok := memory.GetStale[K, V](r.memory.tier, hash, &r.memory.generations, key)
	if !ok {
		return item, 0, false
	}
	return fetch.Item{Value: &found.Value, Null: found.Null, Expired: found.Expired()}, ago, true
}

// GetItem returns what the tier serves of a round's key.
func (r *Reader[K, V]) GetItem(of *fetch.Round) (item fetch.Item, ok bool) {
	hash, key, ok := r.kept(keyOf[K](of), of.Text())
	if !ok {
		return item, false
	}
	found, _, ok := memory.Get[K, V](r.memory.tier, hash, &r.memory.generations, key)
	if !ok {
		return item, false
	}
	return fetch.Item{Value: &found.Value, Null: found.Null}, true
}

// Set puts a round's value into the tier.
func (r *Reader[K, V]) Set(of *fetch.Round, delta uint32, life, ttl time.Duration) bool {
	item, weight := r.item(of)
	item.Delta = delta
	return memory.Set(r.memory.tier, r.Hash(of), item, weight, life, ttl)
}

// Keep puts a round's value into the tier, whose end nobody announces.
func (r *Reader[K, V]) Keep(of *fetch.Round, until time.Time) bool {
	item, weight := r.item(of)
	return memory.Keep(r.memory.tier, r.Hash(of), item, weight, until)
}

// item returns a round's value as the memory tier holds it, and its weight.
func (r *Reader[K, V]) item(of *fetch.Round) (item memory.Item[K, V], weight int64) {
	slots, generation, stable, version := of.Snapshot()
	item = memory.Item[K, V]{
		Generation: generation, Range: slots, Key: r.Keys.owned(keyOf[K](of)), Value: Value[V](of.Value), Null: of.Null,
		Stripe: memory.Stripe(stable), Version: version,
	}
	return item, r.weight(&item, of.Encoded())
}

// unreadFactor is how many bytes of memory a byte of an encoding stands for, where a value cannot
// be weighed whole. See docs/decisions/in-process.md.
const unreadFactor = 8

var errWeight = errors.New("LoaderOptions.Weight has returned a negative number")

// weight returns the weight of an item's key and value in bytes. encoded is the length of the
// value's encoding; 0: it was not encoded.
func (r *Reader[K, V]) weight(item *memory.Item[K, V], encoded int) int64 {
	largest := r.memory.tier.Largest()
	ofKey, _ := memory.Weigh(item.Key, largest)
	if r.options.Weight != nil && !item.Null {
		return ofKey + r.ownWeight(item.Value, largest)
	}
	weight, whole := memory.Weigh(item.Value, largest)
	if whole || item.Null {
		return ofKey + weight
	}
	if encoded == 0 && r.cache.Store != nil { // Redis is out of reach
		if p, err := r.options.Codec.Lossy().Encode(item.Value); err == nil {
			encoded = p.Len()
		}
	}
	return ofKey + max(weight, unreadFactor*int64(encoded))
}

// ownWeight returns what LoaderOptions.Weight says. If that is no weight, the value is too heavy.
func (r *Reader[K, V]) ownWeight(value V, largest int64) (weight int64) {
	failed := func(err error) int64 {
		r.cache.Warn("a value was not weighed, and is not kept in memory", r.options.Fetch.Name, err)
		return memory.TooHeavy
	}
	returned := false
	defer func() {
		if !returned {
			weight = failed(fmt.Errorf("LoaderOptions.Weight has panicked with a %T", recover()))
		}
	}()
	weight = r.options.Weight(value)
	returned = true
	if weight < 0 {
		return failed(errWeight)
	}
	return min(weight, memory.TooHeavy)
}

// look returns the copy of the key with this stable hash in the memory tier: see memory.Look.
func (r *Reader[K, V]) look(stable uint64, age time.Duration) (of *looked, none bool) {
	item, read, none := memory.Look[K, V](r.memory.tier, stable, &r.memory.generations, r.options.Fetch.MemoryTTL, age)
	if item == nil {
		return nil, none
	}
	return &looked{key: &item.Key, copy: copyOf(item), read: read}, false
}

func copyOf[K comparable, V any](item *memory.Item[K, V]) audit.Copy {
	return audit.Copy{Value: &item.Value, Null: item.Null, There: true}
}

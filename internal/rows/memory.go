package rows

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/memory"
)

// memory is the memory tier as a loader uses it.
type processMemory[K comparable, V any] struct {
	tier        *memory.Tier       // nil: not used by this loader
	generations memory.Generations // the loader's generations
	bypass      atomic.Uint32      // why reads bypass the memory tier: bypassing, shadowing, forgetful
}

// The bits of memory.bypass.
const (
	bypassing = 1 << iota // all
	shadowing             // callers: see LoaderOptions.Shadow
	forgetful             // there is no memory tier
)

func (m *processMemory[K, V]) use(cache *Shared, o *fetch.Options) {
	if o.MemoryTTL > 0 {
		m.tier = cache.Memory
	}
	if m.tier == nil {
		m.bypass.Or(forgetful)
	}
	if cache.Bus == nil {
		m.generations[0].Store(&memory.Generation{})
	}
}

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
	} else if at, as, ok := r.kept(key, nil); ok {
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

// hash returns the hash of a key in the memory tier. of is the key's round, if there is one: its
// text was made when it began, and the key may have changed since.
func (r *Reader[K, V]) hash(key K, of *fetch.Round) uint64 {
	if !r.Keys.byText {
		return r.Keys.hash(key)
	}
	text, _ := r.textOf(key, of)
	return r.Keys.hashText(text)
}

func (r *Reader[K, V]) textOf(key K, of *fetch.Round) (string, error) {
	if of != nil && of.Text() != "" {
		return of.Text(), nil
	}
	return r.Keys.Text(key)
}

// kept returns the hash of a key in the memory tier, and the key of the item there. They are ==,
// unless keys are compared by their texts. Then ok is false if the item's key has another text, as
// when a caller has changed it.
func (r *Reader[K, V]) kept(key K, of *fetch.Round) (hash uint64, as K, ok bool) {
	if !r.Keys.byText {
		return r.Keys.hash(key), key, true
	}
	text, err := r.textOf(key, of)
	if err != nil {
		return 0, key, false
	}
	hash = r.Keys.hashText(text)
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
	if r.Fetch.DueEarly(r.hash(item.Key, nil), left, time.Duration(item.Delta)*time.Microsecond) {
		r.Fetch.RefreshEarly(Lone(item.Key), left)
	}
}

// Peek is the copy of a key that memory or Redis has: see Loader.Peek. With an error ok is false.
func (r *Reader[K, V]) Peek(ctx context.Context, key K) (item fetch.Item, ok bool, err error) {
	of := Lone(key)
	if item, ok = r.peekMemory(of); ok {
		return item, true, nil
	}
	if r.Closed() {
		return item, false, fault.Closed
	}
	if ok, err = r.Fetch.Peek(ctx, of); ok {
		return fetch.Item{Value: of.Value, Null: of.Null}, true, nil
	}
	return item, false, err
}

// peekMemory is the copy in memory, if it may be given out. Without Redis it may be stale.
func (r *Reader[K, V]) peekMemory(of *fetch.Round) (item fetch.Item, ok bool) {
	if r.memory.bypass.Load() != 0 {
		return item, false
	}
	if r.cache.Store == nil {
		item, _, ok = r.Fetch.Past(of)
		return item, ok
	}
	return (*items[K, V])(r).Get(of)
}

// HasMemory reports whether the loader uses the memory tier.
func (r *Reader[K, V]) HasMemory() bool { return r.memory.tier != nil }

// Forget ends what this process holds of a key, also the memory of a failed load.
func (r *Reader[K, V]) Forget(key K, text string) {
	r.ForgetFailure(text)
	if r.memory.tier != nil {
		r.memory.tier.Invalidate(r.Keys.hashOf(key, text), r.Keys.Hash(text))
	}
}

// ForgetFailure ends the memory of a failed load of a key, also of one that is under way.
func (r *Reader[K, V]) ForgetFailure(text string) { r.Source.Failures.End(text) }

// Expire ends the TTL of a key in the memory of a process without Redis; with Redis, Forget does.
func (r *Reader[K, V]) Expire(key K, text string) {
	if r.cache.Store == nil && r.memory.tier != nil {
		if hash, as, ok := r.kept(key, nil); ok {
			weight := func(item *memory.Item[K, V]) int64 { return r.weight(item, 0) }
			memory.Expire(r.memory.tier, hash, &r.memory.generations, as, r.Keys.Hash(text), weight)
			return
		}
	}
	r.Forget(key, text)
}

// Raise begins another generation of the loader, in a range of slots.
func (r *Reader[K, V]) Raise(slots int, generation uint64) {
	r.memory.generations[slots].Store(&memory.Generation{Number: generation, Since: time.Now()})
}

// Generation is the loader's generation where the key of this name is; nil: it is not known yet.
func (r *Reader[K, V]) Generation(name string) *memory.Generation {
	return r.memory.generations.Of(uint8(r.cache.Conn.Range(name)))
}

// ForgetAll ends all that memory has of the loader, where an InvalidateAll has not reached Redis.
func (r *Reader[K, V]) ForgetAll() {
	m := &r.memory
	if m.tier == nil {
		return
	}
	for slots := range m.generations {
		if generation := m.generations[slots].Load(); generation == nil { // values may be there since the start, and no generation is known
			m.tier.Clear(slots)
		} else {
			again := *generation
			m.generations[slots].CompareAndSwap(generation, &again) // else another has come
		}
	}
}

// items is the memory tier as package fetch has it.
type items[K comparable, V any] Reader[K, V]

func (m *items[K, V]) Hash(r *fetch.Round) uint64 { return m.reader().hash(keyOf[K](r), r) }

func (m *items[K, V]) reader() *Reader[K, V] { return (*Reader[K, V])(m) }

func (m *items[K, V]) Past(r *fetch.Round) (item fetch.Item, ago time.Duration, ok bool) {
	hash, key, ok := m.reader().kept(keyOf[K](r), r)
	if !ok {
		return item, 0, false
	}
	of, ago, ok := memory.GetStale[K, V](m.memory.tier, hash, &m.memory.generations, key)
	if !ok {
		return item, 0, false
	}
	return fetch.Item{Value: &of.Value, Null: of.Null, Expired: of.Expired()}, ago, true
}

func (m *items[K, V]) Get(r *fetch.Round) (item fetch.Item, ok bool) {
	hash, key, ok := m.reader().kept(keyOf[K](r), r)
	if !ok {
		return item, false
	}
	of, _, ok := memory.Get[K, V](m.memory.tier, hash, &m.memory.generations, key)
	if !ok {
		return item, false
	}
	return fetch.Item{Value: &of.Value, Null: of.Null}, true
}

func (m *items[K, V]) Set(r *fetch.Round, delta uint32, life, ttl time.Duration) bool {
	item, weight := m.item(r, r.Value, r.Null)
	item.Delta = delta
	return memory.Set(m.memory.tier, m.Hash(r), item, weight, life, ttl)
}

func (m *items[K, V]) Keep(r *fetch.Round, value any, null bool, until time.Time) bool {
	item, weight := m.item(r, value, null)
	return memory.Keep(m.memory.tier, m.Hash(r), item, weight, until)
}

// item returns a value as the memory tier holds it, and its weight.
func (m *items[K, V]) item(r *fetch.Round, value any, null bool) (item memory.Item[K, V], weight int64) {
	slots, generation, stable, version := r.Snapshot()
	item = memory.Item[K, V]{
		Generation: generation, Range: slots, Key: m.Keys.owned(keyOf[K](r)), Value: Value[V](value), Null: null,
		Stripe: memory.Stripe(stable), Version: version,
	}
	return item, (*Reader[K, V])(m).weight(&item, r.Encoded())
}

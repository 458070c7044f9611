package cacheaside

import (
	"hash/maphash"
	"reflect"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/local"
)

// remembered looks into the memory tier, unless it is passed by. It is on the way of each hit: one
// word tells whether that is so.
func (l *Loader[K, V]) remembered(key K) (*local.Item[K, V], bool) {
	if l.aside.Load() != 0 {
		return nil, false
	}
	return l.inMemory(key)
}

// inMemory looks into the memory tier, which there is.
func (l *Loader[K, V]) inMemory(key K) (*local.Item[K, V], bool) {
	item, now, ok := local.Get[K, V](l.memory, l.hash(key), &l.eras, key)
	if !ok {
		return nil, false
	}
	l.counters.MemoryHits.Add()
	if item.Near(now) {
		l.nearEnd(item)
	}
	if item.Null {
		l.counters.MemoryNulls.Add(1)
	}
	return item, true
}

// nearEnd has the fetcher throw the die for a hit whose TTL is about to end.
func (l *Loader[K, V]) nearEnd(item *local.Item[K, V]) {
	if item.Kept() { // nothing of it is in Redis
		l.counters.HitsWhileDown.Add(1)
		return
	}
	left := item.Left(l.memory)
	if l.fetch.DueEarly(l.hash(item.Key), left, time.Duration(item.Delta)*time.Microsecond) {
		l.fetch.RefreshEarly(lone(item.Key), left)
	}
}

// items is the memory tier as package fetch has it.
type items[K comparable, V any] Loader[K, V]

func (m *items[K, V]) Hash(r *fetch.Round) uint64 { return maphash.Comparable(m.seed, keyOf[K](r)) }

func (m *items[K, V]) Past(r *fetch.Round) (item fetch.Item, ago time.Duration, ok bool) {
	of, ago, ok := local.GetStale[K, V](m.memory, m.Hash(r), &m.eras, keyOf[K](r))
	if !ok {
		return item, 0, false
	}
	return fetch.Item{Value: of.Value, Null: of.Null}, ago, true
}

func (m *items[K, V]) Get(r *fetch.Round) (item fetch.Item, ok bool) {
	of, _, ok := local.Get[K, V](m.memory, m.Hash(r), &m.eras, keyOf[K](r))
	if !ok {
		return item, false
	}
	return fetch.Item{Value: of.Value, Null: of.Null}, true
}

func (m *items[K, V]) Set(r *fetch.Round, delta uint32, life, ttl time.Duration) bool {
	item, weight := m.item(r, r.Value, r.Null)
	item.Delta = delta
	return local.Set(m.memory, m.Hash(r), item, weight, life, ttl)
}

func (m *items[K, V]) Keep(r *fetch.Round, value any, null bool, until time.Time) bool {
	item, weight := m.item(r, value, null)
	return local.Keep(m.memory, m.Hash(r), item, weight, until)
}

// item is a value as the memory tier holds it, and what it weighs.
func (m *items[K, V]) item(r *fetch.Round, value any, null bool) (item local.Item[K, V], weight int64) {
	key := keyOf[K](r)
	place, era, stable, generation := r.Snapshot()
	item = local.Item[K, V]{
		Era: era, Range: place, Key: m.owned(key), Value: valueOf[V](value), Null: null,
		Stripe: local.Stripe(stable), Generation: generation,
	}
	return item, local.Weigh(key, m.memory.Largest()) + local.Weigh(item.Value, m.memory.Largest())
}

// owned is a key for the memory tier, which is not to keep alive what a caller has cut it from: the
// text of a request, say.
func (m *items[K, V]) owned(key K) K {
	if m.textKeys {
		ownTexts(reflect.ValueOf(&key).Elem())
	}
	return key
}

func ownTexts(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() { // not an unexported field
			v.SetString(strings.Clone(v.String()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			ownTexts(v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			ownTexts(v.Index(i))
		}
	}
}

// forget ends what this process holds of a key, also that its load has failed.
func (l *Loader[K, V]) forget(key K, text string) {
	l.forgetFailure(text)
	if l.memory != nil {
		l.memory.Invalidate(l.hash(key), l.keys.Hash(text))
	}
}

// forgetFailure ends that the load of a key has failed, and that one which is under way will be
// remembered as such.
func (l *Loader[K, V]) forgetFailure(text string) { l.source.Failures.End(text) }

// hash is of this process and loader only.
func (l *Loader[K, V]) hash(key K) uint64 {
	return maphash.Comparable(l.seed, key)
}

package cacheaside

import (
	"hash/maphash"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
	"github.com/cacheaside/cacheaside/internal/local"
	"github.com/cacheaside/cacheaside/internal/source"
)

// remembered looks into the memory tier, unless it is passed by. It is on the way of each hit: one word tells whether that is so.
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
	l.counters.memoryHits.Add()
	if item.Near(now) {
		l.nearEnd(item)
	}
	if item.Null {
		l.counters.memoryNulls.Add(1)
	}
	return item, true
}

// rememberEntry remembers what an entry of Redis says, for what is left of its life.
func (l *Loader[K, V]) rememberEntry(r *round[K, V], e *lease.Entry) {
	if l.memory == nil {
		return
	}
	life := time.Until(e.Expiry)
	l.remember(r, life, e.Cost, false)
}

// remember offers a round's value to the memory tier, under the generation from before it was read. A refresh moves the generation on, for it
// must end what is remembered there; if that has moved already, the value is not remembered, and what is there ends too.
func (l *Loader[K, V]) remember(r *round[K, V], ttl, cost time.Duration, refresh bool) {
	life := min(ttl, l.options.MemoryTTL)
	s := &r.Result
	if l.memory == nil {
		return
	}
	if life <= 0 || !l.memory.Trusted(s.place) {
		if refresh { // trust may come back without a clear, and what is there is older
			l.memory.Invalidate(l.hash(r.Key), s.stable)
		}
		return
	}
	if refresh {
		var ok bool
		if s.generation, ok = l.memory.Advance(s.place, s.stable, s.generation); !ok {
			l.memory.Invalidate(l.hash(r.Key), s.stable)
			return
		}
	}
	l.memory.Note(l.hash(r.Key), s.stable, s.read)
	item, weight := l.item(r, s.value, s.null)
	item.Delta = uint32(min(l.delta(cost).Microseconds(), math.MaxUint32))
	if s.remembered = local.Set(l.memory, l.hash(r.Key), item, weight, life, ttl); !s.remembered {
		l.counters.tooHeavy.Add(1)
	}
}

// item is a round's value as the memory tier holds it, and what it weighs.
func (l *Loader[K, V]) item(r *round[K, V], value V, null bool) (item local.Item[K, V], weight int64) {
	s := &r.Result
	item = local.Item[K, V]{
		Era: s.era, Range: s.place, Key: l.owned(r.Key), Value: value, Null: null,
		Stripe: local.Stripe(s.stable), Generation: s.generation,
	}
	return item, local.Weigh(r.Key, l.memory.Largest()) + local.Weigh(value, l.memory.Largest())
}

// owned is a key for the memory tier, which is not to keep alive what a caller has cut it from: the
// text of a request, say.
func (l *Loader[K, V]) owned(key K) K {
	if l.textKeys {
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

// keep has memory serve a value that was loaded while Redis was out of reach, although nobody tells
// when it is invalidated: until MaxStaleness has passed since its load began, which keeps that
// bound, as nothing that was acknowledged before is missing in it. An Invalidate of this process
// ends it, also one that does not reach Redis; and so does the clear that comes before memory is
// trusted again. Not where keys may be on hold: only Redis knows which are.
func (l *Loader[K, V]) keep(r *round[K, V], row source.Row) {
	if l.memory == nil || l.cache.options.holds() {
		return
	}
	s := &r.Result
	until := row.Began.Add(min(l.cache.options.MaxStaleness, l.ttl(row), l.options.MemoryTTL))
	if !time.Now().Before(until) {
		return
	}
	l.memory.Note(l.hash(r.Key), s.stable, s.read)
	item, weight := l.item(r, valueOf[V](row), row.Null)
	if !local.Keep(l.memory, l.hash(r.Key), item, weight, until) {
		l.counters.tooHeavy.Add(1)
	}
}

// kept answers a round that would load without Redis by what another has loaded and memory keeps.
func (l *Loader[K, V]) kept(r *round[K, V]) bool {
	s := &r.Result
	if l.memory == nil || l.cache.store == nil || s.bypass || s.held || s.fresh {
		return false
	}
	item, _, ok := local.Get[K, V](l.memory, l.hash(r.Key), &l.eras, r.Key)
	if ok {
		l.counters.hitsWhileDown.Add(1)
		s.value, s.null, s.hit, s.unvalidated = item.Value, item.Null, true, true
	}
	return ok
}

// current tells whether those who came while a round ran may be given its result: it is what the memory tier holds for them.
func (l *Loader[K, V]) current(s *state[V]) bool {
	return s.remembered && !l.bypassed() && l.memory.Trusted(s.place) && l.eras.Of(s.place) == s.era &&
		l.memory.Generation(s.place, s.stable) == s.generation
}

// forget ends what this process holds of a key, also that its load has failed.
func (l *Loader[K, V]) forget(key K, text string) {
	l.forgetFailure(text)
	if l.memory != nil {
		l.memory.Invalidate(l.hash(key), l.keys.Hash(text))
	}
}

// forgetFailure ends that the load of a key has failed, and that one which is under way will be remembered as such.
func (l *Loader[K, V]) forgetFailure(text string) { l.source.Failures.End(text) }

// hash is of this process and loader only.
func (l *Loader[K, V]) hash(key K) uint64 {
	return maphash.Comparable(l.seed, key)
}

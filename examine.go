package cacheaside

import (
	"bytes"
	"context"
	"reflect"
	"time"

	"github.com/cacheaside/cacheaside/internal/local"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/source"
)

// confirmAfter is how long a copy must go on differing from its row, which must not change
// meanwhile, before that counts: a row that was just written differs from its copies until its
// invalidation has come.
const confirmAfter = 500 * time.Millisecond

// undecided is no verdict yet: the copy is to be compared.
const undecided = measure.Verdicts

// examined is what was seen of a key in memory.
type examined struct {
	verdict measure.Verdict
	finish  func(ctx context.Context, mayLoad func() bool) measure.Verdict // if that is undecided
}

// copied is what a tier would serve of a key.
type copied[V any] struct {
	value V
	null  bool
	there bool // else there is nothing, or nobody knows
}

// examineMemory looks at what the memory of this process would serve of a key, whose row was
// written then by the channel's clock, when the memory had that age. It only looks: what it costs
// is that, unless the copy is older, and to be compared.
func (l *Loader[K, V]) examineMemory(stable uint64, written, age time.Duration) examined {
	if l.memory == nil || l.bypassed() {
		return examined{verdict: measure.None}
	}
	look := func() (item *local.Item[K, V], v measure.Verdict) {
		item, read, none := local.Look[K, V](l.memory, stable, &l.eras, l.options.MemoryTTL, age)
		switch {
		case item == nil && none:
			return nil, measure.None
		case item == nil:
			return nil, measure.Unknown
		case read > written:
			return nil, measure.Young
		}
		if text, err := l.encodeKey(item.Key); err != nil || l.keys.Hash(text) != stable { // another key of that hash in this process
			return nil, measure.Unknown
		}
		return item, undecided
	}
	item, v := look()
	if v != undecided {
		return examined{verdict: v}
	}
	return examined{undecided, func(ctx context.Context, mayLoad func() bool) measure.Verdict {
		return l.compare(ctx, item.Key, copied[V]{item.Value, item.Null, true}, func() copied[V] {
			if item, _ := look(); item != nil {
				return copied[V]{item.Value, item.Null, true}
			}
			return copied[V]{}
		}, mayLoad)
	}}
}

// examineRedis looks at the entry of a key, and compares it with the database: from when it is,
// nobody knows. Not so one that is known to be good.
func (l *Loader[K, V]) examineRedis(ctx context.Context, key any, good measure.Stamp, mayLoad func() bool) (measure.Verdict, measure.Stamp) {
	typed, ok := key.(K)
	if !ok {
		return measure.Unknown, measure.Stamp{}
	}
	ctx, stop := l.alive(ctx)
	defer stop()
	first, stamp, v := l.entryOf(ctx, typed)
	switch {
	case v != undecided:
		return v, stamp
	case good != measure.Stamp{} && stamp == good:
		return measure.Same, stamp
	}
	return l.compare(ctx, typed, first, func() copied[V] {
		var c copied[V]
		c, stamp, _ = l.entryOf(ctx, typed)
		return c
	}, mayLoad), stamp
}

// alive is ctx, which also ends with the cache.
func (l *Loader[K, V]) alive(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.life, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// entryOf is what Redis holds of a key that would be served; its verdict is undecided if there is
// something.
func (l *Loader[K, V]) entryOf(ctx context.Context, key K) (c copied[V], stamp measure.Stamp, v measure.Verdict) {
	r := lone(key)
	if stamp, v = l.fetch.Copy(ctx, r, undecided); v == undecided {
		c = copied[V]{valueOf[V](r.Value), r.Null, true}
	}
	return c, stamp, v
}

// compare compares a copy with the database. A difference is looked at once more, a while later: it
// counts if the row has not changed meanwhile, and what is served still differs from it.
func (l *Loader[K, V]) compare(ctx context.Context, key K, first copied[V], again func() copied[V], mayLoad func() bool) measure.Verdict {
	row, ok := l.row(ctx, key, mayLoad)
	if !ok {
		return measure.Unknown
	}
	return l.compareWith(ctx, key, first, row, again, mayLoad)
}

// compareWith is compare with a row that was loaded just before.
func (l *Loader[K, V]) compareWith(ctx context.Context, key K, first, row copied[V], again func() copied[V], mayLoad func() bool) measure.Verdict {
	switch {
	case l.same(first, row):
		return measure.Same
	}
	wait := time.NewTimer(confirmAfter)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
		return measure.Unknown
	}
	second := again()
	if !second.there {
		return measure.Unknown
	}
	now, ok := l.row(ctx, key, mayLoad)
	switch {
	case !ok:
		return measure.Unknown
	case l.same(second, now):
		return measure.Same
	case !l.same(row, now):
		return measure.Unknown
	default:
		return measure.Different
	}
}

// row loads a row by itself: within what all loads may ask of the database, but without a lease,
// and nothing is stored.
func (l *Loader[K, V]) row(ctx context.Context, key K, mayLoad func() bool) (c copied[V], ok bool) {
	if !mayLoad() || ctx.Err() != nil {
		return c, false
	}
	l.counters.CompareLoads.Add(1)
	row := l.loadByItself(ctx, []K{key}, source.Call{Background: true})[0]
	return copied[V]{valueOf[V](row.Value), row.Null, true}, row.Err == nil
}

// same tells whether two copies of a row are the same, as the loader's codec has them: what it
// leaves out does not count, and what comes back from it in another form, as a time in another
// zone, is made alike first.
func (l *Loader[K, V]) same(a, b copied[V]) bool {
	if a.null || b.null {
		return a.null == b.null
	}
	first, one := l.throughCodec(a.value)
	second, other := l.throughCodec(b.value)
	if first == nil || second == nil {
		return false
	}
	return bytes.Equal(first, second) || reflect.DeepEqual(one, other) // maps may be written in any order
}

// throughCodec takes a value through the codec, and writes it once more: then all forms of it are
// the same. Nil if it cannot be.
func (l *Loader[K, V]) throughCodec(v V) (encoded []byte, decoded V) {
	p, err := l.codec.Encode(v)
	if err != nil {
		return nil, decoded
	}
	if decoded, err = l.codec.Decode(p); err != nil {
		return nil, decoded
	}
	if p, err = l.codec.Encode(decoded); err != nil {
		return nil, decoded
	}
	return append([]byte{byte(p.Codec)}, p.Bytes...), decoded
}

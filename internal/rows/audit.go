package rows

import (
	"bytes"
	"context"
	"reflect"
	"time"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/source"
)

// AuditMemory is audit.Loader.AuditMemory. It only looks: a row is loaded if the copy is older, and
// is compared.
func (r *Reader[K, V]) AuditMemory(stable uint64, written, age time.Duration) audit.Finding {
	if !r.HasMemory() || r.Bypassed() {
		return audit.Finding{Verdict: measure.None}
	}
	look := func() (item *memory.Item[K, V], v measure.Verdict) {
		item, read, none := memory.Look[K, V](r.memory.tier, stable, &r.memory.generations, r.options.Fetch.MemoryTTL, age)
		switch {
		case item == nil && none:
			return nil, measure.None
		case item == nil:
			return nil, measure.Unknown
		case read > written:
			return nil, measure.Young
		}
		if text, err := r.Keys.Text(item.Key); err != nil || r.Keys.Hash(text) != stable { // another key of that hash in this process
			return nil, measure.Unknown
		}
		return item, audit.Undecided
	}
	item, v := look()
	if v != audit.Undecided {
		return audit.Finding{Verdict: v}
	}
	return audit.Finding{Verdict: audit.Undecided, Compare: func(ctx context.Context, mayLoad func() bool) measure.Verdict {
		again := func() audit.Copy {
			if item, _ := look(); item != nil {
				return copyOf(item)
			}
			return audit.Copy{}
		}
		return r.audited(item.Key, again, mayLoad).Compare(ctx, copyOf(item))
	}}
}

func copyOf[K comparable, V any](item *memory.Item[K, V]) audit.Copy {
	return audit.Copy{Value: &item.Value, Null: item.Null, There: true}
}

// AuditRedis compares the entry of a key with the database, for nobody knows when it was read. The
// entry with the stamp good is known to be right.
func (r *Reader[K, V]) AuditRedis(ctx context.Context, key any, good measure.Stamp, mayLoad func() bool) (measure.Verdict, measure.Stamp) {
	typed, ok := key.(K)
	if !ok {
		return measure.Unknown, measure.Stamp{}
	}
	ctx, stop := r.alive(ctx)
	defer stop()
	first, stamp, v := r.entryOf(ctx, typed)
	switch {
	case v != audit.Undecided:
		return v, stamp
	case good != measure.Stamp{} && stamp == good:
		return measure.Same, stamp
	}
	again := func() (c audit.Copy) {
		c, stamp, _ = r.entryOf(ctx, typed)
		return c
	}
	return r.audited(typed, again, mayLoad).Compare(ctx, first), stamp
}

// alive is ctx, which also ends with the cache.
func (r *Reader[K, V]) alive(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.life, func() { cancel(fault.Closed) })
	return ctx, func() { stop(); cancel(nil) }
}

// entryOf is the entry of a key in Redis, if it would be served; then its verdict is Undecided.
func (r *Reader[K, V]) entryOf(ctx context.Context, key K) (c audit.Copy, stamp measure.Stamp, v measure.Verdict) {
	of := Lone(key)
	if stamp, v = r.Fetch.Copy(ctx, of, audit.Undecided); v == audit.Undecided {
		c = copyOfRound(of)
	}
	return c, stamp, v
}

func copyOfRound(r *fetch.Round) audit.Copy {
	return audit.Copy{Value: r.Value, Null: r.Null, There: true}
}

// audited is a key whose copies are compared, where mayLoad allows it.
func (r *Reader[K, V]) audited(key K, again func() audit.Copy, mayLoad func() bool) audit.Key {
	return audit.Key{
		Row:   func(ctx context.Context) (audit.Copy, bool) { return r.row(ctx, key, mayLoad) },
		Again: again, Same: r.same,
	}
}

// row loads a row by itself: within the limits of all loads, but without a lease, and nothing is
// stored.
func (r *Reader[K, V]) row(ctx context.Context, key K, mayLoad func() bool) (c audit.Copy, ok bool) {
	if !mayLoad() || ctx.Err() != nil {
		return c, false
	}
	r.Counters.CompareLoads.Add(1)
	row := r.LoadAlone(ctx, []K{key}, source.Call{Background: true})[0]
	return audit.Copy{Value: row.Value, Null: row.Null, There: true}, row.Err == nil
}

// same reports whether two copies of a row are the same, as the loader's codec has them: fields
// that it leaves out do not count, and values that it changes, such as the zone of a time, are made
// alike first.
func (r *Reader[K, V]) same(a, b audit.Copy) bool {
	if a.Null || b.Null {
		return a.Null == b.Null
	}
	first, one := r.throughCodec(Value[V](a.Value))
	second, other := r.throughCodec(Value[V](b.Value))
	if first == nil || second == nil {
		return false
	}
	return bytes.Equal(first, second) || reflect.DeepEqual(one, other) // maps may be written in any order
}

// throughCodec encodes a value, decodes that, and encodes it again: then all its forms are the
// same. Nil if the codec fails. A value that the codec changes is not cached, and compares as what
// it would be changed to.
func (r *Reader[K, V]) throughCodec(v V) (encoded []byte, decoded V) {
	lossy := r.options.Codec.Lossy()
	p, err := lossy.Encode(v)
	if err != nil {
		return nil, decoded
	}
	again, err := lossy.Decode(p)
	if err != nil {
		return nil, decoded
	}
	if p, err = lossy.Encode(*again); err != nil {
		return nil, decoded
	}
	return append([]byte{byte(p.Codec)}, p.Bytes...), *again
}

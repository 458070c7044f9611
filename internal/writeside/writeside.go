// Package writeside gives the packages consistency and canal access to parts of a Cache and its
// Loaders that users do not see.
//
// A type grants access by embedding an Inside in an unexported field. The only method of Inside is
// unexported as well, so it does not appear in the documentation. This method makes the type
// acceptable to Of. So the compiler checks what is accessible, and to which package.
package writeside

import (
	"context"
	"time"
)

// An Inside contains what a type makes accessible through Of.
type Inside[T any] struct{ it T }

// Give returns an Inside to embed.
func Give[T any](it T) Inside[T] { return Inside[T]{it} }

func (i *Inside[T]) inside() T { return i.it }

// Of returns what x, which must not be nil, makes accessible: the Cache of a *cacheaside.Cache,
// the
// Loader of a *cacheaside.Loader, or the Writer of a *consistency.Writer.
func Of[T any](x interface{ inside() T }) T { return x.inside() }

// A Cache is the part of a *cacheaside.Cache that these packages use. Key is cacheaside.Key,
// which this package cannot import.
type Cache[Key any] interface {
	// Closed reports whether the cache is closed.
	Closed() bool

	// Strict reports whether Options.StrictWrites is set.
	Strict() bool

	// Prefix returns Options.Prefix.
	Prefix() string

	// Loader reports whether this process has a loader of that name, and whether that loader has
	// a filter.
	Loader(name string) (has, filter bool)

	// Loaders returns the names of all loaders of this process.
	Loaders() []string

	// CountRelays registers the relay id among those of a queue for the duration life, and returns
	// their number. It returns 0 without Redis. A life of 0 ends the registration.
	CountRelays(ctx context.Context, queue, id string, life time.Duration) (int, error)

	// Existing reports whether the row of key existed before the transaction.
	Existing(key Key) bool

	// InsertingHeld is InsertingKeys for keys that are on hold when the transaction commits.
	// committed does not invalidate them, because Invalidate of the Hold or StoreHeld does.
	// Without filters InsertingHeld does nothing.
	InsertingHeld(ctx context.Context, keys ...Key) (committed func(context.Context) error, err error)
}

// A Writer is the part of a *consistency.Writer that the plugins of object mappers use. Item is
// consistency.Item, and Tx is sqlx.ExecerContext.
type Writer[Key, Item, Tx any] interface {
	// HasFilter reports whether a loader of this process has a filter.
	HasFilter(loader string) bool

	// Enqueue is Writer.Enqueue. It returns the rows of the outbox. If the caller will not call
	// Committed, a Relay handles them as soon as they are committed.
	Enqueue(ctx context.Context, tx Tx, keys []Key, committed bool) ([]Item, error)

	// Committed invalidates the keys of rows whose transaction was committed. If that fails, a
	// Relay does it.
	Committed(ctx context.Context, rows []Item)
}

// A Loader is the part of a *cacheaside.Loader that these packages use. Hold is *cacheaside.Hold.
type Loader[K, V, Hold any] interface {
	// StoreHeld stores the value of a key that h holds, and releases that key. value must be what
	// a committed transaction has written. It is stored only if neither the key nor its loader
	// was held or invalidated by another call since h has held the key. Otherwise StoreHeld
	// returns false, and the key must still be invalidated, for example by Hold.Invalidate, which
	// the caller must call in either case.
	//
	// StoreHeld also returns false for a value longer than LoaderOptions.MaxValueBytes, under
	// Bypass, without Redis, while this process does not know the generation of the loader's
	// entries, and with any error. Errors of Redis are counted; the caller need only call
	// Hold.Invalidate. The TTLs are those of a load.
	StoreHeld(ctx context.Context, h Hold, key K, value V) (stored bool, err error)
}

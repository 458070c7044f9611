// Package writeside is what packages consistency and canal are given of a Cache and of its Loaders,
// and nobody else.
//
// A type that gives them something embeds an Inside, under a name that is not exported. The one
// method of an Inside is not exported, either, so users see nothing of it; but it makes the type
// one that Of takes. So the compiler knows what is given, and to whom.
package writeside

import "context"

// Inside is what a type gives by Of.
type Inside[T any] struct{ it T }

// Give makes an Inside, to be embedded.
func Give[T any](it T) Inside[T] { return Inside[T]{it} }

func (i *Inside[T]) inside() T { return i.it }

// Of is what x, which is not nil, gives: a *cacheaside.Cache a Cache, a *cacheaside.Loader a
// Loader.
func Of[T any](x interface{ inside() T }) T { return x.inside() }

// Cache is a *cacheaside.Cache as these packages have it. Key is cacheaside.Key, which cannot be
// named here.
type Cache[Key any] interface {
	// Closed tells whether it was closed.
	Closed() bool

	// Strict tells whether it has Options.StrictWrites.
	Strict() bool

	// Prefix is its Options.Prefix.
	Prefix() string

	// Loader tells whether this process has a loader of that name, and whether that has a filter.
	Loader(name string) (has, filter bool)

	// Existing tells whether a key is that of a row that was there before.
	Existing(key Key) bool

	// AdmitHeld is InsertingKeys for keys that are on hold when the transaction commits: committed
	// does not invalidate them, for the Release of the Hold does, or StoreHeld. Without filters it
	// does nothing.
	AdmitHeld(ctx context.Context, keys ...Key) (committed func(context.Context) error, err error)
}

// Loader is a *cacheaside.Loader as they have it. Hold is *cacheaside.Hold.
type Loader[K, V, Hold any] interface {
	// StoreHeld stores the value of a key that h holds, and releases that key: what a transaction
	// has written, and has committed since. It is stored only if nobody else has held or
	// invalidated the key since it was held, nor the loader; else the answer is false, and the key
	// is still to be invalidated, as by Release. Release h in the end, whatever it answers.
	//
	// It is also false for a value that is longer than LoaderOptions.MaxValueBytes, under Bypass,
	// without Redis, and where this process does not know yet of which generation the loader's
	// entries are. With an error it is false, too: those of Redis are counted, and need no answer
	// but that Release. The TTLs are those of a load.
	StoreHeld(ctx context.Context, h Hold, key K, value V) (stored bool, err error)
}

// Package measure is what package meter is given of a Cache, and nobody else.
package measure

import (
	"context"
	"time"
)

// Verdict is what a tier has of a key whose row was written some time ago.
type Verdict uint8

// The verdicts. They go over the network: never renumber them.
const (
	Unknown   Verdict = iota // nobody can say, or it has changed while it was looked at
	None                     // there is no copy that would be served
	Young                    // there is one that was read after the write
	Same                     // an older one, or one of which that is not known; it is what the database has
	Different                // likewise; and it is not, twice, a while apart in which the row has not changed
	Verdicts                 // how many there are
)

// Written is a key whose row was written.
type Written struct {
	Loader string
	Hash   uint64 // of loader and key, the same in each process
	Key    any    // a *K, the loader's key; nil: this process cannot make it
}

// Stamp names an entry of Redis.
type Stamp [12]byte

// Sampler is told of what a Cache has invalidated, once Redis has acknowledged it.
type Sampler interface {
	Take() bool  // whether it wants this one
	Add(Written) // if so
}

// Question is what all processes are asked.
type Question struct {
	ID       uint64
	Patience time.Duration // how long an answer is waited for
	Keys     []Asked       // at most MaxAsked
}

// MaxAsked is how many keys a question is about at most.
const MaxAsked = 128

// Asked is a key that is asked for.
type Asked struct {
	Loader string
	Hash   uint64
	Ago    time.Duration // since its row was written
}

// Cache is a Cache as a meter sees it. Its methods do not wait longer than Options.RedisTimeout, or
// ctx says.
type Cache interface {
	// Sample has s told of what is invalidated, until stop is called. There is one Sampler at a
	// time.
	Sample(s Sampler) (stop func(), err error)

	// Read is the key of that text as its loader has it; nil if this process has no such loader, or
	// it cannot read it.
	Read(loader, version, text string) Written

	// Ask asks all processes that listen, and tells how many those are.
	Ask(ctx context.Context, q Question) (listeners int, err error)

	// Answers takes what has been answered: for each process that has the verdicts of the keys in
	// their order.
	Answers(ctx context.Context, id uint64) ([]string, error)

	// Redis looks at a key in Redis, and if there is an entry, compares it with the database, if
	// mayLoad is true for each row that it must load. An entry with the stamp good is known to be
	// what the database had after the write. It answers which entry it has seen.
	Redis(ctx context.Context, w Written, good Stamp, mayLoad func() bool) (Verdict, Stamp)
}

// Inside gives a Cache to package meter, as writeside.Inside does to others.
type Inside struct{ cache Cache }

// Give makes an Inside, to be embedded.
func Give(c Cache) Inside { return Inside{c} }

func (i *Inside) measured() Cache { return i.cache }

// Of is the Cache of x, a *cacheaside.Cache that is not nil. It is nil if that has no Redis.
func Of(x interface{ measured() Cache }) Cache { return x.measured() }

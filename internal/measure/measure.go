// Package measure gives package meter access to unexported parts of a Cache.
package measure

import (
	"context"
	"time"
)

// A Verdict is the result of comparing the copy of a key in one tier with its row, some time
// after a write of the row.
type Verdict uint8

// The verdicts. They are sent over the network: never renumber them.
const (
	Unknown   Verdict = iota // the comparison was not possible, or the copy or the row changed during it
	None                     // there is no copy that would be served
	Young                    // the copy was read after the write
	Same                     // the copy is older, or of unknown age, and equal to the row
	Different                // such a copy differed from the row twice, and the row did not change in between
	Verdicts                 // the number of verdicts
)

// Written is a key whose row was written.
type Written struct {
	Loader string
	Hash   uint64 // the hash of loader and key, the same in each process
	Key    any    // a *K, the loader's key; nil if this process cannot decode it
}

// A Stamp identifies an entry in Redis.
type Stamp [12]byte

// A Sampler samples the invalidations of a Cache, after Redis has acknowledged them.
type Sampler interface {
	Take() bool  // reports whether to sample this invalidation
	Add(Written) // is called after Take has returned true
}

// A Question is a query that is sent to all processes.
type Question struct {
	ID       uint64
	Patience time.Duration // how long the meter waits for replies
	Keys     []Asked       // at most MaxAsked
	Share    float64       // the probability with which a process replies; 0: 1
}

// MaxAsked is the maximum number of keys in a Question.
const MaxAsked = 128

// Asked is a key in a Question.
type Asked struct {
	Loader string
	Hash   uint64
	Ago    time.Duration // since its row was written
}

// A Cache is the part of a cacheaside.Cache that a meter uses. Its methods return within
// Options.RedisTimeout, or when ctx ends.
type Cache interface {
	// Sample passes invalidations to s until stop is called. There can be one Sampler at a time.
	Sample(s Sampler) (stop func(), err error)

	// Read decodes the text of a loader's key. The Key of the result is nil if this process has
	// no such loader, or cannot decode the text.
	Read(loader, version, text string) Written

	// Ask sends q to all processes that listen, and returns their number.
	Ask(ctx context.Context, q Question) (listeners int, err error)

	// Replies collects the replies to question id: for each process the verdicts of the keys in
	// their order.
	Replies(ctx context.Context, id uint64) ([]string, error)

	// Redis reads the entry of a key in Redis and compares it with the database. It calls mayLoad
	// before each row that it must load, and loads it only if that returns true. An entry with
	// the stamp good is known to be equal to the row after the write. Redis also returns the
	// stamp of the entry that it has read.
	Redis(ctx context.Context, w Written, good Stamp, mayLoad func() bool) (Verdict, Stamp)
}

// An Inside gives package meter access to a Cache, as writeside.Inside does for other packages.
type Inside struct{ cache Cache }

// Give returns an Inside to embed.
func Give(c Cache) Inside { return Inside{c} }

func (i *Inside) measured() Cache { return i.cache }

// Of returns the Cache of x, a *cacheaside.Cache that must not be nil. It returns nil if that
// cache has no Redis.
func Of(x interface{ measured() Cache }) Cache { return x.measured() }

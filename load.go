package cacheaside

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/source"
)

// SetTTL sets how long the value that the running load returns may stay cached, instead of
// LoaderOptions.TTL (or NullTTL, if there is no such row). In a batch load it holds for all keys of
// the call. ctx is the load's context, or made from it; with any other ctx SetTTL does nothing, so
// that a load function can be called by itself. It is brought within MinTTL and MaxTTL, and Jitter
// applies. The last call counts.
func SetTTL(ctx context.Context, ttl time.Duration) {
	source.SetTTL(ctx, min(max(ttl, MinTTL), MaxTTL))
}

// PreferPrimary tells a load function that it should read from the primary of the database, for a
// replica may not have heard yet of what it is asked for: its key was invalidated less than
// Options.ReplicaLag ago, or is on hold while its row is written (Options.StrictWrites), or it was
// expired or is refreshed (see Expire, Refresh), or nobody can say, since Redis could not be asked
// or is passed by; or an earlier load for the same callers was overtaken by an invalidation. ctx is
// the load's context, or made from it. With any other ctx, and where neither option is set, it is
// false. In a batch load it holds for all keys of the call: those for which it is false have a call
// of their own.
//
//	db := replica
//	if cacheaside.PreferPrimary(ctx) {
//		db = primary
//	}
//
// A load that reads from the replica all the same may return a row from before the invalidation,
// which is given to those who ask just then, but not stored.
func PreferPrimary(ctx context.Context) bool {
	return fetch.PreferPrimary(ctx)
}

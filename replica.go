package cacheaside

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/fetch"
)

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

// lag is for how long an invalidation puts its keys on hold, in whole milliseconds, which is how
// Redis counts lives.
func (o Options) lag() time.Duration {
	return (o.ReplicaLag + time.Millisecond - 1).Truncate(time.Millisecond)
}

// holds tells whether keys may be on hold.
func (o Options) holds() bool { return o.ReplicaLag > 0 || o.StrictWrites }

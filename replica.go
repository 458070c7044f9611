package cacheaside

import (
	"context"
	"slices"
	"time"
)

// PreferPrimary tells a load function that it should read from the primary of the database, for a replica may not have heard yet of what it is asked for: its key was
// invalidated less than Options.ReplicaLag ago, or is on hold while its row is written (Options.StrictWrites), or it was expired or is refreshed (see Expire, Refresh), or nobody can say, since Redis could not be asked or is passed by; or an earlier load for the same callers was overtaken by an
// invalidation. ctx is the load's context, or made from it. With any other ctx, and where neither option is set, it is false. In a batch load it holds for all keys
// of the call: those for which it is false have a call of their own.
//
//	db := replica
//	if cacheaside.PreferPrimary(ctx) {
//		db = primary
//	}
//
// A load that reads from the replica all the same may return a row from before the invalidation, which is given to those who ask just then, but not stored.
func PreferPrimary(ctx context.Context) bool {
	primary, _ := ctx.Value(primaryKey{}).(bool)
	return primary
}

type primaryKey struct{}

// withPrimary is the context of a load for rounds, which are all alike in this. The caller's context may be that of another load, which says nothing about this one.
func (l *Loader[K, V]) withPrimary(ctx context.Context, rounds []*round[K, V]) context.Context {
	primary := l.primary(&rounds[0].Result)
	if primary == PreferPrimary(ctx) {
		return ctx
	}
	return context.WithValue(ctx, primaryKey{}, primary)
}

// primary tells whether a round should load from the primary. It does not change while the round is at toLoad.
//
// A read that loads under a lease need not, also if it is Fresh: nothing was invalidated for as long as the lag, or the lease would not have been given.
func (l *Loader[K, V]) primary(s *state[V]) bool {
	switch {
	case s.held:
		return true
	case !l.cache.options.holds():
		return false
	case s.suspect, s.refusals > 0:
		return true
	default: // without Redis, what is on hold is known
		return s.alone && l.cache.store != nil
	}
}

// chunks divides rounds among calls of the load function, so that each call reads from one database: neither do a few keys on hold send all others of a batch to the primary, nor
// are they read from a replica.
func (b *batch[K, V]) chunks(rounds []*round[K, V]) [][]*round[K, V] {
	replica := rounds
	var primary []*round[K, V]
	onPrimary := func(r *round[K, V]) bool { return b.l.primary(&r.Result) }
	if slices.ContainsFunc(rounds, onPrimary) {
		replica = slices.DeleteFunc(slices.Clone(rounds), onPrimary)
		primary = slices.DeleteFunc(slices.Clone(rounds), func(r *round[K, V]) bool { return !onPrimary(r) })
	}
	return slices.AppendSeq(slices.Collect(slices.Chunk(primary, b.l.chunk)), slices.Chunk(replica, b.l.chunk))
}

// onHold tells, without Redis, whether the key of a round is on hold. It is asked after the round has taken its generation, and an invalidation sets the hold before it raises
// that: so a load that is not told of the hold is not remembered.
func (l *Loader[K, V]) onHold(s *state[V]) bool {
	if l.cache.holds == nil {
		return false
	}
	since := l.eras[0].Load().Since
	return l.cache.holds.Held(l.keys.Hash(s.text)) || !since.IsZero() && time.Since(since) < l.cache.options.ReplicaLag
}

// young is the generation of a round's era, where that may have begun within ReplicaLag: no earlier than this process has learned of it. By its own clock Redis says whether it has, for a
// process that has just started learns of old ones. This bound is for the case that the generation is ahead of that clock.
func (l *Loader[K, V]) young(s *state[V]) uint64 {
	if s.era == nil || time.Since(s.era.Since) >= l.cache.options.ReplicaLag {
		return 0
	}
	return s.era.Generation
}

// lag is for how long an invalidation puts its keys on hold, in whole milliseconds, which is how Redis counts lives.
func (o Options) lag() time.Duration {
	return (o.ReplicaLag + time.Millisecond - 1).Truncate(time.Millisecond)
}

// holds tells whether keys may be on hold.
func (o Options) holds() bool { return o.ReplicaLag > 0 || o.StrictWrites }

// Package bloom is Bloom filters that never hide a row. They say of a key that it is certainly not
// there, or that it may be; they never say "certainly not" of a key that was added.
//
//	// for a million keys, at 1 % of false positives
//	filter, err := bloom.NewRedis(rdb, "users", 1_000_000, 0.01, nil)
//	// answered in this process's memory
//	replica, err := bloom.NewReplica(filter)
//	// built from the table, and again when it is due
//	go replica.Maintain(ctx, bloom.Table[int64](db, "users", "id"), nil)
//
//	maybe, err := replica.MightContain(ctx, "42")
//
// In front of a loader (cacheaside.LoaderOptions.Filter) a filter turns away keys that do not exist
// before they reach Redis or the database. As a DenyList it turns away those that do.
//
// # The filters
//
//   - Local is in the memory of one process, and knows only the keys that this process has added or
//     read from its source. Use it for a set that does not change, or for a single process.
//   - Redis keeps its bits in Redis, for all processes. A lookup is one trip.
//   - Replica is a copy of such a filter in the memory of the process, kept up by what others
//     announce: lookups take nanoseconds and no trip.
//
// All have the bits of github.com/bits-and-blooms/bloom; a filter of up to 2^18 bits is one of that
// library's, a larger one is several of them, a key being in one. All can be rebuilt while they
// serve, which is the only way to take keys out of them, or to make them larger.
//
// # What they promise
//
// A lookup that begins after Add, or for rows that are being inserted Admit's committed, has
// returned nil finds the key. This holds for a Local, for a Redis filter in any process, and for a
// Replica if the key was added by it or by its Redis filter. A Replica finds keys that others have
// added within milliseconds, as a rule, and within Options.MaxStaleness for certain
// (MightContainFresh finds them at once). A filter that is missing, not built yet,
// lost in part, built differently, not heard of or out of reach answers "maybe", and is counted.
//
// They hold while Redis keeps what it has acknowledged. A failover, a restart, a restored dump or
// two swapped databases may lose keys of a filter: that is noticed within a second by the processes
// that use it, and it answers "maybe" from then on, until it was built again (see Maintain); and
// Redis' WAIT and appendfsync tell how not to lose them. A source that reads from a replica that
// lags, or a snapshot from before the rebuild began, hides what it does not see.
//
// Keys are compared byte for byte. Where a collation of the database finds the row "foo" for the
// key "Foo", a filter that has "foo" says no to "Foo": give both one text before they are added or
// asked for.
//
// # Redis
//
// A filter is a descriptor, prefix::bloom:{name}, its tally, the notes of rebuilds and the marks of
// the processes that use it, in hashes beside it, and one string for each segment of 32 KiB,
// prefix::bloom:{name/generation/segment}. None has an end of life: with a policy that evicts any
// key (allkeys-…) segments may be evicted, and answer "maybe" until the next rebuild. A full server
// refuses Adds; while a cluster moves a slot, Adds of many keys may fail for a moment: try again.
// Announcements go by the Redis channel prefix::bloom:{name}::invalidations, and are numbered in a
// key of that name's slot. With an ACL, the user needs ~prefix*, &prefix*, and GET, SET, GETRANGE, STRLEN, GETBIT, SETBIT,
// BITOP, BITCOUNT, DEL, UNLINK, HGET, HSET, HDEL, HINCRBY, HGETALL, HMGET, PERSIST, TIME, EVAL,
// EVALSHA, PUBLISH, SUBSCRIBE, UNSUBSCRIBE and PING; INFO, if restarts are to be noticed that
// nothing else shows; and what package lock needs for NewRedis. Each process that uses a filter
// asks a few short questions of it twice a second.
package bloom

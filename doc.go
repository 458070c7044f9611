// Package cacheaside reads rows of a database through caches: the memory of the process, then
// Redis, then the database itself. It keeps the classic failures of cache-aside away.
//
//	users, err := cacheaside.NewLoader(cache, "user", loadUser, nil)
//	u, err := users.Get(ctx, 42)         // a row, or ErrNotFound
//	m, err := users.GetMany(ctx, ids)    // those that exist, in few round trips
//	err = users.Invalidate(ctx, 42)      // after its row was changed and committed
//
// # What it does
//
// A Get looks into the memory tier, then into Redis. On a miss there it takes a lease on the key,
// in the same round trip that checks once more. The one process that gets the lease loads, renewing
// the lease meanwhile, and stores the value in the lease's place. Callers of a process share
// rounds; the other processes wait for the one that loads. The absence of a row is cached too.
// Lives are shortened at random, so that values stored together do not expire together.
//
// When its TTL has passed, a value is stale: it is served for another while
// (LoaderOptions.StaleFor), while one process of the fleet loads it again in the background, or
// while that fails. Values that are read often are reloaded earlier, by chance
// (LoaderOptions.EarlyRefresh). The loads that the database is asked for at once are bounded
// (Options.MaxLoads), and while it fails it is not asked (LoaderOptions.BreakAt). While Redis is
// out of reach, nobody waits for it (LoaderOptions.RedisDown).
//
// Invalidate deletes the key. Any delete, also an operator's DEL, voids the lease or the refresh
// that is under way: the value of its load, which may be from before the change, is refused, given
// to nobody, and loaded again. (After three refusals in a row the value of the next load is given
// out, stored or not.)
//
// Programs without the loader's types, such as writers and queues of invalidations, identify rows
// by Key: see Cache.InvalidateKeys, InsertingKeys and RefreshKeys.
//
// # Promises
//
// While Redis keeps its data:
//
//   - After Invalidate (or Cache.InvalidateKeys) has returned nil, no value read from the database
//     before is stored in Redis, or left there.
//   - A Get that starts after that, and does not use the memory tier of another process, never
//     receives such a value.
//   - At most one load per key that owns the key's lease runs in the fleet. Loads without lease run
//     only when Redis cannot be asked, or while the key is on hold (Options.ReplicaLag,
//     StrictWrites): at most one per key and process.
//   - A cached null does not hide a row once its insert has been invalidated, nor does a filter
//     (LoaderOptions.Filter) once Loader.Inserting has told it of the insert: an Invalidate alone
//     does not tell filters.
//   - A caller that leaves harms nobody. A load that panics, or calls runtime.Goexit, becomes an
//     error; no lease or goroutine stays.
//   - The memory tier of another process lets go of an invalidated key within milliseconds, and
//     never serves it to a Get that starts more than Options.MaxStaleness later: a process that
//     cannot make sure that it hears announcements stops serving from its memory (but for what it
//     has loaded itself within that time, and for loaders with StaleWhenDown, while Redis is out of
//     reach).
//   - If all writes of a row are made under a Hold, checked before the commit, Gets that do not use
//     the memory tier read what a single copy would show: from the commit on nobody receives the
//     row of before.
//   - Nothing is silent: what is not returned as an error is counted in Stats.
//
// # What it does not promise
//
// A key that is deleted in Redis by other means than this library is announced to nobody: memory
// tiers serve it until its LoaderOptions.MemoryTTL has passed. A failover of Redis, or a restart
// from an old snapshot, that loses an acknowledged delete leaves the old value until it is reloaded
// after its TTL. A writer that does not invalidate is not noticed (but by a meter, package meter,
// that is told of its writes). An Invalidate that returns an error has not happened: try again.
// InvalidateAll is heard by other processes within Options.MaxStaleness, also by those without a
// memory tier. A Hold that Redis loses (FLUSHALL, eviction, a failover), or whose process stands
// still, after it was checked protects its commit no more.
//
// # Redis
//
// Redis 7.0 or later, or Valkey, alone, behind sentinels, or a cluster. Keys are named
// prefix:loader:version:{key}, with Options.ReplicaLag or StrictWrites for a time also
// …:{key}:hold; what is announced is numbered in prefix::announced:{n}, for 1 n, or 16 on a
// cluster: the only keys without an end of life. Answers to a meter are in prefix::meter:{…} for
// some seconds. A process with a memory tier has one connection more, by which it listens to
// prefix::invalidations (with the number of its database behind it, unless that is 0). With an ACL,
// the user needs the keys ~prefix*, the channels &prefix* and the commands SET, GETRANGE, SETRANGE,
// PTTL, PEXPIRE, TIME, DEL, EVAL, EVALSHA, HGET, HSET, PERSIST, PUBLISH, SUBSCRIBE and PING (and
// what the client sends to open a connection, HELLO among it); where a meter asks (package meter)
// also HLEN and HGETALL, and on a cluster PUBSUB; with Options.ReplicaLag or StrictWrites also
// ZADD, ZREM, ZRANGE, ZSCORE and ZREMRANGEBYSCORE. With INFO a sharding proxy is noticed. Where
// keys are evicted, or the server is emptied, values are loaded again, and a Hold's Check tells
// that it was lost; nothing else happens.
//
// In tests, miniredis will do; call its ClockTTL(true), or nothing in it ever expires, the marker
// of a failed load included.
//
// A go-redis client repeats commands by itself. That is safe here: the commands that must not be
// repeated, by which a lease or a hold is asked for, are marked so that they are not.
package cacheaside

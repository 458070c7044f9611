// Package cacheaside reads rows of a database through caches: the memory of the process, then
// Redis, then the database. It prevents the classic failures of cache-aside: stampedes, stale
// values that are stored after an invalidation, and outages that spread.
//
//	users, err := cacheaside.NewLoader(cache, "user", loadUser, nil)
//	u, err := users.Get(ctx, 42)         // a row, or ErrNotFound
//	m, err := users.GetMany(ctx, ids)    // the rows that exist, in few round trips
//	err = users.Invalidate(ctx, 42)      // after the change of the row was committed
//
// # What it does
//
// Get reads the memory tier, then Redis. On a miss in Redis it requests a lease on the key; the
// same round trip checks the entry once more. The one process that gets the lease loads the row. It
// renews the lease during the load, and stores the value in place of the lease. The other processes
// wait for that load. Concurrent callers in a process share lookups and loads. The absence of a row
// is cached too. TTLs are shortened at random, so that values stored together do not expire
// together.
//
// A value becomes stale when its TTL has passed. It is then served for another period
// (LoaderOptions.StaleFor), while one process reloads it in the background, or while reloads fail.
// Frequently read values are reloaded at random shortly before their TTL ends
// (LoaderOptions.EarlyRefresh). The number of concurrent loads is limited (Options.MaxLoads), and a
// circuit breaker stops loads while the database fails (LoaderOptions.BreakAt). While Redis is
// down, no caller waits for it (LoaderOptions.RedisDown).
//
// Invalidate deletes the key. Any delete of a key, including an operator's DEL, ends its lease. So
// the value of a load in progress, which may be older than the change, is refused: it is neither
// stored nor returned, and the row is loaded again. After three consecutive refusals the callers
// get the value of the next load, even if it could not be stored.
//
// Programs without the loader's types, such as writers and queues of invalidations, identify rows
// by Key: see Cache.InvalidateKeys, InsertingKeys and RefreshKeys.
//
// # Promises
//
// While Redis keeps its data:
//
//   - After Invalidate (or Cache.InvalidateKeys) has returned nil, Redis neither keeps nor stores a
//     value that was read from the database before.
//   - A Get that starts after that, and does not use the memory tier of another process, never
//     returns such a value.
//   - At most one load per key owns the key's lease, in all processes. Loads without a lease run
//     only while Redis is down, or while the key is on hold (Options.ReplicaLag, StrictWrites): at
//     most one per key and process.
//   - A cached absence does not hide a row after the insert has been invalidated. A filter
//     (LoaderOptions.Filter) does not hide a row whose insert used Loader.Inserting. Invalidate
//     alone does not add keys to filters.
//   - A caller that leaves does not affect other callers. A load that panics, or calls
//     runtime.Goexit, returns an error, and leaves no lease and no goroutine behind.
//   - The memory tier of another process drops an invalidated key within milliseconds, and never
//     serves it to a Get that starts more than Options.MaxStaleness later. A process that cannot
//     verify that it receives all announcements stops serving from its memory. There are two
//     exceptions while Redis is down: values that the process has loaded within MaxStaleness, and
//     loaders with StaleWhenDown.
//   - If all writes of a row are made under a Hold that is checked before the commit, Gets that do
//     not use the memory tier never return the previous row after the commit, as if there were a
//     single copy.
//   - Nothing fails silently: every failure is returned as an error or counted in Stats.
//
// # What it does not promise
//
// If a key is deleted in Redis by other means than this library, memory tiers serve it until its
// TTL, or LoaderOptions.MemoryTTL if that is set, has passed. If Redis loses an acknowledged
// delete, by a failover or a restart from an old snapshot, the old value stays until it is reloaded
// after its TTL. A write without an invalidation is not noticed, except by a meter (package meter)
// that the writer reports it to. If Invalidate returns an error, some keys may not be invalidated:
// repeat the call. Other processes, including those without a memory tier, may return old values
// for up to Options.MaxStaleness after InvalidateAll. A Hold no longer protects a commit if it is
// lost after its Check: because Redis loses it (FLUSHALL, eviction, a failover), or because its
// process is suspended for longer than Options.LeaseTTL.
//
// # Redis
//
// The server is Redis 7.0 or later, or Valkey: a single server, one behind sentinels, or a cluster.
// If it evicts keys or is emptied, values are loaded again, and Hold.Check reports lost holds;
// nothing else happens.
//
// The names of keys are:
//
//   - prefix:loader:version:{key} for an entry, and prefix:loader:version:{key}:hold for a hold
//     (Options.ReplicaLag, StrictWrites). A long entry is first stored as
//     prefix:loader:version:{key}:fill:token, and renamed at once.
//   - prefix::announced:{n} for the numbers of announcements: one key, or 16 keys on a cluster.
//   - prefix::groups:loader:{n} for the invalidated groups of a loader (LoaderOptions.Groups), with
//     the same numbers of keys. Only these keys and the previous ones have no TTL.
//   - prefix::meter:{…} for the replies to a meter, for some seconds.
//   - prefix::relays:{…} for the ids of the relays that share a queue (package consistency), until
//     30 seconds after the last of them.
//
// A process with a memory tier keeps one additional connection, which subscribes to the channel
// prefix::invalidations. If the number of the database is not 0, it is appended to that name.
//
// With an ACL, the user needs the keys ~prefix*, the channels &prefix* and these commands:
//
//   - SET, GETRANGE, SETRANGE, PTTL, PEXPIRE, TIME, DEL, EVAL, EVALSHA, HGET, HSET, PERSIST,
//     PUBLISH, SUBSCRIBE and PING.
//   - HMGET. Without it, each poll takes two trips instead of one.
//   - RENAME, for entries of more than 16 KB. Without it, a script stores them, and Redis serves no
//     other client for some milliseconds per MB.
//   - PUBSUB NUMSUB, in fleets of more than 30 processes. Without it, the ends of loads for which
//     few processes wait are announced to all.
//   - The commands by which the client opens a connection, such as HELLO.
//   - With Options.ReplicaLag or StrictWrites: ZADD, ZREM, ZRANGE, ZSCORE and ZREMRANGEBYSCORE.
//   - With an outbox (package consistency): ZADD, ZREM, ZCARD and ZREMRANGEBYSCORE. Without them,
//     each relay polls as often as if it were alone.
//   - With LoaderOptions.Groups: ZADD, ZRANGE and ZREMRANGEBYSCORE.
//   - With a meter (package meter): HLEN and HGETALL, and on a cluster PUBSUB.
//   - INFO is optional. With it, the library detects a proxy that shards.
//
// Tests can use miniredis. Call its ClockTTL(true); otherwise nothing in it ever expires, not even
// the marker of a failed load.
//
// A go-redis client retries commands automatically. That is safe: the library disables retries for
// commands that must not be repeated, which are those that request a lease or a hold.
package cacheaside

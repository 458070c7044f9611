// Package cacheasidetest supports tests of programs that use package cacheaside. It provides a
// Cache on an embedded Redis, other processes on the same Redis, and faults of both.
//
//	func TestRename(t *testing.T) {
//		c := cacheasidetest.New(t, nil)
//		users := shop.NewUsers(db, c.Cache)             // what is tested, in this process
//		others := shop.NewUsers(db, c.Process(t).Cache) // and in another
//		…
//		c.Redis.EndTTL(t) // what is cached has become stale
//		c.Redis.Kill()    // and Redis goes away
//	}
//
// The server is [miniredis], in this process, without a port. The server and everything that uses
// it are closed at the end of the test. Use nothing of this package after that.
//
// # Time
//
// The package works inside and outside of a testing/synctest bubble. In a bubble, call New within
// it. TTLs in Redis and in memory then follow the clock of the bubble, and a test lets time pass
// with time.Sleep:
//
//	func TestLives(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			c := cacheasidetest.New(t, nil)
//			names := NewNames(table, c.Cache)
//			names.Get(t.Context(), 1)
//			time.Sleep(12 * time.Minute) // longer than TTL and StaleFor
//			names.Get(t.Context(), 1)    // is loaded again
//		})
//	}
//
// Outside of a bubble, TTLs follow the real clock. Use EndTTL and EndLife, which end TTLs without
// waiting, or TTLs of some milliseconds (cacheaside.MinTTL). FastForward of miniredis ends only
// TTLs in Redis, but not those in memory or the freshness of an entry (LoaderOptions.TTL), which
// depend on the reader's clock. For a test that sleeps for hours in a bubble, set
// Options.MaxStaleness to a minute, because each process polls Redis four times in that period.
//
// # What is not like Redis
//
// Miniredis is one server that never evicts, is never full, loses nothing and needs no password.
// Use a real Redis to test clusters, sentinels, failovers, ACLs, maxmemory and snapshots. Miniredis
// runs scripts with its own implementation of Lua, which is slower than Redis, so do not measure
// performance with it. Commands that it lacks return an error; this library, with its filters,
// locks and outbox, uses none of them.
//
// [miniredis]: https://github.com/alicebob/miniredis
package cacheasidetest

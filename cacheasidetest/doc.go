// Package cacheasidetest supports tests of programs that use package cacheaside. It provides a Cache on an
// embedded Redis, in one line, other processes beside it, and what happens to both.
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
// The server is [miniredis], in this process, without a port. The server and all that belongs to it
// end with the test. Use nothing of this package after that.
//
// # Time
//
// All of it works inside a testing/synctest bubble and outside. In a bubble New is called within
// it, TTLs in Redis and in memory follow the bubble's clock, and time.Sleep is all that a test
// needs for time to pass:
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
// Outside of a bubble TTLs follow the real clock, which nothing can move: use EndTTL and EndLife,
// which end lives without waiting, or TTLs of some milliseconds (cacheaside.MinTTL). Miniredis' own
// FastForward ends lives in Redis, but neither those in memory nor the first life of an entry
// (LoaderOptions.TTL), which the reader's clock ends. For a test that sleeps for hours in a bubble,
// set Options.MaxStaleness to a minute: each process asks Redis four times in that time.
//
// # What is not like Redis
//
// Miniredis is one server, that never evicts, is never full, loses nothing and needs no password:
// clusters, sentinels, failovers, ACLs, maxmemory and snapshots are for tests on a real one. It
// runs scripts one after the other, in a Lua of its own, slower than Redis: no figures of it mean
// anything. Commands that it lacks fail; this library, with its filters, locks and outbox, needs
// none of them.
//
// [miniredis]: https://github.com/alicebob/miniredis
package cacheasidetest

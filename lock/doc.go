// Package lock provides distributed locks: one API over several services. A holder learns when it
// has lost its lock.
//
//	locker, err := lock.NewRedis(rdb, nil)
//	err = locker.Do(ctx, "account:42", nil, func(ctx context.Context, token int64) error {
//		return withdraw(ctx, token) // ctx ends before another process can get the lock
//	})
//
// A Locker uses one service: Redis (NewRedis), several independent Redis servers (package
// redlock), a table of MySQL or MariaDB (package mysqllock) or of PostgreSQL (package pglock),
// ZooKeeper (package zklock), or this process (NewLocal). All pass the same test suite. For
// another service, implement driver.Driver and pass it to New.
//
// # What a lock guarantees
//
//   - At most one holder at a time, as long as the service keeps the writes that it has
//     acknowledged. The documentation of each service lists the cases in which it loses them.
//   - Lease.Context ends, with a cause, before another holder can get the lock, as long as the
//     clock of this process runs. The process measures the TTL from before the request that
//     acquired or extended the lock, and subtracts a twentieth of it and 5 ms.
//   - Lease.Token increases from holder to holder.
//   - A lock expires after at most its TTL (in ZooKeeper, the session timeout) if its holder, the
//     network or the service fails at any moment. A lock that a cancelled Acquire has requested
//     is released as soon as the service is reachable.
//
// # What no lock can guarantee
//
// A process may be suspended, or one of its writes may be delayed in the network, for longer than
// the TTL of its lock. Clocks may jump. The old holder then acts while there is a new one. Only
// the resource itself can reject the old holder, by comparing tokens: use Guard for SQL rows and
// SetFenced for Redis keys. If nothing compares tokens, a lock prevents duplicate work but does
// not protect data. (Martin Kleppmann, How to do distributed locking, 2016.)
//
// # Waiting
//
// In each process, one goroutine at a time competes for a lock with other processes. The others
// wait in a queue. When a lock in Redis is released, its holder notifies the waiting processes by
// a message. A process that misses the message requests the lock again when the lock expires.
package lock

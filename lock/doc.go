// Package lock is distributed locks: one API over several services. A holder knows when it has lost
// its lock.
//
//	locker, err := lock.NewRedis(rdb, nil)
//	err = locker.Do(ctx, "account:42", func(ctx context.Context, token int64) error {
//		return withdraw(ctx, token) // ctx ends before another can have the lock
//	})
//
// A Locker is of one service: Redis (NewRedis), several independent Redis servers (package
// redlock), a table of MySQL or MariaDB (package mysqllock), ZooKeeper (package zklock), or this
// process (NewLocal). All pass one suite of tests. A service of your own needs a driver (package
// driver, New).
//
// # What a lock promises
//
//   - One holder at a time, as far as the service keeps what it has acknowledged: the comment of
//     each service says what makes it forget.
//   - Lease.Context ends, with a cause, before another can have the lock, as long as the clocks of
//     this process run: the life of a lock counts here from before the request that got or extended
//     it, less a twentieth and 5 ms.
//   - Lease.Token grows from holder to holder.
//   - Nothing is left locked for longer than the TTL (in ZooKeeper: than the time-out of the
//     session), whatever dies, hangs or is cut off at whatever moment; and nothing that a cancelled
//     Acquire has asked for, as soon as the service can be reached.
//
// # What no lock can promise
//
// A process may be suspended, or one of its writes may be delayed in the network, for longer than
// its lock lives; and clocks may jump. Then the old holder acts while there is a new one. Only the
// resource itself can refuse the old holder, by comparing tokens: that is what Guard (SQL rows) and
// SetFenced (Redis keys) are for. Where nothing compares the token, a lock saves work that is done
// twice; it does not protect data. (Martin Kleppmann, How to do distributed locking, 2016.)
//
// # Waiting
//
// Of the goroutines of a process one at a time contends for a lock, the others wait in line behind
// it. When a lock in Redis is released, its holder tells those who wait, by a message; where the
// message is lost, they ask when the lock's life is over.
package lock

// Package driver is what a lock.Locker needs of a service that keeps locks: Redis, a database,
// ZooKeeper. Users of locks need not know it. To keep locks in another service, write a Driver, and
// pass it to lock.New.
//
// The Locker does the rest, for all drivers alike: it counts the re-entrant, lets one contender of
// a process at a time ask for a lock, tells the holder in time, renews (by Extend, at a third of a
// lock's life). So a Driver keeps no time of its own, but that of requests.
package driver

import (
	"context"
	"errors"
	"time"
)

// ErrHeld is the error of an Acquire that does not wait, while somebody else has the lock.
var ErrHeld = errors.New("the lock is held by another")

// ErrLost is the error of an Extend, or a Release, of a lock that is no longer this holder's, as
// the service has answered. An error that leaves that open, such as a time-out, is not ErrLost.
var ErrLost = errors.New("the lock is lost")

// Driver gets locks of a service. It is safe for concurrent use.
type Driver interface {
	// Acquire gets the lock, if need be waits for it. When ctx ends it returns at once, or as soon
	// as its time-out for requests lets it, with an error; and sees to it, in the background if
	// need be, that nothing of what it asked for is left behind: also where it cannot tell whether
	// a request was carried out.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Close ends what the driver runs in the background, and waits for it. All its locks have been
	// released, or are lost. Clients that the driver was given stay open.
	Close() error
}

// Request asks for a lock.
type Request struct {
	// Key is the name of the lock, with the prefix. Any bytes, at most MaxKey of them, and at least
	// one.
	Key string

	// TTL is how long the lock lives if it is not extended. A service with its own idea of that,
	// like a session, says so in Grant.TTL.
	TTL time.Duration

	// Timeout bounds each request to each server, whatever the client's own settings. Extend and
	// Release are bounded by their contexts, to no more.
	Timeout time.Duration

	// Wait: until the lock is free. Without it Acquire fails with ErrHeld where it is not.
	Wait bool

	// NoToken: the caller does not need a fencing token. A driver for which it costs nothing
	// ignores that.
	NoToken bool

	// Lost is called by a driver that learns by itself that the lock which it has granted, or is
	// just granting, is gone or in doubt: since its session has ended, say. It may be called by any
	// goroutine, at any time, and more than once; it does not block. It is never nil.
	Lost func(error)
}

// MaxKey is how long a Request.Key may be, in bytes.
const MaxKey = 1088

// Grant is a lock that was got.
type Grant struct {
	// Lock extends and releases it.
	Lock Lock

	// Token is the fencing token: greater than that of each earlier grant of this key. 0 where
	// Request.NoToken has saved it.
	Token int64

	// Sent is when the request that has got the lock was sent, by the monotonic clock: not later
	// than the service's own reckoning of TTL begins.
	Sent time.Time

	// TTL is how long after Sent nobody else can get it.
	TTL time.Duration
}

// Lock is a lock that is held. The Locker calls one method at a time, and none after a Release that
// returned nil or ErrLost.
type Lock interface {
	// Extend has the lock live for ttl from now on, if it is still this holder's: it never gets it
	// anew. Errors: ErrLost, or that it is not known.
	Extend(ctx context.Context, ttl time.Duration) error

	// Release ends it, if it is still this holder's; ErrLost if not. After an error that is not
	// ErrLost it is called again: that the lock is gone then is no loss.
	Release(ctx context.Context) error
}

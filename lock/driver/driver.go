// Package driver says what a lock.Locker needs of a service that keeps locks: Redis, a database,
// ZooKeeper. Users of locks need not know it. To keep locks in another service, write a Driver, and
// pass it to lock.New.
//
// The Locker does the rest, for all drivers alike: it counts the re-entrant leases, lets one
// contender of a process at a time ask for a lock, tells the holder in time, and renews locks (by
// Extend, at a third of a lock's life). So a Driver keeps no time of its own, but that of requests.
package driver

import (
	"context"
	"errors"
	"time"
)

// ErrHeld is the error of an Acquire that does not wait, while somebody else has the lock.
var ErrHeld = errors.New("another owner holds the lock")

// ErrLost is the error of an Extend, or a Release, of a lock that is no longer this holder's, as
// the service has answered. An error that leaves that open, such as a time-out, is not ErrLost.
var ErrLost = errors.New("the lock is lost")

// Driver gets locks of a service. It is safe for concurrent use.
type Driver interface {
	// Acquire gets the lock, and waits for it if Wait is set. When ctx ends, Acquire returns an
	// error, at once or as soon as its time-out for requests lets it. It makes sure, in the
	// background if need be, that nothing that it asked for is left behind, also where it cannot
	// tell whether a request was carried out.
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

	// TTL is how long the lock lives if it is not extended. A service with another life for its
	// locks, like that of a session, says so in Grant.TTL.
	TTL time.Duration

	// Timeout bounds each request to each server, whatever the client's own settings. Extend and
	// Release are bounded by their contexts, to no more.
	Timeout time.Duration

	// Wait: Acquire waits until the lock is free. Without Wait, Acquire fails with ErrHeld where
	// the lock is not free.
	Wait bool

	// NoToken: the caller does not need a fencing token. A driver for which the token costs nothing
	// ignores NoToken.
	NoToken bool

	// Lost is called by a driver that learns by itself that the lock which it has granted, or is
	// just granting, is gone or in doubt: since its session has ended, say. Any goroutine may call
	// Lost, at any time, and more than once; it does not block. Lost is never nil.
	Lost func(error)
}

// MaxKey is how long a Request.Key may be, in bytes.
const MaxKey = 1088

// Grant is a lock that was got.
type Grant struct {
	// Lock extends and releases it.
	Lock Lock

	// Token is the fencing token: greater than that of each earlier grant of this key. It is 0
	// where Request.NoToken has saved it.
	Token int64

	// Sent is when the request that got the lock was sent, by the monotonic clock: not later than
	// the service begins to count the TTL.
	Sent time.Time

	// TTL is how long after Sent nobody else can get it.
	TTL time.Duration
}

// Lock is a lock that is held. The Locker calls one method at a time, and none after a Release that
// returned nil or ErrLost.
type Lock interface {
	// Extend makes the lock live for ttl from now on, if it is still this holder's: Extend never
	// gets it anew. An error is ErrLost, or means that it is not known whether the lock was
	// extended.
	Extend(ctx context.Context, ttl time.Duration) error

	// Release ends the lock, if it is still this holder's; else it returns ErrLost. After an error
	// that is not ErrLost, Release is called again: a lock that is gone then is no loss.
	Release(ctx context.Context) error
}

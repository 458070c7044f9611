// Package driver defines the interface between a lock.Locker and a service that stores locks,
// such as Redis, a database or ZooKeeper. Users of locks do not need this package. To support
// another service, implement Driver, test it with package locktest, and pass it to lock.New.
//
// The Locker does the rest for all drivers. It counts re-entrant leases, lets one caller of a
// process at a time request a lock, ends the holder's context in time, and renews locks with
// Extend after each third of their TTL. A Driver therefore needs no timers, except for the
// timeouts of its requests.
package driver

import (
	"context"
	"errors"
	"time"
)

// ErrHeld is the error of an Acquire that does not wait, while another holder has the lock.
var ErrHeld = errors.New("lock: another holder has the lock")

// ErrLost is the error of Extend and Release if the service reports that this holder no longer
// has the lock. An error that leaves the outcome open, such as a timeout, is not ErrLost.
var ErrLost = errors.New("lock: the lock is lost")

// Driver acquires locks from a service. It is safe for concurrent use.
type Driver interface {
	// Acquire acquires the lock. If Wait is set, it waits until the lock is free. When ctx ends,
	// Acquire returns an error, immediately or after the timeout of the request in progress.
	// After an error the driver releases everything that it has requested, if necessary in the
	// background, including requests whose outcome is unknown.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Close stops the driver's background work and waits for it. When it is called, all locks of
	// the driver have been released or lost. Close does not close clients that the driver was
	// given.
	Close() error
}

// Request describes the lock to acquire.
type Request struct {
	// Key is the name of the lock with the prefix: any 1 to MaxKey bytes.
	Key string

	// TTL is the time after which the lock expires if it is not extended. A service with a
	// different TTL, such as that of a session, returns it in Grant.TTL.
	TTL time.Duration

	// Timeout limits each request to each server, independent of the client's own settings. The
	// contexts of Extend and Release end no later than that.
	Timeout time.Duration

	// Wait makes Acquire wait until the lock is free. Without it, Acquire returns ErrHeld if the
	// lock is not free.
	Wait bool

	// NoToken means that the caller does not need a fencing token. A driver whose tokens cost
	// nothing ignores it.
	NoToken bool

	// Kind is Exclusive, or another kind of lock if the driver is Extended. Locks of different
	// kinds are independent, even if they have the same Key.
	Kind Kind

	// Limit is the maximum number of holders that the lock may have together with this one, for
	// ReadWrite and Semaphore. 0 means that this holder has the lock alone, as an Exclusive lock
	// always is. While such a request waits for a ReadWrite lock, no other holder is added.
	Limit int

	// Label describes the holder in State: at most 64 letters, digits, "_", ".", ":", "@", "/" and
	// "-". Drivers that are not Extended ignore it.
	Label string

	// Lost reports that a lock which the driver has granted, or is about to grant, is lost or
	// uncertain, for example because its session has ended. A driver calls it when it learns that
	// outside Extend and Release. Any goroutine may call Lost at any time and repeatedly. Lost does
	// not block and is never nil.
	Lost func(error)
}

// Kind is a kind of lock.
type Kind string

// The kinds of locks.
const (
	Exclusive Kind = ""
	ReadWrite Kind = "rw"
	Semaphore Kind = "sem"
)

// An Extended driver has locks of all kinds, and can inspect and break them. The tokens of its
// locks are not smaller than the time of the acquisition by the service's clock, in microseconds
// since 1970.
type Extended interface {
	Driver

	// Inspect returns the state of the lock with the Key and Kind of r.
	Inspect(ctx context.Context, r Request) (State, error)

	// Break releases the lock on behalf of the holder with this token. It returns ErrLost if that
	// holder no longer has it.
	Break(ctx context.Context, r Request, token int64) error
}

// A Together driver can acquire several Exclusive locks by one request.
type Together interface {
	// AcquireTogether acquires all locks or none, like Acquire, and returns the grants in the order
	// of the requests, which differ only in Key and Lost.
	AcquireTogether(ctx context.Context, requests []Request) ([]Grant, error)
}

// State describes a lock.
type State struct {
	Holders []Holder
	Waiting int // number of processes that wait for the lock, as far as the service knows
}

// Holder describes a holder of a lock.
type Holder struct {
	Label string // Request.Label
	Token int64
	Left  time.Duration // until the lock expires, unless it is extended
	Alone bool          // Request.Limit was 0
}

// MaxKey is the maximum length of Request.Key, in bytes.
const MaxKey = 1088

// Grant describes an acquired lock.
type Grant struct {
	// Lock extends and releases the lock.
	Lock Lock

	// Token is the fencing token, greater than those of all earlier grants of this key. It may be
	// 0 if Request.NoToken is set.
	Token int64

	// Sent is the time at which the request that acquired the lock was sent, with a monotonic
	// clock reading. It must not be later than the moment from which the service counts the TTL.
	Sent time.Time

	// TTL is the time after Sent during which no other holder can acquire the lock.
	TTL time.Duration
}

// Lock is an acquired lock. The Locker calls one method at a time, and no method after a Release
// that returned nil or ErrLost.
type Lock interface {
	// Extend extends the lock by ttl from now on, if this holder still has it. It never
	// reacquires the lock. An error other than ErrLost means that the outcome is unknown.
	Extend(ctx context.Context, ttl time.Duration) error

	// Release releases the lock, or returns ErrLost if this holder no longer has it. After any
	// other error the Locker calls Release again. If the lock is gone then, Release should return
	// nil.
	Release(ctx context.Context) error
}

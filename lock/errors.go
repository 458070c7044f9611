package lock

import (
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// Errors to test for with errors.Is. All but those that end a Lease's context, and ErrStale, come
// wrapped in an *Error.
var (
	// ErrHeld means that another holder has the lock: TryAcquire does not wait, and Acquire no
	// longer than Options.Wait, which see. TryAcquire also returns it while another call in this
	// process is asking for the lock.
	ErrHeld = driver.ErrHeld

	// ErrLost means that the lock has passed, or may have passed, to another: it could not be
	// extended in time, or was found gone. ErrLost is the cause of the end of Lease.Context, and
	// Extend and Release return it then.
	ErrLost = driver.ErrLost

	// ErrReleased is the cause of the end of Lease.Context after Release.
	ErrReleased = errors.New("the lock was released")

	// ErrClosed means that the Locker has been closed.
	ErrClosed = errors.New("the locker is closed")

	// ErrStale means that a newer holder has been here: Guard, SetFenced and GetFenced refuse an
	// older token.
	ErrStale = errors.New("a newer holder of the lock has written already")
)

// Error is the error of an operation on a lock. Its message shows a hash of the name, for names may
// be private. (The hash has no secret: anybody who can list all possible names can find the name.)
type Error struct {
	Op   string // "acquire", "extend" or "release"
	Name string // of the lock, with its prefix; do not log it unless names may be seen
	Hash uint64 // that the message shows
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("lock: %s #%016x: %v", e.Op, e.Hash, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

func failed(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Name: key, Hash: xxhash.Sum64String(key), Err: err}
}

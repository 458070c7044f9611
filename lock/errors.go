package lock

import (
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/cacheaside/cacheaside/internal/wording"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// Errors to test for with errors.Is. The methods of Locker and Lease return them wrapped in an
// *Error. ErrStale, and the causes with which Lease.Context ends, are not wrapped in an *Error.
var (
	// ErrHeld means that another holder has the lock. TryAcquire returns it at once, and Acquire
	// when AcquireOptions.Wait has passed. TryAcquire also returns it while another call in this
	// process is requesting the lock. So does Acquire with AcquireOptions.Try.
	ErrHeld = driver.ErrHeld

	// ErrNoReply means that the service could not be reached, or has not replied in time: within
	// Options.Timeout, or within AcquireOptions.Wait. So it is unknown whether the lock is held.
	// The error of the client is wrapped, too. It is not context.DeadlineExceeded, unless the
	// caller's own deadline has passed.
	ErrNoReply = errors.New("lock: the service does not reply")

	// ErrLost means that another holder has the lock or may get it: the lock could not be
	// extended in time, or the service no longer has it. Lease.Context ends with this cause, and
	// Extend and Release return it.
	ErrLost = driver.ErrLost

	// ErrReleased is the cause with which Lease.Context ends after Release. Break returns it if the
	// holder does not have the lock any more.
	ErrReleased = errors.New("lock: the lock was released")

	// ErrClosed means that the Locker is closed.
	ErrClosed = errors.New("lock: the locker is closed")

	// ErrStale means that the resource has already accepted the token of a newer holder. Guard,
	// SetFenced and GetFenced return it for an older token.
	ErrStale = errors.New("lock: a newer holder of the lock has already used the resource")
)

// Error describes a failed operation on a lock. Its message shows a hash of the name, because
// names may be private. The hash is not keyed: anyone who can list all possible names can find
// the name.
type Error struct {
	Op   string // OpAcquire or another constant below
	Name string // name of the lock, with its prefix; do not log it if names are private
	Hash uint64 // hash of Name that the message shows
	Err  error
}

// The operations of an Error.
const (
	OpAcquire = "acquire"
	OpExtend  = "extend"
	OpRelease = "release"
	OpInspect = "inspect"
	OpBreak   = "break"
)

func (e *Error) Error() string {
	return wording.Once(fmt.Sprintf("lock: %s #%016x: %v", e.Op, e.Hash, e.Err))
}

func (e *Error) Unwrap() error { return e.Err }

func failed(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Name: key, Hash: xxhash.Sum64String(key), Err: err}
}

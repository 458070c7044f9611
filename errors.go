package cacheaside

import (
	"errors"
	"fmt"
	"maps"
	"runtime/debug"

	"github.com/cacheaside/cacheaside/internal/errtree"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/hold"
)

// Errors to test for with errors.Is. An error about a key is wrapped in an *Error, but ErrNotFound,
// which is wrapped in an error that names the loader only.
var (
	// ErrNotFound means that the row does not exist. A load function returns it, or sql.ErrNoRows,
	// to say so.
	ErrNotFound = fault.NotFound

	// ErrLoadFailed means that a load of this key failed within the last LoaderOptions.ErrorTTL,
	// here or in another process, and that the database was not asked again. In the process whose
	// load failed, the error that wraps ErrLoadFailed wraps the load's error, too. The callers who
	// waited for the load get the load's error alone.
	ErrLoadFailed = fault.LoadFailed

	// ErrLoadTimeout means that a load took longer than LoaderOptions.LoadTimeout, or that the
	// caller has waited for the loads of other processes for longer than twice LoadTimeout and
	// Options.QueueTimeout.
	ErrLoadTimeout = fault.LoadTimeout

	// ErrUnavailable means that the database was not asked, to protect it: its limits are reached
	// and the queue is full or did not get on in time (Options.MaxLoads, MaxQueue, QueueTimeout,
	// LoadRate), or the loader's circuit breaker is open (LoaderOptions.BreakAt), or the lock that
	// is required cannot be had (MustLock); the message says which. A later try may succeed.
	ErrUnavailable = fault.Unavailable

	// ErrLoadCycle means that a load function has asked for a key that it would wait for in vain:
	// one that it is loading itself, or one whose load waits for it, as when a asks for b, and b
	// for a. If such a key is cached, fresh or stale, Get and GetMany give the load that value
	// instead. A key of a batch is a cycle only if its row needs itself, directly or through
	// others. The Error that wraps ErrLoadCycle names the loader and the key. The load that asks
	// fails; that does not count as a failure of the database. Cycles through other processes are
	// not seen: they end by LoadTimeout.
	ErrLoadCycle = fault.LoadCycle

	// ErrRedis means that Redis could not be reached, did not answer in time, or refused a command;
	// the error of the client is wrapped too. A time-out of the library is not
	// context.DeadlineExceeded: that is the caller's own. Get returns ErrRedis only if
	// LoaderOptions.RedisDown says so; Expire, Invalidate and Refresh return it.
	ErrRedis = fault.Redis

	// ErrHoldLost means that a key was not on hold all the time (Hold.Check): its hold was lost
	// with Redis' data, or could not be renewed in time. Values read from the database meanwhile
	// may have been stored: the transaction that the key was held for must not be committed. The
	// transaction may be tried again from the start.
	ErrHoldLost = hold.ErrLost

	// ErrClosed means that the Cache has been closed.
	ErrClosed = fault.Closed
)

// Error is the error of an operation on a key. Its message shows a hash of the key, for keys may be
// private. (The hash has no secret: anybody who can list all possible keys, as phone numbers, can
// find the key.)
type Error struct {
	Op     string // "get", "peek", "refresh", "expire", "invalidate", "inserting", "warm", "hold", "release", "store" or "key"
	Loader string // the loader's name
	Key    string // the encoded key; do not log it unless keys may be seen
	Hash   uint64 // the stable hash of loader and key that the message shows; 0: it is about all keys of the loader
	Err    error
}

func (e *Error) Error() string {
	if e.Hash == 0 {
		return fmt.Sprintf("cacheaside: %s all of %s: %v", e.Op, e.Loader, e.Err)
	}
	return fmt.Sprintf("cacheaside: %s %s key#%016x: %v", e.Op, e.Loader, e.Hash, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// notFound is a loader's ErrNotFound. It is made once: absent rows are read often.
type notFound struct{ loader string }

func (n *notFound) Error() string { return "cacheaside: " + n.loader + ": not found" }

func (n *notFound) Unwrap() error { return ErrNotFound }

// BatchError tells which keys of a batch have failed. GetMany returns it beside the rows that it
// has found. A batch load may return one too, to say which of its keys have failed; keys that it
// returns values for have not failed.
type BatchError[K comparable] struct {
	Errs map[K]error // what methods of this package give is an *Error for each key
}

// Error tells how many keys have failed, and why one of them did.
func (b *BatchError[K]) Error() string {
	if b == nil {
		return "a nil *BatchError" // that a load has returned as its error
	}
	text, n := "", 0
	for _, err := range b.Errs {
		if err == nil {
			continue
		}
		if s := err.Error(); n == 0 || s < text { // the same text each time
			text = s
		}
		n++
	}
	if n == 1 {
		return text
	}
	return fmt.Sprintf("cacheaside: %d keys failed, one of them: %s", n, text)
}

// Unwrap returns errors for errors.Is and errors.As: of the keys that have failed for one and the
// same cause, such as one call of a batch load, the error of one key. Errs has the errors of all.
func (b *BatchError[K]) Unwrap() []error {
	if b == nil {
		return nil
	}
	return errtree.Causes(maps.Values(b.Errs), func(err error) (cause error) {
		if of, ok := err.(*Error); ok && of != nil { //nolint:errorlint // its own
			cause = of.Err
		}
		return cause
	})
}

// PanicError is the error of a load (or of a marshaler of the key or the value) that panicked or
// called runtime.Goexit. The callers who shared the load get it; no goroutine or lease is left
// behind. PanicError does not wrap the panic's value: panic(sql.ErrNoRows) does not say that there
// is no such row.
type PanicError struct {
	Value  any    // what was passed to panic; nil for runtime.Goexit
	Goexit bool   // runtime.Goexit was called, as t.FailNow does
	Stack  []byte // of the goroutine, taken while it unwound
}

// Error tells that it was a panic, and its type, but not its value, which may hold what is private.
func (p *PanicError) Error() string {
	if p.Goexit {
		return "the load called runtime.Goexit"
	}
	return fmt.Sprintf("the load panicked with a %T", p.Value)
}

// caught makes the error of a goroutine that is unwinding. recovered is nil only for Goexit:
// panic(nil) panics with a *runtime.PanicNilError.
func caught(recovered any) error {
	return &PanicError{Value: recovered, Goexit: recovered == nil, Stack: debug.Stack()}
}

// redisError marks err as Redis' or its client's.
func redisError(err error) error { return fault.OfRedis(err) }

// panicked reports whether an error is of caught, and the value of that panic.
func panicked(err error) (value any, ok bool) {
	of, ok := errors.AsType[*PanicError](err)
	if !ok {
		return nil, false
	}
	return of.Value, true
}

package cacheaside

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"

	"github.com/cacheaside/cacheaside/internal/errtree"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/hold"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// Errors to test for with errors.Is. Errors about a key are wrapped in an *Error, except
// ErrNotFound, which is wrapped in an error that names only the loader.
var (
	// ErrNotFound means that the row does not exist. A load function returns it, or
	// sql.ErrNoRows, to report that.
	ErrNotFound = fault.NotFound

	// ErrBadKey means that a key is invalid, for example a negative page. A load function returns
	// it, alone or wrapped together with another error, if it refuses a key. The load has failed,
	// but that does not count as a failure of the database: see LoaderOptions.BadKey.
	ErrBadKey = fault.BadKey
	// ErrLoadFailed means that a load of this key failed within the last LoaderOptions.ErrorTTL,
	// in this process or another, and that the row was not loaded again. In the process whose
	// load failed, it is wrapped together with the error of the load. The callers that waited for
	// the failed load get only the error of the load.
	ErrLoadFailed = fault.LoadFailed

	// ErrLoadTimeout means that a load took longer than LoaderOptions.LoadTimeout, or that the
	// caller has waited for loads of other processes for longer than twice LoadTimeout plus
	// Options.QueueTimeout.
	ErrLoadTimeout = fault.LoadTimeout

	// ErrUnavailable means that a load was refused to protect the database. The message says why:
	// a limit is reached and the queue is full or too slow (Options.MaxLoads, MaxQueue,
	// QueueTimeout, LoadRate), the circuit breaker of the loader is open (LoaderOptions.BreakAt),
	// or a required lock cannot be acquired (MustLock). A later attempt may succeed.
	ErrUnavailable = fault.Unavailable

	// ErrLoadCycle means that a load function has read a key that it would wait for in vain: a
	// key that it is loading itself, or one whose load waits for it, for example if a reads b,
	// and b reads a. If such a key is cached, fresh or stale, Get and GetMany return that value
	// instead. A key of a batch is a cycle only if its row needs itself, directly or through
	// other rows. The Error that wraps ErrLoadCycle names the loader and the key. The load that
	// causes the cycle fails; that does not count as a failure of the database. Cycles through
	// other processes are not detected: they end by LoadTimeout.
	ErrLoadCycle = fault.LoadCycle

	// ErrRedis means that Redis could not be reached, did not reply in time, or refused a
	// command. The client's error is wrapped too. A timeout of the library is not
	// context.DeadlineExceeded, which only the caller's deadline causes. Get returns ErrRedis
	// only if LoaderOptions.RedisDown says so. Peek, Expire, Invalidate and Refresh return it.
	ErrRedis = fault.Redis

	// ErrHoldLost means that a key was not on hold for the whole time (Hold.Check): Redis has
	// lost the hold with its data, or the hold could not be renewed in time. Values that were
	// read from the database in that time may have been stored. So do not commit the transaction
	// of the hold. The transaction may be repeated from the start.
	ErrHoldLost = hold.ErrLost

	// ErrClosed means that the Cache is closed.
	ErrClosed = fault.Closed
)

// An Error is the error of an operation on a key. Its message contains a hash of the key, because
// keys may be private. The hash uses no secret: a key can be found by hashing all possible keys,
// such as all phone numbers.
type Error struct {
	Op     string // OpGet, OpRefresh, OpInvalidate, or one of the constants below Error
	Loader string // the loader's name
	Key    string // the text of the key, or the name of the group; do not log it if keys are private
	// the stable hash of loader and key, which the message contains; 0: the error is about all keys
	// of the loader
	Hash uint64
	Err  error

	group bool // the error is about a group
}

// The operations of an Error, in addition to OpGet, OpRefresh and OpInvalidate.
const (
	OpPeek   = "peek"      // Peek
	OpExpire = "expire"    // Expire, ExpireGroup
	OpInsert = "inserting" // Inserting, InsertingKeys, and the functions that they return
	OpWarm   = "warm"      // Warm
	OpHold   = "hold"      // Cache.Hold, Hold.Add and Hold.Check
	OpStore  = "store"     // the store of a value by consistency.WriteThrough
	OpKey    = "key"       // Key.Check
)

func (e *Error) Error() string {
	if e.Hash == 0 {
		return wording.Once(fmt.Sprintf("cacheaside: %s all of %s: %v", e.Op, e.Loader, e.Err))
	}
	kind := "key"
	if e.group {
		kind = "group"
	}
	return wording.Once(fmt.Sprintf("cacheaside: %s %s %s#%016x: %v", e.Op, e.Loader, kind, e.Hash, e.Err))
}

func (e *Error) Unwrap() error { return e.Err }

// notFound is the ErrNotFound of a loader. Each loader makes it once, because absent rows are
// read often.
type notFound struct{ loader string }

func (n *notFound) Error() string { return "cacheaside: " + n.loader + ": not found" }

func (n *notFound) Unwrap() error { return ErrNotFound }

// A BatchError is the error of every call that takes several keys, even if it was called with one
// key. Errs contains the keys that have failed, as the caller has passed them. The other keys of
// the call have not failed: GetMany returns the error together with the rows that it has found.
// Calls that take exactly one key, such as Get, return an *Error. Warm takes any number of keys,
// so it reports each error to a function instead of collecting them.
//
// A batch load function may return a BatchError too, to report which of its keys have failed;
// keys for which it returns a value have not failed.
type BatchError[K comparable] struct {
	Errs map[K]error // in the errors of this package, an *Error for each key
}

// Error returns the number of keys that have failed, and the error of one of them.
func (b *BatchError[K]) Error() string {
	if b == nil {
		return "a nil *BatchError" // returned by a load function
	}
	var first failure
	n := 0
	for key, err := range b.Errs {
		if err == nil {
			continue
		}
		if f := (failure{key, err}); n == 0 || f.before(first) {
			first = f
		}
		n++
	}
	switch n {
	case 0:
		return "cacheaside: no key failed"
	case 1:
		return first.err.Error()
	}
	return wording.Once(fmt.Sprintf("cacheaside: %d keys failed, one of them: %v", n, first.err))
}

// failure is a key of a BatchError, and its error.
type failure struct {
	key any
	err error
}

// before orders failures, so that a BatchError has the same text for each call. It formats no
// error: each may contain a BatchError, so the time would grow with a power of the number of keys.
func (f failure) before(other failure) bool {
	one, isError := f.err.(*Error)      //nolint:errorlint // its own
	two, otherOwn := other.err.(*Error) //nolint:errorlint // likewise
	isError, otherOwn = isError && one != nil, otherOwn && two != nil
	switch {
	case isError && otherOwn:
		return cmp.Or(cmp.Compare(one.Hash, two.Hash), cmp.Compare(one.Loader, two.Loader),
			cmp.Compare(one.Key, two.Key)) < 0
	case isError != otherOwn:
		return isError
	}
	return fmt.Sprint(f.key) < fmt.Sprint(other.key)
}

// Unwrap returns errors for errors.Is and errors.As. If keys have failed for the same cause, such
// as one call of a batch load, it returns the error of only one of them. Errs has the errors of
// all keys.
func (b *BatchError[K]) Unwrap() []error {
	if b == nil {
		return nil
	}
	return errtree.Causes(maps.Values(b.Errs), func(err error) (cause error) {
		if e, ok := err.(*Error); ok && e != nil { //nolint:errorlint // its own
			cause = e.Err
		}
		return cause
	})
}

// A PanicError is the error of a load function, or of a marshaler of the key or the value, that
// has panicked or called runtime.Goexit. All callers that shared the load get it. PanicError does
// not wrap the value of the panic: panic(sql.ErrNoRows) does not mean that the row does not
// exist.
type PanicError struct {
	Value  any    // the value that was passed to panic; nil for runtime.Goexit
	Goexit bool   // runtime.Goexit was called, for example by t.FailNow
	Stack  []byte // the stack of the goroutine
}

// Error returns a message with the type of the panic's value. The value may be private, so the
// message does not contain it. The library logs its text in a field: see Options.Logger.
func (p *PanicError) Error() string {
	if p.Goexit {
		return "the load called runtime.Goexit"
	}
	return fmt.Sprintf("the load panicked with a %T", p.Value)
}

// As lets the library's loggers find the value and the stack, which they log as fields.
func (p *PanicError) As(target any) bool {
	report, ok := target.(**limitedlog.Panic)
	if ok {
		*report = &limitedlog.Panic{Who: "the load", Value: p.Value, Stack: p.Stack}
	}
	return ok
}

// caught returns the error of a goroutine that is unwinding. recovered is nil only for Goexit,
// because panic(nil) panics with a *runtime.PanicNilError.
func caught(recovered any) error {
	return &PanicError{Value: recovered, Goexit: recovered == nil, Stack: debug.Stack()}
}

// redisError wraps an error of Redis or its client in ErrRedis.
func redisError(err error) error { return fault.OfRedis(err) }

// panicked reports whether err is a PanicError, and returns the value of the panic.
func panicked(err error) (value any, ok bool) {
	p, ok := errors.AsType[*PanicError](err)
	if !ok {
		return nil, false
	}
	return p.Value, true
}

// Package noanswer defines the error for a server that has not replied.
package noanswer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// An Error says that a server has not replied: which server, the request, the duration, and the
// reason. The timeout is that of the library. So the error is not context.DeadlineExceeded, even
// if the driver's error is: a caller would conclude that its own deadline has passed.
type Error struct {
	Server string        // the address of the server, or a description
	Asked  string        // the request, without keys and values
	After  time.Duration // how long the request took
	Err    error         // the error of the driver
	Dial   error         // why no connection could be made during the request; nil if unknown
}

func (e *Error) Error() string {
	text := fmt.Sprintf("no answer from %s to %s within %v", e.Server, e.Asked, round(e.After))
	switch {
	case e.Dial != nil:
		return text + ": " + e.Dial.Error()
	case e.Timeout():
		return text + ": timed out"
	}
	return text + ": " + e.Err.Error()
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

// Is reports whether target is in the error of the driver or of the connection. It is false for
// context.DeadlineExceeded.
func (e *Error) Is(target error) bool {
	return target != context.DeadlineExceeded && (errors.Is(e.Err, target) || e.Dial != nil &&
		errors.Is(e.Dial, target))
}

// As finds the errors of the driver, but not those in Why. An error in Why that a connection could
// not be made would suggest that the command was not sent, but it may have been sent over another
// connection.
func (e *Error) As(target any) bool { return errors.As(e.Err, target) }

// Timeout reports whether the error is a timeout, as in net.Error.
func (e *Error) Timeout() bool { return IsTimeout(e.Err) }

// IsTimeout reports whether err is a timeout of any kind.
func IsTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && t.Timeout()
}

// Possible reports whether err may be that of a server that has not replied: a timeout, or a
// connection that was lost or could not be made.
func Possible(err error) bool {
	if err == nil {
		return false
	}
	_, ofNetwork := errors.AsType[net.Error](err)
	_, ofSystem := errors.AsType[syscall.Errno](err)
	return ofNetwork || ofSystem || IsTimeout(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed)
}

// Is reports whether err is or wraps an Error.
func Is(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return ok
}

// Wrap converts err, the error of a request under ctx that began at began, to one that callers can
// get. The end of ctx, which is the caller's, stays as it is. Any other error of a server that
// may not have replied becomes an Error, unless it wraps one already. nil stays nil.
func Wrap(ctx context.Context, err error, server, asked string, began time.Time, dial error) error {
	switch {
	case err == nil, !Is(err) && !Possible(err):
		return err
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return err // it is already the end of the caller's context
	case errors.Is(err, context.DeadlineExceeded), !Is(err) && !errors.Is(err, context.Canceled):
		err = &Error{Server: server, Asked: asked, After: time.Since(began), Err: err, Dial: dial}
	}
	if end := ContextErr(ctx); end != nil && !errors.Is(err, end) {
		return fmt.Errorf("%w: %w", end, err)
	}
	return err
}

// soon is how long before the end of a context its deadline may already have ended a request: the
// deadline of a connection is the same, and may fire first.
const soon = 5 * time.Millisecond

// ContextErr returns the error with which ctx has ended or, within soon, is about to end. Otherwise
// it returns nil.
func ContextErr(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < soon {
		return context.DeadlineExceeded
	}
	return nil
}

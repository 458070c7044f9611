// Package noanswer has the error for a server that has not answered.
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

// Error tells that a server has not answered: which one, what was asked, for how long, and why. The
// time-out is that of the library, and so the error is not context.DeadlineExceeded, whatever the
// driver below has made of it: a caller takes that for the end of its own time.
type Error struct {
	Server string        // its address, or what is known of it
	Asked  string        // what was asked; no key or value
	After  time.Duration // for how long it was tried
	Err    error         // of the driver
	Why    error         // no connection could be made meanwhile; nil: that is not known
}

func (e *Error) Error() string {
	text := fmt.Sprintf("no answer from %s to %s within %v", e.Server, e.Asked, round(e.After))
	switch {
	case e.Why != nil:
		return text + ": " + e.Why.Error()
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

// Is finds the driver's errors and those of the connection, but for context.DeadlineExceeded.
func (e *Error) Is(target error) bool {
	return target != context.DeadlineExceeded && (errors.Is(e.Err, target) || e.Why != nil && errors.Is(e.Why, target))
}

// As finds the driver's errors. Why is left out: that a connection could not be made does not tell
// that this command was not sent by another one.
func (e *Error) As(target any) bool { return errors.As(e.Err, target) }

// Timeout tells that it is the error of a time-out, as net.Error does.
func (e *Error) Timeout() bool { return IsTimeout(e.Err) }

// IsTimeout tells whether err is that of a time-out, by whatever it was kept.
func IsTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && t.Timeout()
}

// Of tells whether err may be that of a server that has not answered: a time-out, or a connection
// that is lost or cannot be made.
func Of(err error) bool {
	if err == nil {
		return false
	}
	_, ofNetwork := errors.AsType[net.Error](err)
	_, ofSystem := errors.AsType[syscall.Errno](err)
	return ofNetwork || ofSystem || IsTimeout(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// Told tells whether err is an Error, or has one in it.
func Told(err error) bool {
	_, told := errors.AsType[*Error](err)
	return told
}

// For makes err, of a request under ctx that began then, one that callers can be given: nil stays
// nil. The end of ctx, the caller's own context, stays such; all else that may be a server that has
// not answered becomes an Error, unless it is told already.
func For(ctx context.Context, err error, server, asked string, began time.Time, why error) error {
	switch {
	case err == nil, !Told(err) && !Of(err):
		return err
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return err // it is the caller's own end already
	case errors.Is(err, context.DeadlineExceeded), !Told(err) && !errors.Is(err, context.Canceled):
		err = &Error{Server: server, Asked: asked, After: time.Since(began), Err: err, Why: why}
	}
	if end := Ended(ctx); end != nil && !errors.Is(err, end) {
		return fmt.Errorf("%w: %w", end, err)
	}
	return err
}

// soon is how near the end of a context may be when the deadline of a connection, which is the
// same, has ended a request before the context has ended.
const soon = 5 * time.Millisecond

// Ended returns the error with which ctx has ended, or is about to end.
func Ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < soon {
		return context.DeadlineExceeded
	}
	return nil
}

// Package lent lends a caller's context to work that may outlive the caller. Web frameworks reuse
// a context object for the next request once its handler has returned. Values that are read
// afterwards belong to another request.
package lent

import (
	"context"
	"sync"
	"time"
)

// patience is how long End waits for lookups in progress. A lookup normally takes far less. If a
// Value method hangs, the caller still returns after this time.
const patience = time.Second

// Context is a context with the values of a caller's context until End. After End it has no
// values.
type Context struct {
	done     <-chan struct{} // nil: only the values are lent
	deadline time.Time       // zero: none

	mu      sync.Mutex
	from    context.Context // the caller's; nil after End
	err     error           // of from, at End
	lookups int             // in progress
	idle    chan struct{}   // closed when the last lookup ends after End; nil: End is not waiting
}

// Values lends the values of ctx, without its cancellation and deadline.
func Values(ctx context.Context) *Context { return &Context{from: ctx} }

// Whole lends ctx with its cancellation and deadline. If its values are lent already, Whole
// returns ctx and a nil Context.
func Whole(ctx context.Context) (context.Context, *Context) {
	if ctx.Value(lentKey{}) != nil {
		return ctx, nil
	}
	c := &Context{from: ctx, done: ctx.Done()}
	c.deadline, _ = ctx.Deadline()
	return c, c
}

type lentKey struct{}

// End ends the loan: the Context no longer uses the caller's context. The caller calls End before
// it returns, on every path. End of a nil Context does nothing.
func (c *Context) End() {
	if c == nil {
		return
	}
	c.mu.Lock()
	from := c.from
	c.from = nil
	if from != nil && c.done != nil {
		c.err = from.Err()
	}
	if c.lookups == 0 {
		c.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	c.idle = idle
	c.mu.Unlock()
	bound := time.NewTimer(patience)
	defer bound.Stop()
	select {
	case <-idle:
	case <-bound.C:
	}
}

// Value returns the value of key in the caller's context, or nil after End. It does not hold the
// lock during the lookup, because the context's Value may be the user's method.
func (c *Context) Value(key any) (value any) {
	if key == (lentKey{}) {
		return true
	}
	from := c.begin()
	if from == nil {
		return nil
	}
	defer func() {
		if c.end() {
			value = nil // the context may belong to another request now
		}
	}()
	return from.Value(key)
}

// begin begins a lookup and returns the caller's context. After End it returns nil.
func (c *Context) begin() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.from != nil {
		c.lookups++
	}
	return c.from
}

// end ends a lookup. It reports whether End was called in the meantime.
func (c *Context) end() (ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lookups--; c.lookups == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
	return c.from == nil
}

// Deadline returns the deadline that the caller's context had when it was lent.
func (c *Context) Deadline() (deadline time.Time, ok bool) { return c.deadline, !c.deadline.IsZero() }

// Done returns the channel that the caller's context had when it was lent.
func (c *Context) Done() <-chan struct{} { return c.done }

// Err returns the error of the caller's context.
func (c *Context) Err() error {
	select {
	case <-c.done:
	default:
		return nil // also for a nil channel
	}
	if from := c.begin(); from != nil {
		defer c.end()
		return from.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return context.Canceled // it has ended after the loan
	}
	return c.err
}

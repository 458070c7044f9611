// Package lent lends a caller's context to work that may outlive the caller. Web frameworks use a
// context object again for the next request once its handler has returned: values that are read
// then are those of another request.
package lent

import (
	"context"
	"sync"
	"time"
)

// patience is how long End waits for lookups that are under way. A lookup takes far less. The bound
// is for a Value method that hangs: it does not keep a caller who has left.
const patience = time.Second

// Context is a context with the values of a caller's context, until End. Then it has no values.
type Context struct {
	done     <-chan struct{} // nil: only the values are lent
	deadline time.Time       // zero: there is none

	mu      sync.Mutex
	from    context.Context // the caller's; nil after End
	err     error           // of from, at End
	lookups int             // under way
	idle    chan struct{}   // closed when the last lookup ends after End; nil: nobody waits
}

// Values lends the values of ctx, but neither its end nor its deadline.
func Values(ctx context.Context) *Context { return &Context{from: ctx} }

// Whole lends ctx with its end and its deadline. If its values are lent already it returns ctx
// itself, and a nil Context.
func Whole(ctx context.Context) (context.Context, *Context) {
	if ctx.Value(lentKey{}) != nil {
		return ctx, nil
	}
	c := &Context{from: ctx, done: ctx.Done()}
	c.deadline, _ = ctx.Deadline()
	return c, c
}

type lentKey struct{}

// End ends the loan: from now on the Context does not use the caller's context. The caller calls
// End, on any way out, before it returns. Calls of a nil Context do nothing.
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

// Value returns the value of key in the caller's context, or nil after End. The lock is not held
// while it looks, for Value may be a method of the user's.
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
			value = nil // the context may be another request's by now
		}
	}()
	return from.Value(key)
}

// begin begins a lookup, unless it returns nil.
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

package cacheaside

import (
	"context"
	"fmt"
)

// Observer is told when operations begin and end, so that they can be timed and traced: see package
// otelcacheaside, which makes OpenTelemetry metrics and spans of it and of Stats. How often things
// happen is in Stats, which costs a hit in memory nothing; of such hits an Observer is not told at
// all.
//
// Begin is called when an operation begins, on the goroutine that does it. op is one of the Op
// constants; loader is the name of a Loader of this Cache, or "" for keys of loaders that it has
// not got, and of several; keys is how many keys it is about. The context that it returns, made
// from ctx, is the one that the operation goes on with: for OpLoad it is the load function's. end,
// which is never nil, is called once, when the operation is over, with its error: that of the
// caller, nil, or for OpLoad what the load function has returned; ErrNotFound is no failure. It may
// be called on another goroutine, and where a caller has left, after his call has returned.
//
// Both must be quick, and must neither block nor panic: a panic of theirs is caught, logged and
// counted (Stats.ObserverPanics), and the operation goes on without them. They are called
// concurrently. Neither is ever given a key or a value; but errors of load functions, which an
// Observer must not show unless they may be seen, may have some in their texts.
type Observer interface {
	Begin(ctx context.Context, op, loader string, keys int) (own context.Context, end func(error))
}

// The operations that an Observer is told of.
const (
	OpGet        = "get"        // what memory has not answered of a Get or GetMany
	OpLease      = "lease"      // one trip that asks Redis for leases
	OpLoad       = "load"       // a call of the load function, without its wait for a place
	OpWait       = "wait"       // a key's wait for a load of another process
	OpRefresh    = "refresh"    // a Refresh, or a reload in the background, with its load
	OpInvalidate = "invalidate" // an Invalidate, InvalidateKeys, InvalidateAll or Expire: the delete and its announcement
)

// observe tells the observer, if there is one, that an operation begins.
func (c *Cache) observe(ctx context.Context, op, loader string, keys int) (own context.Context, end func(error)) {
	if c.options.Observer == nil {
		return ctx, unobserved
	}
	return c.beginObserved(ctx, op, loader, keys)
}

func unobserved(error) {}

// beginObserved has the observer see an operation. If it panics, the operation goes on without it:
// it may be one that has begun in the background, where a panic would end the program.
func (c *Cache) beginObserved(ctx context.Context, op, loader string, keys int) (own context.Context, end func(error)) {
	own, end = ctx, unobserved
	defer c.observerPanics(loader)
	seen, seenEnd := c.options.Observer.Begin(ctx, op, loader, keys)
	if seen == nil || seenEnd == nil {
		panic("Begin has returned nil")
	}
	return seen, func(err error) {
		defer c.observerPanics(loader)
		seenEnd(err)
	}
}

// observerPanics is deferred where the observer is called.
func (c *Cache) observerPanics(loader string) {
	if p := recover(); p != nil {
		c.observerPanicked.Add(1)
		c.log.Warn("the Observer has panicked", loader, fmt.Errorf("a panic with a %T", p))
	}
}

func (l *Loader[K, V]) observe(ctx context.Context, op string, keys int) (own context.Context, end func(error)) {
	return l.cache.observe(ctx, op, l.name, keys)
}

// observed is the name of a loader as an Observer is told it: of one that this process has. Names
// in Keys come from outside, and there may be any number of them.
func (c *Cache) observed(keys []Key) string {
	if c.options.Observer == nil || len(keys) == 0 {
		return ""
	}
	name := keys[0].Loader
	for _, k := range keys {
		if k.Loader != name {
			return ""
		}
	}
	if c.known(name) == nil {
		return ""
	}
	return name
}

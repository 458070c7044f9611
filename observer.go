package cacheaside

import (
	"context"
	"fmt"
)

// observe tells the observer, if there is one, that an operation begins.
func (c *Cache) observe(ctx context.Context, op, loader string, keys int) (own context.Context, end func(error)) {
	if c.options.Observer == nil {
		return ctx, unobserved
	}
	return c.beginObserved(ctx, op, loader, keys)
}

func unobserved(error) {}

// beginObserved shows the observer an operation. If the observer panics, the operation goes on
// without it: the operation may have begun in the background, where a panic would end the program.
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
		c.counts.observerPanicked.Add(1)
		c.log.Warn("the Observer has panicked", loader, fmt.Errorf("a panic with a %T", p))
	}
}

func (l *Loader[K, V]) observe(ctx context.Context, op string, keys int) (own context.Context, end func(error)) {
	return l.cache.observe(ctx, op, l.name, keys)
}

// observed is the name of a loader as an Observer is told it: only of a loader that this process
// has. Names in Keys come from outside, and there may be any number of them.
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

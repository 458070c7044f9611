package cacheaside

import (
	"context"

	"github.com/cacheaside/cacheaside/internal/limitedlog"
)

// observe notifies the Observer, if there is one, that an operation begins. It returns the
// context of the operation, and a function that reports its end.
func (c *Cache) observe(ctx context.Context, op, loader string, keys int) (observed context.Context, end func(error)) {
	if c.options.Observer == nil {
		return ctx, unobserved
	}
	return c.beginObserved(ctx, op, loader, keys)
}

func unobserved(error) {}

// beginObserved calls the Observer. If the Observer panics, the operation continues unobserved:
// it may run in the background, where a panic would end the program.
func (c *Cache) beginObserved(
	ctx context.Context, op, loader string, keys int,
) (observed context.Context, end func(error)) {
	observed, end = ctx, unobserved
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

// observerPanics recovers, counts and logs a panic of the Observer. It must be deferred around
// each call of the Observer.
func (c *Cache) observerPanics(loader string) {
	if p := recover(); p != nil {
		c.counts.observerPanicked.Add(1)
		c.log.Warn("the Observer has panicked", loader, limitedlog.Panicked("the Observer", p))
	}
}

func (l *Loader[K, V]) observe(ctx context.Context, op string, keys int) (observed context.Context, end func(error)) {
	return l.cache.observe(ctx, op, l.name, keys)
}

// observedName returns the loader name that an Observer gets for keys. It is empty unless all
// keys belong to one loader that this process has: the names in Keys come from outside, and their
// number is not bounded.
func (c *Cache) observedName(keys []Key) string {
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

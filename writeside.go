package cacheaside

import (
	"context"

	"github.com/cacheaside/cacheaside/internal/writeside"
)

// inside is what a Cache gives to packages consistency and canal, and storing what a Loader does.
type (
	inside                         = writeside.Inside[writeside.Cache[Key]]
	storing[K comparable, V any]   = writeside.Inside[writeside.Loader[K, V, *Hold]]
	written                        struct{ *Cache }
	writtenBy[K comparable, V any] struct{ *Loader[K, V] }
)

func (w written) Closed() bool { return w.isClosed() }

func (w written) Strict() bool { return w.options.StrictWrites }

func (w written) Prefix() string { return w.options.Prefix }

func (w written) Loader(name string) (has, filter bool) {
	l := w.known(name)
	return l != nil, l != nil && l.HasFilter()
}

func (w written) Existing(k Key) bool { return k.existing }

func (w written) AdmitHeld(ctx context.Context, keys ...Key) (committed func(context.Context) error, err error) {
	_, added, err := w.addToFilters(ctx, keys)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return added(ctx).err() }, nil
}

func (w writtenBy[K, V]) StoreHeld(ctx context.Context, h *Hold, key K, value V) (stored bool, err error) {
	return w.storeInHold(ctx, h, key, value)
}

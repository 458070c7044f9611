package cacheaside

import "github.com/cacheaside/cacheaside/internal/writeside"

// written is a Cache as package consistency has it.
type written struct{ *Cache }

func init() {
	writeside.Of = func(cache any) writeside.Cache { return written{cache.(*Cache)} }
	writeside.Existing = func(key any) bool { return key.(Key).existing }
}

func (w written) Closed() bool { return w.isClosed() }

func (w written) Strict() bool { return w.options.StrictWrites }

func (w written) Loader(name string) (has, filter bool) {
	l := w.known(name)
	return l != nil, l != nil && l.hasFilter()
}

package cacheaside

import (
	"fmt"
	"maps"
	"reflect"
	"sync"

	"github.com/cacheaside/cacheaside/internal/rows"
)

// registry is the loaders of a Cache.
type registry struct {
	mu      sync.Mutex
	loaders map[string]registered // by name
	strange map[string]bool       // names of loaders that are not here and were told of
	closed  bool
}

// registered is a loader, and the type of its Loader.
type registered struct {
	*rows.Core
	of reflect.Type
}

// add registers a loader under its name. Two loaders of one name would read each other's entries.
func (c *Cache) add(name string, l registered) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case c.loaders[name].Core != nil:
		return fmt.Errorf("the cache already has a loader of this name, a %s: make it once, and share it", c.loaders[name].of)
	}
	if c.loaders == nil {
		c.loaders = make(map[string]registered)
	}
	c.loaders[name] = l
	if c.bus != nil {
		c.bus.Register(name, l.Raise)
	}
	return nil
}

// known is the loader of this name, if this process has it.
func (r *registry) known(name string) *rows.Core {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loaders[name].Core
}

// strangersAtMost bounds the names of loaders that this process does not have and has told of.
const strangersAtMost = 100

// stranger notes that a key names a loader that this process does not have, while it has others:
// the name may be misspelt.
func (c *Cache) stranger(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.loaders) == 0 || c.strange[name] || len(c.strange) == strangersAtMost {
		return
	}
	if c.strange == nil {
		c.strange = make(map[string]bool)
	}
	c.strange[name] = true
	c.log.Inform("keys of a loader that this process does not have were invalidated; check its name", name)
}

func (r *registry) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// all returns the loaders by their names.
func (r *registry) all() map[string]registered {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.loaders)
}

// closeRegistry takes no loaders any more, and returns those that there are.
func (r *registry) closeRegistry() map[string]registered {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return maps.Clone(r.loaders)
}

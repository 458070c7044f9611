package cacheaside

import (
	"fmt"
	"maps"
	"reflect"
	"sync"

	"github.com/cacheaside/cacheaside/internal/rows"
)

// registry contains the loaders of a Cache.
type registry struct {
	mu      sync.Mutex
	loaders map[string]registered // by name
	unknown map[string]bool       // names of loaders that this process does not have, already logged
	closed  bool
}

// registered is a loader with the type of its Loader.
type registered struct {
	*rows.Core
	typ       reflect.Type
	redisDown DownPolicy
}

// add registers a loader under its name. Two loaders with one name would read each other's
// entries.
func (c *Cache) add(name string, l registered) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case c.loaders[name].Core != nil:
		return fmt.Errorf("the cache already has a loader of this name, a %s: make it once, and share it",
			c.loaders[name].typ)
	}
	if c.loaders == nil {
		c.loaders = make(map[string]registered)
	}
	c.loaders[name] = l
	if c.bus != nil {
		c.bus.Register(name, l.GroupLog, l.Raise)
	}
	return nil
}

// known returns the loader with this name, or nil if this process does not have it.
func (r *registry) known(name string) *rows.Core {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.loaders[name].Core
}

// maxUnknown is the maximum number of names of unknown loaders that are logged.
const maxUnknown = 100

// logUnknown logs once that a key names a loader that this process does not have, although it has
// others: the name may be misspelt.
func (c *Cache) logUnknown(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.loaders) == 0 || c.unknown[name] || len(c.unknown) == maxUnknown {
		return
	}
	if c.unknown == nil {
		c.unknown = make(map[string]bool)
	}
	c.unknown[name] = true
	c.log.Inform("keys of a loader that this process does not have were invalidated; check its name", name)
}

func (r *registry) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// all returns the loaders by name.
func (r *registry) all() map[string]registered {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.loaders)
}

// closeRegistry refuses new loaders, and returns the existing ones.
func (r *registry) closeRegistry() map[string]registered {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return maps.Clone(r.loaders)
}

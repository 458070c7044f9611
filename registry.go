package cacheaside

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"sync"

	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/rows"
)

// registry is the loaders of a Cache.
type registry struct {
	mu      sync.Mutex
	loaders map[string]registered // by name
	strange map[string]bool       // names of loaders that are not here and were told of
	closed  bool
}

// loader is the rows.Reader of a Loader of any type.
type loader interface {
	audit.Loader
	Close()
	Raise(slots int, generation uint64)
	Generation(name string) *memory.Generation
	Counts() rows.Counts
	ForgetFailure(text string)
	ForgetAll()
	KeyOf(version, text string) (key any, ok bool)
	RefreshKeys(ctx context.Context, keys []any) []error
	AuditRedis(ctx context.Context, key any, good measure.Stamp, mayLoad func() bool) (measure.Verdict, measure.Stamp)
	Inserting(ctx context.Context, texts []string) (committed func(context.Context) error, err error)
	HasFilter() bool
}

// registered is a loader, and the type of its Loader.
type registered struct {
	loader
	of reflect.Type
}

// add registers a loader under its name. Two loaders of one name would read each other's entries.
func (c *Cache) add(name string, l registered) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case c.loaders[name].loader != nil:
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
func (g *registry) known(name string) loader {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.loaders[name].loader
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

func (g *registry) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// all returns the loaders by their names.
func (g *registry) all() map[string]registered {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.loaders)
}

// closeRegistry takes no loaders any more, and returns those that there are.
func (g *registry) closeRegistry() map[string]registered {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return maps.Clone(g.loaders)
}

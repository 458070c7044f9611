package cacheaside

import (
	"cmp"

	"github.com/cacheaside/cacheaside/internal/measure"
)

// sampler wraps a Sampler, so that an atomic.Pointer can hold it.
type sampler struct{ measure.Sampler }

// sample passes an acknowledged invalidation to the meter's sampler.
func (c *Cache) sample(w func() measure.Written) {
	if s := c.sampler.Load(); s != nil && s.Take() {
		s.Add(w())
	}
}

func (c *Cache) written(k Key, hash uint64) measure.Written {
	w := measure.Written{Loader: k.Loader, Hash: hash}
	if l := c.known(k.Loader); l != nil {
		if key, ok := l.KeyOf(cmp.Or(k.Version, "1"), k.Text); ok {
			w.Key = key
		}
	}
	return w
}

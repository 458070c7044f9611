package cacheaside

import (
	"cmp"

	"github.com/cacheaside/cacheaside/internal/measure"
)

// sampler is one, behind a pointer that can be swapped.
type sampler struct{ measure.Sampler }

// wrote tells the sampler of an invalidation that was acknowledged.
func (c *Cache) wrote(w func() measure.Written) {
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

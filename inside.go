package cacheaside

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/sharing"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// inside and storing are the internal methods of a Cache and a Loader, for packages consistency and
// canal.
type (
	inside                            = writeside.Inside[writeside.Cache[Key]]
	storing[K comparable, V any]      = writeside.Inside[writeside.Loader[K, V, *Hold]]
	writerCache                       struct{ *Cache }
	writerLoader[K comparable, V any] struct{ *Loader[K, V] }
)

func (w writerCache) Closed() bool { return w.isClosed() }

func (w writerCache) Strict() bool { return w.options.StrictWrites }

func (w writerCache) Prefix() string { return w.options.Prefix }

func (w writerCache) Loader(name string) (has, filter bool) {
	l := w.known(name)
	return l != nil, l != nil && l.HasFilter()
}

func (w writerCache) Loaders() []string { return slices.Collect(maps.Keys(w.all())) }

func (w writerCache) CountRelays(ctx context.Context, queue, id string, life time.Duration) (int, error) {
	if w.conn == nil {
		return 0, nil
	}
	return sharing.Register(ctx, w.conn, sharing.Key(w.options.Prefix, queue), id, life)
}

func (w writerCache) Existing(k Key) bool { return k.existing }

func (w writerCache) InsertingHeld(
	ctx context.Context, keys ...Key,
) (committed func(context.Context) error, err error) {
	_, added, err := w.addToFilters(ctx, keys)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return added(ctx).err() }, nil
}

// Parts returns what tests observe.
func (w writerCache) Parts() (*conn.Conn, *invalidation.Bus, *memory.Tier) {
	return w.conn, w.bus, w.memory
}

// Parts returns what tests observe.
func (w writerLoader[K, V]) Parts() (*Cache, *rows.Reader[K, V]) { return w.cache, w.rows }

func (w writerLoader[K, V]) StoreHeld(ctx context.Context, h *Hold, key K, value V) (stored bool, err error) {
	return w.storeInHold(ctx, h, key, value)
}

// meterCache implements the methods of a Cache for package meter.
type meterCache struct{ *Cache }

// measuring is the internal access of package meter to a Cache with Redis.
type measuring = measure.Inside

func (m meterCache) Sample(s measure.Sampler) (stop func(), err error) {
	added := &sampler{s}
	switch {
	case m.isClosed():
		return nil, ErrClosed
	case !m.sampler.CompareAndSwap(nil, added):
		return nil, errors.New("the cache has a meter already")
	}
	m.bus.Listen() // questions are about the memory of this process, too
	return func() { m.sampler.CompareAndSwap(added, nil) }, nil
}

func (m meterCache) Read(loader, version, text string) measure.Written {
	k := Key{Loader: loader, Version: version, Text: text}
	return m.written(k, keys.NewNamespace("", loader, "").Hash(text))
}

// repliesTTL is how long replies stay in Redis after they should have been fetched.
const repliesTTL = 10 * time.Second

func (m meterCache) Ask(ctx context.Context, q measure.Question) (listeners int, err error) {
	asked := make([]invalidation.Asked, len(q.Keys))
	for i, k := range q.Keys {
		asked[i] = invalidation.Asked(k)
	}
	return m.bus.Ask(ctx, invalidation.Question{ID: q.ID, Patience: q.Patience, Keys: asked, Share: q.Share},
		repliesTTL)
}

func (m meterCache) Replies(ctx context.Context, id uint64) ([]string, error) {
	return m.bus.Replies(ctx, id)
}

func (m meterCache) Redis(
	ctx context.Context, w measure.Written, good measure.Stamp, mayLoad func() bool,
) (measure.Verdict, measure.Stamp) {
	l := m.known(w.Loader)
	if l == nil || w.Key == nil {
		return measure.Unknown, measure.Stamp{}
	}
	return l.AuditRedis(ctx, w.Key, good, mayLoad)
}

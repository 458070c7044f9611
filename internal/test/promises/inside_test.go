package promises

import (
	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/memory"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// parts are those of a Cache; nil if it does without.
type parts struct {
	conn   *conn.Conn
	bus    *invalidation.Bus
	memory *memory.Tier
}

func partsOf(c *cacheaside.Cache) (p parts) {
	p.conn, p.bus, p.memory = writeside.Of(c).(interface {
		Parts() (*conn.Conn, *invalidation.Bus, *memory.Tier)
	}).Parts()
	return p
}

// cacheOf returns the Cache of a Loader.
func cacheOf[K comparable, V any](l *cacheaside.Loader[K, V]) *cacheaside.Cache {
	c, _ := partsOfLoader(l)
	return c
}

// readerOf returns the part of a Loader that its methods call.
func readerOf[K comparable, V any](l *cacheaside.Loader[K, V]) *rows.Reader[K, V] {
	_, reader := partsOfLoader(l)
	return reader
}

func partsOfLoader[K comparable, V any](l *cacheaside.Loader[K, V]) (*cacheaside.Cache, *rows.Reader[K, V]) {
	return writeside.Of(l).(interface {
		Parts() (*cacheaside.Cache, *rows.Reader[K, V])
	}).Parts()
}

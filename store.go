package cacheaside

import (
	"context"
	"errors"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/local"
)

// storeInHold is writeside.Loader.StoreHeld.
func (l *Loader[K, V]) storeInHold(ctx context.Context, h *Hold, key K, value V) (stored bool, err error) {
	text, err := l.encodeKey(key)
	switch {
	case err != nil:
		return false, l.wrap("store", key, err)
	case l.reads.Closed():
		return false, l.wrap("store", key, ErrClosed)
	}
	held, err := h.lastOf(l.Key(key), l.cache)
	if err != nil {
		return false, l.wrap("store", key, err)
	}
	if held == nil || l.cache.store == nil || l.bypassed() {
		return false, nil
	}
	era := held.era
	if era == nil {
		l.cache.channel.Poll() // for the next time
		return false, nil
	}
	e, life, err := l.fetch.Entry(text, era, value)
	switch {
	case errors.Is(err, codec.ErrTooLarge):
		l.counters.TooLarge.Add(1)
		return false, nil
	case err != nil:
		return false, l.wrap("store", key, err)
	}
	if stored, err = l.cache.store.Exchange(ctx, held.name, held.token, e, life); err != nil {
		l.fetch.CountWrite(err)
		return false, l.wrap("store", key, redisError(err))
	}
	if stored {
		l.counters.StoredHeld.Add(1)
		h.remove(held)
	}
	return stored, nil
}

// lastOf is a held key whose hold is about to end, by storeInHold, and is not renewed any more; nil
// if it was lost, or has been tried before.
func (h *Hold) lastOf(k Key, c *Cache) (*heldKey, error) {
	if h == nil || h.cache != c {
		return nil, errNotHeld
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.keys[k]
	switch {
	case h.ended:
		return nil, errHoldEnded
	case held == nil:
		return nil, errNotHeld
	case !held.renewable():
		return nil, nil
	}
	held.leaving = true
	return held, nil
}

// era is of which generation the loader's entries are where the key of this name is; nil: that is
// not known yet.
func (l *Loader[K, V]) era(name string) *local.Era { return l.eras.Of(uint8(l.cache.conn.Range(name))) }

func (c *Cache) eraOf(k *heldKey) *local.Era {
	l := c.known(k.key.Loader)
	if l == nil || c.conn == nil {
		return nil
	}
	return l.era(k.name)
}

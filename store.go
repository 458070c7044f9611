package cacheaside

import (
	"context"
	"errors"

	"github.com/cacheaside/cacheaside/internal/codec"
	"github.com/cacheaside/cacheaside/internal/local"
)

// storeInHold is writeside.Loader.StoreHeld.
func (l *Loader[K, V]) storeInHold(ctx context.Context, h *Hold, key K, value V) (stored bool, err error) {
	text, err := l.rows.Keys.Text(key)
	switch {
	case err != nil:
		return false, l.wrap("store", key, err)
	case l.rows.Closed():
		return false, l.wrap("store", key, ErrClosed)
	}
	held, err := h.lastOf(l.Key(key), l.cache)
	if err != nil {
		return false, l.wrap("store", key, err)
	}
	if held == nil || l.cache.store == nil || l.rows.Bypassed() {
		return false, nil
	}
	era := held.era
	if era == nil {
		l.cache.channel.Poll() // for the next time
		return false, nil
	}
	e, life, err := l.rows.Fetch.Entry(text, era, value)
	switch {
	case errors.Is(err, codec.ErrTooLarge):
		l.rows.Counters.TooLarge.Add(1)
		return false, nil
	case err != nil:
		return false, l.wrap("store", key, err)
	}
	if stored, err = l.cache.store.Exchange(ctx, held.name, held.token, e, life); err != nil {
		l.rows.Fetch.CountWrite(err)
		return false, l.wrap("store", key, redisError(err))
	}
	if stored {
		l.rows.Counters.StoredHeld.Add(1)
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

func (c *Cache) eraOf(k *heldKey) *local.Era {
	l := c.known(k.key.Loader)
	if l == nil || c.conn == nil {
		return nil
	}
	return l.Generation(k.name)
}

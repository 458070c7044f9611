package mysqllock

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// rowLock is held under an id, that no other request has: so nothing that it sends, however late,
// can harm another holder.
type rowLock struct {
	d       *rows
	key     string
	id      string
	timeout time.Duration
}

func (k *rowLock) Extend(ctx context.Context, ttl time.Duration) error {
	c, err := k.d.change(ctx, k.timeout, extendSQL(k.d.table, k.key, k.id, ttl))
	if err == nil && !c.matched {
		err = driver.ErrLost
	}
	return explain(k.d.table, err)
}

func (k *rowLock) Release(ctx context.Context) error {
	for pause := firstPause; ; pause *= 2 {
		c, err := k.d.change(ctx, k.timeout, releaseSQL(k.d.table, k.key, k.id))
		switch {
		case err == nil && c.matched && c.yes:
			return nil
		case err == nil:
			return driver.ErrLost
		case !again(err), retry.Sleep(ctx, pause) != nil:
			return explain(k.d.table, err)
		}
	}
}

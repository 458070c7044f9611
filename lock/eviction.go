package lock

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/limitedlog"
)

// evictionCheck finds out, once for each Locker, whether the server evicts keys, and logs a warning
// if it does. A server that does not let this user call INFO is not checked.
type evictionCheck struct {
	log     *slog.Logger
	started atomic.Bool
}

// evictionScript returns maxmemory and maxmemory_policy. A cluster runs it on the server of its
// key.
const evictionScript = `
local info = redis.call('INFO', 'memory')
return {string.match(info, 'maxmemory:(%d+)'), string.match(info, 'maxmemory_policy:(%S+)')}`

// start checks the server of this key in the background, unless that was done. If the server does
// not reply, the next call checks again.
func (e *evictionCheck) start(c *conn.Conn, key string, timeout time.Duration) {
	if e.started.Swap(true) {
		return
	}
	c.Apart(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		cmd := redis.NewStringSliceCmd(ctx, "eval", evictionScript, 1, key)
		c.Process(ctx, []redis.Cmder{cmd})
		found, err := cmd.Result()
		switch {
		case err != nil && !conn.IsReply(err):
			e.started.Store(false)
		case err == nil && len(found) == 2 && found[0] != "0" && found[1] != "noeviction":
			limitedlog.Guarded(e.log).Warn("cacheaside: lock: the Redis server may evict locks that are held; "+
				"set maxmemory-policy noeviction, or use another server or the database for locks",
				"maxmemory_policy", found[1], "maxmemory", found[0])
		}
	})
}

package lock

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// NewRedisDriver returns the driver of NewRedis.
func NewRedisDriver(rdb redis.UniversalClient, o *Options) (driver.Driver, error) {
	return newRedisDriver(rdb, o)
}

// NewLocalDriver returns the driver of NewLocal.
func NewLocalDriver() driver.Driver { return newLocal() }

// Scripts of a lock in one Redis.
var (
	RedisAcquire = acquireScript
	RedisSettle  = cleanUpScript
)

// BareScripts acquires and releases with the package's scripts and a bare client.
func BareScripts(ctx context.Context, c *redis.Client) error {
	const id = "an-id-of-26-characters-as-is"
	v, err := c.EvalSha(ctx, acquireScript.Hash, []string{"bare2", "bare2:" + id}, id, 10_000, int64(1)<<60,
		"0").Result()
	if err != nil {
		return err
	}
	token := strconv.FormatInt(v.([]any)[1].(int64), 10)
	return c.EvalSha(ctx, releaseScript.Hash, []string{"bare2"}, "L1 "+id+" "+token+" ", "L1 - "+token+" 0 0",
		60000).Err()
}

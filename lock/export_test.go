package lock

import (
	"context"
	"errors"
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

// BareShared acquires and releases a lock of another kind with the package's scripts and a bare
// client.
func BareShared(ctx context.Context, c *redis.Client, limit int) error {
	const id, key = "an-id-of-26-characters-as-is", "bare3"
	err := c.EvalSha(ctx, sharedScripts.acquire.Hash, []string{key, key + ":" + id}, id, 10_000, int64(1)<<60, "0",
		limit, "1").Err()
	if err != nil {
		return err
	}
	return c.EvalSha(ctx, sharedScripts.release.Hash, []string{key}, id).Err()
}

// BareTogether acquires locks by one script, and releases them one after the other.
func BareTogether(ctx context.Context, c *redis.Client, names []string) error {
	const id = "an-id-of-26-characters-as-is"
	var keys []string
	for _, name := range names {
		keys = append(keys, "bare:"+name)
	}
	for _, name := range names {
		keys = append(keys, "bare:"+name+":"+id)
	}
	v, err := c.EvalSha(ctx, togetherScript.Hash, keys, id, 10_000, int64(1)<<60, "0", len(names)).Result()
	if err != nil {
		return err
	}
	token := strconv.FormatInt(v.([]any)[1].(int64), 10)
	for _, key := range keys[:len(names)] {
		err := c.EvalSha(ctx, releaseScript.Hash, []string{key}, "L1 "+id+" "+token+" ", "L1 - "+token+" 0 0",
			60000).Err()
		if err != nil {
			return err
		}
	}
	return nil
}

// BareInspect sends the commands of Inspect.
func BareInspect(ctx context.Context, c *redis.Client) error {
	return errors.Join(c.EvalSha(ctx, inspectScript.Hash, []string{"lock:{a}"}).Err(),
		c.PubSubNumSub(ctx, "lock:{a}").Err())
}

package lock

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// NewLocalDriver is what several Lockers, as of several processes, share.
func NewLocalDriver() driver.Driver { return newLocal() }

// Scripts of Redlock, for tests that disturb one kind of request.
var (
	RedlockAcquire = redlockAcquire
	RedlockToken   = redlockToken
	RedlockExtend  = redlockExtend
	RedlockRelease = redlockRelease
)

// RedlockVote asks the first node for a lock, as a round does whose context this is.
func RedlockVote(ctx context.Context, l *Locker, key string) (bool, error) {
	c := &contest{d: l.driver.(*redlockDriver), keys: []string{key, key + ":token"}, ttl: time.Minute, timeout: time.Second}
	return c.newRound().vote(ctx, 0)
}

// BareScripts acquires and releases by the package's scripts and a bare client.
func BareScripts(ctx context.Context, c *redis.Client) error {
	const id = "an-id-of-26-characters-as-is"
	v, err := c.EvalSha(ctx, acquireScript.Hash, []string{"bare2"}, id, 10_000, int64(1)<<60, "0").Result()
	if err != nil {
		return err
	}
	token := strconv.FormatInt(v.([]any)[1].(int64), 10)
	return c.EvalSha(ctx, releaseScript.Hash, []string{"bare2"}, "L1 "+id+" "+token+" ", "L1 - "+token+" 0 0", 60000).Err()
}

// RedlockClockBehind has a node's clock be known from before it was set ahead.
func RedlockClockBehind(l *Locker, node int, by time.Duration) {
	n := l.driver.(*redlockDriver).nodes[node]
	c := n.clock.Load()
	n.clock.Store(&reading{c.sent, c.now - by.Microseconds()})
}

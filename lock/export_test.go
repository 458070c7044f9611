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

// Scripts of a lock in one Redis.
var (
	RedisAcquire = acquireScript
	RedisSettle  = settleScript
)

// RedlockRound is one round of an Acquire, whose steps a test takes one by one.
type RedlockRound struct{ r *round }

// NewRedlockRound is a round for a lock of this name, whose requests have this time-out.
func NewRedlockRound(l *Locker, name string, timeout time.Duration) RedlockRound {
	d := l.driver.(*redlockDriver)
	key := lockKey(d.prefix, d.prefix+name)
	c := &contest{d: d, keys: []string{key, key + ":token"}, ttl: time.Hour, timeout: timeout}
	return RedlockRound{c.newRound()}
}

// Vote asks one node for the lock.
func (r RedlockRound) Vote(ctx context.Context, node int) (bool, error) { return r.r.vote(ctx, node) }

// Known is closed when the request to a node is over.
func (r RedlockRound) Known(node int) <-chan struct{} { return r.r.ballots[node].known }

// Free asks a node to end the lock.
func (r RedlockRound) Free(ctx context.Context, node int) error {
	_, _, err := r.r.free(ctx, node)
	return err
}

// Settle returns when nothing of the round is left at a node, nor will be.
func (r RedlockRound) Settle(node int) { r.r.settleAt(node) }

// RedlockKnown tells whether a node was asked for a lock that is held, and whether it is known what
// has become of the request.
func RedlockKnown(s *Lease, node int) (asked, known bool) {
	b := &s.hold.lock.(*redlockLock).ballots[node]
	return b.asked.Load(), b.now()
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

// Package sharing counts the relays that share a queue, and determines how often each of them
// calls it. Any number of relays together call the queue about as often as five, so that a fleet
// of many processes does not keep its database busy for nothing.
//
// No relay is special: each registers itself in Redis, under an id of its own, for a limited time.
// A killed relay costs nothing but a count that is too large until its registration expires.
package sharing

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

const (
	// full is the number of relays up to which each calls the queue as if it were alone.
	full = 5

	// longest is the maximum mean interval that Interval returns, unless the interval of a lone
	// relay is longer. It limits how long items wait when all other relays have just ended.
	longest = 20 * time.Second
)

// Interval returns how long one of n relays pauses between two calls of the queue, if a lone one
// pauses for alone. Of more than five it is random, so that relays that started at the same time
// do not call at the same time. It is less than 30 s, unless alone is longer than 20 s.
func Interval(alone time.Duration, n int) time.Duration {
	if n <= full || alone >= longest {
		return alone
	}
	mean := longest
	if time.Duration(n) < full*longest/alone {
		mean = alone * time.Duration(n) / full
	}
	return mean/2 + rand.N(mean)
}

// Turn reports whether one of n relays that are notified at the same time calls the queue at once.
// It is random, and about five of them do.
func Turn(n int) bool { return n <= full || rand.IntN(n) < full }

// registerScript registers a relay in the sorted set of the relays of a queue, each with the end
// of its registration in milliseconds of Redis' clock, and returns their number. It begins with
// ZREM because a full Redis refuses ZADD, except in a script that has already written. Ends that
// are too far ahead are removed as well: the clock has been set back. ARGV: the id of the relay,
// the duration in ms, 0 to end the registration.
var registerScript = conn.NewScript(`
if ARGV[2] == '0' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return 0
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local ends = string.format('%.0f', now + ARGV[2])
redis.call('ZREM', KEYS[1], '')
redis.call('ZADD', KEYS[1], ends, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. ends, '+inf')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])`)

// Key returns the name in Redis of the set of the relays of a queue.
func Key(prefix, queue string) string {
	sum := sha256.Sum256([]byte(queue))
	return prefix + "::relays:{" + hex.EncodeToString(sum[:16]) + "}"
}

// Register registers the relay id in the set key for the duration life, and returns the number of
// relays in the set. If life is 0, it ends the registration and returns 0. It ends with ctx, or
// after a command's timeout.
func Register(ctx context.Context, c *conn.Conn, key, id string, life time.Duration) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout())
	defer cancel()
	replied, cmdErr := 0, conn.NotReturned(nil)
	if err := c.Await(ctx, func(ctx context.Context) {
		replied, cmdErr = eval(ctx, c, key, id, life.Milliseconds())
	}); err != nil {
		return 0, err // the results may still be in use
	}
	return replied, cmdErr
}

func eval(ctx context.Context, c *conn.Conn, key string, args ...any) (int, error) {
	script := func(name, body string) *redis.Cmd {
		cmd := redis.NewCmd(ctx, append([]any{name, body, 1, key}, args...)...)
		c.Process(ctx, []redis.Cmder{cmd})
		return cmd
	}
	cmd := script("evalsha", registerScript.Hash)
	if conn.Unknown(cmd) {
		cmd = script("eval", registerScript.Source)
	}
	return cmd.Int()
}

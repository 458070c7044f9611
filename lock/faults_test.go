package lock_test

import (
	"context"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

func init() {
	locktest.Child(func(o *lock.Options) (*lock.Locker, error) {
		return lock.NewRedis(redis.NewClient(&redis.Options{Addr: os.Getenv("LOCK_REDIS"),
			ContextTimeoutEnabled: true}), o)
	})
}

// TestRedisHistory suspends processes, hangs Redis, resets connections, and stops, kills and
// restarts the server. Redis writes each command to disk before it replies, so that locks survive a
// restart.
func TestRedisHistory(t *testing.T) { redisHistory(t, locktest.Exclusive) }

// TestRedisReadWriteHistory and TestRedisSemaphoreHistory are the same for other kinds of locks.
func TestRedisReadWriteHistory(t *testing.T) { redisHistory(t, locktest.ReadWrite) }

func TestRedisSemaphoreHistory(t *testing.T) { redisHistory(t, locktest.Semaphore) }

func redisHistory(t *testing.T, kind locktest.Kind) {
	server := testenv.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	seeds, length := locktest.Seeds()
	for _, seed := range seeds {
		var proxies []*testenv.Proxy
		var disturbances int
		locktest.Faults{
			Kind:    kind,
			Stopped: []string{"LOCK_REDIS=" + server.Addr},
			Locker: func(t testing.TB, o *lock.Options) *lock.Locker {
				p := testenv.NewProxy(t, server.Addr)
				proxies = append(proxies, p)
				c := server.Options()
				c.Addr, c.DialTimeout, c.ContextTimeoutEnabled = p.Addr, 200*time.Millisecond, len(proxies)%2 == 0
				return locktest.Closed(t)(lock.NewRedis(locktest.ClientWith(t, c), o))
			},
			Disturb: func(ctx context.Context, r *rand.Rand, _ time.Duration) string {
				// In a fixed order, so that a short history contains all of them.
				if disturbances++; disturbances%5 == 4 {
					server.Kill()
					server.Restart(t)
					return "server restarted"
				}
				return locktest.Disturb(ctx, r, disturbances%5, proxies[r.IntN(len(proxies))], server,
					600*time.Millisecond, 6)
			},
		}.Run(t, seed, length)
	}
}

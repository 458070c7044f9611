package testenv

import (
	"context"
	"net"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Mini returns an embedded server that speaks the Redis protocol and a client of
// it, both closed with the test. They are connected in memory and times to live
// follow the clock, so both work in a testing/synctest bubble on its time. More
// than 64 goroutines at once make the client wait for a connection.
func Mini(t testing.TB) (*miniredis.Miniredis, *redis.Client) {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	client := redis.NewClient(&redis.Options{
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			conn, err := m.Dial()
			if err != nil {
				return nil, err
			}
			return &eager{Conn: conn}, nil
		},
		PoolSize:        poolSize,
		DisableIdentity: true,
		// With notifications on, the client looks up its own address, which a
		// connection in memory does not have.
		MaintNotificationsConfig: noMaintenance(),
	})
	return m, closed(t, client)
}

package testenv

import (
	"context"
	"net"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Mini returns an embedded Redis server and a client of it. Both are closed when the test ends.
// They are connected in memory, and TTLs follow the clock, so both work in a testing/synctest
// bubble with its clock. If more than 64 goroutines use the client concurrently, some wait for a
// connection.
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
		// For maintenance notifications the client would look up its own address, and a connection
		// in memory has none.
		MaintNotificationsConfig: noMaintenance(),
	})
	return m, closed(t, client)
}

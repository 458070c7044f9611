package testenv

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"
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

// SQLite returns a database in a file of the test's own, closed with the test.
// Connections wait for each other's locks instead of failing, and a transaction
// that is not read-only takes the write lock at its start, because one that asks
// for it later can fail without waiting.
func SQLite(t testing.TB) *sql.DB {
	t.Helper()
	options := url.Values{
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(OFF)"},
		"_txlock": {"immediate"},
	}
	file := url.URL{
		Scheme:   "file",
		OmitHost: true,
		Path:     filepath.Join(t.TempDir(), "test.db"),
		RawQuery: options.Encode(),
	}
	db, err := sql.Open("sqlite", file.String())
	if err != nil {
		t.Fatal(err)
	}
	closed(t, db)
	if err := db.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

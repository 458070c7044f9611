// Package sqlite opens databases for tests without a server. It is separate from testenv, so that
// tests that do not use it need not compile and link SQLite.
package sqlite

import (
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"
)

// Open returns a database in a new file. It is closed when the test ends. Connections wait for each
// other's locks instead of failing. A transaction that is not read-only takes the write lock at its
// start, because a transaction that requests it later can fail without waiting.
func Open(t testing.TB) *sql.DB {
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
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := db.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

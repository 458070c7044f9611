// Package sqlite gives tests a database that needs no server. It is apart from testenv, so that the
// tests that have no use for it do not compile and link the whole of SQLite.
package sqlite

import (
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Open returns a database in a file of the test's own, closed with the test.
// Connections wait for each other's locks instead of failing, and a transaction
// that is not read-only takes the write lock at its start, because one that asks
// for it later can fail without waiting.
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
	t.Cleanup(func() { db.Close() })
	if err := db.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

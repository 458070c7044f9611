//go:build accept

package bench

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// durableMariaDB returns the server. Until the test ends, its commits wait for the disk.
func durableMariaDB(t *testing.T) *testenv.SQLServer {
	t.Helper()
	m := testenv.SharedMariaDB(t)
	db := must(sql.Open("mysql", m.DSN(t)))(t)
	must(db.Exec("SET GLOBAL innodb_flush_log_at_trx_commit = 1"))(t)
	t.Cleanup(func() {
		_, err := db.Exec("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
		if err := errors.Join(err, db.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// getLock acquires a lock of the server on a connection.
func getLock(ctx context.Context, conn *sql.Conn, name string) (release func() error, err error) {
	ask := func(statement string) error {
		var n int
		if err := conn.QueryRowContext(ctx, statement, name).Scan(&n); err != nil || n == 1 {
			return err
		}
		return errors.New("the server refuses the lock")
	}
	if err := ask("SELECT GET_LOCK(?, 10)"); err != nil {
		return nil, err
	}
	return func() error { return ask("SELECT RELEASE_LOCK(?)") }, nil
}

// TestMySQLLock measures an uncontended lock in MariaDB.
func TestMySQLLock(t *testing.T) {
	m := durableMariaDB(t)
	db := m.DB(t)
	if err := mysqllock.CreateTable(t.Context(), db, nil); err != nil {
		t.Fatal(err)
	}
	must(db.Exec("CREATE TABLE raw_lock (name VARCHAR(100) PRIMARY KEY, owner VARCHAR(100))"))(t)
	dsn := m.DSN(t) + "&interpolateParams=true" // one round trip per statement
	floors := must(sql.Open("mysql", dsn))(t)
	defer floors.Close()
	conn := must(floors.Conn(t.Context()))(t)
	defer conn.Close()
	newConnection := must(sql.Open("mysql", dsn))(t)
	defer newConnection.Close()
	newConnection.SetMaxIdleConns(-1)

	rows := must(mysqllock.New(db, nil))(t)
	t.Cleanup(func() { rows.Close() })
	uncontended(t, &Table{Section: 14, Title: "A lock in MariaDB, uncontended",
		Text: "Acquire and release, one goroutine, innodb_flush_log_at_trx_commit=1. The floor is GET_LOCK on one " +
			"connection for all locks. GET_LOCK belongs to its connection, so with a pool each lock needs its own. A " +
			"row that is inserted and deleted is the simplest lock in a table: it is never freed if its holder dies. " +
			"New reads its row, writes it, and writes it again to release it.",
		Head: []string{"", "us", "middle half", "of the floor", "allocations"}},
		[]locking{
			{"GET_LOCK, RELEASE_LOCK", func(ctx context.Context, name string) (func() error, error) { return getLock(ctx, conn, name) }},
			{"GET_LOCK, RELEASE_LOCK by a new connection", func(ctx context.Context, name string) (func() error, error) {
				c, err := newConnection.Conn(ctx)
				if err != nil {
					return nil, err
				}
				release, err := getLock(ctx, c, name)
				if err != nil {
					return nil, errors.Join(err, c.Close())
				}
				return func() error { return errors.Join(release(), c.Close()) }, nil
			}},
			{"INSERT, DELETE of a row", func(ctx context.Context, name string) (func() error, error) {
				_, err := conn.ExecContext(ctx, "INSERT INTO raw_lock VALUES (?, 'an-id')", name)
				return func() error {
					_, err := conn.ExecContext(ctx, "DELETE FROM raw_lock WHERE name = ? AND owner = 'an-id'", name)
					return err
				}, err
			}},
			ownLock("cacheaside: mysqllock.New (a row)", rows, nil),
		})
}

package pglock_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// TestLateAfterRowLock: an UPDATE reads the clock after it has waited for the row, even if the row
// has not changed. Otherwise a request would take effect after its sender has stopped waiting, and
// an expired lock would be extended.
func TestLateAfterRowLock(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		db, p := w.Open(t, w.DSN), testenv.NewProxy(t, w.Addr)
		lease, err := w.Locker(t, db, rowtest.Long).Acquire(within(t, patience), "a", nil)
		check(t, err)
		check(t, lease.Release()) // the row exists
		p.OnRequest(func(chunk []byte) testenv.Action {
			cleanUp, cancelRequest := []byte("token + 1"), []byte("\x04\xd2\x16\x2e") // pgx cancels statements
			if bytes.Contains(chunk, cleanUp) || bytes.Contains(chunk, cancelRequest) {
				return testenv.Drop
			}
			return testenv.Pass
		})
		tx := lockRow(t, db)
		timeout := time.Second
		// A busy machine may need more time to send a request.
		for ; waiters(t, db) == 0; timeout *= 2 {
			l := w.Locker(t, w.By(t, p), &lock.Options{TTL: 10 * time.Minute, Timeout: timeout})
			if _, err := l.Acquire(within(t, patience), "a", nil); err == nil {
				t.Fatal("a locked row was changed")
			}
			check(t, l.Close())
			if timeout > 30*time.Second {
				t.Fatal("no request waits for the row")
			}
		}
		time.Sleep(timeout)
		check(t, tx.Rollback())
		testenv.Eventually(t, "the late requests have ended", func() bool {
			var n int
			check(t, db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state "+
				"= 'active' AND query LIKE 'SET LOCAL row_security%'").Scan(&n))
			return n == 0
		})
		var n int
		check(t, db.QueryRow(w.Free).Scan(&n))
		if n != 1 {
			t.Error("a request takes effect after its sender has stopped waiting")
		}
	})
}

// lockRow locks the row of the lock "a" in a transaction, which it leaves open.
func lockRow(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.Begin()
	check(t, err)
	t.Cleanup(func() { tx.Rollback() })
	_, err = tx.Exec("SELECT name FROM cacheaside_locks WHERE name = 'lock:a' FOR UPDATE")
	check(t, err)
	return tx
}

// waiters returns how many sessions of the test's database wait for a row.
func waiters(t testing.TB, db *sql.DB) (n int) {
	t.Helper()
	check(t, db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "+
		"wait_event_type = 'Lock'").Scan(&n))
	return n
}

// awaitWaiter waits until a session of the test's database waits for a row.
func awaitWaiter(t testing.TB, db *sql.DB) {
	t.Helper()
	testenv.Eventually(t, "a session waits for a row", func() bool { return waiters(t, db) > 0 })
}

// change changes the row of the lock "a" in a transaction, which it leaves open.
func change(t testing.TB, db *sql.DB, set string) *sql.Tx {
	t.Helper()
	tx, err := db.Begin()
	check(t, err)
	t.Cleanup(func() { tx.Rollback() })
	_, err = tx.Exec("UPDATE cacheaside_locks SET " + set + " WHERE name = 'lock:a'")
	check(t, err)
	return tx
}

// TestSlowExtension: a lock that looks expired to readers, because its extension has not committed,
// cannot be acquired.
func TestSlowExtension(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		db := w.Open(t, w.DSN)
		l := w.Locker(t, db, rowtest.Long)
		lease, err := l.Acquire(within(t, patience), "a", nil)
		check(t, err)
		check(t, lease.Release())
		tx := change(t, db, "expires_at = clock_timestamp() + interval '1 hour'")
		got := make(chan error, 1)
		go func() { _, err := l.TryAcquire(within(t, patience), "a", nil); got <- err }()
		awaitWaiter(t, db)
		check(t, tx.Commit())
		if err := testenv.Receive(t, "TryAcquire", got); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("a lock that is extended: %v", err)
		}
	})
}

// TestSerializationFailure: a session with a higher isolation level does not fail if another
// transaction has changed the row.
func TestSerializationFailure(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		db := w.Open(t, w.DSN)
		for _, level := range []string{"serializable", "repeatable%20read"} {
			l := w.Locker(t, w.Open(t, w.DSN+"&default_transaction_isolation="+level), rowtest.Long)
			lease, err := l.Acquire(within(t, patience), "a", nil)
			check(t, err)
			tx := change(t, db, "owner = owner")
			got := make(chan error, 1)
			go func() { got <- lease.Extend(within(t, patience)) }()
			awaitWaiter(t, db)
			check(t, tx.Commit())
			check(t, testenv.Receive(t, "Extend", got))
			check(t, lease.Release())
		}
	})
}

// TestDeletedRow: a request has no effect if the row it expects was deleted and inserted again.
// Its token could be older than one granted in between.
func TestDeletedRow(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		db, p := w.Open(t, w.DSN), testenv.NewProxy(t, w.Addr)
		other := w.Locker(t, db, rowtest.Long)
		var token int64
		var insert string
		var once sync.Once
		statement := func(text string) {
			if _, err := db.ExecContext(context.WithoutCancel(t.Context()), text); err != nil {
				t.Error(err)
			}
		}
		p.OnRequest(func(chunk []byte) testenv.Action {
			if i := bytes.Index(chunk, []byte("INSERT")); i >= 0 {
				insert = string(bytes.TrimRight(chunk[i:], "\x00"))
			}
			if bytes.Contains(chunk, []byte("SET token")) {
				once.Do(func() {
					statement("DELETE FROM cacheaside_locks")
					lease, err := other.Acquire(within(t, patience), "a", nil)
					if err != nil {
						t.Error(err)
						return
					}
					token = lease.Token()
					if err := lease.Release(); err != nil {
						t.Error(err)
					}
					statement("DELETE FROM cacheaside_locks")
					statement(insert)
				})
			}
			return testenv.Pass
		})
		l := w.Locker(t, w.By(t, p), rowtest.Long)
		lease, err := l.Acquire(within(t, patience), "a", nil)
		check(t, err)
		if token == 0 || lease.Token() <= token {
			t.Errorf("token %d after %d", lease.Token(), token)
		}
		check(t, lease.Release())
	})
}

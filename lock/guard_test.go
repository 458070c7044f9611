package lock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

var accounts = lock.Guard{Table: "accounts"}

// guarded calls f with each kind of database. It has a table of accounts, with account number 1.
func guarded(t *testing.T, f func(t *testing.T, db *sql.DB)) {
	t.Helper()
	for name, open := range map[string]func(t testing.TB) *sql.DB{
		"sqlite":             sqlite.Open,
		"mariadb":            mariadb,
		"mariadb_found_rows": func(t testing.TB) *sql.DB { return foundRows(t, testenv.SharedMariaDB(t)) },
		"mysql":              func(t testing.TB) *sql.DB { return testenv.SharedMySQL(t).DB(t) },
		"mysql_found_rows":   func(t testing.TB) *sql.DB { return foundRows(t, testenv.SharedMySQL(t)) },
		"postgres":           postgres,
	} {
		t.Run(name, func(t *testing.T) {
			f(t, withAccounts(t, open(t)))
		})
	}
}

func mariadb(t testing.TB) *sql.DB { return testenv.SharedMariaDB(t).DB(t) }

// foundRows returns a DB that counts the rows a statement has found instead of those it has
// changed.
func foundRows(t testing.TB, server *testenv.SQLServer) *sql.DB {
	t.Helper()
	o, err := mysql.ParseDSN(server.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	o.ClientFoundRows = true
	db, err := sql.Open("mysql", o.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func postgres(t testing.TB) *sql.DB { return testenv.SharedPostgres(t).DB(t) }

func withAccounts(t testing.TB, db *sql.DB) *sql.DB {
	t.Helper()
	execute(t, db, "CREATE TABLE accounts (id BIGINT PRIMARY KEY, branch INT NOT NULL DEFAULT 0, balance INT NOT "+
		"NULL, fence BIGINT)")
	execute(t, db, "INSERT INTO accounts (id, balance, fence) VALUES (1, 100, 0)")
	return db
}

func execute(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

// pay writes under the guard.
func pay(ctx context.Context, db *sql.DB, g lock.Guard, key any, token int64, balance int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := g.Check(ctx, tx, key, token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE accounts SET balance = %d WHERE id = %v", balance,
		key)); err != nil {
		return err
	}
	return tx.Commit()
}

func wantBalance(t testing.TB, db *sql.DB, want int) {
	t.Helper()
	var got int
	if err := db.QueryRowContext(t.Context(), "SELECT balance FROM accounts WHERE id = 1").Scan(&got); err != nil ||
		got != want {
		t.Fatalf("the balance is %d (%v), want %d", got, err, want)
	}
}

func TestGuard(t *testing.T) {
	const token = 1_800_000_000_000_000 // the size of a token from Redis
	guarded(t, func(t *testing.T, db *sql.DB) {
		check := func(what string, key any, token int64, balance int, err error) {
			t.Helper()
			locktest.Want(t, what, pay(t.Context(), db, accounts, key, token, balance), err)
		}
		check("the first", 1, token, 110, nil)
		check("the same", 1, token, 120, nil)
		check("an older", 1, token-1, 0, lock.ErrStale)
		check("the same, after that", 1, token, 130, nil)
		check("a newer", 1, token+1, 140, nil)
		check("the first, again", 1, token, 0, lock.ErrStale)
		check("nobody's", 7, token, 0, sql.ErrNoRows)
		wantBalance(t, db, 140)
		execute(t, db, "UPDATE accounts SET fence = NULL")
		check("where none was", 1, 1, 150, nil)
		wantBalance(t, db, 150)
	})
}

// A transaction that rolls back leaves no token behind, so the next may have the same one.
func TestGuardAfterRollback(t *testing.T) {
	guarded(t, func(t *testing.T, db *sql.DB) {
		tx, err := db.BeginTx(t.Context(), nil)
		locktest.Want(t, "begin", err, nil)
		locktest.Want(t, "a newer", accounts.Check(t.Context(), tx, 1, 9), nil)
		locktest.Want(t, "it again", accounts.Check(t.Context(), tx, 1, 9), nil)
		locktest.Want(t, "roll back", tx.Rollback(), nil)
		locktest.Want(t, "an older", pay(t.Context(), db, accounts, 1, 8, 1), nil)
	})
}

// A transaction that has read the row before a newer holder came still sees its own token, except
// with a locking read.
func TestGuardOldSnapshot(t *testing.T) {
	db := withAccounts(t, mariadb(t))
	locktest.Want(t, "the older", pay(t.Context(), db, accounts, 1, 5, 105), nil)
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	locktest.Want(t, "begin", err, nil)
	defer tx.Rollback()
	var seen int64
	locktest.Want(t, "read", tx.QueryRowContext(t.Context(),
		"SELECT fence FROM accounts WHERE id = 1").Scan(&seen), nil)
	locktest.Want(t, "the newer", pay(t.Context(), db, accounts, 1, 6, 106), nil)
	err = accounts.Check(t.Context(), tx, 1, 5)
	// "Record has changed since last read", in newer versions.
	changed, ok := errors.AsType[*mysql.MySQLError](err)
	if !errors.Is(err, lock.ErrStale) && (!ok || changed.Number != 1020) {
		t.Fatalf("the older holder, with an old snapshot: %v", err)
	}
}

// In PostgreSQL such a transaction fails. One that takes a snapshot per statement sees the newer
// token.
func TestGuardOldSnapshotPostgres(t *testing.T) {
	db := withAccounts(t, postgres(t))
	for level, want := range map[sql.IsolationLevel]string{
		sql.LevelReadCommitted: strings.TrimPrefix(lock.ErrStale.Error(), "lock: "), sql.LevelRepeatableRead: "40001",
		sql.LevelSerializable: "40001",
	} {
		execute(t, db, "UPDATE accounts SET fence = 0")
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
		locktest.Want(t, "begin", err, nil)
		var seen int64
		locktest.Want(t, "read", tx.QueryRowContext(t.Context(),
			"SELECT fence FROM accounts WHERE id = 1").Scan(&seen), nil)
		locktest.Want(t, "the newer", pay(t.Context(), db, accounts, 1, 6, 106), nil)
		if err := accounts.Check(t.Context(), tx, 1, 5); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: the older holder: %v", level, err)
		}
		locktest.Want(t, "roll back", tx.Rollback(), nil)
	}
}

// TestGuardReplacedRow checks that a Guard locks a row, and stores its token in it, if another
// transaction deletes and inserts the row while the Guard waits for it.
func TestGuardReplacedRow(t *testing.T) {
	db := withAccounts(t, postgres(t))
	waits := func() bool {
		var n int
		err := db.QueryRowContext(t.Context(),
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
		).Scan(&n)
		return err == nil && n == 1
	}
	for _, fence := range []int64{5, 0} {
		execute(t, db, "UPDATE accounts SET fence = $1, balance = 100", fence)
		other, err := db.BeginTx(t.Context(), nil)
		locktest.Want(t, "begin", err, nil)
		_, err = other.ExecContext(t.Context(), "DELETE FROM accounts WHERE id = 1")
		locktest.Want(t, "delete", err, nil)
		_, err = other.ExecContext(t.Context(), "INSERT INTO accounts (id, balance, fence) VALUES (1, 100, $1)", fence)
		locktest.Want(t, "insert", err, nil)

		older, err := db.BeginTx(t.Context(), nil)
		locktest.Want(t, "begin", err, nil)
		checked := make(chan error, 1)
		go func() { checked <- accounts.Check(t.Context(), older, 1, 5) }()
		testenv.Eventually(t, "the older holder waits", waits)
		locktest.Want(t, "replace the row", other.Commit(), nil)
		locktest.Want(t, "the older holder", testenv.Receive(t, "the older holder's Check", checked), nil)

		paid := make(chan error, 1)
		go func() { paid <- pay(t.Context(), db, accounts, 1, 6, 106) }()
		testenv.Eventually(t, "the newer holder waits, or has paid", func() bool { return waits() || len(paid) == 1 })
		_, err = older.ExecContext(t.Context(), "UPDATE accounts SET balance = 99 WHERE id = 1")
		locktest.Want(t, "the older holder pays", err, nil)
		locktest.Want(t, "commit", older.Commit(), nil)
		locktest.Want(t, "the newer holder", testenv.Receive(t, "the newer payment", paid), nil)
		wantBalance(t, db, 106)
	}
}

// A guard works with any statement cache, any way of passing parameters, and any session settings.
func TestGuardSessionsPostgres(t *testing.T) {
	p := testenv.SharedPostgres(t)
	withAccounts(t, p.DB(t))
	token := int64(1)
	for _, settings := range p.Sessions() {
		db, err := sql.Open("pgx", p.SessionDSN(t, settings))
		locktest.Want(t, "open", err, nil)
		token++
		for range 2 {
			locktest.Want(t, settings, pay(t.Context(), db, accounts, 1, token, 1), nil)
		}
		locktest.Want(t, settings+": an older", pay(t.Context(), db, accounts, 1, token-1, 2), lock.ErrStale)
		locktest.Want(t, settings+": no row", pay(t.Context(), db, accounts, 7, token, 2), sql.ErrNoRows)
		locktest.Want(t, "close", db.Close(), nil)
	}
}

// Between Check and commit a newer holder waits, so that no older write commits after it.
func TestGuardHoldsTheRow(t *testing.T) {
	guarded(t, func(t *testing.T, db *sql.DB) {
		for _, seen := range []int64{4, 5} { // one write changes the row, the other does not
			execute(t, db, fmt.Sprint("UPDATE accounts SET fence = ", seen))
			tx, err := db.BeginTx(t.Context(), nil)
			locktest.Want(t, "begin", err, nil)
			defer tx.Rollback()
			locktest.Want(t, "the older", accounts.Check(t.Context(), tx, 1, 5), nil)
			newer := make(chan error, 1)
			go func() { newer <- pay(t.Context(), db, accounts, 1, 6, 106) }()
			_, err = tx.ExecContext(t.Context(), "UPDATE accounts SET balance = 105")
			locktest.Want(t, "write", err, nil)
			select {
			case err := <-newer:
				t.Fatalf("the newer holder does not wait: %v", err)
			case <-time.After(20 * time.Millisecond):
				locktest.Want(t, "commit", tx.Commit(), nil)
			}
			locktest.Want(t, "the newer", <-newer, nil)
			wantBalance(t, db, 106)
		}
	})
}

func TestGuardRefusesInvalidColumns(t *testing.T) {
	guarded(t, func(t *testing.T, db *sql.DB) {
		execute(t, db, "INSERT INTO accounts (id, balance, fence) VALUES (2, 100, 0)")
		if err := pay(t.Context(), db, lock.Guard{Table: "accounts", Key: "branch"}, 0, 1, 1); err == nil ||
			!strings.Contains(err.Error(), "several rows") {
			t.Errorf("a key with two rows: %v", err)
		}
		if err := pay(t.Context(), db, lock.Guard{Table: "accounts", Fence: "nowhere"}, 1, 1, 1); err == nil ||
			errors.Is(err, lock.ErrStale) {
			t.Errorf("no such column: %v", err)
		}
		if err := pay(t.Context(), db, lock.Guard{Table: "nowhere"}, 1, 1, 1); err == nil ||
			errors.Is(err, lock.ErrStale) || errors.Is(err, sql.ErrNoRows) {
			t.Errorf("no such table: %v", err)
		}
	})
}

// If the database truncated numbers to the size of the column, older tokens would pass.
func TestGuardColumnIsTooSmall(t *testing.T) {
	db := withAccounts(t, mariadb(t))
	execute(t, db, "ALTER TABLE accounts MODIFY fence INT")
	want := func(token int64, mode string) error {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Commit()
		if _, err := tx.ExecContext(t.Context(), "SET SESSION sql_mode = ?", mode); err != nil {
			t.Fatal(err)
		}
		return accounts.Check(t.Context(), tx, 1, token)
	}
	if err := want(1_800_000_000_000_000, "STRICT_ALL_TABLES"); err == nil {
		t.Error("a token that the column cannot store is accepted")
	}
	want(1_800_000_000_000_000, "")
	if err := want(1_800_000_000_000_001, ""); err == nil || !strings.Contains(err.Error(), "BIGINT") {
		t.Error(err)
	}
}

func TestGuardNames(t *testing.T) {
	db := sqlite.Open(t)
	execute(t, db, "CREATE TABLE `order` (`key` TEXT PRIMARY KEY, `check` BIGINT NOT NULL DEFAULT 0)") // reserved words
	execute(t, db, "INSERT INTO `order` (`key`) VALUES ('a')")
	tx, err := db.BeginTx(t.Context(), nil)
	locktest.Want(t, "begin", err, nil)
	defer tx.Rollback()
	g := lock.Guard{Table: "main.order", Key: "key", Fence: "check"}
	locktest.Want(t, "a new one", g.Check(t.Context(), tx, "a", 2), nil)
	locktest.Want(t, "an older one", g.Check(t.Context(), tx, "a", 1), lock.ErrStale)
}

func TestGuardNamesPostgres(t *testing.T) {
	db := postgres(t)
	// A reserved word and capitals.
	execute(t, db, `CREATE TABLE "Order" ("key" TEXT PRIMARY KEY, "Check" BIGINT)`)
	execute(t, db, `INSERT INTO "Order" ("key") VALUES ('a?$1')`)
	tx, err := db.BeginTx(t.Context(), nil)
	locktest.Want(t, "begin", err, nil)
	defer tx.Rollback()
	g := lock.Guard{Table: "public.Order", Key: "key", Fence: "Check"}
	locktest.Want(t, "a new one", g.Check(t.Context(), tx, "a?$1", 2), nil)
	locktest.Want(t, "an older one", g.Check(t.Context(), tx, "a?$1", 1), lock.ErrStale)
}

// TestGuardSearchPath: a table without a schema is the one that other statements of the transaction
// use.
func TestGuardSearchPath(t *testing.T) {
	db := withAccounts(t, postgres(t))
	execute(t, db, "CREATE SCHEMA tenant")
	execute(t, db, "CREATE TABLE tenant.accounts (LIKE accounts); INSERT INTO tenant.accounts SELECT * FROM accounts")
	for path, older := range map[string]error{"public": nil, "tenant": lock.ErrStale} {
		execute(t, db, "UPDATE accounts SET fence = 0; UPDATE tenant.accounts SET fence = 9")
		tx, err := db.BeginTx(t.Context(), nil)
		locktest.Want(t, "begin", err, nil)
		_, err = tx.Exec("SET LOCAL search_path = " + path)
		locktest.Want(t, "the path", err, nil)
		locktest.Want(t, path, accounts.Check(t.Context(), tx, 1, 5), older)
		locktest.Want(t, "roll back", tx.Rollback(), nil)
	}
}

func TestGuardChecksItsFields(t *testing.T) {
	db := withAccounts(t, sqlite.Open(t))
	for field, bad := range map[string][]lock.Guard{
		"Guard.Table": {{}, {Table: "a`b"}, {Table: "a.b.c"}, {Table: "."}, {Table: "a."}, {Table: strings.Repeat("a", 65)}},
		"Guard.Key":   {{Table: "accounts", Key: "id` = 1 OR `id"}},
		"Guard.Fence": {{Table: "accounts", Fence: "balance` = 0, `fence"}, {Table: "accounts", Fence: "ID"}},
	} {
		for _, g := range bad {
			if err := pay(t.Context(), db, g, 1, 1, 1); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("%+v: %v", g, err)
			}
		}
	}
	if err := accounts.Check(t.Context(), nil, 1, 1); err == nil {
		t.Error("no transaction: no error")
	}
}

// Without a token every write is refused, even to a new row.
func TestZeroTokenIsRefused(t *testing.T) {
	db := withAccounts(t, sqlite.Open(t))
	_, rdb := testenv.Mini(t)
	for _, token := range []int64{0, -1} {
		if err := pay(t.Context(), db, accounts, 1, token, 1); err == nil || !strings.Contains(err.Error(), "NoToken") {
			t.Errorf("Check: %v", err)
		}
		if err := lock.SetFenced(t.Context(), rdb, "key", "value", token, 0); err == nil ||
			!strings.Contains(err.Error(), "NoToken") {
			t.Errorf("SetFenced: %v", err)
		}
	}
	wantBalance(t, db, 100)
}

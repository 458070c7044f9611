package pglock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/pglock"
)

func TestSettingsOfSessions(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		p := w.Server.(*testenv.Postgres)
		rowtest.Sessions(t, w, p.Sessions(), func(settings string) string { return p.SessionDSN(t, settings) })
	})
}

func TestContention(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		rowtest.Contention(t, w, w.DSN+"&default_transaction_isolation=serializable")
	})
}

// TestTerminatedSessions: if the server ends a session, as in a shutdown, its requests are repeated
// and its locks survive.
func TestTerminatedSessions(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		admin, db := w.Open(t, w.DSN), w.Open(t, w.DSN)
		l := w.Locker(t, db, rowtest.Long)
		lease, err := l.Acquire(within(t, patience), "a", nil)
		check(t, err)
		for range 10 {
			_, err := admin.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = " +
				"current_database() AND pid <> pg_backend_pid()")
			check(t, err)
			next, err := l.Acquire(within(t, patience), "b", nil)
			check(t, err)
			check(t, next.Release())
		}
		testenv.Eventually(t, "an extension", func() bool {
			err := lease.Extend(within(t, patience))
			if errors.Is(err, lock.ErrLost) {
				t.Fatal(err)
			}
			return err == nil
		})
		check(t, lease.Release())
	})
}

// TestReadOnlyServer: on a server that has become read-only, like a demoted primary, no lock is
// acquired or lost. The error names the remedy, and a repeated request may reach the new primary.
func TestReadOnlyServer(t *testing.T) {
	runParallel(t, func(t *testing.T, w rowtest.World) {
		admin, db := w.Open(t, w.DSN), w.Open(t, w.DSN)
		l := w.Locker(t, db, rowtest.Long)
		lease, err := l.Acquire(within(t, patience), "a", nil)
		check(t, err)
		database := w.DSN[strings.LastIndexByte(w.DSN, '/')+1 : strings.IndexByte(w.DSN, '?')]
		set := func(value string) {
			t.Helper()
			_, err := admin.Exec("ALTER DATABASE " + database + " SET default_transaction_read_only = " + value)
			check(t, err)
			_, err = admin.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = " +
				"current_database() AND pid <> pg_backend_pid()")
			check(t, err)
		}
		set("on")
		if err := lease.Extend(within(t, patience)); err == nil || errors.Is(err, lock.ErrLost) {
			t.Errorf("extend: %v", err)
		}
		if _, err := l.Acquire(within(t, patience), "b", nil); err == nil ||
			!strings.Contains(err.Error(), "target_session_attrs=read-write") {
			t.Errorf("acquire: %v", err)
		}
		// The pool still has a connection to the server: the next request gets another one.
		stale, err := db.Conn(within(t, patience))
		check(t, err)
		check(t, stale.PingContext(within(t, patience)))
		_, err = admin.Exec("ALTER DATABASE " + database + " SET default_transaction_read_only = off")
		check(t, err)
		check(t, stale.Close())
		next, err := l.Acquire(within(t, patience), "b", nil)
		check(t, err)
		check(t, next.Release())
		check(t, lease.Extend(within(t, patience)))
		check(t, lease.Release())
	})
}

func TestMissingTable(t *testing.T) {
	t.Parallel()
	_, err := kind.Locker(t, testenv.SharedPostgres(t).DB(t), rowtest.Long).Acquire(within(t, patience),
		"a-private-name", nil)
	if err == nil || !strings.Contains(err.Error(), `"cacheaside_locks" is missing`) ||
		strings.Contains(err.Error(), "private") {
		t.Error(err)
	}
}

// Many processes may start at the same time.
func TestCreateTableAtOnce(t *testing.T) {
	t.Parallel()
	db := testenv.SharedPostgres(t).DB(t)
	other, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback() }()
	schema, err := pglock.Schema(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.ExecContext(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	created := make(chan error, 1)
	go func() { created <- pglock.CreateTable(within(t, patience), db, nil) }()
	testenv.Eventually(t, "it waits for the other one", func() bool {
		var n int
		err := db.QueryRowContext(t.Context(),
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
		).Scan(&n)
		return err == nil && n == 1
	})
	if err := other.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-created; err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	db := kind.Open(t, "postgres://postgres@127.0.0.1:1/none?sslmode=disable")
	for field, o := range map[string]*pglock.Options{
		"Options.Table":         {Table: "a b"},
		"Options.Table \"a.b.c": {Table: "a.b.c"},
		"Options.Table \"aaaaa": {Table: strings.Repeat("a", 64)},
		"Options.Table \"\\\"":  {Table: `"`},
		"Options.Poll":          {Poll: time.Minute},
		"Options.TTL":           {Options: lock.Options{TTL: 1}},
	} {
		if _, err := pglock.New(db, o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := pglock.New(nil, nil); err == nil {
		t.Error("New accepts a nil db")
	}
	l := kind.Locker(t, db, nil) // no I/O
	if _, err := l.Acquire(context.Background(), "a", nil); err == nil {
		t.Error("Acquire succeeds without a server")
	}
	if text, err := pglock.Schema(&pglock.Options{Table: "s.T"}); err != nil || !strings.Contains(text, `"s"."T"`) {
		t.Error(text, err)
	}
	if _, err := pglock.Schema(&pglock.Options{Table: "t;"}); err == nil {
		t.Error("Schema accepts an invalid table name")
	}
	if err := pglock.CreateTable(context.Background(), nil, nil); err == nil {
		t.Error("CreateTable accepts a nil db")
	}
}

// TestSearchPath: processes with different search_paths exclude each other.
func TestSearchPath(t *testing.T) {
	run(t, func(t *testing.T, w rowtest.World) {
		_, err := w.Open(t, w.DSN).Exec("CREATE SCHEMA tenant")
		check(t, err)
		tenant := w.Open(t, w.DSN+"&search_path=tenant")
		check(t, pglock.CreateTable(within(t, patience), tenant, nil))
		lease, err := w.Locker(t, tenant, rowtest.Long).Acquire(within(t, patience), "a", nil)
		check(t, err)
		if _, err := w.Locker(t, w.Open(t, w.DSN), rowtest.Long).TryAcquire(within(t, patience), "a",
			nil); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("a second holder acquires the lock: %v", err)
		}
		check(t, lease.Release())
	})
}

package pgxtx_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/pgxtx"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var errNotNow = errors.New("rolled back on purpose")

// world is a table and an outbox, both reached through one pool of pgx.
type world struct {
	pool   *pgxpool.Pool
	outbox *sqloutbox.Outbox
	writer *consistency.Writer
	users  *cacheaside.Loader[int64, string]
	next   int64 // the id of the next row
}

func newWorld(t *testing.T, mode pgx.QueryExecMode) *world {
	t.Helper()
	w := &world{}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	config, err := pgxpool.ParseConfig(testenv.SharedPostgres(t).DSN(t))
	must(err)
	config.ConnConfig.DefaultQueryExecMode = mode
	w.pool, err = pgxpool.NewWithConfig(t.Context(), config)
	must(err)
	t.Cleanup(w.pool.Close)
	_, err = w.pool.Exec(t.Context(), "CREATE TABLE users (id BIGINT PRIMARY KEY)")
	must(err)
	db := sqlx.NewDb(stdlib.OpenDBFromPool(w.pool), "pgx")
	t.Cleanup(func() { db.Close() })
	w.outbox, err = sqloutbox.New(db, sqloutbox.Postgres, nil)
	must(err)
	must(w.outbox.CreateTable(t.Context()))
	cache, err := cacheaside.NewLocal(nil)
	must(err)
	t.Cleanup(func() { cache.Close() })
	w.users, err = cacheaside.NewLoader(cache, "user",
		func(context.Context, int64) (string, error) { return "", cacheaside.ErrNotFound }, nil)
	must(err)
	w.writer, err = consistency.NewWriter(db, cache, &consistency.Options{Queue: w.outbox, NoRelay: true})
	must(err)
	t.Cleanup(func() { w.writer.Close() })
	return w
}

// insert inserts a row and enqueues its key in tx.
func (w *world) insert(ctx context.Context, tx pgx.Tx) error {
	w.next++
	if _, err := tx.Exec(ctx, "INSERT INTO users VALUES ($1)", w.next); err != nil {
		return err
	}
	return w.writer.Enqueue(ctx, pgxtx.Tx(tx), w.users.Key(w.next))
}

// check compares the committed rows, and the keys in the outbox, with the wanted number of both.
func (w *world) check(t *testing.T, step string, want int) {
	t.Helper()
	var rows int
	if err := w.pool.QueryRow(t.Context(), "SELECT count(*) FROM users").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	depth, err := w.outbox.Depth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rows != want || depth.Items != want {
		t.Errorf("after %s: %d rows and %d items, want %d of both", step, rows, depth.Items, want)
	}
}

// TestTx: the outbox has the item of a write if and only if its transaction, and the savepoint that
// it was made in, are committed, in each of the ways in which pgx executes statements.
func TestTx(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			w, ctx := newWorld(t, mode), t.Context()
			if err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return w.insert(ctx, tx) }); err != nil {
				t.Fatal(err)
			}
			w.check(t, "a commit", 1)
			err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
				return errors.Join(w.insert(ctx, tx), errNotNow)
			})
			if !errors.Is(err, errNotNow) {
				t.Fatal(err)
			}
			w.check(t, "a rollback", 1)
			err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
				kept := pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error { return w.insert(ctx, nested) })
				lost := pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
					return errors.Join(w.insert(ctx, nested), errNotNow)
				})
				if !errors.Is(lost, errNotNow) {
					return lost
				}
				return errors.Join(kept, w.insert(ctx, tx))
			})
			if err != nil {
				t.Fatal(err)
			}
			w.check(t, "a savepoint that is kept and one that is not", 3)
		})
	}
}

// TestTxThatCannotCommit: a transaction that has failed, is closed, or whose connection is lost
// gets an error from Enqueue or at its commit, and leaves neither a row nor an item.
func TestTxThatCannotCommit(t *testing.T) {
	w, ctx := newWorld(t, pgx.QueryExecModeCacheStatement), t.Context()
	for step, spoil := range map[string]func(tx pgx.Tx) error{
		"a statement that failed": func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1/0")
			return err
		},
		"a rollback": func(tx pgx.Tx) error { return errors.Join(tx.Rollback(ctx), errNotNow) },
		"a lost connection": func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			return err
		},
	} {
		tx, err := w.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.insert(ctx, tx); err != nil {
			t.Fatal(err)
		}
		if spoil(tx) == nil {
			t.Errorf("%s: no error", step)
		}
		if err := w.insert(ctx, tx); err == nil {
			t.Errorf("after %s: Enqueue and its statement return nil", step)
		}
		if err := w.writer.Enqueue(ctx, pgxtx.Tx(tx), w.users.Key(7)); err == nil {
			t.Errorf("after %s: Enqueue returns nil", step)
		}
		if err := tx.Commit(ctx); err == nil {
			t.Errorf("after %s: Commit returns nil", step)
		}
		w.check(t, step, 0)
	}
}

// TestNilTx: a nil transaction is refused, instead of a panic.
func TestNilTx(t *testing.T) {
	w := newWorld(t, pgx.QueryExecModeCacheStatement)
	if err := w.writer.Enqueue(t.Context(), pgxtx.Tx(nil), w.users.Key(1)); err == nil {
		t.Error("Enqueue returns nil")
	}
	w.check(t, "a nil transaction", 0)
}

// TestResult: what ExecContext returns counts rows, and refuses to invent the id of a row.
func TestResult(t *testing.T) {
	w, ctx := newWorld(t, pgx.QueryExecModeCacheStatement), t.Context()
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		result, err := pgxtx.Tx(tx).ExecContext(ctx, "INSERT INTO users VALUES ($1), ($2)", 1, 2)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); n != 2 || err != nil {
			return fmt.Errorf("RowsAffected: %d, %w", n, err)
		}
		if _, err := result.LastInsertId(); err == nil {
			return errors.New("LastInsertId returns no error")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

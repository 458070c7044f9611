package dblayers_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/cacheasidetest"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/pgxtx"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// User is a row of the table users.
type User struct {
	ID   int64
	Name string
}

// shop is a table with one row, and a Writer with an outbox in the same database. Its Writer runs
// no Relay, so that only the code under test invalidates.
type shop struct {
	db     *sql.DB
	cache  *cacheasidetest.Process
	outbox *sqloutbox.Outbox
	w      *consistency.Writer
}

func open(t *testing.T) shop {
	s := shop{db: testenv.SharedMariaDB(t).DB(t), cache: cacheasidetest.New(t, nil)}
	for _, statement := range []string{
		"CREATE TABLE users (id BIGINT PRIMARY KEY, name VARCHAR(255) NOT NULL)",
		"INSERT INTO users VALUES (42, 'Ada')",
	} {
		if _, err := s.db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	db := sqlx.NewDb(s.db, "mysql")
	var err error
	if s.outbox, err = sqloutbox.New(db, sqloutbox.MySQL, nil); err != nil {
		t.Fatal(err)
	}
	if s.w, err = consistency.NewWriter(db, s.cache.Cache,
		&consistency.Options{Queue: s.outbox, NoRelay: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.w.Close() })
	if err := s.outbox.CreateTable(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// check reads the row, calls rename, and reads it again. A missing row is cacheaside.ErrNotFound.
func check(
	t *testing.T, users *cacheaside.Loader[int64, User], rename func(ctx context.Context, id int64, name string) error,
) {
	t.Helper()
	before, err := users.Get(t.Context(), 42)
	if before.Name != "Ada" || err != nil {
		t.Fatal(before, err)
	}
	if err := rename(t.Context(), 42, "Grace"); err != nil {
		t.Fatal(err)
	}
	after, err := users.Get(t.Context(), 42)
	if after.Name != "Grace" || err != nil {
		t.Fatal(after, err)
	}
	if _, err := users.Get(t.Context(), 7); !errors.Is(err, cacheaside.ErrNotFound) {
		t.Fatal(err)
	}
}

func TestGORM(t *testing.T) {
	s := open(t)
	g, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: s.db}), &gorm.Config{
		Logger: logger.New(nil, logger.Config{IgnoreRecordNotFoundError: true}),
	})
	if err != nil {
		t.Fatal(err)
	}
	users, err := cacheaside.NewLoader(s.cache.Cache, "user", func(ctx context.Context, id int64) (User, error) {
		return gorm.G[User](g).Where("id = ?", id).Take(ctx)
	}, &cacheaside.LoaderOptions{
		NotFound: func(err error) bool { return errors.Is(err, gorm.ErrRecordNotFound) },
	})
	if err != nil {
		t.Fatal(err)
	}
	check(t, users, func(ctx context.Context, id int64, name string) error {
		err := g.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if _, err := gorm.G[User](tx).Where("id = ?", id).Update(ctx, "name", name); err != nil {
				return err
			}
			return s.w.Enqueue(ctx, tx.Statement.ConnPool, users.Key(id))
		})
		if err != nil {
			return err
		}
		return users.Invalidate(context.WithoutCancel(ctx), id)
	})
	if depth, err := s.outbox.Depth(t.Context()); depth.Items != 1 || err != nil {
		t.Error("the transaction did not write into the outbox:", depth, err)
	}
}

// A transaction of a Writer runs statements of ent.
func TestEnt(t *testing.T) {
	s := open(t)
	load := func(ctx context.Context, d dialect.Driver, id int64) (u User, err error) {
		query, args := entsql.Dialect(dialect.MySQL).Select("id",
			"name").From(entsql.Table("users")).Where(entsql.EQ("id", id)).Query()
		var rows entsql.Rows
		if err := d.Query(ctx, query, args, &rows); err != nil {
			return u, err
		}
		defer rows.Close()
		var found []User
		if err := entsql.ScanSlice(rows, &found); err != nil {
			return u, err
		}
		if len(found) == 0 {
			return u, sql.ErrNoRows
		}
		return found[0], nil
	}
	drv := entsql.OpenDB(dialect.MySQL, s.db)
	users, err := cacheaside.NewLoader(s.cache.Cache, "user", func(ctx context.Context, id int64) (User, error) {
		return load(ctx, drv, id)
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, users, func(ctx context.Context, id int64, name string) error {
		return s.w.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
			drv := entsql.NewDriver(dialect.MySQL, entsql.Conn{ExecQuerier: tx})
			query, args := entsql.Dialect(dialect.MySQL).Update("users").Set("name",
				name).Where(entsql.EQ("id", id)).Query()
			var result sql.Result
			return drv.Exec(ctx, query, args, &result)
		}, users.Key(id))
	})
}

// queries is a struct around a DBTX, as sqlc generates it.
type queries struct{ db dbtx }

type dbtx interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

func (q *queries) withTx(tx *sql.Tx) *queries { return &queries{db: tx} }

func (q *queries) getUser(ctx context.Context, id int64) (u User, err error) {
	return u, q.db.QueryRowContext(ctx, "SELECT id, name FROM users WHERE id = ?", id).Scan(&u.ID, &u.Name)
}

func (q *queries) renameUser(ctx context.Context, name string, id int64) error {
	_, err := q.db.ExecContext(ctx, "UPDATE users SET name = ? WHERE id = ?", name, id)
	return err
}

func TestSQLC(t *testing.T) {
	s := open(t)
	q := &queries{db: s.db}
	users, err := cacheaside.NewLoader(s.cache.Cache, "user", q.getUser, nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, users, func(ctx context.Context, id int64, name string) error {
		return s.w.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
			return q.withTx(tx.Tx).renameUser(ctx, name, id)
		}, users.Key(id))
	})
}

// The Writer and its outbox share a pgx pool with the program, whose other statements use pgx
// directly. A row that pgx does not find needs no NotFound.
func TestPgx(t *testing.T) {
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, testenv.SharedPostgres(t).DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, statement := range []string{
		"CREATE TABLE users (id BIGINT PRIMARY KEY, name TEXT NOT NULL)",
		"INSERT INTO users VALUES (42, 'Ada')",
	} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	cache := cacheasidetest.New(t, nil)
	users, err := cacheaside.NewLoader(cache.Cache, "user", func(ctx context.Context, id int64) (User, error) {
		rows, err := pool.Query(ctx, "SELECT id, name FROM users WHERE id = $1", id)
		if err != nil {
			return User{}, err
		}
		return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[User])
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	db := sqlx.NewDb(stdlib.OpenDBFromPool(pool), "pgx")
	defer db.Close()
	outbox, err := sqloutbox.New(db, sqloutbox.Postgres, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.CreateTable(ctx); err != nil {
		t.Fatal(err)
	}
	w, err := consistency.NewWriter(db, cache.Cache, &consistency.Options{Queue: outbox, NoRelay: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	check(t, users, func(ctx context.Context, id int64, name string) error {
		return w.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE users SET name = $1 WHERE id = $2", name, id)
			return err
		}, users.Key(id))
	})
	// A transaction of pgx, whose invalidation is in the outbox too.
	if _, err := pool.Exec(ctx, "UPDATE users SET name = 'Ada' WHERE id = 42"); err != nil {
		t.Fatal(err)
	}
	if err := users.Invalidate(ctx, 42); err != nil {
		t.Fatal(err)
	}
	check(t, users, func(ctx context.Context, id int64, name string) error {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "UPDATE users SET name = $1 WHERE id = $2", name, id); err != nil {
				return err
			}
			return w.Enqueue(ctx, pgxtx.Tx(tx), users.Key(id))
		})
		if err == nil {
			_ = cache.Cache.InvalidateKeys(context.WithoutCancel(ctx), users.Key(id)) // a relay repeats it if it fails
		}
		return err
	})
}

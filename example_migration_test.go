package cacheaside_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
)

// The "after" code of docs/migration.md. The functions that follow use it.

type account struct {
	ID    int64
	Email string
}

// snippet: loaders
// Replaces the cache's New: call it once per process. rdb is your existing *redis.Client.
func newLoaders(rdb redis.UniversalClient, db *sqlx.DB) (*cacheaside.Cache, *accounts, error) {
	cache, err := cacheaside.New(rdb, patient)
	if err != nil {
		return nil, nil, err
	}
	byID, err := cacheaside.NewBatchLoader(cache, "user",
		func(ctx context.Context, ids []int64) (map[int64]account, error) {
			query, args, err := sqlx.In("SELECT id, email FROM users WHERE id IN (?)", ids)
			if err != nil {
				return nil, err
			}
			var rows []account
			if err := db.SelectContext(ctx, &rows, db.Rebind(query), args...); err != nil {
				return nil, err
			}
			found := make(map[int64]account, len(rows))
			for _, r := range rows {
				found[r.ID] = r
			}
			return found, nil
		}, &cacheaside.LoaderOptions{TTL: 10 * time.Minute})
	if err != nil {
		return nil, nil, err
	}
	byEmail, err := cacheaside.NewLoader(cache, "user-by-email",
		func(ctx context.Context, email string) (id int64, err error) {
			// sql.ErrNoRows: no such row
			return id, db.GetContext(ctx, &id, "SELECT id FROM users WHERE email = ?", email)
		}, &cacheaside.LoaderOptions{TTL: 10 * time.Minute})
	return cache, &accounts{db, byID, byEmail}, err
}

type accounts struct {
	db      *sqlx.DB
	byID    *cacheaside.Loader[int64, account]
	byEmail *cacheaside.Loader[string, int64]
}

// end

// snippet: reads
func (a *accounts) Find(ctx context.Context, id int64) (account, error) {
	return a.byID.Get(ctx, id) // cacheaside.ErrNotFound: no such row
}

func (a *accounts) FindMany(ctx context.Context, ids []int64) (map[int64]account, error) {
	return a.byID.GetMany(ctx, ids)
}

func (a *accounts) FindByEmail(ctx context.Context, email string) (account, error) {
	id, err := a.byEmail.Get(ctx, email)
	if err != nil {
		return account{}, err
	}
	return a.byID.Get(ctx, id)
}

// end

// snippet: write
func (a *accounts) UpdateEmail(ctx context.Context, id int64, old, email string) error {
	if _, err := a.db.ExecContext(ctx, "UPDATE users SET email = ? WHERE id = ?", email, id); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // the write is committed, so a cancelled request must not stop the invalidation
	return errors.Join(a.byID.Invalidate(ctx, id), a.byEmail.Invalidate(ctx, old, email))
}

// end

// snippet: writer
func updateEmail(ctx context.Context, w *consistency.Writer, a *accounts, id int64, email string) error {
	return w.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		var old string
		// Add FOR UPDATE, except on SQLite.
		if err := tx.GetContext(ctx, &old, "SELECT email FROM users WHERE id = ?", id); err != nil {
			return err
		}
		if err := consistency.Touch(ctx, a.byEmail.Key(old), a.byEmail.Key(email)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE users SET email = ? WHERE id = ?", email, id)
		return err
	}, a.byID.Key(id))
}

// end

// snippet: both
// While both are in use, each write calls this in addition to its old deletion. It needs no
// loaders.
func tellNew(ctx context.Context, cache *cacheaside.Cache, id int64, old, email string) error {
	return cache.InvalidateKeys(context.WithoutCancel(ctx),
		cacheaside.Key{Loader: "user", Text: fmt.Sprint(id)},
		cacheaside.Key{Loader: "user-by-email", Text: old},
		cacheaside.Key{Loader: "user-by-email", Text: email},
	)
}

// end

// snippet: switch
// Each process decides which of the two its reads use, so that you can revert the switch.
func find(
	ctx context.Context, a *accounts, before func(context.Context, int64) (account, error), useNew func() bool,
	id int64,
) (account, error) {
	if !useNew() {
		return before(ctx, id)
	}
	u, err := a.byID.Get(ctx, id)
	if errors.Is(err, cacheaside.ErrNotFound) {
		return account{}, sql.ErrNoRows // the error that callers expect
	}
	return u, err
}

// end

// openAccounts opens a Redis and a database with one row.
func openAccounts(name string) (*cacheaside.Cache, *accounts, func()) {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	db := sqlx.MustOpen("sqlite",
		"file:"+name+"?mode=memory&cache=shared&_txlock=immediate&_pragma=busy_timeout(10000)")
	db.MustExec("CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT UNIQUE)")
	db.MustExec("INSERT INTO users VALUES (1, 'ann@old.example')")
	cache, a, err := newLoaders(rdb, db)
	if err != nil {
		log.Fatal(err)
	}
	return cache, a, func() {
		cache.Close()
		rdb.Close()
		db.Close()
		server.Close()
	}
}

// Reads and writes after a migration.
func Example_migrated() {
	_, a, end := openAccounts("migrated")
	defer end()
	ctx := context.Background()
	fmt.Println(a.FindByEmail(ctx, "ann@old.example"))
	fmt.Println(a.FindMany(ctx, []int64{1, 2}))
	fmt.Println(a.UpdateEmail(ctx, 1, "ann@old.example", "ann@new.example"))
	fmt.Println(a.Find(ctx, 1))
	_, err := a.FindByEmail(ctx, "ann@old.example")
	fmt.Println(errors.Is(err, cacheaside.ErrNotFound))
	// Output:
	// {1 ann@old.example} <nil>
	// map[1:{1 ann@old.example}] <nil>
	// <nil>
	// {1 ann@new.example} <nil>
	// true
}

// With an outbox, no write misses its invalidation.
func Example_migratedToAWriter() {
	cache, a, end := openAccounts("migratedtoawriter")
	defer end()
	ctx := context.Background()
	outbox, err := sqloutbox.New(a.db, sqloutbox.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := outbox.CreateTable(ctx); err != nil {
		log.Fatal(err)
	}
	w, err := consistency.NewWriter(a.db, cache, &consistency.Options{Queue: outbox})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	fmt.Println(a.FindByEmail(ctx, "ann@old.example"))
	fmt.Println(updateEmail(ctx, w, a, 1, "ann@new.example"))
	fmt.Println(a.FindByEmail(ctx, "ann@new.example"))
	// Output:
	// {1 ann@old.example} <nil>
	// <nil>
	// {1 ann@new.example} <nil>
}

// During the migration, processes that still use the old library also invalidate the new cache.
func Example_migrating() {
	cache, a, end := openAccounts("migrating")
	defer end()
	ctx := context.Background()
	// Stands in for the old library.
	before := func(ctx context.Context, id int64) (u account, err error) {
		return u, a.db.GetContext(ctx, &u, "SELECT id, email FROM users WHERE id = ?", id)
	}
	useNew := func() bool { return true } // in this process
	fmt.Println(find(ctx, a, before, useNew, 1))

	// A process in which only the writes have been migrated.
	// In addition to its own deletion.
	a.db.MustExec("UPDATE users SET email = 'ann@new.example' WHERE id = 1")
	fmt.Println(tellNew(ctx, cache, 1, "ann@old.example", "ann@new.example"))

	fmt.Println(find(ctx, a, before, useNew, 1))
	_, err := find(ctx, a, before, useNew, 2)
	fmt.Println(errors.Is(err, sql.ErrNoRows))
	// Output:
	// {1 ann@old.example} <nil>
	// <nil>
	// {1 ann@new.example} <nil>
	// true
}

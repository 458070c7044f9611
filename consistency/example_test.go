package consistency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"strconv"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
)

type user struct {
	ID    int64
	Email string
}

// shop holds the parts that the examples share: a database with an outbox, a cache, two loaders,
// one of them an index, and a Writer.
type shop struct {
	db      *sqlx.DB
	users   *cacheaside.Loader[int64, user]
	byEmail *cacheaside.Loader[string, int64]
	writer  *consistency.Writer
	close   func()
}

func open(name string) *shop {
	ctx := context.Background()
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	cache, err := cacheaside.New(rdb, &cacheaside.Options{
		StrictWrites: true,                               // for Strict and WriteThrough; in all processes
		RedisTimeout: time.Minute, LeaseTTL: time.Minute, // for machines that are busy with tests
	})
	if err != nil {
		log.Fatal(err)
	}
	db := sqlx.MustOpen("sqlite",
		"file:"+name+"?mode=memory&cache=shared&_txlock=immediate&_pragma=busy_timeout(10000)")
	db.MustExec("CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT UNIQUE)")
	db.MustExec("INSERT INTO users VALUES (1, 'ann@old.example')")
	s := &shop{db: db}

	s.users, err = cacheaside.NewLoader(cache, "user", func(ctx context.Context, id int64) (u user, err error) {
		return u, db.GetContext(ctx, &u, "SELECT id, email FROM users WHERE id = ?", id)
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	s.byEmail, err = cacheaside.NewLoader(cache, "user-by-email",
		func(ctx context.Context, email string) (id int64, err error) {
			return id, db.GetContext(ctx, &id, "SELECT id FROM users WHERE email = ?", email)
		}, nil)
	if err != nil {
		log.Fatal(err)
	}

	outbox, err := sqloutbox.New(db, sqloutbox.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := outbox.CreateTable(ctx); err != nil { // as a rule a migration, of Dialect.Schema
		log.Fatal(err)
	}
	s.writer, err = consistency.NewWriter(db, cache, &consistency.Options{Queue: outbox})
	if err != nil {
		log.Fatal(err)
	}
	s.close = func() {
		if err := errors.Join(s.writer.Close(), cache.Close(), rdb.Close(), db.Close()); err != nil { // in this order
			log.Fatal(err)
		}
		server.Close()
	}
	return s
}

func (s *shop) show(ctx context.Context, id int64) {
	u, err := s.users.Get(ctx, id)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(u.ID, u.Email)
}

func ExampleWriter_Update() {
	s, ctx := open("update"), context.Background()
	defer s.close()
	s.show(ctx, 1)

	err := s.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE users SET email = ? WHERE id = ?", "ann@new.example", 1)
		return err
	}, s.users.Key(1))
	switch {
	case errors.Is(err, consistency.ErrQueued): // only with a queue in memory
		log.Print("committed; the caches will know later: ", err)
	case errors.Is(err, consistency.ErrUnknown):
		log.Fatal("perhaps committed: ", err)
	case err != nil:
		log.Fatal("not committed: ", err)
	}
	s.show(ctx, 1)
	// Output:
	// 1 ann@old.example
	// 1 ann@new.example
}

// Strict: from before the transaction until the caches are invalidated, no process caches the row.
// If the hold cannot be acquired, nothing is written.
func ExampleWriter_At() {
	s, ctx := open("strict"), context.Background()
	defer s.close()

	err := s.writer.At(consistency.Strict).Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE users SET email = ? WHERE id = ?", "ann@new.example", 1)
		return err
	}, s.users.Key(1))
	switch {
	case errors.Is(err, cacheaside.ErrHoldLost), errors.Is(err, cacheaside.ErrRedis):
		log.Fatal("not written: ", err)
	case err != nil:
		log.Fatal(err)
	}
	s.show(ctx, 1)
	// Output: 1 ann@new.example
}

// A row with two keys: its id, and an address that leads to the id. A writer that changes the
// address invalidates the id, the old address, and the new one, which may be cached as missing.
func ExampleTouch() {
	s, ctx := open("touch"), context.Background()
	defer s.close()
	find := func(email string) {
		id, err := s.byEmail.Get(ctx, email)
		if errors.Is(err, cacheaside.ErrNotFound) {
			fmt.Println(email, "is nobody's")
			return
		} else if err != nil {
			log.Fatal(err)
		}
		s.show(ctx, id)
	}
	find("ann@old.example")
	find("ann@new.example")

	const id, email = 1, "ann@new.example"
	err := s.writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		var old string
		// With FOR UPDATE, except in SQLite.
		if err := tx.GetContext(ctx, &old, "SELECT email FROM users WHERE id = ?", id); err != nil {
			return err
		}
		if err := consistency.Touch(ctx, s.byEmail.Key(old), s.byEmail.Key(email)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE users SET email = ? WHERE id = ?", email, id)
		return err
	}, s.users.Key(id))
	if err != nil {
		log.Fatal(err)
	}
	find("ann@old.example")
	find("ann@new.example")
	// Output:
	// 1 ann@old.example
	// ann@new.example is nobody's
	// ann@old.example is nobody's
	// 1 ann@new.example
}

func ExampleWriteThrough() {
	s, ctx := open("through"), context.Background()
	defer s.close()

	err := consistency.WriteThrough(ctx, s.writer, s.users, 1, func(ctx context.Context, tx *sqlx.Tx) (user, error) {
		u := user{ID: 1, Email: "ann@new.example"}
		_, err := tx.ExecContext(ctx, "UPDATE users SET email = ? WHERE id = ?", u.Email, u.ID)
		return u, err // as a load would give it
	})
	if err != nil {
		log.Fatal(err)
	}
	s.show(ctx, 1)
	// Output: 1 ann@new.example
}

// A transaction of one's own: Enqueue in it is all that is needed. A Relay invalidates the key,
// here that of the Writer.
func ExampleWriter_Enqueue() {
	s, ctx := open("enqueue"), context.Background()
	defer s.close()

	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "UPDATE users SET email = ? WHERE id = ?", "ann@new.example", 1); err != nil {
		log.Fatal(err)
	}
	if err := s.writer.Enqueue(ctx, tx, s.users.Key(1)); err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
	// Output:
}

// After a migration: what it has changed, 10,000 keys a second.
func ExampleWriter_InvalidateMany() {
	s, ctx := open("many"), context.Background()
	defer s.close()

	changed := func(yield func(cacheaside.Key, error) bool) { // as a rule from a query
		for id := range int64(1000) {
			if !yield(cacheaside.Key{Loader: "user", Text: strconv.FormatInt(id, 10)}, nil) {
				return
			}
		}
	}
	done := 0
	progress := func(cacheaside.Key, error) { done++ } // or nil
	err := s.writer.InvalidateMany(ctx, changed, 10_000, progress)
	if err != nil && !errors.Is(err, consistency.ErrQueued) { // which will be done
		log.Fatal(err)
	}
	fmt.Println(done)
	// Output: 1000
}

var _ sqlx.ExecerContext = (*sql.Tx)(nil)

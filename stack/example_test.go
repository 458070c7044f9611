package stack_test

import (
	"context"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/jmoiron/sqlx"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/stack"
)

// A service on SQLite, which has no log to follow, and an embedded Redis.
func Example() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	db, err := sqlx.Open("sqlite", ":memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // the database belongs to its connection

	s, err := stack.New(db, rdb, &stack.Options{Cache: &cacheaside.Options{Prefix: "shop"}})
	if err != nil {
		log.Fatal(err)
	}
	names, err := cacheaside.NewLoader(s.Cache, "name", func(ctx context.Context, id int64) (name string, err error) {
		err = db.GetContext(ctx, &name, "SELECT name FROM users WHERE id = ?", id)
		return name, err
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	db.MustExec("CREATE TABLE users (id BIGINT PRIMARY KEY, name TEXT); INSERT INTO users VALUES (42, 'Ada')")
	ctx, stop := context.WithCancel(context.Background())
	if err := s.CreateTables(ctx); err != nil {
		log.Fatal(err)
	}
	serve := func(ctx context.Context) error { // a web server
		defer stop()
		fmt.Println(names.Get(ctx, 42))
		err := s.Writer.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE users SET name = 'Grace' WHERE id = 42")
			return err
		}, names.Key(42))
		fmt.Println(err)
		fmt.Println(names.Get(ctx, 42))
		return nil
	}
	fmt.Println(s.Run(ctx, serve))
	// Output:
	// Ada <nil>
	// <nil>
	// Grace <nil>
	// <nil>
}

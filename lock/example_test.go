package lock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/cacheaside/cacheaside/lock"
)

// bank is a database with an account of 100, and a column for tokens.
func bank() *sql.DB {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	db.SetMaxOpenConns(1) // each connection would have its own database
	_, err = db.ExecContext(context.Background(), `
		CREATE TABLE account (id INTEGER PRIMARY KEY, balance INT, fence BIGINT NOT NULL DEFAULT 0);
		INSERT INTO account (id, balance) VALUES (42, 100)`)
	if err != nil {
		panic(err)
	}
	return db
}

var account = lock.Guard{Table: "account"} // guards rows by the columns id and fence

// deposit changes an account, unless a later holder of its lock has changed it.
func deposit(ctx context.Context, db *sql.DB, id, token int64, amount int) error {
	tx, err := db.BeginTx(ctx, nil) // rolled back when ctx ends
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := account.Check(ctx, tx, id, token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance + ? WHERE id = ?", amount, id); err != nil {
		return err
	}
	return tx.Commit()
}

// Do runs a section in one process at a time. If the process is suspended there for longer than its
// lock lives, the token guards its writes.
func ExampleLocker_Do() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	db := bank()
	defer db.Close()
	// The options are usually nil. These values suit a very busy machine.
	locker, err := lock.NewRedis(rdb, &lock.Options{TTL: time.Minute, Timeout: 15 * time.Second})
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	err = locker.Do(context.Background(), "account:42", nil, func(ctx context.Context, token int64) error {
		return deposit(ctx, db, 42, token, 10)
	})
	var balance int
	db.QueryRow("SELECT balance FROM account WHERE id = 42").Scan(&balance)
	fmt.Println(balance, err)
	// Output: 110 <nil>
}

// A holder that has not noticed the loss of its lock is refused.
func ExampleGuard() {
	db := bank()
	defer db.Close()
	locker, err := lock.NewLocal(nil)
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	ctx := context.Background()

	paused, err := locker.Acquire(ctx, "account:42", &lock.AcquireOptions{TTL: 100 * time.Millisecond, Fixed: true})
	if err != nil {
		panic(err)
	}
	next, err := locker.Acquire(ctx, "account:42", nil) // 100 ms later
	if err != nil {
		panic(err)
	}
	fmt.Println("the next:", deposit(ctx, db, 42, next.Token(), 10))
	// With a context that does not end when the lock is lost.
	late := deposit(ctx, db, 42, paused.Token(), 10)
	fmt.Println("refused:", errors.Is(late, lock.ErrStale))
	fmt.Println("lost:", errors.Is(paused.Release(), lock.ErrLost))
	fmt.Println("released:", next.Release())
	// Output:
	// the next: <nil>
	// refused: true
	// lost: true
	// released: <nil>
}

// SetFenced writes a value that was computed from a value read under the lock.
func ExampleSetFenced() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	// The options are usually nil. These values suit a very busy machine.
	locker, err := lock.NewRedis(rdb, &lock.Options{TTL: time.Minute, Timeout: 15 * time.Second})
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	enlist := func(name string) error {
		return locker.Do(context.Background(), "team", nil, func(ctx context.Context, token int64) error {
			names, err := lock.GetFenced(ctx, rdb, "team", token)
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			return lock.SetFenced(ctx, rdb, "team", names+name+" ", token, time.Hour)
		})
	}
	fmt.Println(enlist("Ada"), enlist("Grace"))
	fmt.Println(rdb.Get(context.Background(), "team").Val()) // an ordinary read
	// Output:
	// <nil> <nil>
	// Ada Grace
}

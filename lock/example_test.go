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
	db.SetMaxOpenConns(1) // each connection has a memory of its own
	_, err = db.ExecContext(context.Background(), `
		CREATE TABLE account (id INTEGER PRIMARY KEY, balance INT, fence BIGINT NOT NULL DEFAULT 0);
		INSERT INTO account (id, balance) VALUES (42, 100)`)
	if err != nil {
		panic(err)
	}
	return db
}

var account = lock.Guard{Table: "account"} // of its rows, by the columns id and fence

// deposit changes an account, if nobody has had its lock since.
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

// A section that one process at a time is in; the token guards what it writes, should the process
// be suspended in mid-section for longer than its lock lives.
func ExampleLocker_Do() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	db := bank()
	defer db.Close()
	locker, err := lock.NewRedis(rdb, &lock.LockerOptions{TTL: time.Minute, Timeout: 15 * time.Second}) // as a rule nil: these bear with a machine that is very busy
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	err = locker.Do(context.Background(), "account:42", func(ctx context.Context, token int64) error {
		return deposit(ctx, db, 42, token, 10)
	})
	var balance int
	db.QueryRow("SELECT balance FROM account WHERE id = 42").Scan(&balance)
	fmt.Println(balance, err)
	// Output: 110 <nil>
}

// A holder whose lock has passed on, which he has not noticed, is refused.
func ExampleGuard() {
	db := bank()
	defer db.Close()
	locker, err := lock.NewLocal(nil)
	if err != nil {
		panic(err)
	}
	defer locker.Close()
	ctx := context.Background()

	paused, err := locker.Acquire(ctx, "account:42", &lock.Options{TTL: 100 * time.Millisecond, Fixed: true})
	if err != nil {
		panic(err)
	}
	next, err := locker.Acquire(ctx, "account:42", nil) // 100 ms later
	if err != nil {
		panic(err)
	}
	fmt.Println("the next:", deposit(ctx, db, 42, next.Token(), 10))
	late := deposit(ctx, db, 42, paused.Token(), 10) // by a context that does not tell him
	fmt.Println("refused:", errors.Is(late, lock.ErrStale))
	fmt.Println("lost:", errors.Is(paused.Release(), lock.ErrLost))
	fmt.Println("released:", next.Release())
	// Output:
	// the next: <nil>
	// refused: true
	// lost: true
	// released: <nil>
}

// What is made of a value that is read under a lock, and set again.
func ExampleSetFenced() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	locker, err := lock.NewRedis(rdb, &lock.LockerOptions{TTL: time.Minute, Timeout: 15 * time.Second}) // as a rule nil: these bear with a machine that is very busy
	if err != nil {
		panic(err)
	}
	defer locker.Close()

	enlist := func(name string) error {
		return locker.Do(context.Background(), "team", func(ctx context.Context, token int64) error {
			names, err := lock.GetFenced(ctx, rdb, "team", token)
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			return lock.SetFenced(ctx, rdb, "team", names+name+" ", token, time.Hour)
		})
	}
	fmt.Println(enlist("Ada"), enlist("Grace"))
	fmt.Println(rdb.Get(context.Background(), "team").Val()) // as anybody reads it
	// Output:
	// <nil> <nil>
	// Ada Grace
}

package pglock_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/pglock"
)

// It needs a PostgreSQL server, so it is compiled but not run.
func ExampleNew() {
	db, err := sql.Open("pgx", "postgres://user:password@localhost:5432/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close() // close it after the Locker
	ctx := context.Background()
	// Usually in a migration, with pglock.Schema.
	if err := pglock.CreateTable(ctx, db, nil); err != nil {
		log.Fatal(err)
	}
	locker, err := pglock.New(db, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	// Its column fence stores the token of the last writer.
	accounts := lock.Guard{Table: "accounts"}
	err = locker.Do(ctx, "account:42", nil, func(ctx context.Context, token int64) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := accounts.Check(ctx, tx, 42, token); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 10 WHERE id = 42"); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Schema returns the statement that creates the table, for your migrations.
func ExampleSchema() {
	statement, err := pglock.Schema(&pglock.Options{Table: "shop.locks"})
	if err != nil {
		log.Fatal(err)
	}
	first, _, _ := strings.Cut(statement, "(")
	fmt.Println(first)
	// Output: CREATE TABLE IF NOT EXISTS "shop"."locks"
}

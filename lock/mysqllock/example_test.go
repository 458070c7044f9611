package mysqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"strings"

	_ "github.com/go-sql-driver/mysql"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
)

// It needs a MySQL or MariaDB server, so it is compiled but not run.
func ExampleNew() {
	db, err := sql.Open("mysql", "user:password@tcp(localhost:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close() // close it after the Locker
	ctx := context.Background()
	// Usually in a migration, with mysqllock.Schema.
	if err := mysqllock.CreateTable(ctx, db, nil); err != nil {
		log.Fatal(err)
	}
	locker, err := mysqllock.New(db, nil)
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
	statement, err := mysqllock.Schema(&mysqllock.Options{Table: "shop.locks"})
	if err != nil {
		log.Fatal(err)
	}
	first, _, _ := strings.Cut(statement, "(")
	fmt.Println(first)
	// Output: CREATE TABLE IF NOT EXISTS `shop`.`locks`
}

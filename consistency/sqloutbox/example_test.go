package sqloutbox_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
)

// The outbox' table, for your migrations.
func ExampleDialect_Schema() {
	statements, err := sqloutbox.MySQL.Schema("cacheaside_outbox")
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(statements) {
		if strings.HasPrefix(line, "CREATE") {
			fmt.Print(line)
		}
	}
	// Output: CREATE TABLE IF NOT EXISTS `cacheaside_outbox` (
}

// What is to be asked of an outbox: how much is in it, and since when.
func ExampleNew() {
	db := sqlx.MustOpen("sqlite", "file:depth?mode=memory&cache=shared&_txlock=immediate&_pragma=busy_timeout(10000)")
	defer db.Close()
	outbox, err := sqloutbox.New(db, sqloutbox.SQLite, &sqloutbox.Options{Table: "shop_outbox", Namespace: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if err := outbox.CreateTable(ctx); err != nil {
		log.Fatal(err)
	}
	for _, id := range []string{"1", "2", "3"} {
		if err := outbox.Put(ctx, consistency.Item{Key: cacheaside.Key{Loader: "user", Text: id},
			After: time.Minute}); err != nil {
			log.Fatal(err)
		}
	}
	depth, err := outbox.Depth(ctx)
	fmt.Println(depth.Items, depth.Due, depth.Oldest < time.Minute, err)
	// Output: 3 0 true <nil>
}

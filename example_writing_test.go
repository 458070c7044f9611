package cacheaside_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// A consistency.Writer does this at its level Strict: between the commit of a row and its
// invalidation, no process caches an older version of it.
func ExampleCache_Hold() {
	server, _ := miniredis.Run() // any Redis
	server.ClockTTL(true)        // without this, holds never end in miniredis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	// in all processes
	cache, _ := cacheaside.New(rdb, &cacheaside.Options{StrictWrites: true, RedisTimeout: patient.RedisTimeout})
	defer cache.Close()
	row := "old"
	rows, _ := cacheaside.NewLoader(cache, "row", func(context.Context, int64) (string, error) { return row, nil }, nil)
	ctx := context.Background()

	hold, err := cache.Hold(ctx, rows.Key(1))
	if err != nil {
		log.Fatal(err) // nothing was written
	}
	fmt.Println(rows.Get(ctx, 1)) // is loaded and not stored
	// tx.Exec("UPDATE …")
	if err := hold.Check(ctx); errors.Is(err, cacheaside.ErrHoldLost) {
		log.Fatal(err) // and tx.Rollback()
	}
	row = "new" // tx.Commit()
	if err := hold.Invalidate(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(rows.Get(ctx, 1))
	fmt.Println(rows.Stats().Held)
	// Output:
	// old <nil>
	// new <nil>
	// 1
}

// After a write of rows that are read immediately: Refresh loads them again instead of deleting
// them, and notifies other processes.
func ExampleCache_RefreshKeys() {
	cache, _ := cacheaside.NewLocal(nil) // works the same with Redis
	defer cache.Close()
	rate := 1.10
	rates, _ := cacheaside.NewLoader(cache, "rate",
		func(context.Context, string) (float64, error) { return rate, nil }, nil)
	ctx := context.Background()
	fmt.Println(rates.Get(ctx, "EUR"))
	rate = 1.12
	fmt.Println(cache.RefreshKeys(ctx, rates.Key("EUR")))
	loads := rates.Stats().Loads
	fmt.Println(rates.Get(ctx, "EUR"))
	fmt.Println(rates.Stats().Loads - loads)
	// Output:
	// 1.1 <nil>
	// <nil>
	// 1.12 <nil>
	// 0
}

// One transaction that inserts rows of several loaders, each with its own filter.
func ExampleCache_InsertingKeys() {
	cache, _ := cacheaside.NewLocal(nil) // works the same with Redis
	defer cache.Close()
	rows := map[string]bool{}
	load := func(_ context.Context, name string) (bool, error) {
		if !rows[name] {
			return false, cacheaside.ErrNotFound
		}
		return true, nil
	}
	users, _ := cacheaside.NewLoader(cache, "user", load,
		&cacheaside.LoaderOptions{Filter: &keySet{keys: map[string]bool{}}})
	mails, _ := cacheaside.NewLoader(cache, "mail", load,
		&cacheaside.LoaderOptions{Filter: &keySet{keys: map[string]bool{}}})

	ctx := context.Background()
	committed, err := cache.InsertingKeys(ctx, users.Key("ada"), mails.Key("ada@example.com"))
	if err != nil {
		log.Fatal(err) // do not commit
	}
	rows["ada"], rows["ada@example.com"] = true, true // tx.Commit()
	if err := committed(context.WithoutCancel(ctx)); err != nil {
		log.Fatal(err) // the rows exist: repeat committed
	}
	fmt.Println(users.Get(ctx, "ada"))
	fmt.Println(mails.Get(ctx, "ada@example.com"))
	// Output:
	// true <nil>
	// true <nil>
}

// A custom filter can be anything that knows which keys certainly have no row. Package bloom has
// filters for large tables.
func ExampleFilter() {
	var filter cacheaside.Filter = &keySet{keys: map[string]bool{"42": true}}
	cache, _ := cacheaside.NewLocal(nil) // works the same with Redis
	defer cache.Close()
	load := func(_ context.Context, id int64) (string, error) {
		if id != 42 {
			return "", cacheaside.ErrNotFound
		}
		return fmt.Sprint("row ", id), nil
	}
	// Usually not set: one audit a second.
	rows, _ := cacheaside.NewLoader(cache, "row", load, &cacheaside.LoaderOptions{
		Filter: filter, AuditEvery: time.Hour,
	})
	ctx := context.Background()
	fmt.Println(rows.Get(ctx, 42))
	for id := range int64(42) { // a client guesses ids
		rows.Get(ctx, id)
	}
	fmt.Println(rows.Stats().Loads, "loads,", rows.Stats().Filtered, "refused,", rows.Stats().FilterAudits,
		"of them looked up all the same")
	// Output:
	// row 42 <nil>
	// 2 loads, 42 refused, 1 of them looked up all the same
}

package bloom_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
)

// A copy of the filter in this process, and a Loader that asks it: what certainly does not exist
// costs nanoseconds, and no trip.
func ExampleNewReplica() {
	server, err := miniredis.Run() // any Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	// usually nil; this timeout is for a machine that is busy with tests
	cache, err := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	ctx := context.Background()

	// usually nil; this timeout is for a machine that is busy with tests
	filter, err := bloom.NewRedis(rdb, "users", 1_000_000, 0.01, &bloom.Options{Timeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer filter.Close()
	if _, err := filter.Rebuild(ctx, bloom.Keys("1", "2", "3"), &bloom.RebuildOptions{Settle: -1}); err != nil {
		// as a rule by Maintain
		log.Fatal(err)
	}
	replica, err := bloom.NewReplica(filter)
	if err != nil {
		log.Fatal(err)
	}
	defer replica.Close()

	load := func(_ context.Context, id int64) (string, error) {
		if id < 1 {
			return "", cacheaside.ErrNotFound
		}
		return fmt.Sprint("user ", id), nil
	}
	users, err := cacheaside.NewLoader(cache, "user", load, &cacheaside.LoaderOptions{Filter: replica})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(users.Get(ctx, 3))
	_, err = users.Get(ctx, -1)
	fmt.Println(errors.Is(err, cacheaside.ErrNotFound), users.Stats().Filtered)
	// Output:
	// user 3 <nil>
	// true 1
}

// A filter of a table, and what it has found there.
func ExampleTable() {
	db, err := sql.Open("sqlite", "file:table?mode=memory&cache=shared")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(
		"CREATE TABLE users (id INTEGER PRIMARY KEY); INSERT INTO users VALUES (1), (2), (40)"); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	filter, err := bloom.NewLocal(1000, 0.01)
	if err != nil {
		log.Fatal(err)
	}
	defer filter.Close()
	report, err := filter.Rebuild(ctx, bloom.Table[int64](db, "users", "id"), nil)
	fmt.Println(report.Keys, "keys", err)
	fmt.Println(filter.MightContain(ctx, "40")) // the loader's key texts: integers in decimal
	// Output:
	// 3 keys <nil>
	// true <nil>
}

// Maintain builds the filter, and looks after it; it runs in each process that can read the table.
func ExampleRedis_Maintain() {
	server, err := miniredis.Run() // any Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	// usually nil; this timeout is for a machine that is busy with tests
	filter, err := bloom.NewRedis(rdb, "users", 1000, 0.01, &bloom.Options{Timeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer filter.Close()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- filter.Maintain(ctx, bloom.Keys("1", "2", "3"), &bloom.MaintainOptions{ // as a rule bloom.Table
			Failed:  func(err error) { log.Print(err) },
			Rebuild: &bloom.RebuildOptions{Settle: -1}, // no process inserts rows here
		})
	}()
	for { // until it is built, it says "maybe"
		if may, err := filter.MightContain(ctx, "4"); err != nil {
			log.Fatal(err)
		} else if !may {
			break
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Println(filter.MightContain(ctx, "3"))
	stop()
	fmt.Println(<-ended)
	// Output:
	// true <nil>
	// context canceled
}

package consistency_test

import (
	"context"
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

// The parts of a program that writes, in the order of their construction. They are closed in the
// opposite order.
func ExampleNewWriter() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	db := sqlx.MustOpen("sqlite",
		"file:newwriter?mode=memory&cache=shared&_txlock=immediate&_pragma=busy_timeout(10000)")
	defer db.Close()
	// usually nil; this timeout is for a machine that is busy with tests
	cache, err := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	outbox, err := sqloutbox.New(db, sqloutbox.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := outbox.CreateTable(context.Background()); err != nil { // as a rule a migration, of Dialect.Schema
		log.Fatal(err)
	}
	writer, err := consistency.NewWriter(db, cache, &consistency.Options{
		Queue: outbox, // so its level is Outbox; without one it is Inline, whose failures are lost with the process
		Relay: &consistency.RelayOptions{OnAlert: func(a consistency.Alert) { log.Print("page somebody: ", a.Err) }},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer writer.Close()
	fmt.Println(writer.Stats().Updates)
	// Output: 0
}

// A Relay in a process of its own: it delivers the items that all Writers have left in the outbox.
func ExampleNewRelay() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	db := sqlx.MustOpen("sqlite",
		"file:newrelay?mode=memory&cache=shared&_txlock=immediate&_pragma=busy_timeout(10000)")
	defer db.Close()
	// usually nil; this timeout is for a machine that is busy with tests
	cache, _ := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: 10 * time.Second})
	defer cache.Close()
	outbox, err := sqloutbox.New(db, sqloutbox.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	if err := outbox.CreateTable(ctx); err != nil {
		log.Fatal(err)
	}

	relay, err := consistency.NewRelay(cache, outbox, &consistency.RelayOptions{Poll: 10 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	if err := outbox.Put(ctx, consistency.Item{Key: cacheaside.Key{Loader: "user", Text: "42"}}); err != nil {
		// as a writer did that was killed
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- relay.Run(ctx) }()
	for relay.Stats().Done == 0 {
		time.Sleep(time.Millisecond)
	}
	stop()
	fmt.Println(<-ended)
	depth, err := outbox.Depth(context.Background())
	fmt.Println(depth.Items, "left", err)
	// Output:
	// <nil>
	// 0 left <nil>
}

// A queue in memory never refuses: when it is full, a loader's keys become the whole loader.
func ExampleNewMemoryQueue() {
	queue := consistency.NewMemoryQueue(2)
	ctx := context.Background()
	for _, id := range []string{"1", "2", "3"} {
		if err := queue.Put(ctx, consistency.Item{Key: cacheaside.Key{Loader: "user", Text: id}}); err != nil {
			log.Fatal(err)
		}
	}
	items, err := queue.Claim(ctx, 10, time.Minute)
	for _, i := range items {
		fmt.Println(i.Key)
	}
	fmt.Println(queue.Collapsed(), "keys replaced", err)
	// Output:
	// user all keys
	// 3 keys replaced <nil>
}

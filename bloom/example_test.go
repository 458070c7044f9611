package bloom_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/bloom"
)

func ExampleNewLocal() {
	ctx := context.Background()
	filter, err := bloom.NewLocal(1_000_000, 0.01) // for a million keys at 1 % of false positives: 1.2 MB
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(filter.MightContain(ctx, "SAVE50")) // before the first build

	if _, err := filter.Rebuild(ctx, bloom.Keys("SAVE10", "SAVE20"), nil); err != nil {
		log.Fatal(err)
	}
	if err := filter.Add(ctx, "SAVE30"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(filter.MightContain(ctx, "SAVE30"))
	fmt.Println(filter.MightContain(ctx, "SAVE50"))
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

func ExampleNewRedis() {
	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	ctx := context.Background()

	// usually nil; this timeout is for a machine that is busy with tests
	filter, err := bloom.NewRedis(rdb, "users", 1_000_000, 0.01, &bloom.Options{Timeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer filter.Close()
	_, err = filter.Rebuild(ctx, bloom.Keys("1", "2", "3"), &bloom.RebuildOptions{Settle: -1}) // as a rule bloom.Table
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(filter.MightContain(ctx, "3"))
	fmt.Println(filter.MightContain(ctx, "-1"))

	committed, err := filter.Inserting(ctx, []string{"4"}) // before the transaction that inserts the row commits
	if err != nil {
		log.Fatal(err)
	}
	if err := committed(ctx); err != nil { // and after that
		log.Fatal(err)
	}
	fmt.Println(filter.MightContain(ctx, "4"))
	// Output:
	// true <nil>
	// false <nil>
	// true <nil>
}

// A filter of a table of blocked addresses: almost all who sign up are on no list, and are let in
// without a look into it.
func ExampleNewDenyList() {
	db, err := sql.Open("sqlite", "file:deny?mode=memory&cache=shared")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE TABLE blocked (email TEXT PRIMARY KEY); INSERT INTO blocked VALUES " +
		"('spam@example.com'), ('bot@example.com')"); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	filter, err := bloom.NewLocal(100_000, 0.001)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := filter.Rebuild(ctx, bloom.Table[string](db, "blocked", "email"), nil); err != nil {
		log.Fatal(err)
	}
	blocked := bloom.NewDenyList(filter, func(ctx context.Context, email string) (found bool, err error) {
		fmt.Println("  asking for", email)
		err = db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM blocked WHERE email = ?)", email).Scan(&found)
		return found, err
	})
	for _, email := range []string{"alice@example.com", "spam@example.com"} {
		denied, err := blocked.Denied(ctx, email)
		fmt.Println(email, denied, err)
	}
	// Output:
	// alice@example.com false <nil>
	//   asking for spam@example.com
	// spam@example.com true <nil>
}

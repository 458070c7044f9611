package cacheaside_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

type User struct {
	ID   int64
	Name string
}

// users stands in for a table.
var users = map[int64]string{42: "Ada"}

func loadUser(_ context.Context, id int64) (User, error) {
	name, ok := users[id]
	if !ok {
		return User{}, cacheaside.ErrNotFound // or sql.ErrNoRows, as database/sql gives it
	}
	fmt.Println("loading user", id)
	return User{id, name}, nil
}

// Example wraps the reads of a table, and invalidates after a write.
func Example() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	cache, err := cacheaside.New(rdb, nil)
	if err != nil {
		panic(err)
	}
	defer cache.Close()
	byID, err := cacheaside.NewLoader(cache, "user", loadUser, &cacheaside.LoaderOptions{TTL: 10 * time.Minute})
	if err != nil {
		panic(err)
	}

	ctx := context.Background()
	for range 2 {
		u, err := byID.Get(ctx, 42)
		fmt.Println(u.Name, err)
	}
	_, err = byID.Get(ctx, 7)
	fmt.Println(errors.Is(err, cacheaside.ErrNotFound))

	users[42] = "Grace" // the write: commit first,
	if err := byID.Invalidate(ctx, 42); err != nil {
		panic(err) // Redis could not be asked: try again, or the old value stays until its TTL
	}
	u, err := byID.Get(ctx, 42)
	fmt.Println(u.Name, err)

	// Output:
	// loading user 42
	// Ada <nil>
	// Ada <nil>
	// true
	// loading user 42
	// Grace <nil>
}

// A load can know better than its loader how long its value holds.
func ExampleSetTTL() {
	cache, _ := cacheaside.New(nil, nil) // without Redis: the memory tier alone
	defer cache.Close()
	tokens, _ := cacheaside.NewLoader(cache, "token", func(ctx context.Context, user string) (string, error) {
		token, expires := "secret of "+user, time.Now().Add(5*time.Minute) // from a service that says when it ends
		cacheaside.SetTTL(ctx, time.Until(expires)-time.Minute)
		return token, nil
	}, nil)
	token, err := tokens.Get(context.Background(), "ada")
	fmt.Println(token, err)
	// Output: secret of ada <nil>
}

// Refresh is for a change that nothing has announced.
func ExampleLoader_Refresh() {
	cache, _ := cacheaside.New(nil, nil)
	defer cache.Close()
	rate := 1.10
	rates, _ := cacheaside.NewLoader(cache, "rate", func(context.Context, string) (float64, error) { return rate, nil }, nil)
	ctx := context.Background()
	v, _ := rates.Get(ctx, "EUR")
	fmt.Println(v)
	rate = 1.12
	v, err := rates.Refresh(ctx, "EUR")
	fmt.Println(v, err)
	// Output:
	// 1.1
	// 1.12 <nil>
}

// An *Error tells which key failed; its text shows only a hash of the key.
func ExampleError() {
	cache, _ := cacheaside.New(nil, nil)
	defer cache.Close()
	mails, _ := cacheaside.NewLoader(cache, "mail", func(context.Context, string) (string, error) { return "", errors.New("connection refused") }, nil)
	_, err := mails.Get(context.Background(), "ada@example.com")
	fmt.Println(err)
	if e, ok := errors.AsType[*cacheaside.Error](err); ok {
		fmt.Println(e.Op, e.Loader, e.Key)
	}
	// Output:
	// cacheaside: get mail key#86c99beb955e19ee: connection refused
	// get mail ada@example.com
}

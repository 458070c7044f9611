// Command get is a minimal program that uses a cache.
package main

import (
	"context"
	"fmt"

	"github.com/cacheaside/cacheaside"
	"github.com/redis/go-redis/v9"
)

func main() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
	cache, err := cacheaside.New(rdb, nil)
	if err != nil {
		panic(err)
	}
	names, err := cacheaside.NewLoader(cache, "name",
		func(ctx context.Context, id int64) (string, error) { return fmt.Sprint(id), nil }, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(names.Get(context.Background(), 1))
}

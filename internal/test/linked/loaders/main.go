// Command loaders is get with two more loaders, with other types of keys and values.
package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

type user struct{ ID, Age int64 }

type page struct{ Title, Text string }

func main() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
	cache, err := cacheaside.New(rdb, nil)
	if err != nil {
		panic(err)
	}
	get(cache, "name", 1, func(_ context.Context, id int64) (string, error) { return strconv.FormatInt(id, 10), nil })
	get(cache, "user", "x", func(context.Context, string) (user, error) { return user{}, nil })
	get(cache, "page", 1, func(context.Context, int64) (page, error) { return page{}, nil })
}

func get[K comparable, V any](cache *cacheaside.Cache, name string, key K, load func(context.Context, K) (V, error)) {
	loader, err := cacheaside.NewLoader(cache, name, load, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(loader.Get(context.Background(), key))
}

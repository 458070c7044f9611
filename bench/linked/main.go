// Command linked is a minimal program that uses sturdyc over go-redis: see scripts/price.sh.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/viccon/sturdyc"
)

type storage struct{ rdb *redis.Client }

func (s storage) Get(ctx context.Context, key string) ([]byte, bool) {
	b, err := s.rdb.Get(ctx, key).Bytes()
	return b, err == nil
}

func (s storage) Set(ctx context.Context, key string, value []byte) {
	_ = s.rdb.Set(ctx, key, value, time.Hour).Err()
}

func (s storage) GetBatch(ctx context.Context, keys []string) map[string][]byte {
	found := make(map[string][]byte)
	for _, key := range keys {
		if b, ok := s.Get(ctx, key); ok {
			found[key] = b
		}
	}
	return found
}

func (s storage) SetBatch(ctx context.Context, values map[string][]byte) {
	for key, b := range values {
		s.Set(ctx, key, b)
	}
}

func main() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
	names := sturdyc.New[string](10_000, 10, time.Minute, 10, sturdyc.WithDistributedStorage(storage{rdb}))
	fmt.Println(names.GetOrFetch(context.Background(), "name:1",
		func(context.Context) (string, error) { return "1", nil }))
}

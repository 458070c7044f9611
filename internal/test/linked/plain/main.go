// Command plain uses go-redis alone.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
	fmt.Println(rdb.Set(context.Background(), "name:1", "1", time.Minute).Err())
	fmt.Println(rdb.Get(context.Background(), "name:1").Result())
}

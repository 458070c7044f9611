package msgpack_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/msgpack"
)

var (
	_ cacheaside.Codec        = msgpack.Codec
	_ cacheaside.CodecChecker = msgpack.Codec
)

type Book struct {
	ID    int64
	Title string
}

// A loader stores its values as MessagePack, compressed if they are long. It still reads what was
// stored as JSON.
func Example() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	// The long time-outs are for busy test machines: use the defaults.
	cache, _ := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: time.Minute, ReadTimeout: time.Minute})
	defer cache.Close()

	books, _ := cacheaside.NewLoader(cache, "book", func(context.Context, int64) (Book, error) {
		return Book{1, "Emma"}, nil
	}, &cacheaside.LoaderOptions{Codec: msgpack.Codec, CompressAbove: 1 << 10})
	fmt.Println(books.Get(context.Background(), 1))
	entry, _ := rdb.Get(context.Background(), "cacheaside:book:1:{1}").Result()
	fmt.Printf("%q\n", entry[32:])
	// Output:
	// {1 Emma} <nil>
	// "\x82\xa2ID\x01\xa5Title\xa4Emma"
}

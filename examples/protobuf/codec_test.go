package protobuf_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/proto"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/examples/protobuf"
	"github.com/cacheaside/cacheaside/examples/protobuf/bookpb"
)

var _ cacheaside.Codec = protobuf.Codec{}

// A loader of messages stores them as Protocol Buffers.
func Example() {
	server, _ := miniredis.Run() // any Redis
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	// The long time-outs are for busy test machines: use the defaults.
	cache, _ := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: time.Minute, ReadTimeout: time.Minute})
	defer cache.Close()

	books, _ := cacheaside.NewLoader(cache, "book", func(context.Context, int64) (*bookpb.Book, error) {
		return &bookpb.Book{Id: 1, Title: "Emma"}, nil
	}, &cacheaside.LoaderOptions{Codec: protobuf.Codec{}})
	book, err := books.Get(context.Background(), 1)
	fmt.Println(book.GetTitle(), err)
	entry, _ := rdb.Get(context.Background(), "cacheaside:book:1:{1}").Result()
	fmt.Printf("%q\n", entry[32:])
	// Output:
	// Emma <nil>
	// "\b\x01\x12\x04Emma"
}

// The weight of a message depends on its fields only, before and after its first marshalling.
func TestMessagesInMemory(t *testing.T) {
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()
	const rows = 3000
	options := cacheaside.Options{RedisTimeout: time.Minute, ReadTimeout: time.Minute, MaxStaleness: time.Minute,
		MemoryBytes: 8 << 20}
	for name, local := range map[string]bool{"Redis": false, "local": true} {
		t.Run(name, func(t *testing.T) {
			cache, err := cacheaside.NewLocal(&options)
			if !local {
				cache, err = cacheaside.New(rdb, &options)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer cache.Close()
			load := func(_ context.Context, keys []int) (map[int]*bookpb.Book, error) {
				found := make(map[int]*bookpb.Book)
				for _, key := range keys {
					found[key] = &bookpb.Book{Id: int64(key), Title: "Emma"}
				}
				return found, nil
			}
			books, err := cacheaside.NewBatchLoader(cache, "book", load,
				&cacheaside.LoaderOptions{Codec: protobuf.Codec{}, BatchSize: 1000})
			if err != nil {
				t.Fatal(err)
			}
			for cache.Stats().Bus.Trusted != cache.Stats().Bus.Ranges || !local && cache.Stats().Bus.Ranges == 0 {
				time.Sleep(time.Millisecond) // earlier values are not kept in memory
				books.Get(t.Context(), -1)
			}
			all := make([]int, rows)
			for i := range all {
				all[i] = i
			}
			for range 2 {
				found, err := books.GetMany(t.Context(), all)
				if err != nil || len(found) != rows {
					t.Fatal(len(found), err)
				}
				for _, book := range found {
					proto.Marshal(book)
				}
			}
			if s := books.Stats(); s.MemoryHits < rows || s.TooHeavy > 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Another process reads stored messages, empty messages and nil. It refuses bytes that are not a
// message.
func TestCodec(t *testing.T) {
	server := miniredis.RunT(t)
	rows := map[int]*bookpb.Book{1: {Id: 1, Title: "Emma"}, 2: {}, 3: nil}
	loads := 0
	load := func(_ context.Context, key int) (*bookpb.Book, error) { loads++; return rows[key], nil }
	for range 2 {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
		defer rdb.Close()
		// For a busy machine.
		cache, err := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: time.Minute, ReadTimeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer cache.Close()
		books, err := cacheaside.NewLoader(cache, "book", load, &cacheaside.LoaderOptions{Codec: protobuf.Codec{}})
		if err != nil {
			t.Fatal(err)
		}
		for key, want := range rows {
			if got, err := books.Get(t.Context(), key); err != nil || !proto.Equal(got, want) ||
				(got == nil) != (want == nil) {
				t.Errorf("%d: %v, %v", key, got, err)
			}
		}
		_, err = cacheaside.NewLoader(cache, "text", func(context.Context, int) (string, error) { return "", nil },
			&cacheaside.LoaderOptions{Codec: protobuf.Codec{}})
		if err == nil || !strings.Contains(err.Error(), "LoaderOptions.Codec: string is not a proto.Message") {
			t.Error(err)
		}
	}
	if loads != len(rows) {
		t.Errorf("%d loads", loads)
	}
}

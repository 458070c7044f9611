package cacheaside

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

// Each benchmark has a floor, raw, and the library on the same work; `make bench` runs them in turn and prints the ratios.

type benchRow struct {
	ID    int64
	Name  string
	Text  string
	Price float64
}

func row(id int64) benchRow {
	return benchRow{ID: id, Name: fmt.Sprint("product ", id), Text: string(make([]byte, 200)), Price: 9.99}
}

const benchKeys = 1000

func benchMemory[K ristretto.Key](b *testing.B, key func(int) K) {
	keys := make([]K, benchKeys)
	for i := range keys {
		keys[i] = key(i)
	}
	floor, err := ristretto.NewCache(&ristretto.Config[K, *benchRow]{NumCounters: 10 * benchKeys * 10, MaxCost: 64 << 20, BufferItems: 64})
	if err != nil {
		b.Fatal(err)
	}
	defer floor.Close()
	v := row(1)
	for _, k := range keys {
		floor.SetWithTTL(k, &v, 300, time.Hour)
	}
	floor.Wait()
	run(b, "raw", func(i int) error {
		if _, ok := floor.Get(keys[i%benchKeys]); !ok {
			return fmt.Errorf("not found")
		}
		return nil
	})
}

func benchLoader[K comparable](b *testing.B, key func(int) K) {
	keys := make([]K, benchKeys)
	for i := range keys {
		keys[i] = key(i)
	}
	c, err := New(nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	l, err := NewLoader(c, "row", func(context.Context, K) (*benchRow, error) { v := row(1); return &v, nil }, &LoaderOptions{MemoryTTL: time.Hour, TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	for _, k := range keys {
		l.Get(ctx, k)
	}
	c.memory.Wait()
	run(b, "cacheaside", func(i int) error {
		_, err := l.Get(ctx, keys[i%benchKeys])
		return err
	})
	if n := l.Stats().Loads; n != benchKeys {
		b.Errorf("%d loads", n)
	}
}

// run times f by one goroutine, and by many at once.
func run(b *testing.B, name string, f func(i int) error) {
	b.Run("1 goroutine/"+name, func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if err := f(i); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("128 goroutines/"+name, func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(64) // of two processors
		var seed atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			for i := int(seed.Add(7919)); pb.Next(); i++ {
				if err := f(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

func BenchmarkMemoryHitInt64(b *testing.B) {
	key := func(i int) int64 { return int64(i) * 1_000_003 }
	benchMemory(b, key)
	benchLoader(b, key)
}

func BenchmarkMemoryHitString(b *testing.B) {
	key := func(i int) string { return fmt.Sprintf("product:%012d", i) }
	benchMemory(b, key)
	benchLoader(b, key)
}

// A hit in Redis, decoding included, on keys that differ.
func BenchmarkRedisHit(b *testing.B) {
	server := testenv.SharedRedis(b)
	rdb := server.Client(b)
	c, err := New(rdb, &noMemory)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	l, err := NewLoader(c, "row", func(_ context.Context, id int64) (benchRow, error) { return row(id), nil }, nil)
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	for id := range benchKeys {
		if _, err := l.Get(ctx, int64(id)); err != nil {
			b.Fatal(err)
		}
		v, _ := json.Marshal(row(int64(id)))
		if err := rdb.Set(ctx, fmt.Sprint("raw:", id), v, time.Hour).Err(); err != nil {
			b.Fatal(err)
		}
	}
	run(b, "raw", func(i int) error {
		payload, err := rdb.Get(ctx, fmt.Sprint("raw:", i%benchKeys)).Bytes()
		if err != nil {
			return err
		}
		var v benchRow
		return json.Unmarshal(payload, &v)
	})
	run(b, "cacheaside", func(i int) error {
		_, err := l.Get(ctx, int64(i%benchKeys))
		return err
	})
	if n := l.Stats().Loads; n != benchKeys {
		b.Errorf("%d loads", n)
	}
}

package promises

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Each benchmark has a baseline, raw, and the library on the same work. `make bench` runs them in
// turn and prints the ratios.

type benchRow struct {
	ID    int64
	Name  string
	Text  string
	Price float64
}

func row(id int64) benchRow {
	return benchRow{ID: id, Name: fmt.Sprint("product ", id), Text: strings.Repeat("x", 200), Price: 9.99}
}

const benchKeys = 1000

func benchMemory[K ristretto.Key](b *testing.B, key func(int) K) {
	keys := make([]K, benchKeys)
	for i := range keys {
		keys[i] = key(i)
	}
	floor, err := ristretto.NewCache(&ristretto.Config[K, *benchRow]{NumCounters: 10 * benchKeys * 10,
		MaxCost: 64 << 20, BufferItems: 64})
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
	l := remembering(b, testenv.SharedRedis(b), keys)
	before := l.Stats()
	ctx := b.Context()
	run(b, "cacheaside", func(i int) error {
		_, err := l.Get(ctx, keys[i%benchKeys])
		return err
	})
	if s := l.Stats(); s.Gets-before.Gets != s.MemoryHits-before.MemoryHits {
		b.Errorf("not all reads are hits: %+v", s)
	}
}

// remembering returns a loader with keys in memory that receives invalidations through a real
// Redis.
func remembering[K comparable](b *testing.B, server *testenv.Redis, keys []K) *cacheaside.Loader[K, *benchRow] {
	b.Helper()
	c, err := cacheaside.New(server.Client(b), &patient)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewLoader(c, "row", func(context.Context, K) (*benchRow,
		error) {
		v := row(1)
		return &v, nil
	}, &cacheaside.LoaderOptions{MemoryTTL: time.Hour, TTL: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	hear(b, l)
	if _, err := l.GetMany(b.Context(), keys); err != nil {
		b.Fatal(err)
	}
	partsOf(c).memory.Wait()
	return l
}

// BenchmarkMemoryHitInvalidations measures hits in memory while another process invalidates other
// keys, a thousand times a second. The baseline ("raw") is without invalidations.
func BenchmarkMemoryHitInvalidations(b *testing.B) {
	keys := make([]int64, benchKeys)
	for i := range keys {
		keys[i] = int64(i) * 1_000_003
	}
	server := testenv.SharedRedis(b)
	l := remembering(b, server, keys)
	ctx := b.Context()
	hit := func(i int) error {
		_, err := l.Get(ctx, keys[i%benchKeys])
		return err
	}
	alone(b, "raw", hit)
	child := testenv.SpawnChild(b, "invalidator", "REDIS="+server.Addr)
	if line, err := child.ReadLine(testenv.Hang); err != nil {
		b.Fatal(line, err)
	}
	before, began := l.Stats(), time.Now()
	alone(b, "cacheaside", hit)
	took := time.Since(began)
	s := l.Stats()
	lost := s.Gets - before.Gets - (s.MemoryHits - before.MemoryHits)
	heard := s.Bus.Received - before.Bus.Received
	b.Logf("%.0f invalidations a second, %d hits lost to stripes that keys share (of %d), %.2f expected",
		float64(heard)/took.Seconds(), lost, s.Gets-before.Gets, float64(heard)*benchKeys/65536)
}

func init() { testenv.RegisterChild("invalidator", invalidator) }

// invalidator invalidates a thousand keys a second, one by one. None of them is a multiple of
// 1,000,003.
func invalidator() {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS"), ContextTimeoutEnabled: true})
	defer rdb.Close()
	c, err := newCache(rdb, &patient)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "row",
		func(context.Context, int64) (*benchRow, error) { return nil, cacheaside.ErrNotFound }, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println("begun")
	for i, tick := int64(1), time.NewTicker(time.Millisecond); ; i++ {
		<-tick.C
		if err := l.Invalidate(context.Background(), i*1_000_003+1); err != nil {
			panic(err)
		}
	}
}

// run measures f on one goroutine and on many.
func run(b *testing.B, name string, f func(i int) error) {
	alone(b, name, f)
	together(b, name, f)
}

func alone(b *testing.B, name string, f func(i int) error) {
	b.Run("1 goroutine/"+name, func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if err := f(i); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func together(b *testing.B, name string, f func(i int) error) {
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

// redisKeys is large enough that readers rarely share a round.
const redisKeys = 20_000

// filled returns a client of a real Redis, and a loader without a memory tier whose rows are all in
// Redis. The same rows are stored under "raw:" and the key.
func filled(b *testing.B) (*redis.Client, *cacheaside.Loader[int64, benchRow]) {
	rdb := redis.NewClient(&redis.Options{Addr: testenv.SharedRedis(b).Addr, ContextTimeoutEnabled: true})
	b.Cleanup(func() { rdb.Close() })
	c, err := newCache(rdb, &noMemory)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewBatchLoader(c, "row", func(_ context.Context, ids []int64) (map[int64]benchRow, error) {
		rows := make(map[int64]benchRow)
		for _, id := range ids {
			rows[id] = row(id)
		}
		return rows, nil
	}, nil)
	if err != nil {
		b.Fatal(err)
	}
	ids, pipe := make([]int64, redisKeys), rdb.Pipeline()
	for i := range ids {
		ids[i] = int64(i)
		v, _ := json.Marshal(row(ids[i]))
		pipe.Set(b.Context(), rawKey(i), v, time.Hour)
	}
	if _, err := pipe.Exec(b.Context()); err != nil {
		b.Fatal(err)
	}
	if found, err := l.GetMany(b.Context(), ids); len(found) != redisKeys || err != nil {
		b.Fatal(len(found), err)
	}
	b.Cleanup(func() {
		if n := l.Stats().Loads; n != redisKeys {
			b.Errorf("%d loads", n)
		}
	})
	return rdb, l
}

func rawKey(i int) string { return "raw:" + strconv.Itoa(i%redisKeys) }

func decodeRow(payload []byte, err error) error {
	if err != nil {
		return err
	}
	var v benchRow
	return json.Unmarshal(payload, &v)
}

// BenchmarkRedisHit measures a hit in Redis, including decoding, on different keys. It compares
// with a plain GET and, on many goroutines, with go-redis' AutoPipeline.
func BenchmarkRedisHit(b *testing.B) {
	rdb, l := filled(b)
	ctx := b.Context()
	pipeline, err := rdb.AutoPipeline()
	if err != nil {
		b.Fatal(err)
	}
	own := func(i int) error {
		_, err := l.Get(ctx, int64(i%redisKeys))
		return err
	}
	alone(b, "raw", func(i int) error { return decodeRow(rdb.Get(ctx, rawKey(i)).Bytes()) })
	alone(b, "cacheaside", own)
	together(b, "raw", func(i int) error { return decodeRow(pipeline.Get(ctx, rawKey(i)).Bytes()) })
	together(b, "cacheaside", own)
}

// BenchmarkGetMany100 measures 100 hits in Redis in one batch. It compares with a pipeline of 100
// GETs and the same decoding.
func BenchmarkGetMany100(b *testing.B) {
	rdb, l := filled(b)
	ctx := b.Context()
	alone(b, "raw", func(i int) error {
		pipe := rdb.Pipeline()
		cmds := make([]*redis.StringCmd, 100)
		for j := range cmds {
			cmds[j] = pipe.Get(ctx, rawKey(i+j))
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		rows := make(map[int64]benchRow, len(cmds))
		for j, cmd := range cmds {
			payload, err := cmd.Bytes()
			if err != nil {
				return err
			}
			var v benchRow
			if err := json.Unmarshal(payload, &v); err != nil {
				return err
			}
			rows[int64(j)] = v
		}
		return nil
	})
	alone(b, "cacheaside", func(i int) error {
		ids := make([]int64, 100)
		for j := range ids {
			ids[j] = int64((i + j) % redisKeys)
		}
		rows, err := l.GetMany(ctx, ids)
		if len(rows) != len(ids) {
			return fmt.Errorf("%d rows: %w", len(rows), err)
		}
		return err
	})
}

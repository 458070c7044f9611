package promises

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// onceKeys is the number of rows in Redis that the benchmarks of this file read one after another.
// Memory contains none of them, so each read of a row stores it in memory.
const onceKeys = 100_000

// once returns a client, and a loader with the memory tier. Redis has the rows 0 to onceKeys-1,
// and the same rows under the names of rawKey.
func once(b *testing.B) (*redis.Client, *cacheaside.Loader[int64, benchRow]) {
	b.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: testenv.SharedRedis(b).Addr, ContextTimeoutEnabled: true})
	b.Cleanup(func() { rdb.Close() })
	load := func(_ context.Context, ids []int64) (map[int64]benchRow, error) {
		rows := make(map[int64]benchRow, len(ids))
		for _, id := range ids {
			rows[id] = row(id)
		}
		return rows, nil
	}
	loader := func(o *cacheaside.Options) *cacheaside.Loader[int64, benchRow] {
		c, err := newCache(rdb, o)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		l, err := cacheaside.NewBatchLoader(c, "once", load, &cacheaside.LoaderOptions{TTL: 24 * time.Hour})
		if err != nil {
			b.Fatal(err)
		}
		return l
	}
	writer, l := loader(&noMemory), loader(&patient)
	pipe := rdb.Pipeline()
	for first := int64(0); first < onceKeys; first += 1000 {
		ids := make([]int64, 1000)
		for i := range ids {
			ids[i] = first + int64(i)
			v, _ := json.Marshal(row(ids[i]))
			pipe.Set(b.Context(), "once:"+strconv.FormatInt(ids[i], 10), v, time.Hour)
		}
		if found, err := writer.GetMany(b.Context(), ids); len(found) != len(ids) || err != nil {
			b.Fatal(len(found), err)
		}
		if _, err := pipe.Exec(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	hear(b, l)
	return rdb, l
}

// cpu returns the processor time that this process has used.
func cpu() time.Duration {
	var of syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &of)
	return time.Duration(of.Utime.Nano() + of.Stime.Nano())
}

// reportCPU returns a function that reports the processor time per operation since the call.
func reportCPU(b *testing.B) func() {
	began := cpu()
	return func() { b.ReportMetric(float64(cpu()-began)/1e3/float64(b.N), "cpu-us/op") }
}

// An onceBatch yields batches of 100 keys. Redis has share percent of them.
type onceBatch struct {
	cached int64 // the next key in Redis
	share  int
}

var nextMissing atomic.Int64

func (o *onceBatch) next() []int64 {
	ids := make([]int64, 100)
	for i := range ids {
		if i < o.share {
			ids[i] = o.cached % onceKeys
			o.cached++
		} else {
			ids[i] = onceKeys + nextMissing.Add(1)
		}
	}
	return ids
}

// byHand does the work of a program without this library: MGET, decode, load, encode, and SET.
func byHand(ctx context.Context, rdb *redis.Client, ids []int64) (map[int64]benchRow, error) {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = "once:" + strconv.FormatInt(id, 10)
	}
	values, err := rdb.MGet(ctx, names...).Result()
	if err != nil {
		return nil, err
	}
	rows := make(map[int64]benchRow, len(ids))
	var pipe redis.Pipeliner
	for i, value := range values {
		text, ok := value.(string)
		if !ok {
			if pipe == nil {
				pipe = rdb.Pipeline()
			}
			v := row(ids[i])
			p, err := json.Marshal(&v)
			if err != nil {
				return nil, err
			}
			pipe.Set(ctx, names[i], p, time.Hour)
			rows[ids[i]] = v
			continue
		}
		var v benchRow
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			return nil, err
		}
		rows[ids[i]] = v
	}
	if pipe != nil {
		_, err = pipe.Exec(ctx)
	}
	return rows, err
}

// BenchmarkOnceBatch reads batches of 100 keys that are not in memory. Redis has none, half or all
// of them.
func BenchmarkOnceBatch(b *testing.B) {
	rdb, l := once(b)
	ctx := b.Context()
	for _, share := range []int{0, 50, 100} {
		o := onceBatch{share: share}
		read := func(name string, f func(ids []int64) (map[int64]benchRow, error)) {
			b.Run(fmt.Sprintf("%d cached/%s", share, name), func(b *testing.B) {
				b.ReportAllocs()
				defer reportCPU(b)()
				for b.Loop() {
					if o.cached%onceKeys == 0 {
						partsOf(cacheOf(l)).memory.Clear(0)
					}
					if rows, err := f(o.next()); len(rows) != 100 || err != nil {
						b.Fatal(len(rows), err)
					}
				}
			})
		}
		read("raw", func(ids []int64) (map[int64]benchRow, error) { return byHand(ctx, rdb, ids) })
		read("cacheaside", func(ids []int64) (map[int64]benchRow, error) { return l.GetMany(ctx, ids) })
	}
	if n := l.Stats().MemoryHits; n > 0 {
		b.Errorf("%d hits in memory", n)
	}
}

// BenchmarkOnce reads single keys that are in Redis but not in memory.
func BenchmarkOnce(b *testing.B) {
	rdb, l := once(b)
	ctx := b.Context()
	pipeline, err := rdb.AutoPipeline()
	if err != nil {
		b.Fatal(err)
	}
	var next atomic.Int64
	read := func(goroutines int, name string, f func(id int64) error) {
		b.Run(fmt.Sprintf("%d goroutines/%s", goroutines, name), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(max(goroutines/2, 1)) // of two processors
			defer reportCPU(b)()
			one := func() bool {
				id := next.Add(1)
				if id%onceKeys == 0 {
					partsOf(cacheOf(l)).memory.Clear(0)
				}
				if err := f(id % onceKeys); err != nil {
					b.Error(err)
					return false
				}
				return true
			}
			if goroutines == 1 {
				for b.Loop() && one() {
				}
				return
			}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() && one() {
				}
			})
		})
	}
	own := func(id int64) error {
		_, err := l.Get(ctx, id)
		return err
	}
	read(1, "raw", func(id int64) error {
		return decodeRow(rdb.Get(ctx, "once:"+strconv.FormatInt(id, 10)).Bytes())
	})
	read(1, "cacheaside", own)
	for _, n := range []int{16, 128} {
		read(n, "raw", func(id int64) error {
			return decodeRow(pipeline.Get(ctx, "once:"+strconv.FormatInt(id, 10)).Bytes())
		})
		read(n, "cacheaside", own)
	}
}

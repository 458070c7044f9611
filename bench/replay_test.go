package bench

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// replay is a trace that a separate process replays, because some peers have memory that outlives
// their caches.
type replay struct {
	Peer       string
	Redis      string
	File       string
	Accesses   int // only the first accesses of the trace; 0: all
	Percent    int // share of the distinct rows that fit into memory
	Load       time.Duration
	Goroutines int
}

// replayed is the result of a replay.
type replayed struct {
	Accesses, Distinct, Loads int
	// Commands that read from Redis, without the second check at the start of a load.
	Reads       int
	Rows, Bytes int // the capacity of memory
	Heap        int // growth of the heap in bytes
	Took        time.Duration
	Err         string
}

func init() {
	testenv.RegisterChild("replay", func() {
		var of replay
		var r replayed
		out, err := muffle()
		if err == nil {
			err = json.Unmarshal([]byte(os.Getenv("REPLAY")), &of)
		}
		if err == nil {
			r, err = of.run()
		}
		if err != nil {
			r.Err = err.Error()
		}
		json.NewEncoder(out).Encode(r)
	})
}

// muffle discards the output that peers write to standard output and error, some of them for each
// access. It keeps the report of a crash. Messages to the parent go to out.
func muffle() (out *os.File, err error) {
	fd, err := syscall.Dup(1)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return os.NewFile(uintptr(fd), "out"),
		errors.Join(debug.SetCrashOutput(os.Stderr, debug.CrashOptions{}), // a copy of standard error
			syscall.Dup3(int(null.Fd()), 1, 0),
			syscall.Dup3(int(null.Fd()), 2, 0))
}

// start lets a child replay the trace.
func (r replay) start(t *testing.T) (result replayed) {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	child := testenv.SpawnChild(t, "replay", "REPLAY="+string(b))
	line, err := child.ReadLine(2 * time.Minute)
	if err == nil {
		err = json.Unmarshal([]byte(line), &result)
	}
	if err != nil {
		result.Err = err.Error()
	}
	return result
}

// rate returns the share of accesses that did not read from Redis (without Redis: that did not
// load). Some of them have waited for another access that did.
func (r replayed) rate(p Peer) any {
	switch {
	case !p.Memory:
		return "none"
	case !p.Redis:
		return percent(1 - float64(r.Loads)/float64(r.Accesses))
	default:
		return percent(1 - float64(r.Reads)/float64(r.Accesses))
	}
}

func percent(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) }

func (r replayed) perSecond() float64 { return float64(r.Accesses) / r.Took.Seconds() }

// rowBytes returns the size of a row in memory: its key, fields and strings. It does not include
// this library's bookkeeping, which counts against its budget.
func rowBytes(key string) int {
	return len(key) + int(unsafe.Sizeof(Row{})) + len(rowOf(key).Name) + textBytes
}

// textBytes is the length of a row's text.
const textBytes = 2 << 10

func (r replay) run() (result replayed, err error) {
	p, ok := peer(r.Peer)
	if !ok {
		return result, errors.New("no such peer")
	}
	accesses, keys, err := readTrace(r.File, r.Accesses)
	if err != nil {
		return result, err
	}
	ctx := context.Background()
	text := strings.Repeat("x", textBytes)
	// At least the 64 KiB that cacheaside needs.
	rows := max(len(keys)*r.Percent/100, 64<<10/rowBytes(keys[0])+1)
	var loads atomic.Int64
	config := Config{
		Redis: r.Redis, Patient: true, TTL: time.Hour, MemoryTTL: time.Hour,
		MemoryRows: rows, MemoryBytes: int64(rows * rowBytes(keys[0])),
		Load: func(_ context.Context, key string) (*Row, error) {
			loads.Add(1)
			if r.Load > 0 {
				time.Sleep(r.Load)
			}
			row := rowOf(key)
			row.Text = strings.Clone(text) // its own memory, as a row from a database has
			return row, nil
		},
	}
	cold, err := r.readsOfACold(ctx, p, config)
	if err != nil {
		return result, err
	}
	empty := heapInUse()
	c, err := p.Open(config)
	if err != nil {
		return result, err
	}
	defer c.Close()
	loads.Store(0)
	before, err := r.reads(ctx)
	if err != nil {
		return result, err
	}
	var failed atomic.Pointer[error]
	var next atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range r.Goroutines {
		wg.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(accesses) {
					return
				}
				key := keys[accesses[i]]
				row, err := c.Get(ctx, key)
				if err == nil && (!strings.HasSuffix(row.Name, key) || len(row.Text) != len(text)) {
					err = errors.New("the row of another key")
				}
				if err != nil {
					first := err
					failed.CompareAndSwap(nil, &first)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if err := failed.Load(); err != nil {
		return result, *err
	}
	after, err := r.reads(ctx)
	grown := heapInUse() - empty
	runtime.KeepAlive(accesses) // they count at the start too
	runtime.KeepAlive(keys)
	n := int(loads.Load())
	return replayed{Accesses: len(accesses), Distinct: len(keys), Loads: n, Reads: after - before - n*(cold-1),
		Rows: rows, Bytes: int(config.MemoryBytes), Heap: grown, Took: took}, err
}

// heapInUse returns the heap after a collection.
func heapInUse() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools are emptied
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// readsOfACold returns the number of commands that read from Redis for a key that does not exist.
// It is more than one if the peer checks twice.
func (r replay) readsOfACold(ctx context.Context, p Peer, config Config) (int, error) {
	if !p.Redis {
		return 1, nil
	}
	const n = 20
	config.NoMemory = true
	c, err := p.Open(config)
	if err != nil {
		return 0, err
	}
	before, err := r.reads(ctx)
	for i := 0; i < n && err == nil; i++ {
		_, err = c.Get(ctx, fmt.Sprint("cold:", i))
	}
	if err != nil {
		return 0, errors.Join(err, c.Close())
	}
	after, err := r.reads(ctx)
	return max(1, (after-before)/n), errors.Join(err, c.Close())
}

var readCommand = regexp.MustCompile(`(?m)^cmdstat_(?:get|getex|mget|hget|hmget|hgetall):calls=(\d+)`)

// reads returns the number of read commands that Redis has executed, including those of scripts.
func (r replay) reads(ctx context.Context) (n int, err error) {
	rdb := redis.NewClient(&redis.Options{Addr: r.Redis})
	defer rdb.Close()
	info, err := rdb.Info(ctx, "commandstats", "stats").Result()
	if r.Peer == own { // its MGETs each read many keys
		return keyspace(info), err
	}
	for _, m := range readCommand.FindAllStringSubmatch(info, -1) {
		calls, _ := strconv.Atoi(m[1])
		n += calls
	}
	return n, err
}

func peer(name string) (Peer, bool) {
	for _, p := range registered {
		if p.Name == name {
			return p, true
		}
	}
	return Peer{}, false
}

// readTrace reads the first n accesses of a trace, or all: a gzip stream of big-endian 32-bit
// integers. An access is the index of its key in keys.
func readTrace(file string, n int) (accesses []int32, keys []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, nil, err
	}
	in := bufio.NewReaderSize(z, 1<<16)
	places := map[int32]int32{}
	var b [4]byte
	for n == 0 || len(accesses) < n {
		if _, err = io.ReadFull(in, b[:]); err == io.EOF {
			break
		} else if err != nil {
			return nil, nil, err
		}
		id := int32(binary.BigEndian.Uint32(b[:]))
		place, ok := places[id]
		if !ok {
			place = int32(len(keys))
			places[id] = place
			keys = append(keys, fmt.Sprintf("product:%010d", id))
		}
		accesses = append(accesses, place)
	}
	return accesses, keys, nil
}

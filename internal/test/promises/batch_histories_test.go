package promises

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Batches overlap at random, on many goroutines in several processes.

func init() { testenv.RegisterChild("batches", batchChild) }

const (
	batchKeys  = 2000
	batchCold  = batchKeys / 2 // not cached at the start
	batchSize  = 100
	batchLoad  = 20 * time.Millisecond
	batchStart = "go" // the processes wait for this on the channel of the same name
)

// batchReport is the report of a process.
type batchReport struct {
	Loads map[int]int // by key
	Calls int         // of the load function
	Trips int64       // to Redis: commands and pipelines
	Wrong int         // wrong values
	Stats cacheaside.Stats
}

// trips counts the round trips of a client.
type trips struct {
	n       atomic.Int64
	scripts atomic.Int64  // trips that run a script
	takes   time.Duration // minimum time of each
}

func (t *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (t *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		t.count(cmd)
		return next(ctx, cmd)
	}
}

func (t *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		t.count(cmds[0])
		return next(ctx, cmds)
	}
}

// count counts a trip by its first command. It ignores the commands that set up a connection, whose
// number depends on concurrent trips, and polls, which are sent at fixed times.
func (t *trips) count(cmd redis.Cmder) {
	switch cmd.Name() {
	case "hello", "auth", "client", "select", "subscribe", "ping":
	default:
		if !isPoll(cmd) {
			t.n.Add(1)
			if strings.HasPrefix(cmd.Name(), "eval") {
				t.scripts.Add(1)
			}
			time.Sleep(t.takes)
		}
	}
}

// isPoll reports whether cmd asks for the number of the last announcement. It only reads, or it is
// a script, whose arguments are the key of that number and the names of loaders. The command of an
// announcement has five more.
func isPoll(cmd redis.Cmder) bool {
	args := cmd.Args()
	return cmd.Name() == "hmget" || strings.HasPrefix(cmd.Name(), "eval") && len(args) > 3 && len(args) < 9 &&
		strings.Contains(fmt.Sprint(args[3]), ":announced:")
}

func batchChild() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS"), PoolSize: 16})
	defer rdb.Close()
	count := &trips{}
	rdb.AddHook(count)
	seed, _ := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	process, _ := strconv.ParseUint(os.Getenv("PROCESS"), 10, 64)
	o, _ := unhurried(noMemory, nil)
	c, err := newCache(rdb, &o)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	var mu sync.Mutex
	report := batchReport{Loads: make(map[int]int)}
	l, err := cacheaside.NewBatchLoader(c, "row", func(_ context.Context, keys []int) (map[int]string, error) {
		rows := make(map[int]string)
		mu.Lock()
		report.Calls++
		for _, key := range keys {
			report.Loads[key]++
			rows[key] = fmt.Sprint("row ", key)
		}
		mu.Unlock()
		time.Sleep(batchLoad)
		return rows, nil
	}, nil)
	if err != nil {
		panic(err)
	}
	sub := rdb.Subscribe(ctx, batchStart)
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	if _, err := sub.ReceiveMessage(ctx); err != nil {
		panic(err)
	}
	count.n.Store(0)
	var wg sync.WaitGroup
	for g := range fleetCallers {
		wg.Go(func() {
			keys := rand.New(rand.NewPCG(seed, process*fleetCallers+uint64(g))).Perm(batchKeys)[:batchSize]
			found, err := l.GetMany(ctx, keys)
			wrong := 0
			for _, key := range keys {
				if found[key] != fmt.Sprint("row ", key) {
					wrong++
				}
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				wrong++
			}
			mu.Lock()
			defer mu.Unlock()
			report.Wrong += wrong
		})
	}
	wg.Wait()
	report.Trips = count.n.Load()
	report.Stats = l.Stats()
	json.NewEncoder(os.Stdout).Encode(report)
}

// Each key is loaded once in the fleet, and a batch takes at most four round trips, even if batches
// overlap.
func TestOverlappingBatches(t *testing.T) {
	seeds := 1
	if accepting {
		seeds = 20
	}
	server := testenv.SharedRedis(t)
	admin := server.Client(t)
	for seed := range seeds {
		if err := admin.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		warm := startMany(t, server.Client(t), newShelf(batchKeys), noMemory, nil)
		if found, err := warm.GetMany(t.Context(), upTo(batchKeys)[batchCold:]); len(found) != batchKeys-batchCold ||
			err != nil {
			t.Fatal(len(found), err)
		}
		var children []*testenv.Child
		for process := range fleetProcesses {
			children = append(children, testenv.SpawnChild(t, "batches", "REDIS="+server.Addr,
				"SEED="+strconv.Itoa(seed), "PROCESS="+strconv.Itoa(process)))
		}
		for _, c := range children {
			if line, err := c.ReadLine(testenv.Hang); line != "ready" {
				t.Fatal(line, err)
			}
		}
		began := time.Now()
		admin.Publish(t.Context(), batchStart, "")
		loads, all := make(map[int]int), batchReport{}
		for _, c := range children {
			line, err := c.ReadLine(testenv.Hang)
			if err != nil {
				t.Fatal(err)
			}
			var r batchReport
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err, line)
			}
			for key, n := range r.Loads {
				loads[key] += n
			}
			all.Calls += r.Calls
			all.Trips += r.Trips
			all.Wrong += r.Wrong
			all.Stats.Unvalidated += r.Stats.Unvalidated
			all.Stats.Refused += r.Stats.Refused
			all.Stats.RedisErrors += r.Stats.RedisErrors
		}
		again := 0
		for key, n := range loads {
			if n != 1 || key >= batchCold {
				again++
			}
		}
		perBatch := float64(all.Trips) / (fleetProcesses * fleetCallers)
		t.Logf("seed %d: %d batches of %d in %v: %d cold keys loaded by %d calls, %.2f round trips a batch",
			seed, fleetProcesses*fleetCallers, batchSize, time.Since(began).Round(time.Millisecond), len(loads),
			all.Calls, perBatch)
		if again > 0 || len(loads) != batchCold {
			t.Errorf("%d of %d keys are loaded twice or although they are cached", again, len(loads))
		}
		if perBatch > 4 {
			t.Errorf("a batch takes %.2f round trips, want at most 4", perBatch)
		}
		if all.Wrong > 0 || all.Stats != (cacheaside.Stats{}) {
			t.Errorf("%d wrong values, %+v", all.Wrong, all.Stats)
		}
	}
}

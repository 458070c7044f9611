package promises

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/invalidation"
	"github.com/cacheaside/cacheaside/internal/rows"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Two processes read, write and refresh a few keys at random. Their results must be those of a
// sequential register for each key.

func init() { testenv.RegisterChild("history", historyChild) }

const (
	historyKeys       = 4
	historyGoroutines = 8
)

// event is one operation of the history.
type event struct {
	Goroutine, Key int
	Write          bool
	Value          string
	Previous       string // of a write: the replaced value, if the database returns it
	Moves          bool   // a write after which only the groups of the two values were invalidated
	Call, Return   int64  // Unix nanoseconds: both processes have the same clock
}

// historyReport is the report of a process.
type historyReport struct {
	mu          sync.Mutex
	Events      []event
	Unvalidated int // reads that Redis has not confirmed; they are not in Events
	// Writes whose commit came so late that their holds may have ended, so nothing is promised.
	Paused int
	Stats  cacheaside.Stats
}

func (h *historyReport) add(events ...event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Events = append(h.Events, events...)
}

// pause counts a paused write.
func (h *historyReport) pause() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Paused++
}

// read records a read that has just returned.
func (h *historyReport) read(e event, out *fetch.Round) {
	e.Value, e.Return = rows.Value[string](out.Value), time.Now().UnixNano()
	if !out.Unvalidated {
		h.add(e)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Unvalidated++
}

// historyProcess is one of the processes. A second Redis stands in for the database.
type historyProcess struct {
	rdb, db *redis.Client
	cache   *cacheaside.Cache
	length  time.Duration
	steps   int // of each goroutine, instead of a duration
	seed    uint64
	number  int
	report  historyReport
}

// historyLoads are the options of its loader.
var historyLoads = cacheaside.LoaderOptions{TTL: 20 * time.Millisecond, Jitter: 0.5, NullTTL: 20 * time.Millisecond,
	LoadTimeout: time.Minute}

func startHistory(options cacheaside.Options) *historyProcess {
	p := &historyProcess{
		rdb: redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS"), PoolSize: 32, ReadTimeout: testenv.Hang}),
		db:  redis.NewClient(&redis.Options{Addr: os.Getenv("DATABASE"), PoolSize: 32, ReadTimeout: testenv.Hang}),
	}
	p.length, _ = time.ParseDuration(os.Getenv("LENGTH"))
	p.steps, _ = strconv.Atoi(os.Getenv("STEPS"))
	p.seed, _ = strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	p.number, _ = strconv.Atoi(os.Getenv("PROCESS"))
	var err error
	if p.cache, err = cacheaside.New(p.rdb, &options); err != nil {
		panic(err)
	}
	return p
}

func (p *historyProcess) load(ctx context.Context, key int) (string, error) {
	v, err := p.db.Get(ctx, strconv.Itoa(key)).Result()
	time.Sleep(rand.N(500 * time.Microsecond)) // so that invalidations often come during a load
	if errors.Is(err, redis.Nil) {
		err = cacheaside.ErrNotFound
	}
	return v, err
}

// write changes a row.
func (p *historyProcess) write(ctx context.Context, e event) {
	if err := p.db.Set(ctx, strconv.Itoa(e.Key), e.Value, 0).Err(); err != nil {
		panic(err)
	}
}

// run lets each goroutine execute one step after another, and reports.
func (p *historyProcess) run(l *cacheaside.Loader[int, string], step func(r *rand.Rand, e event, n int)) {
	var wg sync.WaitGroup
	end := time.Now().Add(p.length)
	for g := range historyGoroutines {
		goroutine := p.number*historyGoroutines + g
		wg.Go(func() {
			r := rand.New(rand.NewPCG(p.seed, uint64(goroutine)))
			for n := 0; n < p.steps || p.steps == 0 && time.Now().Before(end); n++ {
				step(r, event{Goroutine: goroutine, Key: r.IntN(historyKeys), Call: time.Now().UnixNano()}, n)
				time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
			}
		})
	}
	wg.Wait()
	p.report.Stats = l.Stats()
	json.NewEncoder(os.Stdout).Encode(&p.report)
	p.cache.Close()
	p.rdb.Close()
	p.db.Close()
}

func historyChild() {
	ctx := context.Background()
	o, _ := unhurried(noMemory, nil)
	p := startHistory(o)
	loadMany := func(ctx context.Context, keys []int) (map[int]string, error) {
		rows := make(map[int]string)
		for _, key := range keys {
			v, err := p.load(ctx, key)
			switch {
			case err == nil:
				rows[key] = v
			case !errors.Is(err, cacheaside.ErrNotFound):
				return nil, err
			}
		}
		return rows, nil
	}
	batches := os.Getenv("BATCHES") != ""
	l, err := cacheaside.NewLoader(p.cache, "row", p.load, &historyLoads)
	if batches {
		l, err = cacheaside.NewBatchLoader(p.cache, "rows", loadMany, &historyLoads)
	}
	if err != nil {
		panic(err)
	}
	p.run(l, func(r *rand.Rand, e event, n int) {
		refresh := false
		switch kind := r.IntN(100); {
		case kind < 12:
			e.Write, e.Value = true, fmt.Sprint(e.Goroutine, "-", n)
			p.write(ctx, e)
			if err := l.Invalidate(ctx, e.Key); err != nil {
				panic(err)
			}
			e.Return = time.Now().UnixNano()
			p.report.add(e)
			return
		case kind < 20:
			refresh = true
		}
		if batches && r.IntN(2) == 0 {
			keys := r.Perm(historyKeys)[:2+r.IntN(historyKeys-1)]
			got := func(i int, r *fetch.Round) {
				e.Key = keys[i]
				p.report.read(e, r)
			}
			failed := func(_ int, err error) { panic(err) }
			if refresh {
				readerOf(l).RefreshMany(ctx, keys, got, failed)
			} else {
				readerOf(l).GetMany(ctx, fetch.Plain, keys, got, failed)
			}
			return
		}
		read := readerOf(l).Refresh
		if !refresh {
			read = func(ctx context.Context, key int) (*fetch.Round, error) {
				return readerOf(l).Get(ctx, fetch.Plain, key)
			}
		}
		out, err := read(ctx, e.Key)
		if err != nil {
			panic(err)
		}
		p.report.read(e, out)
	})
}

// watchHistory runs such processes, and returns their combined results.
func watchHistory(
	t *testing.T, child string, cache *testenv.Redis, processes int, length time.Duration, seed int, more ...string,
) ([]porcupine.Operation, *historyReport) {
	t.Helper()
	database, sum := testenv.StartRedis(t), new(historyReport)
	defer manyListeners(t, cache)()
	var history []porcupine.Operation
	var children []*testenv.Child
	for process := range processes {
		children = append(children,
			testenv.SpawnChild(t, child, append(more, "REDIS="+cache.Addr, "DATABASE="+database.Addr,
				"LENGTH="+length.String(), "SEED="+strconv.Itoa(seed), "PROCESS="+strconv.Itoa(process))...))
	}
	for _, c := range children {
		line, err := c.ReadLine(length + testenv.Hang)
		if err != nil {
			t.Fatal(err)
		}
		var r historyReport
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		for _, e := range r.Events {
			history = append(history, porcupine.Operation{ClientId: e.Goroutine, Input: e, Call: e.Call,
				Return: e.Return})
		}
		sum.Events = append(sum.Events, r.Events...)
		sum.Unvalidated += r.Unvalidated
		sum.Paused += r.Paused
		sum.Stats.Loads += r.Stats.Loads
		sum.Stats.Held += r.Stats.Held
		sum.Stats.Outdated += r.Stats.Outdated
		sum.Stats.Refused += r.Stats.Refused
		sum.Stats.RedisHits += r.Stats.RedisHits
		sum.Stats.Waits += r.Stats.Waits
		sum.Stats.StoredHeld += r.Stats.StoredHeld
		sum.Stats.HoldsLost += r.Stats.HoldsLost
	}
	return history, sum
}

// manyListeners subscribes so many listeners to the channel that announcements are gathered. The
// returned function ends them, and fails the test if no message had several announcements.
func manyListeners(t *testing.T, server *testenv.Redis) (end func()) {
	t.Helper()
	rdb, gathered := server.Client(t), 0
	var all sync.WaitGroup
	var subs []*redis.PubSub
	for i := range 30 {
		sub := rdb.Subscribe(t.Context(), invalidation.Topic("cacheaside", 0))
		if _, err := sub.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		subs = append(subs, sub)
		all.Go(func() {
			for m := range sub.Channel() {
				if decoded, err := invalidation.Decode([]byte(m.Payload)); i == 0 && err == nil {
					gathered += len(slices.Collect(decoded.Parts())) / 2
				}
			}
		})
	}
	return func() {
		for _, sub := range subs {
			sub.Close()
		}
		if all.Wait(); gathered == 0 {
			t.Error("no announcements were gathered")
		}
	}
}

// register is porcupine's model of one key.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, historyKeys)
		for _, op := range history {
			key := op.Input.(event).Key
			parts[key] = append(parts[key], op)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		e := input.(event)
		if e.Write {
			return true, e.Value
		}
		return e.Value == state, state
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

func TestHistoryIsLinearizable(t *testing.T) { testHistory(t, "") }

// The same with half of the reads in batches.
func TestHistoryOfBatchesIsLinearizable(t *testing.T) { testHistory(t, "yes") }

func testHistory(t *testing.T, batches string) {
	length, steps, seeds := time.Duration(0), 200, 1
	if accepting {
		length, steps, seeds = 20*time.Second, 0, 5
	}
	operations, refused := 0, int64(0)
	for seed := range seeds {
		history, sum := watchHistory(t, "history", testenv.SharedRedis(t), 2, length, seed, "BATCHES="+batches,
			"STEPS="+strconv.Itoa(steps))
		stats := sum.Stats
		operations, refused = operations+len(history), refused+stats.Refused
		began := time.Now()
		result := porcupine.CheckOperationsTimeout(register, history, 5*testenv.Hang)
		t.Logf("seed %d: %d operations, %d loads, %d refused, %d hits, %d waits, %d unvalidated reads left out; "+
			"checked in %v: %s",
			seed, len(history), stats.Loads, stats.Refused, stats.RedisHits, stats.Waits, sum.Unvalidated,
			time.Since(began).Round(time.Millisecond), result)
		if result != porcupine.Ok {
			t.Errorf("seed %d: %s", seed, result)
		}
		if accepting && (len(history) < 1000 || stats.Refused == 0) {
			t.Errorf("seed %d: too few operations for a verdict", seed)
		}
	}
	if operations < seeds*1000 || refused == 0 {
		t.Error("too few operations for a verdict")
	}
}

package cacheaside

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

// Two processes read, write and refresh a few keys at random; what they saw must be what a register for each key would have shown,
// one operation after the other.

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
	Call, Return   int64 // Unix nanoseconds: both processes have the same clock
}

// historyReport is what a process has seen.
type historyReport struct {
	Events      []event
	Unvalidated int // reads whose results Redis had not confirmed, which are not in Events
	Stats       Stats
}

// add records a read that has just returned.
func (r *historyReport) add(mu *sync.Mutex, e event, out *state[string]) {
	e.Value, e.Return = out.value, time.Now().UnixNano()
	mu.Lock()
	defer mu.Unlock()
	if out.unvalidated {
		r.Unvalidated++
	} else {
		r.Events = append(r.Events, e)
	}
}

// historyChild is one of the processes. A second Redis stands in for the database.
func historyChild() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS"), PoolSize: 32})
	defer rdb.Close()
	db := redis.NewClient(&redis.Options{Addr: os.Getenv("DATABASE"), PoolSize: 32})
	defer db.Close()
	length, _ := time.ParseDuration(os.Getenv("LENGTH"))
	seed, _ := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	process, _ := strconv.Atoi(os.Getenv("PROCESS"))

	c, err := New(rdb, &noMemory)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	load := func(ctx context.Context, key int) (string, error) {
		v, err := db.Get(ctx, strconv.Itoa(key)).Result()
		time.Sleep(rand.N(500 * time.Microsecond)) // so that an invalidation comes between often
		if errors.Is(err, redis.Nil) {
			err = ErrNotFound
		}
		return v, err
	}
	loadMany := func(ctx context.Context, keys []int) (map[int]string, error) {
		rows := make(map[int]string)
		for _, key := range keys {
			v, err := load(ctx, key)
			switch {
			case err == nil:
				rows[key] = v
			case !errors.Is(err, ErrNotFound):
				return nil, err
			}
		}
		return rows, nil
	}
	options := &LoaderOptions{TTL: 20 * time.Millisecond, Jitter: 0.5, NullTTL: 20 * time.Millisecond}
	batches := os.Getenv("BATCHES") != ""
	l, err := NewLoader(c, "row", load, options)
	if batches {
		l, err = NewBatchLoader(c, "rows", loadMany, options)
	}
	if err != nil {
		panic(err)
	}
	var mu sync.Mutex
	var report historyReport
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for g := range historyGoroutines {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(process*historyGoroutines+g)))
			for n := 0; time.Now().Before(end); n++ {
				e := event{Goroutine: process*historyGoroutines + g, Key: r.IntN(historyKeys), Call: time.Now().UnixNano()}
				keys, read := []int{e.Key}, l.reads
				switch p := r.IntN(100); {
				case p < 12:
					e.Write, e.Value = true, fmt.Sprint(e.Goroutine, "-", n)
					if err := db.Set(ctx, strconv.Itoa(e.Key), e.Value, 0).Err(); err != nil {
						panic(err)
					}
					if err := l.Invalidate(ctx, e.Key); err != nil {
						panic(err)
					}
					e.Return = time.Now().UnixNano()
					mu.Lock()
					report.Events = append(report.Events, e)
					mu.Unlock()
					keys = nil
				case p < 20:
					read = l.refreshes
				}
				if batches && len(keys) > 0 && r.IntN(2) == 0 {
					keys = r.Perm(historyKeys)[:2+r.IntN(historyKeys-1)]
				}
				if len(keys) == 1 {
					out, err := read.Do(ctx, e.Key)
					if err != nil {
						panic(err)
					}
					report.add(&mu, e, out)
				} else if len(keys) > 1 {
					rounds, errs := read.DoMany(ctx, keys)
					for i, key := range keys {
						if err := cmp.Or(errs[i], rounds[i].Err); err != nil {
							panic(err)
						}
						e.Key = key
						report.add(&mu, e, &rounds[i].Result)
					}
				}
				time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
			}
		})
	}
	wg.Wait()
	report.Stats = l.Stats()
	json.NewEncoder(os.Stdout).Encode(report)
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

// The same where half of the reads are of several keys at once.
func TestHistoryOfBatchesIsLinearizable(t *testing.T) { testHistory(t, "yes") }

func testHistory(t *testing.T, batches string) {
	length, seeds := 2*time.Second, 3
	if accepting {
		length, seeds = 20*time.Second, 5
	}
	for seed := range seeds {
		cache, database := testenv.SharedRedis(t), testenv.StartRedis(t)
		var children []*testenv.Child
		for process := range 2 {
			children = append(children, testenv.SpawnChild(t, "history", "REDIS="+cache.Addr, "DATABASE="+database.Addr,
				"LENGTH="+length.String(), "SEED="+strconv.Itoa(seed), "PROCESS="+strconv.Itoa(process), "BATCHES="+batches))
		}
		var history []porcupine.Operation
		var stats Stats
		unvalidated := 0
		for _, c := range children {
			line, err := c.ReadLine(length + 30*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			var r historyReport
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			for _, e := range r.Events {
				history = append(history, porcupine.Operation{ClientId: e.Goroutine, Input: e, Call: e.Call, Return: e.Return})
			}
			unvalidated += r.Unvalidated
			stats.Loads += r.Stats.Loads
			stats.Refused += r.Stats.Refused
			stats.RedisHits += r.Stats.RedisHits
			stats.Waits += r.Stats.Waits
		}
		began := time.Now()
		result := porcupine.CheckOperationsTimeout(register, history, time.Minute)
		t.Logf("seed %d: %d operations, %d loads, %d refused, %d hits, %d waits, %d unvalidated reads left out; checked in %v: %s",
			seed, len(history), stats.Loads, stats.Refused, stats.RedisHits, stats.Waits, unvalidated, time.Since(began).Round(time.Millisecond), result)
		if result != porcupine.Ok {
			t.Errorf("seed %d: %s", seed, result)
		}
		if len(history) < 1000 || stats.Refused == 0 {
			t.Errorf("seed %d: too little happened to tell", seed)
		}
	}
}

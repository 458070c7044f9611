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

	"github.com/cacheaside/cacheaside/internal/flight"
	"github.com/cacheaside/cacheaside/internal/testenv"
)

// Two processes read a few keys at random, and write them under holds. All that is read must be what a register for each key would have shown, also what was loaded under a hold, and while a
// write is under way: from the commit on nobody reads what was there before.

func init() { testenv.RegisterChild("strict-history", strictHistoryChild) }

// strictReport is what a process has seen.
type strictReport struct {
	Events []event
	Paused int // writes whose commit came so late after their check that their holds may have ended: nothing is promised then
	Stats  Stats
}

// strictLife is longer than a process that is busy stands still, as a rule.
const strictLife = 2 * time.Second

func strictHistoryChild() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS"), PoolSize: 32})
	defer rdb.Close()
	db := redis.NewClient(&redis.Options{Addr: os.Getenv("DATABASE"), PoolSize: 32})
	defer db.Close()
	length, _ := time.ParseDuration(os.Getenv("LENGTH"))
	seed, _ := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	process, _ := strconv.Atoi(os.Getenv("PROCESS"))
	options := strict
	options.LeaseTTL = strictLife
	c, err := New(rdb, &options)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	l, err := NewLoader(c, "row", func(ctx context.Context, key int) (string, error) {
		v, err := db.Get(ctx, strconv.Itoa(key)).Result()
		time.Sleep(rand.N(500 * time.Microsecond))
		if errors.Is(err, redis.Nil) {
			err = ErrNotFound
		}
		return v, err
	}, &LoaderOptions{TTL: 20 * time.Millisecond, Jitter: 0.5, NullTTL: 20 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	var mu sync.Mutex
	var report strictReport
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for g := range historyGoroutines {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(process*historyGoroutines+g)))
			for n := 0; time.Now().Before(end); n++ {
				e := event{Goroutine: process*historyGoroutines + g, Key: r.IntN(historyKeys), Call: time.Now().UnixNano()}
				read := l.reads
				switch p := r.IntN(100); {
				case p < 10:
					e.Write, e.Value = true, fmt.Sprint(e.Goroutine, "-", n)
					paused, written := strictWrite(ctx, r, l, db, e)
					e.Return = time.Now().UnixNano()
					mu.Lock()
					if report.Paused += paused; written {
						report.Events = append(report.Events, e)
					}
					mu.Unlock()
					read = nil
				case p < 12: // a relay repeats what was done long ago
					if err := c.InvalidateKeys(ctx, l.Key(e.Key)); err != nil {
						panic(err)
					}
					read = nil
				case p < 14:
					rdb.Del(ctx, redisKey(e.Key))
					read = nil
				case p < 20:
					read = l.refreshes
				}
				if read != nil {
					for _, seen := range strictRead(ctx, r, read, e) {
						mu.Lock()
						report.Events = append(report.Events, seen)
						mu.Unlock()
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

// strictWrite writes a row as a strict writer does.
func strictWrite(ctx context.Context, r *rand.Rand, l *Loader[int, string], db *redis.Client, e event) (paused int, written bool) {
	h, err := l.cache.Hold(ctx, l.Key(e.Key))
	if err != nil {
		panic(err)
	}
	defer func() {
		for h.Release(ctx) != nil {
		}
	}()
	checked := time.Now()
	if h.Check(ctx) != nil || r.IntN(10) == 0 { // rolled back
		return 0, false
	}
	linger := func() { time.Sleep(time.Duration(r.IntN(1500)) * time.Microsecond) } // so that others come between
	linger()
	if err := db.Set(ctx, strconv.Itoa(e.Key), e.Value, 0).Err(); err != nil {
		panic(err)
	}
	if time.Since(checked) > strictLife {
		paused = 1
	}
	linger()
	switch p := r.IntN(1000); {
	case p < 3:
		h.Abandon()
	case p < 700:
		if _, err := l.StoreHeld(ctx, h, e.Key, e.Value); err != nil {
			panic(err)
		}
	}
	return paused, true
}

// strictRead reads a key, or several at once.
func strictRead(ctx context.Context, r *rand.Rand, read *flight.Group[int, state[string]], e event) (seen []event) {
	keys := []int{e.Key}
	if r.IntN(4) == 0 {
		keys = r.Perm(historyKeys)[:2]
	}
	rounds, errs := read.DoMany(ctx, keys)
	e.Return = time.Now().UnixNano()
	for i, key := range keys {
		if err := cmp.Or(errs[i], rounds[i].Err); err != nil {
			panic(err)
		}
		e.Key, e.Value = key, rounds[i].Result.value
		seen = append(seen, e)
	}
	return seen
}

func TestStrictHistoryIsLinearizable(t *testing.T) {
	length, seeds := 2*time.Second, 2
	if accepting {
		length, seeds = 20*time.Second, 5
	}
	for seed := range seeds {
		if !strictHistory(t, length, seed) {
			strictHistory(t, length, seed) // a machine that stands still is no failure; twice is another thing
		}
	}
}

// strictHistory answers false if a process stood still for too long, so that nothing can be told.
func strictHistory(t *testing.T, length time.Duration, seed int) bool {
	t.Helper()
	cache, database := testenv.SharedRedis(t), testenv.StartRedis(t)
	inUse(t, backend{admin: cache.Client(t)}, time.Hour)
	var children []*testenv.Child
	for process := range 2 {
		children = append(children, testenv.SpawnChild(t, "strict-history", "REDIS="+cache.Addr, "DATABASE="+database.Addr,
			"LENGTH="+length.String(), "SEED="+strconv.Itoa(seed), "PROCESS="+strconv.Itoa(process)))
	}
	var history []porcupine.Operation
	var stats Stats
	paused, writes := 0, 0
	for _, c := range children {
		line, err := c.ReadLine(length + 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var r strictReport
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		for _, e := range r.Events {
			history = append(history, porcupine.Operation{ClientId: e.Goroutine, Input: e, Call: e.Call, Return: e.Return})
			if e.Write {
				writes++
			}
		}
		paused += r.Paused
		stats.Loads += r.Stats.Loads
		stats.Held += r.Stats.Held
		stats.Refused += r.Stats.Refused
		stats.RedisHits += r.Stats.RedisHits
		stats.StoredHeld += r.Stats.StoredHeld
		stats.HoldsLost += r.Stats.HoldsLost
	}
	began := time.Now()
	result := porcupine.CheckOperationsTimeout(register, history, time.Minute)
	t.Logf("seed %d: %d operations, %d of them writes, %d stored by them; %d loads, %d held, %d refused, %d hits, %d holds lost; checked in %v: %s",
		seed, len(history), writes, stats.StoredHeld, stats.Loads, stats.Held, stats.Refused, stats.RedisHits, stats.HoldsLost, time.Since(began).Round(time.Millisecond), result)
	if paused > 0 {
		t.Logf("%d writes stood still for longer than their holds", paused)
		return false
	}
	if result != porcupine.Ok {
		t.Errorf("seed %d: %s", seed, result)
	}
	if len(history) < 1000 || writes == 0 || stats.StoredHeld == 0 || stats.Held == 0 || stats.RedisHits == 0 {
		t.Errorf("seed %d: too little happened to tell", seed)
	}
	return true
}

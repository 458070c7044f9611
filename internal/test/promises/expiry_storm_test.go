package promises

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// In an expiry storm, four processes replay the reads of a real shop, with the same popularity of
// keys, and every value lives for a second.

func init() { testenv.RegisterChild("storm", stormChild) }

const (
	stormProcesses = 4
	stormReaders   = 8
	stormLoad      = 20 * time.Millisecond
)

// storm is the task of a process.
type storm struct {
	Redis   string
	Process int
	Length  time.Duration
	Rate    int // reads per second in each process
	Memory  bool
	Loader  cacheaside.LoaderOptions
}

// stormReport is the result of a process.
type stormReport struct {
	Took  []int64 // duration of each read, in microseconds
	Loads []*stormLoaded
	Wrong int
	Stats cacheaside.Stats
}

type stormLoaded struct {
	Key        int
	Begin, End int64 // Unix nanoseconds
	// The cost as the Loader measures it, or more: on a busy machine it exceeds End - Begin.
	Cost time.Duration
}

// stopwatch is an Observer that measures the cost of loads.
type stopwatch struct{ mu *sync.Mutex }

type stopwatchLoad struct{ of []*stormLoaded }

func (s stopwatch) Begin(ctx context.Context, op, _ string, _ int) (context.Context, func(error)) {
	if op != cacheaside.OpLoad {
		return ctx, func(error) {}
	}
	began, load := time.Now(), &stopwatchLoad{}
	return context.WithValue(ctx, stopwatch{}, load), func(error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range load.of {
			l.Cost = time.Since(began)
		}
	}
}

func stormChild() {
	var s storm
	if err := json.Unmarshal([]byte(os.Getenv("STORM")), &s); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{
		Addr: s.Redis, ContextTimeoutEnabled: true, PoolSize: 32,
		ReadTimeout: time.Minute, WriteTimeout: time.Minute, PoolTimeout: time.Minute,
	})
	defer rdb.Close()
	var mu sync.Mutex
	o := cacheaside.Options{RedisTimeout: time.Minute, ReadTimeout: time.Minute, LeaseTTL: time.Minute,
		QueueTimeout: time.Minute, Observer: stopwatch{&mu}}
	if !s.Memory {
		o.MemoryBytes = -1
	}
	c, err := newCache(rdb, &o)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	var report stormReport
	var reading atomic.Bool
	row := func(key int) string { return fmt.Sprintf("%0100d", key) }
	l, err := cacheaside.NewBatchLoader(c, "object", func(ctx context.Context, keys []int) (map[int]string, error) {
		begin := time.Now()
		if reading.Load() {
			time.Sleep(stormLoad)
		}
		end := time.Now()
		rows := make(map[int]string)
		load := ctx.Value(stopwatch{}).(*stopwatchLoad)
		mu.Lock()
		defer mu.Unlock()
		for _, key := range keys {
			rows[key] = row(key)
			load.of = append(load.of, &stormLoaded{Key: key, Begin: begin.UnixNano(), End: end.UnixNano()})
		}
		report.Loads = append(report.Loads, load.of...)
		return rows, nil
	}, &s.Loader)
	if err != nil {
		panic(err)
	}
	keys, err := traceKeys("../../../testdata/orm-busy-600k.trace.gz",
		int(float64(stormProcesses*s.Rate)*s.Length.Seconds()))
	if err != nil {
		panic(err)
	}
	if s.Process == 0 {
		for key, err := range warming(l, context.Background(),
			slices.Values(slices.Compact(slices.Sorted(slices.Values(keys)))), 0) {
			if err != nil {
				panic(fmt.Sprint(key, err))
			}
		}
	}
	fmt.Println("ready")
	fmt.Scanln()
	reading.Store(true)
	var wg sync.WaitGroup
	began := time.Now()
	for g := range stormReaders {
		wg.Go(func() {
			var took []int64
			wrong := 0
			for n := g; ; n += stormReaders {
				at := n*stormProcesses + s.Process
				if at >= len(keys) {
					break
				}
				time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(s.Rate))))
				start := time.Now()
				v, err := l.Get(context.Background(), keys[at])
				took = append(took, time.Since(start).Microseconds())
				if err != nil || v != row(keys[at]) {
					wrong++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			report.Took = append(report.Took, took...)
			report.Wrong += wrong
		})
	}
	wg.Wait()
	c.Close() // loads in progress end and are stored
	report.Stats = l.Stats()
	json.NewEncoder(os.Stdout).Encode(report)
}

// runStorm returns the combined results of all processes.
func runStorm(
	t *testing.T, length time.Duration, rate int, memory bool, lo cacheaside.LoaderOptions,
) (all stormReport) {
	t.Helper()
	r := testenv.StartRedis(t)
	var children []*testenv.Child
	for i := range stormProcesses {
		order, err := json.Marshal(storm{r.Addr, i, length, rate, memory, lo})
		if err != nil {
			t.Fatal(err)
		}
		children = append(children, testenv.SpawnChild(t, "storm", "STORM="+string(order)))
	}
	for _, c := range children {
		if line, err := c.ReadLine(testenv.Hang); err != nil || strings.TrimSpace(line) != "ready" {
			t.Fatal(line, err)
		}
	}
	for _, c := range children {
		if _, err := c.Stdin.Write([]byte("go\n")); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range children {
		var one stormReport
		line, err := c.ReadLine(length + testenv.Hang)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatal(err)
		}
		all.Took, all.Loads, all.Wrong = append(all.Took, one.Took...), append(all.Loads, one.Loads...), all.Wrong+
			one.Wrong
		all.Stats.Stale += one.Stats.Stale
		all.Stats.BackgroundRefreshes += one.Stats.BackgroundRefreshes
		all.Stats.EarlyRefreshes += one.Stats.EarlyRefreshes
		all.Stats.Waits += one.Stats.Waits
		all.Stats.Unvalidated += one.Stats.Unvalidated
		all.Stats.Refused += one.Stats.Refused
		all.Stats.RedisErrors += one.Stats.RedisErrors
	}
	slices.Sort(all.Took)
	return all
}

func (s stormReport) String() string {
	q := func(p float64) time.Duration {
		return time.Duration(s.Took[int(p*float64(len(s.Took)-1))]) * time.Microsecond
	}
	return fmt.Sprintf("%d reads: p50 %v, p90 %v, p99 %v, p99.9 %v, longest %v; %d loads, %d in the background (%d "+
		"of them early), %d stale, %d waits",
		len(s.Took), q(0.5), q(0.9), q(0.99), q(0.999), q(1), len(s.Loads), s.Stats.BackgroundRefreshes,
		s.Stats.EarlyRefreshes, s.Stats.Stale, s.Stats.Waits)
}

func (s stormReport) p99() time.Duration {
	return time.Duration(s.Took[len(s.Took)*99/100]) * time.Microsecond
}

// check fails if two loads of a key overlap, or are closer than the shortest TTL minus the time
// that may be early.
func (s stormReport) check(t *testing.T, ttl time.Duration, early float64) {
	t.Helper()
	if s.Wrong != 0 || s.Stats.Unvalidated != 0 || s.Stats.Refused != 0 || s.Stats.RedisErrors != 0 {
		t.Errorf("%d wrong values; %+v", s.Wrong, s.Stats)
	}
	slices.SortFunc(s.Loads, func(a, b *stormLoaded) int { return int(a.Begin - b.Begin) })
	last := make(map[int]*stormLoaded)
	closest := time.Hour
	for _, l := range s.Loads {
		before, again := last[l.Key]
		last[l.Key] = l
		if !again {
			continue
		}
		if l.Begin < before.End {
			t.Fatalf("overlapping loads of a key: one ends %v after the start of the next",
				time.Duration(before.End-l.Begin))
		}
		gap, took := time.Duration(l.Begin-before.End), before.Cost
		closest = min(closest, gap)
		if least := ttl - time.Duration(early*float64(took)) - fetch.Drift; gap < least {
			t.Errorf("a load takes %v, and the next begins %v after its end; want at least %v", took, gap, least)
		}
	}
	t.Logf("%d keys; the next load of a key began at the earliest %v after the end of the one before", len(last),
		closest.Round(time.Millisecond))
}

func TestExpiryStorm(t *testing.T) {
	const jitter = 0.1
	ttl := time.Second
	shortest := time.Duration((1 - jitter) * float64(ttl))
	with := cacheaside.LoaderOptions{TTL: ttl, StaleFor: time.Minute, Jitter: jitter, LoadTimeout: time.Minute}
	without := with
	without.StaleFor, without.EarlyRefresh = -1, -1
	never := with
	never.TTL = time.Hour
	for _, c := range []struct {
		name   string
		rate   int
		memory bool
	}{{"redis", 500, false}, {"redis, both processors busy", 2000, false}, {"memory", 2000, true}} {
		t.Run(c.name, func(t *testing.T) {
			rate, length, rounds := c.rate, 30*time.Second, 1
			if rate == 500 { // in alternating rounds, because the load of the machine changes
				rounds = 2
			}
			if !accepting {
				rate, length = 250, 2500*time.Millisecond
			}
			expiry := func(t *testing.T) stormReport {
				r := runStorm(t, length, rate, c.memory, with)
				t.Logf("expiry:    %v", r)
				// The chance of a refresh earlier than 24 times the cost is 4e-11 per read.
				r.check(t, shortest, 24)
				if r.Stats.Stale == 0 || r.Stats.BackgroundRefreshes == 0 {
					t.Errorf("%+v", r.Stats)
				}
				return r
			}
			bare := func(t *testing.T) {
				r := runStorm(t, length, rate, c.memory, without)
				t.Logf("without:   %v", r)
				r.check(t, shortest, 0)
				if r.Stats.Stale+r.Stats.BackgroundRefreshes != 0 {
					t.Errorf("%+v", r.Stats)
				}
			}
			if !accepting {
				if c.rate == 500 {
					return // it is for the ratio
				}
				t.Parallel()
				t.Run("expiry", func(t *testing.T) { t.Parallel(); expiry(t) })
				if !c.memory {
					t.Run("without", func(t *testing.T) { t.Parallel(); bare(t) })
				}
				return
			}
			var ratios []float64
			for range rounds {
				stormy := expiry(t)
				bare(t)
				quiet := runStorm(t, length, rate, c.memory, never)
				t.Logf("no expiry: %v", quiet)
				quiet.check(t, time.Hour, 0)
				ratios = append(ratios, float64(stormy.p99())/float64(quiet.p99()))
			}
			slices.Sort(ratios)
			t.Logf("p99 with expiry relative to without: %s", strings.Trim(fmt.Sprintf("%.2f", ratios), "[]"))
			// Above that the reloads take the processor from the readers.
			if c.rate == 500 && ratios[len(ratios)/2] > 1.5 {
				t.Errorf("the p99 of hits is %.2f times that without expiry", ratios[len(ratios)/2])
			}
		})
	}
}

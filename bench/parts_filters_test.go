//go:build accept

package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bits-and-blooms/bloom/v3"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"

	ownbloom "github.com/cacheaside/cacheaside/bloom"
)

// falsePositives is the rate that the filters are sized for.
const falsePositives = 0.01

// redisClient returns a client with the recommended settings.
func redisClient(t *testing.T, server *testenv.Redis) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { c.Close() })
	return c
}

// must fails the test if err is not nil.
func must[V any](v V, err error) func(t *testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// mixed returns n keys in an order that a processor cannot predict.
func mixed(what string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s:%010d", what, uint64(i)*0x9e3779b97f4a7c15>>31)
	}
	return all
}

// redisFilter creates a filter in Redis that contains the keys.
func redisFilter(t *testing.T, server *testenv.Redis, name string, capacity int, keys ...string) *ownbloom.Redis {
	t.Helper()
	f := must(ownbloom.NewRedis(redisClient(t, server), name, uint64(capacity), falsePositives,
		&ownbloom.Options{Timeout: 10 * time.Second}))(t)
	t.Cleanup(func() { f.Close() })
	must(f.Rebuild(t.Context(), ownbloom.Keys(keys...),
		&ownbloom.RebuildOptions{Settle: -1, AllowFewer: len(keys) == 0}))(t)
	return f
}

// TestFilters measures lookups and adds of filters in memory, and their false positives.
func TestFilters(t *testing.T) {
	n := size(1_000_000, 20_000)
	there, absent := mixed("user", n), mixed("none", 1<<16)
	ctx := t.Context()

	local := must(ownbloom.NewLocal(uint64(n), falsePositives))(t)
	defer local.Close()
	must(local.Rebuild(ctx, ownbloom.Keys(there...), nil))(t)
	state := must(local.State(ctx))(t)
	replica := must(ownbloom.NewReplica(redisFilter(t, testenv.SharedRedis(t), "users", n, there...)))(t)
	defer replica.Close()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) { // until the replica has its copy
		if may, known := replica.MightContainNow(absent[0]); known && !may {
			break
		}
		if time.Since(began) > 20*time.Second {
			t.Fatal("the Replica has no copy after 20 s")
		}
	}
	raw := bloom.NewWithEstimates(uint(n), falsePositives)
	same := bloom.New(uint(state.Bits), raw.K())
	for _, key := range there {
		raw.AddString(key)
		same.AddString(key)
	}

	const floor = "bits-and-blooms"
	type filter struct {
		name string
		has  func(key string) (bool, error)
		add  func(key string) error // nil: not measured
		bits uint64
	}
	theirs := func(f *bloom.BloomFilter) filter {
		return filter{
			has:  func(key string) (bool, error) { return f.TestString(key), nil },
			add:  func(key string) error { f.AddString(key); return nil },
			bits: uint64(f.Cap()),
		}
	}
	a, b := theirs(raw), theirs(same)
	a.name, b.name = floor, "bits-and-blooms, as many bits as Local"
	filters := []filter{a, b,
		{"cacheaside: Local", func(key string) (bool, error) { return local.MightContain(ctx, key) }, func(key string) error { return local.Add(ctx, key) }, state.Bits},
		{"cacheaside: Replica", func(key string) (bool, error) { return replica.MightContain(ctx, key) }, nil, state.Bits},
	}

	var hits, misses, adds []contender
	keys := there[:min(n, 1<<16)]
	for _, f := range filters {
		for _, key := range there {
			if may, err := f.has(key); !may || err != nil {
				t.Fatalf("%s does not find a key: %v", f.name, err)
			}
		}
		hits = append(hits, contender{name: f.name,
			op: func(i int) error { _, err := f.has(keys[i%len(keys)]); return err }})
		misses = append(misses, contender{name: f.name,
			op: func(i int) error { _, err := f.has(absent[i%len(absent)]); return err }})
		if f.add != nil { // keys that it contains already, so that it does not grow
			adds = append(adds, contender{name: f.name, op: func(i int) error { return f.add(keys[i%len(keys)]) }})
		}
	}
	runs, each := size(15, 3), size(150*time.Millisecond, 2*time.Millisecond)
	hit, miss, add := contest(t, runs, 1, each, hits), contest(t, runs, 1, each, misses), contest(t, runs, 1,
		each, adds)

	probes := mixed("probe", size(2_000_000, 100_000))
	table := &Table{Section: 14, Title: "Filters in memory",
		Text: fmt.Sprintf("%s keys with 1 %% false positives. One goroutine looks up keys that were added (hits) and "+
			"others (misses), and adds keys again. × is the ratio to bits-and-blooms in the same run. A Replica is a "+
			"copy of the filter in Redis, and reads the clock before it returns no; adds to it are adds to Redis. "+
			"The false positives are for %s keys that were not added.", thousands(fmt.Sprint(n)),
			thousands(fmt.Sprint(len(probes)))),
		Head: []string{"", "hit, ns", "×", "miss, ns", "×", "add, ns", "×", "allocations a lookup", "bits a key",
			"false positives, %"}}
	for _, f := range filters {
		cells := []any{f.name}
		for _, results := range [][]result{hit, miss, add} {
			if r := find(results, f.name); r != nil {
				cells = append(cells, median(r.ns), median(ratios(r.ns, find(results, floor).ns)))
			} else {
				cells = append(cells, "–", "–")
			}
		}
		wrong := 0
		for _, key := range probes {
			if may, err := f.has(key); err != nil {
				t.Fatal(err)
			} else if may {
				wrong++
			}
		}
		rate := 100 * float64(wrong) / float64(len(probes))
		if rate > 1.2 {
			t.Errorf("%s: the rate of false positives is %.2f %%", f.name, rate)
		}
		table.Row(append(cells, find(hit, f.name).allocs+find(miss, f.name).allocs, float64(f.bits)/float64(n),
			fmt.Sprintf("%.3f", rate))...)
	}
	publish(t, table)
	for _, way := range filters[2:] {
		bar(t, way.name+": a hit relative to bits-and-blooms",
			median(ratios(find(hit, way.name).ns, find(hit, floor).ns)), 1.15)
		bar(t, way.name+": a miss relative to bits-and-blooms",
			median(ratios(find(miss, way.name).ns, find(miss, floor).ns)), 1.15)
	}
}

// TestFilterAdds measures adds to filters in Redis.
func TestFilterAdds(t *testing.T) {
	n := size(1_000_000, 20_000)
	server, ctx := testenv.SharedRedis(t), context.Background()
	rdb := redisClient(t, server)
	bits, k := bloom.EstimateParameters(uint(n), falsePositives)
	if err := rdb.SetBit(ctx, "raw", int64(bits), 0).Err(); err != nil { // allocates all bits
		t.Fatal(err)
	}
	filter := redisFilter(t, server, "adds", n)
	keys := mixed("added", n)
	table := &Table{Section: 14, Title: "Adds to a filter in Redis",
		Text: fmt.Sprintf("A filter for %s keys with 1 %% false positives; one goroutine. The floor is a pipeline of "+
			"one SETBIT for each of a key's %d bits, with the hashes of bits-and-blooms. It does not notify other "+
			"processes and does not support rebuilds.", thousands(fmt.Sprint(n)), k),
		Head: []string{"keys at once", "", "us for a key", "middle half", "of the floor", "allocations a key"}}
	for _, at := range []int{1, 1000, size(20_000, 5000)} {
		next := func(i int) []string { i = i * at % (n - at + 1); return keys[i : i+at] }
		results := contest(t, size(9, 3), 1, size(200*time.Millisecond, 5*time.Millisecond), []contender{
			{name: "SETBIT, pipelined", op: func(i int) error {
				_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
					for _, key := range next(i) {
						for _, at := range bloom.Locations([]byte(key), k) {
							p.SetBit(ctx, "raw", int64(at%uint64(bits)), 1)
						}
					}
					return nil
				})
				return err
			}},
			{name: "cacheaside: AddMany", op: func(i int) error { return filter.AddMany(ctx, next(i)) }},
		})
		for _, r := range results {
			us := make([]float64, len(r.ns))
			for i, ns := range r.ns {
				us[i] = ns / float64(at) / 1000
			}
			table.Row(thousands(fmt.Sprint(at)), r.name, median(us), spread(us), median(ratios(r.ns, results[0].ns)),
				r.allocs/float64(at))
		}
	}
	publish(t, table)
}

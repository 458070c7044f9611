package promises

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
)

// attackRate is the rate of false positives of the attack's filter.
const attackRate = 0.01

// attackCost is the cost of an attack.
type attackCost struct {
	loads, commands, bytes int64
	took                   time.Duration
}

// A client requests keys that do not exist, each once. The test compares the cheapest settings
// without a filter, the default, and a full filter with a replica, which lets 1 % of the requests
// through. A load always caches the absence, so the first variant has the shortest NullTTL. Keys
// and hashes are the same in each run, and so are the false positives.
func TestMissingKeysAttack(t *testing.T) {
	requests := 10_000
	if accepting {
		requests = 1_000_000
	}
	var last attackCost
	for _, way := range []struct {
		name     string
		options  cacheaside.LoaderOptions
		requests int
	}{
		{"nulls for 10 ms", cacheaside.LoaderOptions{NullTTL: cacheaside.MinTTL, StaleFor: -1}, requests / 10},
		{"nulls for a minute", cacheaside.LoaderOptions{}, requests / 10},
		{"a replica", cacheaside.LoaderOptions{}, requests},
	} {
		if accepting {
			way.requests = requests
		}
		b := plainBackend(t) // a filter needs more commands than a loader
		if way.name == "a replica" {
			way.options.Filter = fullFilter(t, b, requests/4)
		}
		last = attack(t, b, way.requests, &way.options)
		of := func(n int64) float64 { return float64(n) / float64(way.requests) }
		t.Logf("%-18s %8d requests in %7v: %7d loads, %8d commands to Redis (%.3f a request), %5.1f MB in Redis "+
			"(%.0f bytes a request)",
			way.name, way.requests, last.took.Round(time.Millisecond), last.loads, last.commands, of(last.commands),
			float64(last.bytes)/1e6, of(last.bytes))
		if way.options.Filter == nil && last.loads != int64(way.requests) {
			t.Errorf("%s: %d loads", way.name, last.loads)
		}
	}
	if most := int64(attackRate * float64(requests) * 1.1); last.loads > most {
		t.Errorf("%d loads with a filter, want at most %d", last.loads, most)
	}
	const miss = 7 // commands, including those in scripts: see TestCommands
	polls := 20 * (2 + int64(last.took/(rarePolls.MaxStaleness/4)))
	if let := miss*last.loads + polls; last.commands > let {
		t.Errorf("%d commands with a filter, want at most %d for its false positives", last.commands, let)
	}
}

// fullFilter returns a replica of a filter at its capacity. None of its keys is requested.
func fullFilter(t *testing.T, b backend, keys int) cacheaside.Filter {
	rdb := b.client(t)
	f, err := bloom.NewRedis(rdb, "attacked", uint64(keys), attackRate,
		&bloom.Options{Timeout: 10 * time.Second, MaxStaleness: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	all := make([]string, keys)
	for i := range all {
		all[i] = "there" + strconv.Itoa(i)
	}
	if _, err := f.Rebuild(t.Context(), bloom.Keys(all...), &bloom.RebuildOptions{Settle: -1}); err != nil {
		t.Fatal(err)
	}
	r, err := bloom.NewReplica(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	waitFor(t, func() bool { return r.Stats().Copied })
	return r
}

// attack requests different keys without rows, 32 at a time.
func attack(t *testing.T, b backend, requests int, lo *cacheaside.LoaderOptions) (cost attackCost) {
	d := newTable(nil)
	o := rarePolls // no commands except for the requests
	o.MemoryBytes = 0
	p := start(t, b, d, o, lo)
	ask := func(n int, key func(i int) int) {
		var next atomic.Int64
		var all sync.WaitGroup
		for range 32 {
			all.Go(func() {
				for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
					if _, err := p.Get(t.Context(), key(i)); !errors.Is(err, cacheaside.ErrNotFound) {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	ask(500, func(i int) int { return -100 * i }) // loads the scripts and opens connections
	loads, commands, bytes := d.loads.Load(), b.commands(t), b.usedMemory(t)
	began := time.Now()
	ask(requests, func(i int) int { return i })
	return attackCost{d.loads.Load() - loads, b.commands(t) - commands, b.usedMemory(t) - bytes, time.Since(began)}
}

func (b backend) commands(t testing.TB) (n int64) {
	t.Helper()
	for _, calls := range b.calls(t) {
		n += int64(calls)
	}
	return n
}

func (b backend) usedMemory(t testing.TB) int64 {
	t.Helper()
	n, err := strconv.ParseInt(b.admin.InfoMap(t.Context(), "memory").Val()["Memory"]["used_memory"], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

package promises

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The database fails while two processes read 200 known keys. No read fails, and each key is loaded
// once per ErrorTTL to detect the recovery. Keys that are invalidated in this time are not served.
// For comparison, values without a second life are read too. Figures are reported on a real Redis.
func TestDatabaseFails(t *testing.T) {
	var server *testenv.Redis
	if accepting {
		server = testenv.StartRedis(t)
	}
	var out figures
	defer out.print(t)
	t.Run("all", func(t *testing.T) { // concurrently, because on a real Redis they mostly wait
		for _, c := range []struct {
			name     string
			memory   int64
			staleFor time.Duration
			breakAt  float64
		}{
			{"redis", -1, time.Hour, -1},
			{"memory", 0, time.Hour, -1},
			{"memory-breaker", 0, time.Hour, 0},
			{"redis-without", -1, -1, -1},
			{"memory-without", 0, -1, -1},
		} {
			if !accepting && (c.name == "memory" || c.name == "redis-without") {
				continue // the other combinations show the same
			}
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				f := &failing{staleFor: c.staleFor, breaker: c.breakAt >= 0, loads: make([][]time.Time, failingKeys)}
				lo := cacheaside.LoaderOptions{TTL: 200 * time.Millisecond, StaleFor: c.staleFor, ErrorTTL: failingTTL,
					BreakAt: c.breakAt}
				// And no reloads before the end, whose window ends with the value.
				if c.staleFor < 0 {
					lo.EarlyRefresh = -1
				}
				o := cacheaside.Options{Prefix: c.name, MemoryBytes: c.memory, MaxStaleness: 300 * time.Millisecond,
					RedisTimeout: 20 * time.Second, ReadTimeout: 20 * time.Second}
				run := func(t *testing.T, rdb redis.UniversalClient, length time.Duration) {
					f.length = length
					f.start(t, rdb, o, &lo)
					f.run(t)
					f.report(&out, c.name)
				}
				if accepting {
					run(t, keepsDeadlinesOf(t, server), 20*time.Second)
					return
				}
				synctest.Test(t, func(t *testing.T) {
					_, b := embedded(t)
					run(t, b.client(t), 2*time.Second)
					for _, p := range f.p {
						p.cache.Close()
					}
				})
			})
		}
	})
}

const failingTTL = 500 * time.Millisecond

// failingKeys and failingPause are smaller if no figures are reported.
var failingKeys, failingPause = failingSize()

func failingSize() (keys int, pause time.Duration) {
	if accepting {
		return 200, 4 * time.Millisecond
	}
	return 40, 20 * time.Millisecond
}

// failing is one run.
type failing struct {
	staleFor time.Duration // negative: there are no stale values
	breaker  bool
	length   time.Duration

	db *bigTable
	p  [2]reader

	mu    sync.Mutex
	loads [][]time.Time // of each key, while the database fails
	noted bool

	during seen
	closed seen // reads of invalidated keys
}

func (f *failing) start(t *testing.T, rdb redis.UniversalClient, o cacheaside.Options, lo *cacheaside.LoaderOptions) {
	f.db = newRows(failingKeys, time.Millisecond)
	f.db.begun = func(key int, _ int64) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.noted {
			f.loads[key] = append(f.loads[key], time.Now())
		}
	}
	for i := range f.p {
		f.p[i] = newReaderOn(t, rdb, f.db.load, o, lo)
		hear(t, f.p[i].Loader)
		for key := range failingKeys {
			if _, err := f.p[i].Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// keepsDeadlinesOf returns a client of server that keeps deadlines.
func keepsDeadlinesOf(t testing.TB, server *testenv.Redis) *redis.Client {
	o := server.Options()
	o.ContextTimeoutEnabled = true
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func (f *failing) note(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noted = on
}

// read lets both processes read the given keys for a while, and returns the results.
func (f *failing) read(t *testing.T, length time.Duration, first, last int) (all seen) {
	const readers = 16
	parts := make([]seen, readers)
	stop := swarm(readers, 1, func(g int, r *rand.Rand) {
		began := time.Now()
		v, err := f.p[g%2].Get(t.Context(), first+r.IntN(last-first))
		parts[g].add(time.Since(began), err)
		if err == nil && v != 1 {
			t.Errorf("Get returns %d, want 1", v)
		}
		time.Sleep(failingPause)
	})
	time.Sleep(length)
	stop()
	for g := range parts {
		all.merge(&parts[g])
	}
	return all
}

func (f *failing) run(t *testing.T) {
	f.read(t, 500*time.Millisecond, 0, failingKeys)
	f.db.broken.Store(true)
	time.Sleep(50 * time.Millisecond) // loads in flight end
	f.note(true)
	f.during = f.read(t, f.length, 0, failingKeys)
	f.note(false)
	f.checkPauses(t)
	if f.staleFor < 0 {
		if share := f.during.errorShare(); share < 0.5 {
			t.Errorf("without stale values only %.2f of the reads fail", share)
		}
		return
	}
	f.during.only(t) // nothing
	f.invalidateHalf(t)
	if rest := f.read(t, 200*time.Millisecond, failingKeys/2, failingKeys); len(rest.failed) > 0 {
		t.Errorf("keys that were not invalidated: %s", rest.errors())
	}
}

// invalidateHalf invalidates in one process, and waits MaxStaleness for the other to receive it.
func (f *failing) invalidateHalf(t *testing.T) {
	if err := f.p[0].Invalidate(t.Context(), upTo(failingKeys/2)...); err != nil {
		t.Fatal(err)
	}
	own := f.p[1]
	f.p[1] = f.p[0]
	f.closed = f.read(t, 300*time.Millisecond, 0, failingKeys/2)
	f.p[1] = own
	both := f.read(t, 700*time.Millisecond, 0, failingKeys/2)
	f.closed.merge(&both)
	kinds := []string{loadsOwn, loadFailed}
	if f.breaker {
		kinds = append(kinds, unavailable)
	}
	f.closed.only(t, kinds...)
	if given := len(f.closed.waits) - len(f.closed.failed); given > 0 {
		t.Errorf("%d of %d reads return an invalidated value", given, len(f.closed.waits))
	}
}

// gaps returns the shortest time between two loads of a key, and the number of loads.
func (f *failing) gaps() (least time.Duration, loads int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	least = time.Hour
	for _, times := range f.loads {
		loads += len(times)
		for i := 1; i < len(times); i++ {
			least = min(least, times[i].Sub(times[i-1]))
		}
	}
	return least, loads
}

// checkPauses fails if a key is loaded more than once per ErrorTTL in both processes together.
// Redis counts in milliseconds.
func (f *failing) checkPauses(t *testing.T) {
	least, loads := f.gaps()
	if least < failingTTL-5*time.Millisecond {
		t.Errorf("two loads of a key begin within %v", least)
	}
	most := failingKeys * (int(f.length/failingTTL) + 1)
	if loads > most || loads == 0 {
		t.Errorf("%d loads, at most %d", loads, most)
	}
	if !f.breaker && loads < most/4 { // loads test whether the database is back
		t.Errorf("%d loads, at least %d", loads, most/4)
	}
}

func (f *failing) report(out *figures, name string) {
	least, loads := f.gaps()
	apart := "-"
	if least < time.Hour {
		apart = least.Round(time.Millisecond).String()
	}
	line := "%-15s the database fails for %v: of %d reads %.1f %% failed (%s); %d loads of %d keys (at most %d are " +
		"allowed), of one key at least %s apart"
	args := []any{name + ":", f.length, len(f.during.waits), 100 * f.during.errorShare(), f.during.errors(), loads,
		failingKeys, failingKeys * (int(f.length/failingTTL) + 1), apart}
	if len(f.closed.waits) > 0 {
		line += "; of what was invalidated meanwhile %d reads, stale %d (%s)"
		args = append(args, len(f.closed.waits), len(f.closed.waits)-len(f.closed.failed), f.closed.errors())
	}
	out.add(line, args...)
}

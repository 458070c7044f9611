package promises

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// The cost of a hit.

// TestEachHitNearExpiryMayRefreshEarly: each hit near the end of a TTL draws a random number for
// the early refresh.
func TestEachHitNearExpiryMayRefreshEarly(t *testing.T) {
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "row", func(_ context.Context, key int64) (string, error) {
		time.Sleep(10 * time.Millisecond)
		return "1", nil
		// Near means less than 32 s before the end.
	}, &cacheaside.LoaderOptions{TTL: 10 * time.Second, Jitter: -1, EarlyRefresh: 100})
	if err != nil {
		t.Fatal(err)
	}
	var thrown int
	readerOf(l).Fetch.ExpRand = func() float64 { thrown++; return 0 }
	get := func() { l.Get(t.Context(), 123456789) }
	get()
	partsOf(c).memory.Wait()
	for range 101 {
		get()
	}
	if thrown != 101 {
		t.Errorf("%d random numbers are drawn, want 101", thrown)
	}
}

// An invalidation elsewhere also removes the keys in memory that share its stripe, one of 65,536.
func TestSharedStripesLoseFewHits(t *testing.T) {
	b := realBackend(t)
	const held, invalidated = 5_000, 1_000
	p := startMany(t, b.client(t), newShelf(held), patient, &cacheaside.LoaderOptions{BatchSize: 1000})
	hear(t, p.Loader)
	hits := func() int64 {
		before := p.Stats().MemoryHits
		p.GetMany(t.Context(), upTo(held))
		partsOf(p.cache).memory.Wait()
		return p.Stats().MemoryHits - before
	}
	waitFor(t, func() bool { return hits() >= held*9/10 }) // ristretto drops many values of a burst
	all := hits()
	for i := range invalidated {
		partsOf(p.cache).memory.Forget(readerOf(p.Loader).Keys.Hash(fmt.Sprint("other ", i)))
	}
	lost := all - hits()
	t.Logf("%d invalidations of other keys ended %d of %d hits: %.2f %%, each %.4f %%", invalidated, lost, all,
		100*float64(lost)/float64(all), 100*float64(lost)/float64(all)/invalidated)
	if lost > all*invalidated/65536*3/2 {
		t.Errorf("%d hits, %d lost", all, lost)
	}
}

// A hit in Redis is one GETRANGE. A miss is a GETRANGE, the lease (a SET) and the fill (a script,
// or a SET on servers that can compare). An invalidation is one DEL and one announcement. The
// package comment lists all commands.
func TestCommands(t *testing.T) {
	b := realBackend(t)
	d := newTable(map[int]string{1: "one"})
	rdb, polls := countsPolls(t, b)
	p := startOn(t, rdb, d, rarePolls, nil)
	p.Invalidate(t.Context(), 5)
	p.want(t, 0, "", cacheaside.ErrNotFound) // loads the scripts
	if _, err := p.Refresh(t.Context(), 0); !errors.Is(err, cacheaside.ErrNotFound) {
		t.Fatal(err)
	}
	polls.known(t)
	misses := missCost(t, b)
	did := func(what string, f func(), want map[string]int) {
		t.Helper()
		before := polls.callsBut(t, b)
		f()
		got := polls.callsBut(t, b)
		for name, n := range before {
			if got[name] -= n; got[name] == 0 {
				delete(got, name)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	did("a miss", func() { p.want(t, 1, "one", nil) }, misses(1, 0))
	did("a hit", func() { p.want(t, 1, "one", nil) }, map[string]int{"getrange": 1})
	did("a null hit", func() { p.want(t, 0, "", cacheaside.ErrNotFound) }, map[string]int{"getrange": 1})
	did("100 hits", func() {
		for range 100 {
			p.want(t, 1, "one", nil)
		}
	}, map[string]int{"getrange": 100})
	did("a refresh", func() { p.Refresh(t.Context(), 1) },
		map[string]int{"evalsha": 3, "getrange": 2, "time": 2, "pttl": 1, "setrange": 1, "set": 1,
			"hget": 2, "persist": 1, "hset": 1, "publish": 1})
	did("an invalidation", func() { p.Invalidate(t.Context(), 1) }, announced(1))
	checkDocumented(t, b)
}

// polls counts the polls of a client. Their number depends on the clock, so tests subtract them.
type polls struct {
	begun, ended atomic.Int64
	reads        atomic.Int64 // those that only read
}

func (p *polls) before(cmd redis.Cmder) {
	if isPoll(cmd) {
		p.begun.Add(1)
	}
}

func (p *polls) after(cmd redis.Cmder) {
	if isPoll(cmd) {
		if cmd.Name() == "hmget" {
			p.reads.Add(1)
		}
		p.ended.Add(1)
	}
}

// countsPolls returns a client of a real Redis and the counts of its polls.
func countsPolls(t testing.TB, b backend) (*redis.Client, *polls) {
	rdb, p := b.client(t).(*redis.Client), new(polls)
	rdb.AddHook(hooked{before: p.before, after: p.after})
	return rdb, p
}

// known waits until Redis has the script, and the script has registered the loader. Then all polls
// are alike.
func (p *polls) known(t testing.TB) {
	t.Helper()
	waitFor(t, func() bool { return p.ended.Load() > 0 && p.ended.Load() == p.begun.Load() })
}

// remove removes the calls of polls from calls: those of n polls, of which reads only read. script
// are the commands within the script of the others.
func (p *polls) remove(calls map[string]int, n, reads int64, script map[string]int) {
	calls["hmget"] -= int(reads)
	calls["persist"] -= int(n)
	calls["evalsha"] -= int(n - reads)
	for name, each := range script {
		calls[name] -= each * int(n-reads)
	}
}

// callsBut returns the server's calls without those of one loader's polls, whose script reads the
// time, a number, a generation and whether the loader has groups.
func (p *polls) callsBut(t testing.TB, b backend) map[string]int {
	t.Helper()
	for {
		n := p.ended.Load()
		calls := b.calls(t)
		if p.begun.Load() != n { // a poll is in flight
			time.Sleep(time.Millisecond)
			continue
		}
		p.remove(calls, n, p.reads.Load(), map[string]int{"time": 1, "hget": 3})
		return calls
	}
}

// checkDocumented fails if a command was used that the package comment does not list.
func checkDocumented(t *testing.T, b backend) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(b.calls(t))) {
		if !slices.Contains(documentedACL, "+"+name) && name != "flushall" && name != "script|flush" &&
			name != "function|flush" && name != "client|unpause" {
			t.Errorf("%s is used but not documented", name)
		}
	}
}

// missCost returns the commands of a batch with these numbers of misses and hits: for each miss a
// lookup, a lease and a fill. One script stores all values, and reads the lease of each. A server
// that supports SET with IFEQ stores each value with one such command.
func missCost(t testing.TB, b backend) func(misses, hits int) map[string]int {
	t.Helper()
	err := b.admin.Do(t.Context(), "set", "a key that is missing", "", "ifeq", "").Err()
	if compares := errors.Is(err, redis.Nil); compares {
		return func(misses, hits int) map[string]int {
			return map[string]int{"getrange": misses + hits, "set": 2 * misses}
		}
	}
	return func(misses, hits int) map[string]int {
		return map[string]int{"getrange": 2*misses + hits, "set": 2 * misses, "evalsha": 1}
	}
}

// announced returns the commands of an invalidation of n keys: a DEL for each, and one message.
func announced(n int) map[string]int {
	return map[string]int{"del": n, "evalsha": 1, "time": 1, "hget": 2, "persist": 1, "hset": 1, "publish": 1}
}

// Round trips do not depend on the number of keys: hits take one, misses three, invalidations one.
func TestRoundTrips(t *testing.T) {
	b := realBackend(t)
	flushAll(t, b)
	rdb, polls := countsPolls(t, b)
	count := &trips{}
	d := newShelf(2000)
	p := startMany(t, rdb, d, rarePolls, nil)
	// Loads the scripts and opens connections.
	p.wantMany(t, []int{1998, 1999}, rowsBetween(d, 1998, 2000))
	p.Get(t.Context(), 1998)
	p.Invalidate(t.Context(), 1998, 1999)
	p.Get(t.Context(), 1998)
	p.Invalidate(t.Context(), 1998)
	polls.known(t)
	misses := missCost(t, b)
	rdb.AddHook(count)
	took := func(what string, f func(), want int64, commands map[string]int) {
		t.Helper()
		calls := polls.callsBut(t, b)
		before := count.n.Load()
		f()
		if n := count.n.Load() - before; n != want {
			t.Errorf("%s: %d round trips, want %d", what, n, want)
		}
		for name, n := range polls.callsBut(t, b) {
			if n -= calls[name]; n != commands[name] {
				t.Errorf("%s: %d %s, want %d", what, n, name, commands[name])
			}
		}
	}
	rows := rowsOf(d, 100)
	took("100 misses", func() { p.wantMany(t, upTo(100), rows) }, 3, misses(100, 0))
	took("100 hits", func() { p.wantMany(t, upTo(100), rows) }, 1, map[string]int{"getrange": 100})
	took("half of them", func() { p.wantMany(t, upTo(200)[50:150], rowsBetween(d, 50, 150)) }, 3, misses(50, 50))
	took("a hit", func() { p.Get(t.Context(), 1) }, 1, map[string]int{"getrange": 1})
	took("a miss", func() { p.Get(t.Context(), 500) }, 3, misses(1, 0))
	took("an invalidation", func() { p.Invalidate(t.Context(), 1) }, 1, announced(1))
	took("100 invalidations", func() { p.Invalidate(t.Context(), upTo(100)...) }, 1, announced(100))
	if s := p.Stats(); s.RedisErrors != 0 {
		t.Errorf("%+v", s)
	}
}

func rowsBetween(d *batchTable, from, to int) map[int]string {
	rows := rowsOf(d, to)
	for key := range from {
		delete(rows, key)
	}
	return rows
}

// Concurrent lookups, leases and fills of different goroutines share trips to Redis. A single cold
// key takes three trips. Each trip takes a millisecond here.
func TestColdKeysShareTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		const readers, each = 48, 20
		p := startOn(t, b.client(t), newTable(nil), noMemory, nil)
		defer p.cache.Close()
		p.want(t, 0, "", cacheaside.ErrNotFound)
		count := &trips{takes: time.Millisecond}
		b.admin.AddHook(count)
		var all sync.WaitGroup
		for i := range readers {
			all.Go(func() {
				for j := range each {
					if _, err := p.Get(t.Context(), 1+i*each+j); !errors.Is(err, cacheaside.ErrNotFound) {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		n := count.n.Load()
		t.Logf("%d trips for %d cold keys", n, readers*each)
		if n > readers*each {
			t.Errorf("%d trips for %d cold keys", n, readers*each)
		}
	})
}

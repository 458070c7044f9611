package promises

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// setSlowTrip makes the caches of a test request leases with their first lookups if a trip to Redis
// takes at least d. A negative d means always.
func setSlowTrip(t *testing.T, d time.Duration) {
	old := fetch.SlowTrip
	fetch.SlowTrip = d
	t.Cleanup(func() { fetch.SlowTrip = old })
}

// On a slow network, keys that are often missing need two trips instead of three.
func TestSlowTrips(t *testing.T) {
	setSlowTrip(t, 500*time.Microsecond)
	for takes, want := range map[time.Duration]int64{0: 3, 400 * time.Microsecond: 3, time.Millisecond: 2} {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			d := newShelf(300)
			p := startMany(t, b.client(t), d, noMemory, nil)
			defer p.cache.Close()
			p.wantMany(t, []int{298, 299}, rowsBetween(d, 298, 300)) // loads the scripts
			count := &trips{takes: takes}
			b.admin.AddHook(count)
			time.Sleep(time.Minute) // the earlier, faster trips no longer count
			for i := range 40 {
				if _, err := p.Get(t.Context(), 1000+i); !errors.Is(err, cacheaside.ErrNotFound) {
					t.Fatal(err)
				}
			}
			p.GetMany(t.Context(), []int{2000, 2001}) // loads this script as well
			trips := func(what string, want int64, f func()) {
				t.Helper()
				before := count.n.Load()
				f()
				if n := count.n.Load() - before; n != want {
					t.Errorf("each trip takes %v: %s takes %d trips, want %d", takes, what, n, want)
				}
			}
			trips("a miss", want, func() { p.Get(t.Context(), 1) })
			trips("50 misses", want, func() { p.wantMany(t, upTo(100)[50:], rowsBetween(d, 50, 100)) })
			trips("100 keys, of which 50 are missing", want,
				func() { p.wantMany(t, upTo(150)[50:], rowsBetween(d, 50, 150)) })
			for range 200 {
				trips("a hit", 1, func() { p.Get(t.Context(), 60) })
			}
			before := count.scripts.Load()
			trips("a hit where few lookups miss", 1, func() { p.Get(t.Context(), 60) })
			if count.scripts.Load() > before {
				t.Errorf("each trip takes %v: a hit runs a script although few lookups miss", takes)
			}
			if s := p.Stats(); s.RedisErrors != 0 || s.Unvalidated != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A process that only reads batches without hits also takes two trips.
func TestSlowTripsOfBatches(t *testing.T) {
	setSlowTrip(t, 500*time.Microsecond)
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newShelf(2000)
		for key := range d.rows {
			d.rows[key] = fmt.Sprintf("%0250d", key) // 100 of them are long: a fill shares no trip
		}
		p := startMany(t, b.client(t), d, noMemory, nil)
		defer p.cache.Close()
		count := &trips{takes: time.Millisecond}
		b.admin.AddHook(count)
		var n int64
		for i := range 20 {
			before := count.n.Load()
			p.wantMany(t, upTo(2000)[100*i:][:100], rowsBetween(d, 100*i, 100*i+100))
			n = count.n.Load() - before
		}
		if n != 2 {
			t.Errorf("100 misses take %d trips, want 2", n)
		}
	})
}

// Reads that request leases with their first lookups keep all promises. That they do so does not
// depend on the kind of Redis.
func TestLeaseFirst(t *testing.T) {
	setSlowTrip(t, -1)
	if !accepting {
		onlyServer = true
		t.Cleanup(func() { onlyServer = false })
	}
	for name, test := range map[string]func(*testing.T){
		"Behaviour":             TestBehaviour,
		"Batches":               TestOverlappingBatches,
		"Miss":                  TestStaleSetMiss,
		"DEL":                   TestStaleSetPlainDEL,
		"Refresh":               TestStaleSetRefresh,
		"ExpiredLease":          TestStaleSetExpiredLease,
		"ABA":                   TestStaleSetWithSecondLease,
		"Twice":                 TestStaleSetSameProcessTwice,
		"RefusedFill":           TestStaleSetReloadAfterRefusedFill,
		"NoStaleJoin":           TestNoStaleJoin,
		"FailSafe":              TestFailSafe,
		"SoftTimeout":           TestSoftTimeout,
		"Stale":                 TestStaleIsServedWhileItIsReloaded,
		"UnknownCodec":          TestUnknownCodec,
		"MaxValueBytes":         TestMaxValueBytes,
		"LongKeys":              TestLongKeys,
		"ReadsWhileRedisIsDown": TestReadsWhileRedisIsDown,
		"ReadTimeout":           TestReadTimeout,
		"NotFound":              TestNotFound,
	} {
		t.Run(name, test)
	}
}

// batchesOf50 reads 50 stored keys, and another one if there is one, five times. It returns the
// hits and the loaded rows.
func batchesOf50(t *testing.T, p many, d *batchTable, keys int) (hits, loads int) {
	t.Helper()
	load := func() (n int) {
		rows, _ := d.loaded()
		for _, times := range rows {
			n += times
		}
		return n
	}
	before, loaded := p.Stats(), load()
	for range 5 {
		p.wantMany(t, upTo(keys), rowsBetween(d, 0, keys))
	}
	return int(p.Stats().RedisHits - before.RedisHits), load() - loaded
}

// A key that makes the script fail is the only miss of its batch.
func TestLeaseFirstOfAForeignKey(t *testing.T) {
	setSlowTrip(t, -1)
	_, b := embedded(t)
	d := newShelf(50)
	p := startMany(t, b.client(t), d, noMemory, nil)
	p.wantMany(t, upTo(50), rowsBetween(d, 0, 50))
	p.Get(t.Context(), 1) // the size of an entry is known
	names := b.admin.Keys(t.Context(), "*{7}").Val()
	if len(names) != 1 {
		t.Fatal(names)
	}
	noError(t, b.admin.Del(t.Context(), names...).Err())
	noError(t, b.admin.RPush(t.Context(), names[0], "x").Err())
	if hits, loads := batchesOf50(t, p, d, 50); hits != 5*49 || loads != 5 {
		t.Errorf("%d hits, %d loads", hits, loads)
	}
}

// A full Redis refuses leases, and still returns its entries.
func TestLeaseFirstWhenRedisIsFull(t *testing.T) {
	setSlowTrip(t, -1)
	server := testenv.StartRedis(t, "--maxmemory-policy", "noeviction")
	d := newShelf(51)
	p := startMany(t, server.Client(t), d, noMemory, nil)
	p.wantMany(t, upTo(50), rowsBetween(d, 0, 50))
	p.Get(t.Context(), 1) // the size of an entry is known
	noError(t, server.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err())
	if hits, loads := batchesOf50(t, p, d, 51); hits != 5*50 || loads != 5 {
		t.Errorf("%d hits, %d loads", hits, loads)
	}
}

// replies records the largest number of bytes in the replies of one trip.
type replies struct{ most int }

func (r *replies) count(cmds ...redis.Cmder) {
	n := 0
	for _, cmd := range cmds {
		n += len(cmd.String())
	}
	r.most = max(r.most, n)
}

func (*replies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *replies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer r.count(cmd)
		return next(ctx, cmd)
	}
}

func (r *replies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer r.count(cmds...)
		return next(ctx, cmds)
	}
}

// Long entries are read in parts, also by lookups that could request leases.
func TestLeaseFirstOfLongEntries(t *testing.T) {
	setSlowTrip(t, -1)
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newShelf(0)
		for i := range 100 {
			d.rows[i] = strings.Repeat("x", 40<<10)
		}
		p := startMany(t, b.client(t), d, noMemory, nil)
		defer p.cache.Close()
		for i := range 100 {
			p.Get(t.Context(), i)
			p.Get(t.Context(), i) // its size is known
		}
		r := &replies{}
		b.admin.AddHook(r)
		p.wantMany(t, upTo(100), rowsBetween(d, 0, 100))
		if r.most > 2<<20 {
			t.Errorf("a trip has %d bytes", r.most)
		}
	})
}

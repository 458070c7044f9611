package cacheaside

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// setSlowTrip lets the caches of a test request leases with their first lookups, if a trip to Redis
// takes at least d. A negative d: always.
func setSlowTrip(t *testing.T, d time.Duration) {
	old := slowTrip
	slowTrip = d
	t.Cleanup(func() { slowTrip = old })
}

// On a slow network, keys that are often missing need two trips instead of three.
func TestSlowTrips(t *testing.T) {
	setSlowTrip(t, 500*time.Microsecond)
	for takes, want := range map[time.Duration]int64{0: 3, time.Millisecond: 2} {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			d := newShelf(300)
			p := startMany(t, b.client(t), d, noMemory, nil)
			defer p.cache.Close()
			p.wantMany(t, []int{298, 299}, rowsBetween(d, 298, 300)) // Redis knows the scripts from now on
			count := &trips{takes: takes}
			b.admin.AddHook(count)
			for i := range 40 {
				if _, err := p.Get(t.Context(), 1000+i); !errors.Is(err, ErrNotFound) {
					t.Fatal(err)
				}
			}
			p.GetMany(t.Context(), []int{2000, 2001}) // Redis knows this script as well
			trips := func(what string, want int64, f func()) {
				t.Helper()
				before := count.n.Load()
				f()
				if n := count.n.Load() - before; n != want {
					t.Errorf("each trip takes %v: %s took %d trips, want %d", takes, what, n, want)
				}
			}
			trips("a miss", want, func() { p.Get(t.Context(), 1) })
			trips("50 misses", want, func() { p.wantMany(t, upTo(100)[50:], rowsBetween(d, 50, 100)) })
			trips("100 keys, of which 50 are missing", want, func() { p.wantMany(t, upTo(150)[50:], rowsBetween(d, 50, 150)) })
			for range 200 {
				trips("a hit", 1, func() { p.Get(t.Context(), 60) })
			}
			if s := p.Stats(); s.RedisErrors != 0 || s.Unvalidated != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Reads that request leases with their first lookups keep all promises.
func TestLeaseFirst(t *testing.T) {
	setSlowTrip(t, -1)
	for name, test := range map[string]func(*testing.T){
		"Behaviour":             TestBehaviour,
		"Batches":               TestOverlappingBatches,
		"Miss":                  TestStaleSetMiss,
		"DEL":                   TestStaleSetPlainDEL,
		"Refresh":               TestStaleSetRefresh,
		"ExpiredLease":          TestStaleSetExpiredLease,
		"ABA":                   TestStaleSetABA,
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

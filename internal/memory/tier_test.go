package memory

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// noEras are the generations of a loader that has none. Its items have none, either.
var noEras Generations

func newTier(t testing.TB, budget int64) *Tier {
	t.Helper()
	tier, err := New(budget)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tier.Close)
	tier.TrustForEver()
	return tier
}

// put offers an item to the tier.
func put[K comparable, V any](tier *Tier, hash uint64, item *Item[K, V], weight int64, life, ttl time.Duration) bool {
	return tier.Set(hash, item.Whole(), Read{}, weight, life, ttl)
}

// set puts an item under the version that its key has now, and sees that it is there.
func set[K comparable, V any](t *testing.T, tier *Tier, hash uint64, key K, value V, life time.Duration) {
	t.Helper()
	stable := hash + 1000 // any other number
	put(tier, hash, &Item[K, V]{Header: Header{Stripe: Stripe(stable), Version: tier.Version(0, stable)}, Key: key,
		Value: value}, 8, life, life)
	tier.Wait()
	if item, _, ok := Get[K, V](tier, hash, &noEras, key); !ok || item.Key != key {
		t.Fatal("an item is not there")
	}
}

func TestItemIsServed(t *testing.T) {
	tier := newTier(t, 1<<20)
	if _, _, ok := Get[string, int](tier, 1, &noEras, "a"); ok {
		t.Error("an empty tier serves an item")
	}
	set(t, tier, 1, "a", 7, time.Minute)
	if item, _, _ := Get[string, int](tier, 1, &noEras, "a"); item.Value != 7 || item.Null {
		t.Errorf("the item is %+v", item)
	}
	put(tier, 2, &Item[string, int]{Header: Header{Null: true}, Key: "null"}, 0, time.Minute, time.Minute)
	tier.Wait()
	if item, _, ok := Get[string, int](tier, 2, &noEras, "null"); !ok || !item.Null {
		t.Errorf("the null is %+v, %v", item, ok)
	}
}

func TestItemOfAnOldGenerationIsNotServed(t *testing.T) {
	tier := newTier(t, 1<<20)
	const hash, stable = 1, 2
	for name, end := range map[string]func(){
		"bump":    func() { tier.versions.Bump(stable) },
		"advance": func() { tier.Advance(0, stable, tier.Version(0, stable)) },
	} {
		put(tier, hash, &Item[string, int]{Header: Header{Stripe: Stripe(stable), Version: tier.Version(0, stable)},
			Key: "a"}, 8, time.Minute, time.Minute)
		tier.Wait()
		if _, _, ok := Get[string, int](tier, hash, &noEras, "a"); !ok {
			t.Fatal("the item is not there")
		}
		end()
		if _, _, ok := Get[string, int](tier, hash, &noEras, "a"); ok {
			t.Errorf("an item from before a %s is served", name)
		}
	}
}

// What was read before an invalidation may be Set after it.
func TestItemReadBeforeAnInvalidationIsNotServedAfterIt(t *testing.T) {
	tier := newTier(t, 1<<20)
	const hash, stable = 1, 2
	stale := &Item[string, int]{Header: Header{Stripe: Stripe(stable), Version: tier.Version(0, stable)}, Key: "a",
		Value: 1}
	tier.Invalidate(hash, stable)
	put(tier, hash, stale, 8, time.Minute, time.Minute)
	tier.Wait()
	if item, _, ok := Get[string, int](tier, hash, &noEras, "a"); ok {
		t.Errorf("a stale item is served: %+v", item)
	}
	put(tier, hash, &Item[string, int]{Header: Header{Stripe: Stripe(stable), Version: tier.Version(0, stable)},
		Key: "a", Value: 2}, 8, time.Minute, time.Minute)
	tier.Wait()
	if item, _, ok := Get[string, int](tier, hash, &noEras, "a"); !ok || item.Value != 2 {
		t.Errorf("the fresh item: %+v, %v", item, ok)
	}
}

func TestInvalidateEndsAndFreesAnItem(t *testing.T) {
	tier := newTier(t, 1<<20)
	set(t, tier, 1, "a", 1, time.Minute)
	tier.Invalidate(1, 1001)
	if _, _, ok := Get[string, int](tier, 1, &noEras, "a"); ok {
		t.Error("an invalidated item is served")
	}
	tier.Wait()
	if _, ok := tier.cache.Get(1); ok {
		t.Error("an invalidated item was kept")
	}
}

func TestKeyWithTheSameHashIsNotServed(t *testing.T) {
	tier := newTier(t, 1<<20)
	set(t, tier, 1, "a", 1, time.Minute)
	if item, _, ok := Get[string, int](tier, 1, &noEras, "b"); ok {
		t.Errorf("another key's item is served: %+v", item)
	}
	// A float that is not itself is never found, rather than never lost.
	nan := math.NaN()
	put(tier, 3, &Item[float64, int]{Key: nan}, 8, time.Minute, time.Minute)
	tier.Wait()
	if _, _, ok := Get[float64, int](tier, 3, &noEras, nan); ok {
		t.Error("NaN was found")
	}
}

func TestItemOfOtherTypesIsNotServed(t *testing.T) {
	type name string
	tier := newTier(t, 1<<20)
	set(t, tier, 1, "a", 1, time.Minute)
	if _, _, ok := Get[string, int64](tier, 1, &noEras, "a"); ok {
		t.Error("an int is served as an int64")
	}
	if _, _, ok := Get[name, int](tier, 1, &noEras, "a"); ok {
		t.Error("a string is served as another type of key")
	}
	var others Generations
	others[0].Store(&Generation{})
	if _, _, ok := Get[string, int](tier, 1, &others, "a"); ok {
		t.Error("another loader's item was served")
	}
	if _, _, ok := Get[string, *int](tier, 1, &noEras, "a"); ok {
		t.Error("an int is served as a pointer")
	}
}

func TestItemExpiresExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := newTier(t, 1<<20)
		for i, life := range []time.Duration{1, time.Millisecond, time.Second + 1, 100 * time.Hour} {
			hash := uint64(i + 1)
			set(t, tier, hash, i, "v", life)
			time.Sleep(life - 1)
			if _, _, ok := Get[int, string](tier, hash, &noEras, i); !ok {
				t.Errorf("%v: it expired too early", life)
			}
			time.Sleep(1 * time.Nanosecond)
			if _, _, ok := Get[int, string](tier, hash, &noEras, i); ok {
				t.Errorf("%v: it is served at its end", life)
			}
		}
	})
}

func TestItemWithoutLifeIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := newTier(t, 1<<20)
		time.Sleep(time.Hour)
		for _, life := range []time.Duration{0, -1, -time.Minute} {
			put(tier, 1, &Item[int, int]{Key: 1}, 8, life, life)
			tier.Wait()
			if _, _, ok := Get[int, int](tier, 1, &noEras, 1); ok {
				t.Errorf("an item with a life of %v is served", life)
			}
		}
		set(t, tier, 2, 2, 2, math.MaxInt64) // does not overflow
	})
}

func TestTierAfterClose(t *testing.T) {
	tier, err := New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	tier.TrustForEver()
	set(t, tier, 1, 1, 1, time.Minute)
	tier.Close()
	tier.Close()
	put(tier, 2, &Item[int, int]{Key: 2}, 8, time.Minute, time.Minute)
	tier.Invalidate(1, 1)
	tier.Advance(0, 1, tier.Version(0, 1))
	tier.Wait()
	for i := range 3 {
		if _, _, ok := Get[int, int](tier, uint64(i), &noEras, i); ok {
			t.Errorf("a closed tier serves item %d", i)
		}
	}
}

func TestCloseRacesEverything(t *testing.T) {
	for range 20 {
		tier, err := New(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		tier.TrustForEver()
		var busy, running sync.WaitGroup
		stop := make(chan struct{})
		for w := range 4 {
			busy.Add(1)
			running.Go(func() {
				for i := 0; ; i++ {
					key := (i + w) % 100
					hash := uint64(key)
					version := tier.Version(0, hash)
					put(tier, hash, &Item[int, string]{Header: Header{Stripe: Stripe(hash), Version: version}, Key: key,
						Value: fmt.Sprint(key)}, 8, time.Minute, time.Minute)
					if item, _, ok := Get[int, string](tier, hash, &noEras, key); ok && item.Value != fmt.Sprint(key) {
						t.Errorf("the item of %d is %q", key, item.Value)
					}
					if i%10 == 0 {
						tier.Invalidate(hash, hash)
					}
					if i == 200 {
						busy.Done()
					}
					select {
					case <-stop:
						if i > 200 {
							return
						}
					default:
					}
				}
			})
		}
		busy.Wait()
		for range 2 {
			running.Go(tier.Close)
		}
		tier.Close()
		close(stop)
		running.Wait()
	}
}

func TestNewRefusesAnInvalidBudget(t *testing.T) {
	for _, budget := range []int64{0, -1} {
		if tier, err := New(budget); err == nil {
			tier.Close()
			t.Errorf("a budget of %d is no error", budget)
		}
	}
}

func TestGetDoesNotAllocate(t *testing.T) {
	tier := newTier(t, 1<<20)
	set(t, tier, 1, "key", "value", time.Minute)
	hit := testing.AllocsPerRun(10000, func() {
		if _, _, ok := Get[string, string](tier, 1, &noEras, "key"); !ok {
			t.Fatal("the item has gone")
		}
	})
	miss := testing.AllocsPerRun(10000, func() { Get[string, string](tier, 2, &noEras, "other") })
	if (hit != 0 || miss != 0) && !underRace { // which allocates by itself
		t.Errorf("%v allocations a hit, %v a miss", hit, miss)
	}
}

// The tier is not closed under those who ask ristretto, whose Get would panic.
func TestCloseWaitsForVisits(t *testing.T) {
	tier := newTier(t, 1<<20)
	visit := tier.visits.enter()
	closed := make(chan struct{})
	go func() { tier.Close(); close(closed) }()
	for { // until Close has begun, after which no visit may begin
		v := tier.visits.enter()
		if v == nil {
			break
		}
		v.leave()
		select {
		case <-closed:
			t.Fatal("closed under a visit")
		case <-time.After(time.Millisecond):
		}
	}
	select {
	case <-closed:
		t.Error("closed under a visit")
	case <-time.After(50 * time.Millisecond):
	}
	visit.leave()
	testenv.Receive(t, "the end of Close", closed)
}

// An item that is too large is not kept, and neither is an older one of its key.
func TestTooLargeItems(t *testing.T) {
	const budget = 1 << 20
	tier := newTier(t, budget)
	for _, c := range []struct {
		weight int64
		kept   bool
	}{{8, true}, {budget/4 + 1, false}, {TooHeavy, false}, {budget / 5, true}} {
		if got := put(tier, hashOf(1), &Item[int, int]{Key: 1}, c.weight, time.Hour, time.Hour); got != c.kept {
			t.Errorf("an item of %d bytes was taken: %v", c.weight, got)
		}
		tier.Wait()
		if _, _, ok := Get[int, int](tier, hashOf(1), &noEras, 1); ok != c.kept {
			t.Errorf("an item of %d bytes is there: %v", c.weight, ok)
		}
	}
}

// The bytes in ristretto's queue are bounded, too.
func TestQueueIsBounded(t *testing.T) {
	const budget, size = 1 << 20, 40 << 10
	tier := newTier(t, budget)
	for i := range 100 {
		put(tier, uint64(i), &Item[int, int]{Key: i}, size, time.Hour, time.Hour) // all of one place
		if queued := tier.cacheQueue.queued.Load(); queued > budget/4 {
			t.Fatalf("%d bytes may be in the queue", queued)
		}
	}
}

// When memory is full, items that no lookup would return make room first: items that have ended or
// were invalidated, by key, group, range or loader. Items that are read less often than those were
// stay.
func TestDeadItemsAreEvictedFirst(t *testing.T) {
	for _, c := range []struct {
		name string
		kill func(tier *Tier, g *Generations)
	}{
		{"ended", func(*Tier, *Generations) { time.Sleep(time.Minute) }},
		{"keys", func(tier *Tier, _ *Generations) {
			for key := range uint64(deadItems) {
				tier.Forget(key)
			}
		}},
		{"range", func(tier *Tier, _ *Generations) { tier.Void(0) }},
		{"loader", func(_ *Tier, g *Generations) { g.Replace(0, g.Range(0), &Generation{Number: 2}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tier := newTier(t, 4<<20)
				defer tier.Close()
				var generations Generations
				generations[0].Store(&Generation{Number: 1})
				set := func(from, n int, life time.Duration) {
					for key := uint64(from); key < uint64(from+n); key++ {
						item := &Item[uint64, uint64]{Header: Header{Generation: generations.Range(0),
							Stripe: Stripe(key), Version: tier.Version(0, key)}, Key: key}
						tier.Set(key*0x9e3779b97f4a7c15, item.Whole(), Read{}, 800, life, life)
					}
				}
				held := func(from, n int) (held int) {
					for key := uint64(from); key < uint64(from+n); key++ {
						if tier.find(key*0x9e3779b97f4a7c15) != nil {
							held++
						}
					}
					return held
				}
				set(0, deadItems, time.Minute)
				for range 3 { // they are read often
					for key := range uint64(deadItems) {
						Get[uint64, uint64](tier, key*0x9e3779b97f4a7c15, &generations, key)
					}
				}
				if n := held(0, deadItems); n < deadItems*9/10 {
					t.Fatalf("%d of %d items are held", n, deadItems)
				}
				c.kill(tier, &generations)
				const live = 8000
				for from := 0; from < live; from += deadItems / 4 { // more than memory has room for
					set(deadItems+from, deadItems/4, time.Hour)
				}
				if n := held(0, deadItems); n > deadItems/50 {
					t.Errorf("%d of %d dead items are held after %d sets", n, deadItems, live)
				}
			})
		})
	}
}

// deadItems is the number of items of TestDeadItemsAreEvictedFirst that die. They nearly fill the
// tier.
const deadItems = 3600

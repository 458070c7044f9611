package memory

import (
	"testing"
	"testing/synctest"
	"time"
)

// look returns what Look finds for a key whose stable hash is three times the key, and that was
// written now.
func look(tier *Tier, generations *Generations, key uint64) (*Header, Finding) {
	const never = time.Hour // on the clock of the reads in these tests
	return tier.Look(key*3, generations, never, tier.Age(), func(h *Header) bool {
		return ItemOf[uint64, uint64](h).Key == key
	})
}

// setIndexed puts an item of the loader with these generations in the tier.
func setIndexed(tier *Tier, generations *Generations, key uint64, read, life time.Duration) {
	stable := key * 3
	item := &Item[uint64, uint64]{Header: Header{Generation: generations.Range(0), Stripe: Stripe(stable),
		Version: tier.Version(0, stable)}, Key: key}
	tier.Set(key, item.Whole(), Read{Stable: stable, Began: read}, 16, life, life)
}

// Each stored item is found by its stable hash, after any number of sets. An item that is not
// stored is known to be absent, and the index is bounded.
func TestIndex(t *testing.T) {
	tier := newTier(t, 4<<20)
	var generations Generations
	generations[0].Store(&Generation{})
	if _, found := look(tier, &generations, 1); found != Unknown {
		t.Error("without an index nothing is known")
	}
	if !tier.Index(true) || tier.Index(true) {
		t.Error("it is made once")
	}
	if _, found := look(tier, &generations, 1); found != None {
		t.Error("nothing was set before")
	}
	const n = 160_000
	for key := range uint64(n) {
		setIndexed(tier, &generations, key, time.Duration(key), time.Hour)
		if key%1000 == 0 {
			for old := range uint64(100) { // so that they stay in memory
				Get[uint64, uint64](tier, old, &generations, old)
			}
			tier.Wait()
		}
	}
	tier.Wait()
	if _, _, ok := Get[uint64, uint64](tier, 1, &generations, 1); !ok {
		t.Fatal("an item that is read is not held any more")
	}
	held := 0
	check := func(step uint64) {
		t.Helper()
		for key := uint64(0); key < n; key += step {
			item, _, ok := Get[uint64, uint64](tier, key, &generations, key)
			got, found := look(tier, &generations, key)
			if ok {
				held++
			}
			if ok && (got != &item.Header || found != There) || !ok && found != None {
				t.Fatalf("%d is held: %v; found: %d", key, ok, found)
			}
		}
	}
	check(1)
	size := 0
	for i := range tier.index.Load().shards {
		s := &tier.index.Load().shards[i]
		size += len(s.current) + len(s.previous)
	}
	if held < 1000 || size > 2*held+2*indexShards*indexRecent {
		t.Errorf("%d are held, %d are in the index", held, size)
	}
	tier.Forget((n - 1) * 3)
	if _, found := look(tier, &generations, n-1); found != None {
		t.Error("what was forgotten is found")
	}
	tier.Index(false)
	if _, found := look(tier, &generations, n-2); found != Unknown {
		t.Error("what is there is said not to be")
	}
	matches := func(*Header) bool { return true }
	if _, found := tier.Look(1, &generations, 0, -1, matches); found != None {
		t.Error("nothing is from before the tier")
	}
	tier.Index(true)
	check(16) // the items from before the index
	setIndexed(tier, &generations, n+1, 0, time.Hour)
	tier.Wait()
	if item, found := look(tier, &generations, n+1); found != There || item == nil {
		t.Error("an item that was set after the index was created is not found")
	}
}

// An item is older than a write if its read began before. Of an item from before the index, only
// the creation of the index is known.
func TestIndexComparesTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := newTier(t, 4<<20)
		defer tier.Close()
		var generations Generations
		generations[0].Store(&Generation{})
		time.Sleep(time.Second)
		setIndexed(tier, &generations, 1, 0, time.Hour)
		time.Sleep(time.Second)
		tier.Index(true)
		time.Sleep(time.Second)
		setIndexed(tier, &generations, 2, 10*time.Second, time.Hour)
		tier.Wait()
		matches := func(*Header) bool { return true }
		for _, c := range []struct {
			key          uint64
			written, age time.Duration
			want         Finding
		}{
			{1, 0, 1500 * time.Millisecond, Young}, // it may have been set since
			{1, 0, 2500 * time.Millisecond, There},
			{2, 9 * time.Second, 0, Young},
			{2, 11 * time.Second, 0, There},
			{3, 0, 0, None},
		} {
			if _, found := tier.Look(c.key*3, &generations, c.written, c.age, matches); found != c.want {
				t.Errorf("key %d, written at %v, %v: found %d, expected %d", c.key, c.written, c.age, found, c.want)
			}
		}
	})
}

package memory

import (
	"testing"
	"time"
)

// Each stored item is found by its stable hash, after any number of sets. An item that is not
// stored is known to be absent, and the index is bounded.
func TestIndex(t *testing.T) {
	tier, err := New(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer tier.Close()
	tier.TrustForEver()
	var generations Generations
	generations[0].Store(&Generation{})
	look := func(key uint64) (*Header, time.Duration, bool) {
		return tier.Look(key*3, &generations, time.Hour, tier.Age())
	}
	if _, _, none := look(1); none {
		t.Error("without an index nothing is known")
	}
	if !tier.Index(true) || tier.Index(true) {
		t.Error("it is made once")
	}
	if _, _, none := look(1); !none {
		t.Error("nothing was set before")
	}
	const n = 160_000
	for key := range uint64(n) {
		stable := key * 3
		tier.Note(key, stable, time.Duration(key))
		put(tier, key, &Item[uint64, uint64]{Header: Header{Generation: generations.Range(0), Stripe: Stripe(stable),
			Version: tier.Version(0, stable)}, Key: key}, 16, time.Hour, time.Hour)
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
	for key := range uint64(n) {
		item, _, ok := Get[uint64, uint64](tier, key, &generations, key)
		got, read, none := tier.Look(key*3, &generations, time.Hour, tier.Age())
		if ok {
			held++
		}
		if ok && (got != &item.Header || read != time.Duration(key)) || !ok && (got != nil || !none) {
			t.Fatalf("%d is held: %v; found: %v, none: %v", key, ok, got != nil, none)
		}
	}
	size := 0
	for i := range tier.index.Load().shards {
		s := &tier.index.Load().shards[i]
		size += len(s.current) + len(s.previous)
	}
	if held < 1000 || size > 2*held+2*indexShards*indexRecent {
		t.Errorf("%d are held, %d are in the index", held, size)
	}
	tier.Forget((n - 1) * 3)
	if item, _, none := look(n - 1); item != nil || !none {
		t.Error("what was forgotten is found")
	}
	tier.Index(false)
	if _, _, none := look(n - 2); none {
		t.Error("what is there is said not to be")
	}
	if _, _, none := tier.Look(1, &generations, time.Hour, -1); !none {
		t.Error("nothing is from before the tier")
	}
	tier.Index(true)
	if _, _, none := look(n + 1); none {
		t.Error("what was set before is not known")
	}
}

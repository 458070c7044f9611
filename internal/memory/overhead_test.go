//go:build !race

package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2"
)

// An item costs little more than in a bare ristretto that holds the same values with a time to
// live: the key itself, to be compared, and the data that decide whether it may still be served.
func TestOverheadOfAnItem(t *testing.T) {
	const n = 100_000
	values := make([]*row, n)
	for i := range values {
		values[i] = &row{ID: int64(i), Name: fmt.Sprint("row ", i)}
	}
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("product:%012d", i)
	}
	bare := func() func() {
		c, err := ristretto.NewCache(&ristretto.Config[string, *row]{NumCounters: 10 * n, MaxCost: 1 << 40,
			BufferItems: 64, IgnoreInternalCost: true})
		if err != nil {
			t.Fatal(err)
		}
		for i, key := range keys {
			c.SetWithTTL(key, values[i], 1, time.Hour)
			if i%1000 == 0 {
				c.Wait()
			}
		}
		c.Wait()
		return c.Close
	}
	ours := func(key func(i int) any) func() {
		tier, err := New(n * 1024) // as many counters
		if err != nil {
			t.Fatal(err)
		}
		tier.TrustForEver()
		for i := range keys {
			hash := uint64(i+1) * 0x9e3779b97f4a7c15
			switch k := key(i).(type) {
			case string:
				put(tier, hash, &Item[string, *row]{Key: k, Value: values[i]}, 1, time.Hour, time.Hour)
			case int64:
				put(tier, hash, &Item[int64, *row]{Key: k, Value: values[i]}, 1, time.Hour, time.Hour)
			}
			if i%1000 == 0 {
				tier.Wait()
			}
		}
		tier.Wait()
		return tier.Close
	}
	measure := func(fill func() func()) int64 {
		before := heap()
		end := fill()
		grown := heap() - before
		end()
		return grown / n
	}
	floor := measure(bare)
	for name, key := range map[string]func(int) any{
		"string keys": func(i int) any { return keys[i] },
		"int64 keys":  func(i int) any { return int64(i) },
	} {
		bytes := measure(func() func() { return ours(key) })
		t.Logf("%s: %d bytes an item beside the value, bare ristretto %d: %d more", name, bytes, floor, bytes-floor)
		if bytes-floor > 10 {
			t.Errorf("%s: %d bytes more than bare ristretto", name, bytes-floor)
		}
	}
}

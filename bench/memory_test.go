package bench

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// hitKeys is the number of keys that are read repeatedly.
const hitKeys = 1000

func keys(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("product:%012d", i)
	}
	return all
}

func rowOf(key string) *Row {
	return &Row{ID: 1, Name: "product " + key, Text: text200, Price: 9.99}
}

// TestMemoryHit measures hits in memory.
func TestMemoryHit(t *testing.T) {
	server := testenv.SharedRedis(t)
	keys := keys(hitKeys)
	ctx := context.Background()
	for _, goroutines := range []int{1, 128} {
		t.Run(fmt.Sprint(goroutines), func(t *testing.T) {
			var contenders []contender
			for _, p := range slices.Concat(entrants(t), Floors()) {
				if !p.Memory {
					continue
				}
				c := open(t, p, Config{Redis: server.Addr, Load: func(_ context.Context, key string) (*Row,
					error) {
					return rowOf(key), nil
				}, TTL: time.Hour, MemoryTTL: time.Hour})
				for range 3 { // some peers drop values that arrive in a burst
					for _, key := range keys {
						if _, err := c.Get(ctx, key); err != nil {
							t.Fatal(p.Name, err)
						}
					}
					time.Sleep(20 * time.Millisecond)
				}
				contenders = append(contenders, contender{p.Name, func(i int) error {
					_, err := c.Get(ctx, keys[i%hitKeys])
					return err
				}})
			}
			results := contest(t, size(15, 3), goroutines, size(300*time.Millisecond, 5*time.Millisecond), contenders)
			table := &Table{Section: 1, Title: fmt.Sprintf("Hits in memory, %d goroutines", goroutines),
				Text: "A thousand string keys, all in memory.", Head: []string{"", "ns", "middle half",
					"of raw ristretto", "allocations"}}
			floor := find(results, "raw ristretto")
			for _, r := range results {
				table.Row(r.name, median(r.ns), spread(r.ns), median(ratios(r.ns, floor.ns)), r.allocs)
			}
			publish(t, table)
			if otter := find(results, "otter"); otter != nil {
				bar(t, "relative to otter's loading Get", median(ratios(find(results, own).ns, otter.ns)), 1)
			}
		})
	}
}

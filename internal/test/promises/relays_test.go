package promises

import (
	"fmt"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// TestRelaysAreCounted: a Cache counts the relays of a queue on every kind of Redis, with the
// documented permissions.
func TestRelaysAreCounted(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		var caches []writeside.Cache[cacheaside.Key]
		for range 2 {
			c, err := newCache(b.client(t), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			caches = append(caches, writeside.Of(c))
		}
		queue := t.Name() + time.Now().String()
		count := func(of, id int, life time.Duration, want int) {
			t.Helper()
			if n, err := caches[of].CountRelays(t.Context(), queue, fmt.Sprint(id), life); n != want || err != nil {
				t.Errorf("%d, %v; want %d", n, err, want)
			}
		}
		for i := range 20 {
			count(i%2, i, time.Hour, i+1)
		}
		count(0, 7, 0, 0)
		count(1, 8, time.Hour, 19)
		queue += "another"
		count(1, 8, time.Hour, 1)
		count(1, 8, 0, 0)
	})
}

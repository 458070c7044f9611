package nested_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// When loads have to wait for their turn, loads whose callers have no stale value come first, also
// when the queue is full of the others.
func TestMissesComeBeforeReloads(t *testing.T) {
	for _, queue := range []int{100, 5} {
		for _, limit := range []int{0, 1} {
			t.Run(fmt.Sprint(queue, limit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, rdb := testenv.Mini(t)
					c := newCache(t, rdb, cacheaside.Options{MaxLoads: 1, MaxQueue: queue, QueueTimeout: time.Minute})
					defer c.Close()
					var mu sync.Mutex
					var order []int
					gate := make(chan struct{})
					close(gate)
					l := newLoader(t, c, "row", func(_ context.Context, key int) (string, error) {
						mu.Lock()
						order = append(order, key)
						g := gate
						mu.Unlock()
						<-g
						return fmt.Sprint(key), nil
					}, &cacheaside.LoaderOptions{TTL: time.Minute, StaleFor: time.Hour, Jitter: -1, EarlyRefresh: -1,
						MaxLoads: limit})
					get := func(key int) {
						if got, err := l.Get(t.Context(), key); got != fmt.Sprint(key) || err != nil {
							t.Errorf("key %d: %q, %v", key, got, err)
						}
					}
					for key := range 5 {
						get(key)
					}
					time.Sleep(61 * time.Second)
					mu.Lock()
					order, gate = nil, make(chan struct{})
					mu.Unlock()
					var wg sync.WaitGroup
					wg.Go(func() { get(100) })
					synctest.Wait()
					for key := range 5 {
						get(key) // stale; its reload waits
					}
					synctest.Wait()
					for key := range 3 {
						wg.Go(func() { get(101 + key) })
						synctest.Wait()
					}
					close(gate)
					wg.Wait()
					time.Sleep(time.Minute)
					reloads := 5
					if queue == 5 {
						reloads = 2 // three have made room
					}
					mu.Lock()
					defer mu.Unlock()
					if !slices.Equal(order[:min(4, len(order))], []int{100, 101, 102, 103}) || len(order) != 4+reloads {
						t.Errorf("loaded in the order %v", order)
					}
					if s := c.Stats(); s.Unavailable != int64(5-reloads) {
						t.Errorf("%d were refused", s.Unavailable)
					}
				})
			})
		}
	}
}

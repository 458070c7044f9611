//go:build accept

package promises

import (
	"runtime"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestBusyProcessorIsNoOutage reads cached keys on one processor, next to 16 goroutines that
// compute. Each step of a read then waits 160 ms for the processor. That must not count as the time
// of Redis: no read goes to the database.
func TestBusyProcessorIsNoOutage(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	o := *testenv.StartRedis(t).Client(t).Options()
	o.ContextTimeoutEnabled = true // otherwise each command has one more goroutine, which waits too
	rdb := redis.NewClient(&o)
	defer rdb.Close()
	d := newTable(map[int]string{})
	const keys = 20
	for i := range keys {
		d.write(i, "value")
	}
	b := backend{client: func(testing.TB) redis.UniversalClient { return rdb }, admin: rdb}
	p := start(t, b, d, noMemory, &cacheaside.LoaderOptions{})
	for i := range keys {
		p.want(t, i, "value", nil)
	}
	stop := make(chan struct{})
	defer close(stop)
	for range 16 {
		go func() {
			for x := 0; ; {
				select {
				case <-stop:
					return
				default:
					for i := range 10_000_000 {
						x += i
					}
				}
			}
		}()
	}
	for i := range keys {
		p.want(t, i, "value", nil)
	}
	if n := d.loads.Load(); n != keys {
		t.Errorf("%d of %d cached keys were loaded again", n-keys, keys)
	}
}

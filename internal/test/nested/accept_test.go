//go:build accept

package nested_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// How many rows a load that asks another loader gives in 6 s, 5 ms each, with 100 places.
func TestNestedThroughput(t *testing.T) {
	rows := make(map[int]int64)
	for _, callers := range []int{100, 110, 200, 400} {
		func() {
			var d database
			c, err := cacheaside.New(testenv.StartRedis(t).Client(t), &cacheaside.Options{MaxLoads: 100})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			inner := newLoader(t, c, "inner", d.leaf, nil)
			outer := newLoader(t, c, "outer", d.asking(getOf(inner)), nil)
			var next, got, failed atomic.Int64
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
			defer cancel()
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for ctx.Err() == nil {
						key := int(next.Add(1))
						if v, err := outer.Get(ctx, key); err == nil && v == fmt.Sprintf("of %d", key) {
							got.Add(1)
						} else if ctx.Err() == nil {
							failed.Add(1)
						}
					}
				})
			}
			wg.Wait()
			rows[callers] = got.Load()
			t.Logf("%d callers: %d rows, %d failed, %d refused, %d queries at once", callers, got.Load(), failed.Load(),
				c.Stats().Unavailable, d.most.Load())
			if failed.Load() != 0 || c.Stats().Unavailable != 0 || d.most.Load() > 100 {
				t.Errorf("%d failed, %d queries at once", failed.Load(), d.most.Load())
			}
		}()
	}
	if rows[400] < rows[100]*8/10 {
		t.Errorf("%d rows with 400 callers, %d with 100", rows[400], rows[100])
	}
}

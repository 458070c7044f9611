package cacheaside_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
)

// A load that ends before its waiting caller has checked whether it may begin still counts.
func TestSoftTimeoutOfAQuickLoad(t *testing.T) {
	cache, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	var loads [2000]atomic.Int64
	l, err := cacheaside.NewLoader(cache, "quick",
		func(_ context.Context, i int) (int64, error) { return loads[i].Add(1), nil },
		&cacheaside.LoaderOptions{TTL: 500 * time.Millisecond, StaleFor: time.Hour, SoftTimeout: time.Minute,
			EarlyRefresh: -1})
	if err != nil {
		t.Fatal(err)
	}
	get := func(want int64) {
		t.Helper()
		var all sync.WaitGroup
		for part := range 4 {
			all.Go(func() {
				for i := part; i < len(loads); i += 4 {
					if got, err := l.Get(t.Context(), i); got < want || err != nil {
						t.Errorf("%d: %d, %v, and want %d", i, got, err, want)
					}
				}
			})
		}
		all.Wait()
	}
	get(1)
	time.Sleep(600 * time.Millisecond)
	get(2)
}

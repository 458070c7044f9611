// Package filters_test attacks filters from outside, by what their users and operators can do.
package filters_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// atOnce are the settings of a rebuild without inserts at the same time.
var atOnce = &bloom.RebuildOptions{Settle: -1}

// newFilter is a filter that waits for a busy machine.
func newFilter(t testing.TB, rdb redis.UniversalClient, name string, capacity uint64) *bloom.Redis {
	t.Helper()
	f, err := bloom.NewRedis(rdb, name, capacity, 0.01, &bloom.Options{Timeout: testenv.Hang / 2})
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func keysOf(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(prefix, i)
	}
	return keys
}

// hidden is how many of these keys a filter refuses.
func hidden(t testing.TB, f bloom.Filter, keys []string) (n int) {
	t.Helper()
	maybe, err := f.MightContainMany(t.Context(), keys)
	must(t, err)
	for _, may := range maybe {
		if !may {
			n++
		}
	}
	return n
}

package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"testing"

	"github.com/redis/go-redis/v9"
)

// rebuildable is a filter that can be rebuilt.
type rebuildable interface {
	Filter
	Rebuild(ctx context.Context, source Source, options *RebuildOptions) (Report, error)
}

// ordered is a source that yields the keys in the given order.
func ordered(keys []string) Source {
	at := make(map[string]int, len(keys))
	for i, key := range keys {
		at[key] = i + 1
	}
	return func(_ context.Context, after string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, key := range keys[at[after]:] {
				if !yield(key, nil) {
					return
				}
			}
		}
	}
}

// hiddenOf is how many keys a filter says no to.
func hiddenOf(t testing.TB, f Filter, keys []string) (hidden int) {
	t.Helper()
	maybe, err := f.MightContainMany(t.Context(), keys)
	must(t, err)
	for _, m := range maybe {
		if !m {
			hidden++
		}
	}
	return hidden
}

// interrupt begins a rebuild, and ends it when half of the keys have been read.
func interrupt(t testing.TB, f rebuildable, keys []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	source := &table{rows: keys, at: func(key string) error {
		if key == keys[len(keys)/2] {
			cancel()
			return ctx.Err()
		}
		return nil
	}}
	if _, err := f.Rebuild(ctx, source.read, &RebuildOptions{Settle: -1, batchSize: len(keys) / 10}); !errors.Is(err,
		context.Canceled) {
		t.Fatalf("the rebuild was to be interrupted: %v", err)
	}
}

// TestInterruptedRebuildIsBegunAnew: a later rebuild hides no key, with any source, and after any
// change of the table.
func TestInterruptedRebuildIsBegunAnew(t *testing.T) {
	filters := func(t *testing.T, test func(t *testing.T, make func(t *testing.T) (first, next rebuildable))) {
		oneServer(t, func(t *testing.T, rdb redis.UniversalClient) {
			test(t, func(t *testing.T) (rebuildable, rebuildable) {
				flush(t, rdb)
				return newFilter(t, rdb, 100_000), newFilter(t, rdb, 100_000) // of two processes
			})
		})
		t.Run("local", func(t *testing.T) {
			test(t, func(t *testing.T) (rebuildable, rebuildable) {
				l, err := NewLocal(100_000, 0.01)
				must(t, err)
				return l, l
			})
		})
	}
	filters(t, func(t *testing.T, make func(t *testing.T) (first, next rebuildable)) {
		keys := numbered(sized(20_000, 4000))
		var imported []string
		for i := range 3000 {
			imported = append(imported, fmt.Sprintf("imported%d", i)) // before "key…"
		}
		shuffled := append([]string(nil), keys...)
		rand.New(rand.NewPCG(1, 2)).Shuffle(len(shuffled),
			func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		other := append([]string{keys[len(keys)/2-1]}, imported...)
		for name, next := range map[string]struct {
			source Source
			keys   []string
		}{
			"rows imported meanwhile": {Keys(append(imported, keys...)...), append(imported, keys...)},
			"another order":           {ordered(shuffled), keys},
			"another source":          {Keys(other...), other},
		} {
			t.Run(name, func(t *testing.T) {
				first, second := make(t)
				interrupt(t, first, keys)
				report, err := second.Rebuild(t.Context(), next.source, none)
				must(t, err)
				if hidden := hiddenOf(t, second, next.keys); hidden > 0 || report.Keys != uint64(len(next.keys)) {
					t.Errorf("%d of %d keys are hidden; the rebuild has read %d", hidden, len(next.keys), report.Keys)
				}
			})
		}
	})
}

package nested_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// tree is a batch loader of rows that need the rows whose keys needs returns.
func tree(
	t *testing.T, c *cacheaside.Cache, name string, o *cacheaside.LoaderOptions,
	needs func(key int) (from *loader, others []int),
) (l *loader, calls *atomic.Int64) {
	t.Helper()
	calls = new(atomic.Int64)
	l, err := cacheaside.NewBatchLoader(c, name, func(ctx context.Context, keys []int) (map[int]string, error) {
		calls.Add(1)
		time.Sleep(query)
		rows, failed := make(map[int]string), make(map[int]error)
		for _, key := range keys {
			from, others := needs(key)
			rows[key] = fmt.Sprint(key)
			for _, other := range others {
				got, err := from.Get(ctx, other)
				if err != nil {
					failed[key] = err
					delete(rows, key)
					break
				}
				rows[key] += "<" + got
			}
		}
		if len(failed) > 0 {
			return rows, &cacheaside.BatchError[int]{Errs: failed}
		}
		return rows, nil
	}, o)
	if err != nil {
		t.Fatal(err)
	}
	return l, calls
}

// A row may need another one of its batch, by any call, also through another loader.
func TestRowNeedsAnotherOfItsBatch(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		for name, test := range map[string]struct {
			options cacheaside.LoaderOptions
			bypass  bool
			reads   []cacheaside.ReadOption
		}{
			"plain":  {},
			"fresh":  {reads: []cacheaside.ReadOption{cacheaside.Fresh}},
			"shadow": {options: cacheaside.LoaderOptions{Shadow: 0.5}},
			"bypass": {bypass: true},
		} {
			c := newCache(t, rdb(), cacheaside.Options{MaxLoads: 1})
			var rows, view *loader
			rows, _ = tree(t, c, "rows", &test.options, func(key int) (*loader, []int) {
				switch {
				case key == 30:
					return view, []int{2} // which reads row 2
				case key%3 == 0:
					return rows, []int{key - 1}
				}
				return nil, nil
			})
			view = newLoader(t, c, "view",
				func(ctx context.Context, key int) (string, error) { return rows.Get(ctx, key) }, nil)
			rows.Bypass(test.bypass)
			began := time.Now()
			got, err := rows.GetMany(t.Context(), []int{3, 2, 30}, test.reads...)
			if err != nil || got[3] != "3<2" || got[2] != "2" || got[30] != "30<2" {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			if took := time.Since(began); took > 10*query {
				t.Errorf("%s: it took %v", name, took)
			}
			c.Close()
		}
	})
}

// A chain of rows in one batch is loaded, too, with no more loads than it has pairs.
func TestChainInABatch(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		const n = 20
		c := newCache(t, rdb(), cacheaside.Options{MaxLoads: 2})
		defer c.Close()
		var l *loader
		l, calls := tree(t, c, "rows", nil, func(key int) (*loader, []int) {
			if key < n {
				return l, []int{key + 1}
			}
			return nil, nil
		})
		keys := make([]int, n)
		for i := range keys {
			keys[i] = i + 1
		}
		got, err := l.GetMany(t.Context(), keys)
		if err != nil || len(got) != n {
			t.Error(got, err)
		}
		if calls := calls.Load(); calls > n*n/2+1 {
			t.Error(calls, "calls")
		}
	})
}

// Rows of one batch that need each other are a cycle, which is reported at once; so is a row that
// needs itself, and a cycle through another loader. The other rows are loaded.
func TestRowsOfABatchNeedEachOther(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		for name, needs := range map[string]map[int][]int{
			"each other": {3: {2}, 2: {3}},
			"itself":     {3: {3}, 2: {2}},
			"in a ring":  {3: {2}, 2: {1}, 1: {3}},
			"by others":  {3: {12}, 2: {13}}, // of the other loader, which needs 2 and 3
		} {
			c := newCache(t, rdb(), cacheaside.Options{MaxLoads: 1})
			var rows, others *loader
			rows, calls := tree(t, c, "rows", nil, func(key int) (*loader, []int) {
				if needed := needs[key]; len(needed) > 0 && needed[0] > 10 {
					return others, needed
				}
				return rows, needs[key]
			})
			others, _ = tree(t, c, "others", nil, func(key int) (*loader, []int) { return rows, []int{key - 10} })
			for range 3 {
				began := time.Now()
				got, err := rows.GetMany(t.Context(), []int{3, 7, 2, 1})
				failed, ok := errors.AsType[*cacheaside.BatchError[int]](err)
				if !ok || got[7] != "7" {
					t.Fatalf("%s: %v, %v", name, got, err)
				}
				for key := range needs {
					if !errors.Is(failed.Errs[key], cacheaside.ErrLoadCycle) {
						t.Errorf("%s: key %d: %v", name, key, failed.Errs[key])
					}
				}
				if took := time.Since(began); took > 30*query {
					t.Errorf("%s: it took %v", name, took)
				}
			}
			if n := calls.Load(); n > 60 {
				t.Errorf("%s: %d calls", name, n)
			}
			c.Close()
		}
	})
}

// walked is an error that counts how often a walk has come to it. It ends a walk that is too long.
type walked struct{ n atomic.Int64 }

func (*walked) Error() string     { return "the database is down" }
func (w *walked) Is(_ error) bool { return w.n.Add(1)%100_000 == 0 }

// While the lowest of many batch loaders that read by each other fails, what is kept of that for
// each key, and walked, does not grow with their number.
func TestErrorsOfNestedBatches(t *testing.T) {
	for _, levels := range []int{3, 6} { // six would take for ever where three are too many
		if errorsOfNestedBatches(t, levels); t.Failed() {
			return
		}
	}
}

func errorsOfNestedBatches(t *testing.T, levels int) {
	down := new(walked)
	for name, fail := range map[string]func(keys []int) error{
		"one error":       func([]int) error { return fmt.Errorf("select: %w", down) },
		"one of each key": func(keys []int) error { return each(keys, func(int) error { return fmt.Errorf("select: %w", down) }) },
		"one for all keys": func(keys []int) error {
			err := fmt.Errorf("select: %w", down)
			return each(keys, func(int) error { return err })
		},
		"a panic": func([]int) error { panic(down) },
		"a tree": func([]int) error {
			return errors.Join(slices.Repeat([]error{errors.Join(slices.Repeat([]error{down}, 50)...)}, 50)...)
		},
		"a short batch": func([]int) error { return down },
	} {
		for _, rewrap := range []bool{false, true} {
			if rewrap && name != "one error" {
				continue
			}
			c := newCache(t, nil, cacheaside.Options{})
			keys := make([]int, 100)
			for i := range keys {
				keys[i] = i
			}
			var top *loader
			for depth := range levels {
				below := top
				var err error
				top, err = cacheaside.NewBatchLoader(c, fmt.Sprint("level", depth),
					func(ctx context.Context, keys []int) (map[int]string, error) {
						if below == nil {
							return nil, fail(keys)
						}
						rows, err := below.GetMany(ctx, keys)
						if err != nil && rewrap {
							return rows, each(keys, func(int) error { return fmt.Errorf("below: %w", err) })
						}
						return rows, err
					}, &cacheaside.LoaderOptions{BatchSize: map[bool]int{true: 10, false: 100}[name == "a short batch"],
						BreakAt: -1})
				if err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // the second time there are noted failures
				down.n.Store(0)
				_, err := top.GetMany(t.Context(), keys)
				failed, _ := errors.AsType[*cacheaside.BatchError[int]](err)
				if failed == nil || len(failed.Errs) != len(keys) {
					t.Fatalf("%s: %v", name, err)
				}
				before := down.n.Load()
				if name == "a panic" {
					if _, ok := errors.AsType[*cacheaside.PanicError](err); !ok {
						t.Errorf("%s: %v", name, err)
					}
				} else if w, ok := errors.AsType[*walked](failed.Errs[7]); !ok || w != down || before > 90_000 {
					t.Errorf("%s, again wrapped %v: %v; it was walked %d times by the loads", name, rewrap, ok, before)
				}
				if errors.Is(err, context.Canceled) || down.n.Load()-before > 5000 {
					t.Errorf("%s, again wrapped %v: it was walked %d times", name, rewrap, down.n.Load()-before)
				}
				if n := len(err.Error()); n > 10<<10 {
					t.Errorf("%s, again wrapped %v: a text of %d bytes", name, rewrap, n)
				}
			}
			c.Close()
		}
	}
}

func each(keys []int, err func(int) error) error {
	errs := make(map[int]error, len(keys))
	for _, key := range keys {
		errs[key] = err(key)
	}
	return &cacheaside.BatchError[int]{Errs: errs}
}

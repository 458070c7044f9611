// Package filters_test tests loaders and filters whose sources are wrong.
package filters_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const stored = 5000

// numbers are the keys from one to before another.
func numbers(from, to int) (keys []string) {
	for i := from; i < to; i++ {
		keys = append(keys, strconv.Itoa(i))
	}
	return keys
}

// database is a table of rows, some of them possibly deleted.
type database struct {
	mu    sync.Mutex
	gone  map[int64]bool
	loads int
}

func (d *database) delete(ids ...int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		d.gone[id] = true
	}
}

func (d *database) load(_ context.Context, ids []int64) (map[int64]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loads += len(ids)
	found := make(map[int64]string)
	for _, id := range ids {
		if id >= 0 && id < stored && !d.gone[id] {
			found[id] = "row"
		}
	}
	return found, nil
}

// filter is one that can be rebuilt.
type filter interface {
	bloom.Filter
	Rebuild(ctx context.Context, source bloom.Source, options *bloom.RebuildOptions) (bloom.Report, error)
	Stats() bloom.Stats
}

// eachFilter runs a test with a loader, of a table of 5000 rows, behind each kind of filter.
func eachFilter(t *testing.T, test func(t *testing.T, f filter, l *cacheaside.Loader[int64, string], d *database)) {
	server := testenv.SharedRedis(t)
	o := &bloom.Options{Timeout: testenv.Hang / 2}
	for name, make := range map[string]func(t *testing.T) (filter, error){
		"redis": func(t *testing.T) (filter, error) {
			return bloom.NewRedis(server.Client(t), "users", 10_000, 0.001, o)
		},
		"replica": func(t *testing.T) (filter, error) {
			f, err := bloom.NewRedis(server.Client(t), "users", 10_000, 0.001, o)
			if err != nil {
				return nil, err
			}
			return bloom.NewReplica(f)
		},
		"local": func(t *testing.T) (filter, error) { return bloom.NewLocal(10_000, 0.001) },
	} {
		t.Run(name, func(t *testing.T) {
			must(t, server.Client(t).FlushAll(t.Context()).Err())
			f, err := make(t)
			must(t, err)
			t.Cleanup(func() { f.(interface{ Close() error }).Close() })
			d := &database{gone: map[int64]bool{}}
			c, err := cacheaside.NewLocal(nil)
			must(t, err)
			t.Cleanup(func() { c.Close() })
			l, err := cacheaside.NewBatchLoader(c, "user", d.load, &cacheaside.LoaderOptions{Filter: f})
			must(t, err)
			test(t, f, l, d)
		})
	}
}

var settled = &bloom.RebuildOptions{Settle: -1}

// hiddenRows is how many rows the filter says no to.
func hiddenRows(t *testing.T, f filter) (n int) {
	t.Helper()
	maybe, err := f.MightContainMany(t.Context(), numbers(0, stored))
	must(t, err)
	for _, m := range maybe {
		if !m {
			n++
		}
	}
	return n
}

func readAll(t *testing.T, l *cacheaside.Loader[int64, string], ids ...int64) {
	t.Helper()
	if _, err := l.GetMany(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
}

func ids(from, to int64) (all []int64) {
	for ; from < to; from++ {
		all = append(all, from)
	}
	return all
}

// TestWrongSource: a filter is rebuilt from what is not, or is not all of, what the loader reads.
// It hides nothing.
func TestWrongSource(t *testing.T) {
	encoded := make([]string, stored)
	for i := range encoded {
		encoded[i] = fmt.Sprint("user:", i)
	}
	for name, wrong := range map[string]struct {
		source []string
		want   string
	}{
		"an empty table":       {nil, "too few"},
		"a half-read table":    {numbers(0, stored/2), "too few"},
		"another table":        {numbers(stored, 2*stored), "hide"},
		"keys of another form": {encoded, "hide"},
	} {
		t.Run(name, func(t *testing.T) {
			eachFilter(t, func(t *testing.T, f filter, l *cacheaside.Loader[int64, string], d *database) {
				_, err := f.Rebuild(t.Context(), bloom.Keys(numbers(0, stored)...), settled)
				must(t, err)
				readAll(t, l, ids(0, 500)...)
				_, err = f.Rebuild(t.Context(), bloom.Keys(wrong.source...), settled)
				if n := hiddenRows(t, f); n > 0 || err == nil {
					t.Fatalf("%d of %d rows are hidden: %v", n, stored, err)
				}
				if want := map[string]error{"too few": bloom.ErrFewer, "hide": bloom.ErrHides}[wrong.want]; !errors.Is(err, want) || f.Stats().Rejected != 1 {
					t.Errorf("%v, %d counted", err, f.Stats().Rejected)
				}
				may, err := f.MightContain(t.Context(), "nobody")
				if must(t, err); may {
					t.Error("the one before does not serve")
				}
				must(t, f.AddMany(t.Context(), []string{"added"}))
				_, err = f.Rebuild(t.Context(), bloom.Keys(append(numbers(0, stored), "added")...), settled)
				must(t, err)
				if n := hiddenRows(t, f); n > 0 {
					t.Errorf("%d of %d rows are hidden by the right source", n, stored)
				}
			})
		})
	}
}

// TestFirstWrongSource: no filter was built before, and the rows returned by loads show that the
// source is wrong.
func TestFirstWrongSource(t *testing.T) {
	eachFilter(t, func(t *testing.T, f filter, l *cacheaside.Loader[int64, string], d *database) {
		if _, err := f.Rebuild(t.Context(), bloom.Keys(), settled); !errors.Is(err, bloom.ErrFewer) || hiddenRows(t, f) > 0 {
			t.Fatalf("of no key: %v; %d rows are hidden", err, hiddenRows(t, f))
		}
		readAll(t, l, 7)
		if _, err := f.Rebuild(t.Context(), bloom.Keys("user:7"), settled); !errors.Is(err, bloom.ErrHides) || hiddenRows(t, f) > 0 {
			t.Fatalf("of other keys: %v; %d rows are hidden", err, hiddenRows(t, f))
		}
		_, err := f.Rebuild(t.Context(), bloom.Keys(), &bloom.RebuildOptions{Settle: -1, AllowFewer: true})
		if !errors.Is(err, bloom.ErrHides) {
			t.Fatalf("of none, which is allowed: %v", err)
		}
		d.delete(7)
		_, err = f.Rebuild(t.Context(), bloom.Keys(), &bloom.RebuildOptions{Settle: -1, AllowFewer: true})
		must(t, err)
		if n := hiddenRows(t, f); n != stored {
			t.Errorf("a filter of no keys says no to %d of %d", n, stored)
		}
	})
}

// TestDeletedRowsAreNotMissed: rows that were deleted without a word may be missing; one that is
// there may not.
func TestDeletedRowsAreNotMissed(t *testing.T) {
	eachFilter(t, func(t *testing.T, f filter, l *cacheaside.Loader[int64, string], d *database) {
		_, err := f.Rebuild(t.Context(), bloom.Keys(numbers(0, stored)...), settled)
		must(t, err)
		readAll(t, l, ids(0, 300)...)
		d.delete(ids(0, 200)...)
		before := d.loads
		_, err = f.Rebuild(t.Context(), bloom.Keys(numbers(200, stored)...), settled)
		must(t, err)
		if d.loads-before > 300 {
			t.Errorf("%d loads for it", d.loads-before)
		}
		_, err = f.Rebuild(t.Context(), bloom.Keys(slices.DeleteFunc(numbers(200, stored), func(key string) bool { return key == "250" })...), settled)
		if !errors.Is(err, bloom.ErrHides) {
			t.Fatal(err)
		}
		if may, err := f.MightContain(t.Context(), "250"); err != nil || !may {
			t.Error("the row is hidden", err)
		}
	})
}

// TestCheckEndsWithTheCache: a loader that is closed has no say.
func TestCheckEndsWithTheCache(t *testing.T) {
	f, err := bloom.NewLocal(10_000, 0.001)
	must(t, err)
	c, err := cacheaside.NewLocal(nil)
	must(t, err)
	d := &database{gone: map[int64]bool{}}
	l, err := cacheaside.NewBatchLoader(c, "user", d.load, &cacheaside.LoaderOptions{Filter: f})
	must(t, err)
	if _, err := cacheaside.NewBatchLoader(c, "user", d.load, &cacheaside.LoaderOptions{Filter: f}); err == nil { // nor one that was not made
		t.Fatal("two of one name")
	}
	readAll(t, l, ids(0, 10)...)
	if _, err = f.Rebuild(t.Context(), bloom.Keys("other"), nil); !errors.Is(err, bloom.ErrHides) {
		t.Fatal(err)
	}
	must(t, c.Close())
	_, err = f.Rebuild(t.Context(), bloom.Keys("other"), nil)
	must(t, err)
}

// TestLoadedFile: a filter that was saved is checked as one that was rebuilt.
func TestLoadedFile(t *testing.T) {
	file := func(keys ...string) *bytes.Buffer {
		f, err := bloom.NewLocal(10_000, 0.001)
		must(t, err)
		_, err = f.Rebuild(t.Context(), bloom.Keys(keys...), &bloom.RebuildOptions{AllowFewer: true})
		must(t, err)
		var b bytes.Buffer
		must(t, f.Save(&b))
		return &b
	}
	f, err := bloom.NewLocal(10_000, 0.001)
	must(t, err)
	c, err := cacheaside.NewLocal(nil)
	must(t, err)
	defer c.Close()
	d := &database{gone: map[int64]bool{}}
	l, err := cacheaside.NewBatchLoader(c, "user", d.load, &cacheaside.LoaderOptions{Filter: f})
	must(t, err)
	if err := f.Load(file()); !errors.Is(err, bloom.ErrFewer) || hiddenRows(t, f) > 0 {
		t.Errorf("of no key: %v; %d rows are hidden", err, hiddenRows(t, f))
	}
	readAll(t, l, ids(0, 100)...)
	if err := f.Load(file(numbers(stored, 2*stored)...)); !errors.Is(err, bloom.ErrHides) || hiddenRows(t, f) > 0 {
		t.Errorf("of another set: %v; %d rows are hidden", err, hiddenRows(t, f))
	}
	must(t, f.Load(file(numbers(0, stored)...)))
	if err := f.Load(file(numbers(0, stored/2)...)); !errors.Is(err, bloom.ErrFewer) || hiddenRows(t, f) > 0 {
		t.Errorf("of half of it: %v; %d rows are hidden", err, hiddenRows(t, f))
	}
	if f.Stats().Rejected != 3 {
		t.Errorf("%d counted", f.Stats().Rejected)
	}
	may, _ := f.MightContain(t.Context(), "nobody")
	if may {
		t.Error("the one before does not serve")
	}
}

// TestMaintainTells: Maintain reports a rejected filter, and continues.
func TestMaintainTells(t *testing.T) {
	eachFilter(t, func(t *testing.T, f filter, l *cacheaside.Loader[int64, string], d *database) {
		ctx, cancel := context.WithCancel(t.Context())
		told, ended := make(chan error, 100), make(chan error, 1)
		maintained := f.(interface {
			Maintain(context.Context, bloom.Source, *bloom.MaintainOptions) error
		})
		readAll(t, l, 1)
		o := &bloom.MaintainOptions{Check: 100 * time.Millisecond, Rebuild: settled, Failed: func(err error) { told <- err }}
		go func() { ended <- maintained.Maintain(ctx, bloom.Keys("other"), o) }()
		for range 2 {
			select {
			case err := <-told:
				if !errors.Is(err, bloom.ErrHides) {
					t.Error(err)
				}
			case <-time.After(testenv.Hang):
				t.Fatal("no failure was reported")
			}
		}
		if s := f.Stats(); s.Failures < 2 || s.Rejected < 2 || hiddenRows(t, f) > 0 {
			t.Errorf("%+v", s)
		}
		cancel()
		<-ended
	})
}

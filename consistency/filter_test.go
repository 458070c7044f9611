package consistency

import (
	"context"
	"errors"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func insert(id int, v string) func(context.Context, *sqlx.Tx) error {
	return func(ctx context.Context, tx *sqlx.Tx) error {
		return execOn(ctx, tx, "INSERT INTO item VALUES (?, ?)", id, v)
	}
}

// items is a filter in Redis that knows the rows that there are.
func items(x *world) cacheaside.Filter {
	x.t.Helper()
	f, err := bloom.NewRedis(x.server.Client(x.t), "items", 1000, 0.001, &bloom.Options{Timeout: testenv.Hang})
	x.check(err)
	x.t.Cleanup(func() { f.Close() })
	_, err = f.Rebuild(x.t.Context(), bloom.Keys("1", "2"), &bloom.RebuildOptions{Settle: -1})
	x.check(err)
	return f
}

// TestInsert: a row is visible at once, though a filter was sure that there was none.
func TestInsert(t *testing.T) {
	x := start(t, setup{filter: items})
	for i, level := range levels {
		id := 10 + i
		if _, err := x.rows.Get(t.Context(), id); !errors.Is(err, cacheaside.ErrNotFound) {
			t.Fatal(err)
		}
		x.check(x.At(level).Update(t.Context(), insert(id, "new"), x.rows.Key(id)))
		if level == Async {
			x.invalidated()
		}
		for _, l := range []*cacheaside.Loader[int, string]{x.rows, x.other} {
			if v, err := l.Get(t.Context(), id); v != "new" || err != nil {
				t.Errorf("%v: %q, %v", level, v, err)
			}
		}
	}
	x.check(WriteThrough(t.Context(), x.Writer, x.rows, 20,
		func(ctx context.Context, tx *sqlx.Tx) (string, error) { return "new", insert(20, "new")(ctx, tx) }))
	if v, err := x.other.Get(t.Context(), 20); v != "new" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

// refusing is a filter that takes no keys.
type refusing struct{ cacheaside.Filter }

func (refusing) Inserting(context.Context, []string) (func(context.Context) error, error) {
	return nil, errOwn
}

// TestNotAdmitted: a row that the filter would hide is not inserted; at the level Async the queue
// keeps it until the filter takes it.
func TestNotAdmitted(t *testing.T) {
	x := start(t, setup{filter: func(x *world) cacheaside.Filter { return refusing{items(x)} }})
	for i, level := range levels {
		id := 10 + i
		err := x.At(level).Update(t.Context(), insert(id, "new"), x.rows.Key(id))
		if level == Async {
			is(t, err, nil)
			continue
		}
		is(t, err, errOwn)
		if _, err := x.load(t.Context(), id); err == nil {
			t.Errorf("%v: inserted", level)
		}
	}
}

// TestFiltersApart: one loader's failing filter does not keep keys from other loaders' filters.
func TestFiltersApart(t *testing.T) {
	x := start(t, setup{filter: func(x *world) cacheaside.Filter { return refusing{items(x)} }})
	second, err := cacheaside.NewLoader(x.cache, "second", x.load, &cacheaside.LoaderOptions{Filter: items(x)})
	x.check(err)
	if _, err := second.Get(t.Context(), 10); !errors.Is(err, cacheaside.ErrNotFound) {
		t.Fatal(err)
	}
	x.exec("INSERT INTO item VALUES (10, 'new')")
	keys := func(yield func(cacheaside.Key, error) bool) {
		_ = yield(x.rows.Key(10), nil) && yield(second.Key(10), nil)
	}
	is(t, x.InvalidateMany(t.Context(), keys, 0, func(key cacheaside.Key, err error) {
		is(t, err, map[string]error{"item": errOwn, "second": nil}[key.Loader])
	}), errOwn)
	if v, err := second.Get(t.Context(), 10); v != "new" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

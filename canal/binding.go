package canal

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/mutant"
)

// Binding says what the changes of a table are to do. Bind, BindFilter and Handle make one.
type Binding struct {
	table   Table
	columns []string
	name    string
	err     error

	// Each of these adds to w what a change asks for; or it cannot be understood.
	row   func(w *work, c *Change) error
	whole func(w *work) // of a change of the whole table, and of what is not understood

	handle func(ctx context.Context, c Change) error
	filter bool // what is not understood, or not heard, is not repaired by invalidating
}

// Bind has the changes of a table invalidate a loader: the key of the row as it was, and as it is, so that a change of what the key is made of clears both. Filters of the loader (LoaderOptions.Filter) are told of rows
// that are new under their key. What is done to the whole table (TRUNCATE, ALTER, DROP, RENAME) invalidates all keys of the loader, and so does a row of which key can make nothing.
//
// A loader whose values are made of several tables has a Binding for each; a table may have any number of them.
func Bind[K comparable, V any](l *cacheaside.Loader[K, V], schema, table string, key Key[K]) Binding {
	b := Binding{table: Table{schema, table}, columns: slices.Clone(key.Columns)}
	if l == nil {
		b.err = errors.New("the loader is nil")
		return b
	}
	if key.Of == nil {
		b.err = errors.New("Key.Of is nil")
		return b
	}
	all := l.AllKeys()
	b.name = "loader " + all.Loader
	b.whole = func(w *work) { w.invalidate(all) }
	b.row = func(w *work, c *Change) error {
		before, had, err := keyOf(key, c.Before)
		if err != nil {
			return err
		}
		after, has, err := keyOf(key, c.After.over(c.Before))
		if err != nil {
			return err
		}
		if had && (!has || before != after) && mutant.Active != mutant.CanalNewKeyOnly {
			w.invalidate(l.Key(before))
		}
		switch {
		case !has:
		case had && before == after:
			w.invalidate(l.Key(after))
		default:
			w.admit(l.Key(after))
		}
		return nil
	}
	return b
}

func keyOf[K any](key Key[K], r Row) (k K, ok bool, err error) {
	if !r.Exists() {
		return k, false, nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = &cacheaside.PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return key.Of(r)
}

// Filter is what BindFilter needs of a filter: those of package bloom have it.
type Filter interface {
	Admit(ctx context.Context, keys []string) (committed func(context.Context) error, err error)
	Deleted(ctx context.Context, rows int) error
}

// BindFilter has the inserts of a table add to a filter that is not that of a loader, and its deletes be counted (see bloom.MaintainOptions). The name is for messages. Options.OnGap and Options.Parking are needed.
func BindFilter(name string, f Filter, schema, table string, key Key[string]) Binding {
	b := Binding{table: Table{schema, table}, columns: slices.Clone(key.Columns), name: "filter " + name, filter: true, whole: func(*work) {}}
	if f == nil || key.Of == nil {
		b.err = errors.New("the filter, or Key.Of, is nil")
		return b
	}
	b.row = func(w *work, c *Change) error {
		before, had, err := keyOf(key, c.Before)
		if err != nil {
			return err
		}
		after, has, err := keyOf(key, c.After.over(c.Before))
		if err != nil {
			return err
		}
		if has && (!had || before != after) {
			w.add(f, after)
		}
		if had && (!has || before != after) {
			w.deleted(f)
		}
		return nil
	}
	return b
}

// Handle has the changes of a table be given to f, one after the other in their order, when the caches have been invalidated of what was committed with them. It may be called again with the same ones. What it returns an error for is tried again
// (Options.Attempts), and then parked, which needs Options.Parking. The name is for messages and for what is parked: letters, digits, '_', '.' and '-'.
func Handle(name, schema, table string, f func(ctx context.Context, c Change) error) Binding {
	b := Binding{table: Table{schema, table}, name: "handler " + name, handle: f}
	if f == nil {
		b.err = errors.New("the function is nil")
	}
	return b
}

func (b *Binding) check() error {
	switch {
	case b.err != nil:
		return fmt.Errorf("of %s.%s: %w", b.table.Schema, b.table.Name, b.err)
	case b.table.Schema == "" || b.table.Name == "":
		return fmt.Errorf("%s: schema %q, table %q: neither can be empty", b.name, b.table.Schema, b.table.Name)
	case b.row == nil && b.handle == nil:
		return errors.New("a zero Binding")
	}
	return nil
}

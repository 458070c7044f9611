package canal

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// Binding says what the changes of a table are to do. Bind, BindFilter and Handle make one.
type Binding struct {
	table   event.Table
	columns []string
	name    string
	err     error

	// Each of these adds to w what a change asks for; or it cannot be understood.
	row   func(w *work, c *event.Change) error
	whole func(w *work) // of a change of the whole table, and of what is not understood

	handle func(ctx context.Context, c event.Change) error
	filter Filter // of BindFilter: what is not understood, or not heard, is not repaired by invalidating
}

// Bind makes the changes of a table invalidate a loader: the key of the row as it was, and as it
// is, so that a change of the key's columns clears both. Filters of the loader
// (LoaderOptions.Filter) are told of rows that are new under their key. A change of the whole table
// (TRUNCATE, ALTER, DROP, RENAME) invalidates all keys of the loader, and so does a row of which
// key can make no key.
//
// A loader whose values are made of several tables has a Binding for each; a table may have any
// number of them.
func Bind[K comparable, V any](l *cacheaside.Loader[K, V], schema, table string, key Key[K]) Binding {
	b := Binding{table: event.Table{Schema: schema, Name: table}, columns: slices.Clone(key.Columns)}
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
	b.row = func(w *work, c *event.Change) error {
		before, after, had, has, err := both(key, c)
		if err != nil {
			return err
		}
		if had {
			k := l.Key(before)
			if err := k.Check(); err != nil { // it would be refused, again and again
				return err
			}
			w.invalidate(k)
		}
		if has && (!had || before != after) {
			k := l.Key(after)
			if err := k.Check(); err != nil {
				return err
			}
			w.admit(k)
		}
		return nil
	}
	return b
}

// both makes the keys of a change's two rows.
func both[K comparable](key Key[K], c *event.Change) (before, after K, had, has bool, err error) {
	if c.Before.Exists() {
		before, had, err = key.of(c.Before)
	}
	if c.After.Exists() && err == nil {
		after, has, err = key.of(c.After.Over(c.Before))
	}
	return before, after, had, has, err
}

// understand adds to w what a change of a row asks for. If it cannot, or a function of the user's
// panics, it returns why, and w may have a part of it, which does no harm.
func (b *Binding) understand(w *work, c *event.Change) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &cacheaside.PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	if err := flaw(c); err != nil {
		return err
	}
	return b.row(w, c)
}

// Filter is what BindFilter needs of a filter: those of package bloom have it.
type Filter interface {
	Admit(ctx context.Context, keys []string) (committed func(context.Context) error, err error)
	Deleted(ctx context.Context, rows int) error
}

// BindFilter adds the inserts of a table to a filter that is not a loader's, and counts its deletes
// (see bloom.MaintainOptions). The name is for messages and for parked changes: letters, digits,
// '_', '.' and '-'. Options.OnGap and Options.Parking are needed. While the filter fails everything
// waits for it, the caches, too: a filter that is not in their Redis belongs to a Consumer of its
// own, with another Options.Name and another checkpoint.
func BindFilter(name string, f Filter, schema, table string, key Key[string]) Binding {
	b := Binding{table: event.Table{Schema: schema, Name: table}, columns: slices.Clone(key.Columns), name: "filter " + name, filter: f, whole: func(*work) {}}
	if f == nil || key.Of == nil {
		b.err = errors.New("the filter, or Key.Of, is nil")
		return b
	}
	if !keys.ValidName(name) {
		b.err = invalidName(name)
		return b
	}
	t := &target{f, b.name, b.title()}
	b.row = func(w *work, c *event.Change) error {
		before, after, had, has, err := both(key, c)
		if err != nil {
			return err
		}
		if has && (!had || before != after) {
			w.add(t, after)
		}
		if had && (!has || before != after) {
			w.deleted(t)
		}
		return nil
	}
	return b
}

// Handle gives the changes of a table to f, one after the other in their order, when the caches
// have been invalidated of what was committed with them; also changes of the whole table (Truncate,
// Alter). f may be called again with the same ones. Changes that f returns an error for are tried
// again (Options.Attempts), and then parked, which needs Options.Parking. Later changes wait
// meanwhile, and so do the caches: a handler that calls a service that may be slow or out belongs
// to a Consumer of its own, with another Options.Name and another checkpoint. The name is for
// messages and for parked changes: letters, digits, '_', '.' and '-'.
func Handle(name, schema, table string, f func(ctx context.Context, c event.Change) error) Binding {
	b := Binding{table: event.Table{Schema: schema, Name: table}, name: "handler " + name, handle: f}
	switch {
	case f == nil:
		b.err = errors.New("the function is nil")
	case !keys.ValidName(name):
		b.err = invalidName(name)
	}
	return b
}

// title is its name, with the table.
func (b *Binding) title() string { return b.name + " of " + b.table.Schema + "." + b.table.Name }

func invalidName(name string) error {
	return fmt.Errorf("the name %q: letters, digits, '_', '.' and '-'", name)
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

func checkBindings(bindings []Binding, o Options) error {
	if len(bindings) == 0 {
		return errors.New("no Bindings")
	}
	for i := range bindings {
		b := &bindings[i]
		if err := b.check(); err != nil {
			return fmt.Errorf("Binding %d: %w", i, err)
		}
		if (b.filter != nil || b.handle != nil) && o.Parking == nil {
			return fmt.Errorf("Binding %d, %s, needs Options.Parking", i, b.name)
		}
		if b.filter != nil && o.OnGap == nil {
			return fmt.Errorf("Binding %d, %s, needs Options.OnGap", i, b.name)
		}
	}
	return nil
}

// ofWhole reports whether a change is of a table as a whole, or of several.
func ofWhole(c *event.Change) bool {
	return c.Kind == event.Truncate || c.Kind == event.Alter || c.Kind == event.Replace
}

// flaw returns an error if a change lacks a row that its kind has.
func flaw(c *event.Change) error {
	before, after := c.Before.Exists(), c.After.Exists()
	switch {
	case c.Kind < event.Insert || c.Kind > event.Read:
		return fmt.Errorf("a change of %v", c.Kind)
	case !before && (c.Kind == event.Update || c.Kind == event.Delete):
		return fmt.Errorf("%v: there is no Before", c.Kind)
	case !after && (c.Kind == event.Update || c.Kind == event.Insert || c.Kind == event.Read):
		return fmt.Errorf("%v: there is no After", c.Kind)
	}
	return nil
}

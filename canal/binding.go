package canal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// A Binding defines how the changes of one table are processed. Bind, BindGroup, BindFilter and
// Handle create Bindings.
type Binding struct {
	table   event.Table
	columns []string
	name    string
	loader  string // the name of the loader of Bind, whose filter may miss rows
	err     error

	// row adds the work for a change of a row to w. It returns an error if the change is not
	// understood.
	row func(w *work, c *event.Change) error
	// whole adds the work for a change of the whole table, or for one that is not understood.
	whole func(w *work)

	handle func(ctx context.Context, c event.Change) error
	filter Filter  // of BindFilter; an invalidation does not repair changes that it missed
	outbox *outbox // of BindOutbox, which has nothing else
}

// Bind returns a Binding that invalidates keys of a loader when rows of a table change. It
// invalidates the key of the row before the change and the key after it, so both are invalidated
// when the columns of the key change. Filters of the loader (LoaderOptions.Filter) are updated
// with keys that are new. A change of the whole table (TRUNCATE, ALTER, DROP, RENAME) invalidates
// all keys of the loader, and so does a row from which key cannot make a key.
//
// A row without a usable key cannot be added to a filter of the loader, which would then hide it.
// If such a row is inserted, or an update may have changed the columns of its key, the Consumer
// calls Options.OnGap, which must rebuild the filter.
//
// If the values of a loader are read from several tables, bind each of them. A table can have any
// number of Bindings.
func Bind[K comparable, V any](l *cacheaside.Loader[K, V], schema, table string, key Mapping[K]) Binding {
	b := Binding{table: event.Table{Schema: schema, Name: table}, columns: slices.Clone(key.Columns)}
	if l == nil {
		b.err = errors.New("the loader is nil")
		return b
	}
	if b.err = key.usable(); b.err != nil {
		return b
	}
	all := l.AllKeys()
	b.name, b.loader = "loader "+all.Loader, all.Loader
	b.whole = func(w *work) { w.invalidate(all) }
	b.row = func(w *work, c *event.Change) error {
		before, after, had, has, err := keysOf(key, c)
		if err != nil {
			return err
		}
		if had {
			k := l.Key(before)
			if err := k.Check(); err != nil { // Redis commands with this key would be refused on every attempt
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

// BindGroup returns a Binding that invalidates groups of a loader (LoaderOptions.Groups) when rows
// of a table change. group returns the name of the group of a row; Text makes one. The group of the
// row before the change and the group after it are invalidated, so both are when a row moves from
// one group to another. A row without a name, such as one with NULL in the column, is in no group.
//
// columns are the columns on which the lists depend, in addition to those of group: those by which
// they are sorted or filtered, and those that they contain, such as an id that can change. An
// update of a row that stays in its group and changes none of them invalidates nothing. A column
// whose old or new value is not known counts as changed. Without columns, each update counts.
//
// A change of the whole table (TRUNCATE, ALTER, DROP, RENAME) invalidates all keys of the loader.
// So does a row whose group is not known, for example because the database does not log the column
// with each change. Filters are not affected: use Bind for the rows of a loader with a filter.
func BindGroup[K comparable, V any](
	l *cacheaside.Loader[K, V], schema, table string, group Mapping[string], columns ...string,
) Binding {
	b := Binding{table: event.Table{Schema: schema, Name: table}, columns: slices.Concat(group.Columns, columns)}
	if l == nil {
		b.err = errors.New("the loader is nil")
		return b
	}
	if b.err = group.usable(); b.err != nil {
		return b
	}
	if b.err = checkGroups(l, group, columns); b.err != nil {
		return b
	}
	all := l.AllKeys()
	b.name = "groups of " + all.Loader
	b.whole = func(w *work) { w.invalidate(all) }
	b.row = func(w *work, c *event.Change) error {
		before, after, had, has, err := keysOf(group, c)
		if err != nil {
			return err
		}
		if had && has && before == after && len(columns) > 0 && !mayDiffer(c, columns) {
			return nil
		}
		if had {
			err = w.invalidateGroup(l.GroupKey(before))
		}
		if has && err == nil {
			err = w.invalidateGroup(l.GroupKey(after))
		}
		return err
	}
	return b
}

// checkGroups returns an error if a loader cannot have the groups of BindGroup.
func checkGroups[K comparable, V any](l *cacheaside.Loader[K, V], group Mapping[string], columns []string) error {
	if slices.Contains(columns, "") {
		return errors.New("the name of a column is empty")
	}
	name := cmp.Or(group.example, "any")
	switch err := l.GroupKey(name).Check(); {
	case errors.Is(err, fault.NoGroups):
		return fault.NoGroups
	case errors.Is(err, fault.UnknownKind) && group.example != "":
		return fault.UnknownKind
	}
	return nil // the kind of a Mapping of the user's own is checked with each row
}

// keysOf returns the keys of the rows before and after a change.
func keysOf[K comparable](key Mapping[K], c *event.Change) (before, after K, had, has bool, err error) {
	if c.Before.Exists() {
		before, had, err = key.keyOf(c.Before)
	}
	if c.After.Exists() && err == nil {
		after, has, err = key.keyOf(c.After.Over(c.Before))
	}
	return before, after, had, has, err
}

// mayBeNewKey reports whether the row after a change that was not understood may have a key that
// the row before it did not have.
func (b *Binding) mayBeNewKey(c *event.Change) bool {
	if c.Kind == event.Delete {
		return false
	}
	return c.Kind != event.Update || len(b.columns) == 0 || mayDiffer(c, b.columns)
}

// mayDiffer reports whether an update may have changed one of these columns. A value that is not
// known counts as changed.
func mayDiffer(c *event.Change, columns []string) bool {
	after := c.After.Over(c.Before)
	return slices.ContainsFunc(columns, func(name string) bool { return !after.Get(name).Equal(c.Before.Get(name)) })
}

// addWork adds the work for a change of a row to w. It returns an error if the change is not
// understood or a function of the user panics. Part of the work may already be in w then, which
// does no harm.
func (b *Binding) addWork(w *work, c *event.Change) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &cacheaside.PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	if err := checkChange(c); err != nil {
		return err
	}
	return b.row(w, c)
}

// Filter is the part of a filter that BindFilter needs. The filters of package bloom implement
// it.
type Filter interface {
	Inserting(ctx context.Context, keys []string) (committed func(context.Context) error, err error)
	Deleted(ctx context.Context, rows int) error
}

// BindFilter returns a Binding that adds inserted rows of a table to a filter that belongs to no
// loader, and counts deleted rows (see bloom.MaintainOptions). The name is used in messages and
// for parked changes; it may have letters, digits, '_', '.' and '-'. Options.OnGap and
// Options.Parking are required.
//
// While the filter fails, all changes wait for it, including the invalidation of caches. A filter
// that is not in the Redis of the caches should have its own Consumer, with another Options.Name
// and another checkpoint.
func BindFilter(name string, f Filter, schema, table string, key Mapping[string]) Binding {
	b := Binding{table: event.Table{Schema: schema, Name: table}, columns: slices.Clone(key.Columns),
		name: "filter " + name, filter: f, whole: func(*work) {}}
	if f == nil {
		b.err = errors.New("the filter is nil")
		return b
	}
	if b.err = key.usable(); b.err != nil {
		return b
	}
	if !keys.ValidName(name) {
		b.err = invalidName(name)
		return b
	}
	t := &target{f, b.name, b.title()}
	b.row = func(w *work, c *event.Change) error {
		before, after, had, has, err := keysOf(key, c)
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

// Handle returns a Binding that calls f with each change of a table, one at a time and in order.
// Changes of the whole table (Truncate, Alter, Replace) are included. f is called after the
// caches are invalidated for all changes that were committed with this one. f may be called again
// with the same change. If f returns an error it is called again, at most Options.Attempts times,
// and then the change is parked. Options.Parking is required.
//
// While f fails or runs, later changes wait, including the invalidation of caches. A handler that
// calls a service that may be slow or down should have its own Consumer, with another
// Options.Name and another checkpoint. The name is used in messages and for parked changes; it
// may have letters, digits, '_', '.' and '-'.
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

// title returns the name of the Binding and its table.
func (b *Binding) title() string { return b.name + " of " + b.table.Schema + "." + b.table.Name }

func invalidName(name string) error {
	return fmt.Errorf("the name %q: letters, digits, '_', '.' and '-'", name)
}

func (b *Binding) check() error {
	switch {
	case b.err != nil:
		return fmt.Errorf("of %s.%s: %w", b.table.Schema, b.table.Name, b.err)
	case b.outbox != nil:
		return nil
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
		if (b.filter != nil || b.handle != nil || b.outbox != nil) && o.Parking == nil {
			return fmt.Errorf("Binding %d, %s, needs Options.Parking", i, b.name)
		}
		if b.filter != nil && o.OnGap == nil {
			return fmt.Errorf("Binding %d, %s, needs Options.OnGap", i, b.name)
		}
	}
	return nil
}

// affectsWholeTable reports whether a change concerns a whole table, or several tables.
func affectsWholeTable(c *event.Change) bool {
	return c.Kind == event.Truncate || c.Kind == event.Alter || c.Kind == event.Replace
}

// checkChange returns an error if a change lacks a row that its kind requires.
func checkChange(c *event.Change) error {
	before, after := c.Before.Exists(), c.After.Exists()
	switch {
	case c.Kind < event.Insert || c.Kind > event.Read:
		return fmt.Errorf("a change of an unknown kind: %v", c.Kind)
	case !before && (c.Kind == event.Update || c.Kind == event.Delete):
		return fmt.Errorf("%v: Before is missing", c.Kind)
	case !after && (c.Kind == event.Update || c.Kind == event.Insert || c.Kind == event.Read):
		return fmt.Errorf("%v: After is missing", c.Kind)
	}
	return nil
}

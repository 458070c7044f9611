// Package rowkeys returns the cache keys of the rows that a statement changes, for the plugins of
// object mappers. A plugin reads the rows before and after the statement. If it cannot, all keys of
// each loader bound to the table are invalidated.
package rowkeys

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/writeside"
)

// MaxRows is the maximum number of rows of a statement whose keys are invalidated one by one. A
// statement that changes more invalidates loaders as a whole: it would write as many rows into the
// outbox.
const MaxRows = 1000

// Tables are the Bindings of a plugin by table.
type Tables struct {
	inside   writerSide
	bindings []canal.Binding
	counters
}

type writerSide = writeside.Writer[cacheaside.Key, consistency.Item, sqlx.ExecerContext]

// Stats are the counters of a plugin.
type Stats struct {
	Statements int64 // statements that changed bound tables
	Whole      int64 // statements that invalidated all keys of a loader
	Raw        int64 // SQL of the program whose tables are not known
	Refused    int64 // statements that were not executed
}

type counters struct{ statements, whole, raw, refused atomic.Int64 }

// New returns the Tables of Bindings, which must be those of Bind and BindGroup.
func New(w *consistency.Writer, bindings []canal.Binding) (*Tables, error) {
	if w == nil {
		return nil, errors.New("the Writer is nil")
	}
	if len(bindings) == 0 {
		return nil, errors.New("no Bindings")
	}
	if _, _, err := canal.KeysOf(bindings, event.Change{Kind: event.Alter}); err != nil {
		return nil, err
	}
	return &Tables{inside: writeside.Of[writerSide](w),
		bindings: slices.Clone(bindings)}, nil
}

// Stats returns the counters.
func (t *Tables) Stats() Stats {
	return Stats{t.statements.Load(), t.whole.Load(), t.raw.Load(), t.refused.Load()}
}

// CountStatement counts a statement that changes a bound table.
func (t *Tables) CountStatement() { t.statements.Add(1) }

// CountRaw counts SQL of the program.
func (t *Tables) CountRaw() { t.raw.Add(1) }

// Refuse counts a statement that is not executed, and returns its error.
func (t *Tables) Refuse(err error) error {
	t.refused.Add(1)
	return err
}

// Whole returns all keys of all bound loaders. adds means that rows may be added whose keys are not
// known, which is an error if a loader has a filter.
func (t *Tables) Whole(adds bool) ([]cacheaside.Key, error) {
	return (&Table{t, t.bindings, nil}).Whole(adds)
}

// Enqueue puts keys into the outbox, in the transaction of their statement, and returns the rows.
// committed means that the caller passes them to Committed after the commit.
func (t *Tables) Enqueue(
	ctx context.Context, tx sqlx.ExecerContext, keys []cacheaside.Key, committed bool,
) ([]consistency.Item, error) {
	return t.inside.Enqueue(ctx, tx, keys, committed)
}

// Committed invalidates the keys of rows of the outbox after the commit of their transaction.
func (t *Tables) Committed(ctx context.Context, rows []consistency.Item) {
	t.inside.Committed(ctx, rows)
}

// A Table has the Bindings of a table.
type Table struct {
	tables   *Tables
	bindings []canal.Binding

	// Columns are the columns that the Bindings need. None means all.
	Columns []string
}

// Table returns the Table of a name, which may be schema.table, or nil if nothing is bound to it.
func (t *Tables) Table(name string) *Table {
	schema, table := "", name
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		schema, table = name[:i], name[i+1:]
	}
	found := &Table{tables: t}
	all := false
	for _, b := range t.bindings {
		bound := b.Table()
		if !strings.EqualFold(bound.Name, table) || schema != "" && !strings.EqualFold(bound.Schema, schema) {
			continue
		}
		found.bindings = append(found.bindings, b)
		all = all || len(b.Columns()) == 0
		for _, c := range b.Columns() {
			if !slices.Contains(found.Columns, c) {
				found.Columns = append(found.Columns, c)
			}
		}
	}
	if len(found.bindings) == 0 {
		return nil
	}
	if all {
		found.Columns = nil
	}
	return found
}

// errFilter returns the error of a statement after which the filter of a loader would hide rows.
func errFilter(loader string) error {
	return fmt.Errorf("the filter of loader %s would hide rows of this statement, whose keys cannot be determined: "+
		"write at most %d rows at once, by a model with a primary key, or name the keys of new rows by Touches", loader,
		MaxRows)
}

// Whole returns all keys of each loader bound to the table. adds means that rows may be added whose
// keys are not known, which is an error if a loader has a filter.
func (t *Table) Whole(adds bool) ([]cacheaside.Key, error) {
	kind := event.Truncate
	if adds {
		kind = event.Replace
	}
	keys, missed, err := canal.KeysOf(t.bindings, event.Change{Kind: kind})
	if err != nil {
		return nil, err
	}
	if err := t.tables.checkFilters(missed); err != nil {
		return nil, err
	}
	t.tables.whole.Add(1)
	return keys, nil
}

// Keys returns the keys of changed rows.
func (t *Table) Keys(changes []event.Change) ([]cacheaside.Key, error) {
	set, whole := map[cacheaside.Key]bool{}, false
	for _, c := range changes {
		keys, missed, err := canal.KeysOf(t.bindings, c)
		if err == nil {
			err = t.tables.checkFilters(missed)
		}
		if err != nil {
			return nil, err
		}
		for _, k := range keys {
			set[k] = true
			whole = whole || k.All
		}
	}
	if whole {
		t.tables.whole.Add(1)
	}
	keys := make([]cacheaside.Key, 0, len(set))
	for k := range set {
		// A key that filters must admit makes its mark as existing redundant, and wins.
		if existing := k.Existing(); k != existing || !set[notExisting(k)] {
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// notExisting returns k without its mark as existing.
func notExisting(k cacheaside.Key) cacheaside.Key {
	return cacheaside.Key{Loader: k.Loader, Version: k.Version, Text: k.Text, All: k.All, Group: k.Group}
}

func (t *Tables) checkFilters(loaders []string) error {
	for _, name := range loaders {
		if t.inside.HasFilter(name) {
			return t.Refuse(errFilter(name))
		}
	}
	return nil
}

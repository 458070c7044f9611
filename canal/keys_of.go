package canal

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
)

// KeysOf returns the keys that a Consumer with these Bindings invalidates for a change. It is for
// programs that see changes elsewhere than in the database's log. Keys that filters need not admit
// are marked as existing (cacheaside.Key.Existing). A table without a Schema matches the Bindings
// of all schemas, without regard to case. Options.OnGap of a Consumer has no counterpart:
//
// missed are the names of the loaders of Bind whose filters may not contain the row after the
// change. This is so if its key is not known, or with the kind Replace. KeysOf then returns all
// keys of these loaders, and their filters, if they have any, must be rebuilt.
//
// The error is that of a wrong Binding, or of one that was not made by Bind or BindGroup.
func KeysOf(bindings []Binding, c event.Change) (keys []cacheaside.Key, missed []string, err error) {
	w := newWork(len(bindings))
	for i := range bindings {
		b := &bindings[i]
		if err := b.checkKeys(); err != nil {
			return nil, nil, fmt.Errorf("canal: Binding %d: %w", i, err)
		}
		if !b.concerns(&c) {
			continue
		}
		isNew := c.Kind == event.Replace
		if affectsWholeTable(&c) {
			b.whole(w)
		} else if b.addWork(w, &c) != nil {
			b.whole(w)
			isNew = b.mayBeNewKey(&c)
		}
		if isNew && b.loader != "" {
			missed = append(missed, b.loader)
		}
	}
	for k, admit := range w.keys {
		keys = append(keys, cacheKey(k, admit))
	}
	return keys, missed, nil
}

// Table returns the table of b.
func (b Binding) Table() event.Table { return b.table }

// Columns returns the columns on which the keys of b depend. It returns none if that is not known,
// because the Columns of a Mapping are not set.
func (b Binding) Columns() []string { return b.columns }

// checkKeys returns an error if KeysOf cannot use b.
func (b *Binding) checkKeys() error {
	if err := b.check(); err != nil {
		return err
	}
	if b.outbox != nil || b.filter != nil || b.handle != nil {
		return errors.New(b.name + ": only Bind and BindGroup make keys")
	}
	return nil
}

// concerns reports whether b is bound to the table of c.
func (b *Binding) concerns(c *event.Change) bool {
	return (c.Schema == "" || strings.EqualFold(c.Schema, b.table.Schema)) &&
		(c.Table == "" || strings.EqualFold(c.Table, b.table.Name))
}

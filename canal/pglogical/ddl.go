package pglogical

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/cacheaside/cacheaside/canal/event"
)

// begin sends the first part. If the catalog may have changed since the position where this run
// began, it replaces all tables.
func (r *reader) begin(ctx context.Context) error {
	changed := r.at.catalog != r.catalog.sum
	if changed {
		// A Run for other tables or messages skips what this position's catalog needs. So until
		// await or settle sets the catalog, positions have none, and each Run replaces all tables.
		r.at.catalog = ""
	}
	if r.need.From == "" { // the Consumer invalidates everything when it gets the first part
		changed = false
		if err := r.await(ctx); err != nil {
			return err
		}
	}
	if err := r.send(ctx, part{Batch: event.Batch{Position: r.at.text(), Missing: r.missing,
		Incomplete: r.catalog.incomplete}}); err != nil {
		return err
	}
	r.source.worked.Store(true)
	if !changed {
		return nil
	}
	if err := r.await(ctx); err != nil {
		return err
	}
	return r.replaceAll(ctx)
}

// refresh reads the catalog, and reports what DDL has changed.
func (r *reader) refresh(ctx context.Context) error {
	o := &r.source.options
	c, err := r.server.inspect(ctx, o.Publication, o.CreatePublication, false, r.need)
	if err != nil {
		return err
	}
	if c.sum == r.catalog.sum {
		if maps.Equal(c.incomplete, r.catalog.incomplete) {
			return nil
		}
		r.catalog.incomplete = c.incomplete
		return r.send(ctx, part{Batch: event.Batch{Incomplete: c.incomplete}})
	}
	missing, err := r.server.missing(ctx, c, r.need)
	if err != nil {
		return err
	}
	before := r.catalog
	r.setCatalog(c)
	switch {
	case c.publishes(before):
		err = r.await(ctx)
	case len(r.writers) == 0:
		r.at.catalog = c.sum
	}
	if err != nil {
		return err
	}
	return r.send(ctx, part{Batch: event.Batch{Changes: c.changes(before, r.need), Missing: missing,
		Incomplete: c.incomplete}})
}

// await records the transactions that run now. It is called after the slot was created and after
// the publication was changed. The log can lack changes that these transactions have made before,
// and other sessions can see these changes only when the transactions have ended. So settle
// replaces all tables when all of them have ended. A Run that begins at an earlier position does
// the same, because the catalog of that position is not the current one.
func (r *reader) await(ctx context.Context) error {
	// A snapshot does not suffice: it does not list transactions newer than the last that ended.
	rows, err := r.server.ask(ctx,
		"SELECT transactionid FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted")
	if err != nil {
		return err
	}
	r.writers = nil
	for _, row := range rows {
		xid, err := strconv.ParseUint(row[0], 10, 32)
		if err != nil {
			return err
		}
		r.writers = append(r.writers, r.now.full(uint32(xid)))
	}
	if len(r.writers) == 0 {
		r.at.catalog = r.catalog.sum
	}
	return nil
}

// settle replaces all tables if the transactions that await has noted have ended.
func (r *reader) settle(ctx context.Context) error {
	running := func(xid uint64) bool { return !r.now.visible(xid) }
	if len(r.writers) == 0 || slices.ContainsFunc(r.writers, running) {
		return nil
	}
	r.writers, r.at.catalog = nil, r.catalog.sum
	return r.replaceAll(ctx)
}

// replaceAll sends a Replace of each needed table.
func (r *reader) replaceAll(ctx context.Context) error {
	var changes []event.Change
	for _, t := range sortedTables(r.need) {
		changes = append(changes, event.Change{Schema: t.Schema, Table: t.Name, Kind: event.Replace})
	}
	if len(r.need.Messages) > 0 { // messages may be missing too, which can be about any table
		changes = []event.Change{{Kind: event.Replace}}
	}
	return r.send(ctx, part{Batch: event.Batch{Changes: changes}})
}

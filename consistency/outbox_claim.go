package consistency

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// batchAtMost bounds what is claimed, or ending, by one statement.
const batchAtMost = 1000

// Claim is Queue.Claim: of 1,000 items at most. A row that cannot be read is claimed like another
// (see Unreadable).
func (s *SQLOutbox) Claim(ctx context.Context, most int, life time.Duration) ([]Item, error) {
	if life < time.Microsecond {
		return nil, fmt.Errorf("consistency: outbox: claim: a life of %v: must be positive", life)
	}
	if most < 1 {
		return nil, nil
	}
	text, err := s.own()
	var items []Item
	if err == nil {
		items, err = s.claim(ctx, text, min(most, batchAtMost), life)
	}
	if err != nil {
		return nil, s.failed("claim", err) // what may have been claimed is due again when its life has ended
	}
	return items, nil
}

func (s *SQLOutbox) claim(ctx context.Context, text statements, most int, life time.Duration) (items []Item, err error) {
	if s.text.dialect == SQLite {
		err = s.session(ctx, func(conn *sql.Conn) (err error) {
			items, err = s.claimHere(ctx, conn, text, text.claim(most, newClaim(), life))
			return err
		})
		return items, err
	}
	var c claiming
	err = s.session(ctx, func(conn *sql.Conn) (err error) {
		c, err = claimThere(ctx, conn, text, most, life)
		return err
	})
	if err != nil || c.rows == 0 {
		return nil, err
	}
	err = s.reading(ctx, func(on asker) error {
		rows, err := on.QueryContext(ctx, text.claimed(c, most))
		if err == nil {
			items, err = s.read(rows)
		}
		return err
	})
	if err == nil && int64(len(items)) < c.rows {
		err = s.unread(ctx, text, c, items)
	}
	return items, err
}

// claimHere claims in SQLite.
func (s *SQLOutbox) claimHere(ctx context.Context, conn *sql.Conn, text statements, statement string) ([]Item, error) {
	err := conn.QueryRowContext(ctx, text.anyDue()).Scan(new(int))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	rows, err := conn.QueryContext(ctx, statement)
	if err != nil {
		return nil, err
	}
	return s.read(rows)
}

// claimThere claims in MySQL. The caller reads the claimed rows afterwards: a transaction of both
// would keep the rows locked when its process is stopped in between.
func claimThere(ctx context.Context, conn *sql.Conn, text statements, most int, life time.Duration) (c claiming, err error) {
	c.name = newClaim()
	done, err := conn.ExecContext(ctx, text.claim(most, c.name, life))
	if err != nil {
		return c, err
	}
	if c.until, err = done.LastInsertId(); err != nil || c.until == 0 {
		return c, err
	}
	point("claimed")
	c.rows, err = done.RowsAffected()
	return c, err
}

// unread is for a claim of which not all rows were found: the writer that put them may have removed
// them meanwhile. The rows that are still there are due again, and an error: another server has
// answered than the one that is written to.
func (s *SQLOutbox) unread(ctx context.Context, text statements, c claiming, items []Item) error {
	ids := make([]rowID, len(items))
	for n := range items {
		var err error
		if ids[n], err = parseID(items[n].ID); err != nil {
			return err
		}
	}
	left, err := s.changed(ctx, text.unclaim(c, ids))
	if err == nil && left > 0 {
		err = fmt.Errorf("of %d rows that were claimed %d could not be read: is there a proxy that sends reads within transactions to a replica?", c.rows, left)
	}
	return err
}

// read makes items of rows, the longest due first.
func (s *SQLOutbox) read(rows *sql.Rows) ([]Item, error) {
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var all []claimed
	var c cells
	var to [len(c)]any
	for i := range c {
		to[i] = &c[i]
	}
	for rows.Next() {
		if err := rows.Scan(to[:]...); err != nil {
			return nil, err
		}
		item, readable := c.item()
		if !readable {
			s.unreadable.Add(1)
		}
		all = append(all, claimed{item, numberOf(c[2])})
	}
	slices.SortStableFunc(all, func(a, b claimed) int { return cmp.Compare(a.due, b.due) })
	items := make([]Item, len(all))
	for i := range all {
		items[i] = all[i].item
	}
	return items, rows.Err()
}

type claimed struct {
	item Item
	due  int64 // before
}

// Done is Queue.Done. It removes items without a Claim even if a relay has claimed them: the writer
// that has put them has done them itself, after the commit, and a Relay that does them again does
// no harm.
func (s *SQLOutbox) Done(ctx context.Context, items ...Item) error {
	return s.failed("done", s.finish(ctx, items, batchAtMost, func(text statements, ids []rowID, _ []*Item, claim int64) string {
		return text.done(ids, claim)
	}))
}

// laterAtMost is less, as each row of the statement may have to be found in a list of that length.
const laterAtMost = 100

// Later is Queue.Later.
func (s *SQLOutbox) Later(ctx context.Context, items ...Item) error {
	return s.failed("later", s.finish(ctx, items, laterAtMost, statements.later))
}

// ending is an item by the names that its row has.
type ending struct {
	id    rowID
	claim int64
	item  *Item
}

// ender writes the statement that ends items of one claim.
type ender func(text statements, ids []rowID, items []*Item, claim int64) string

// finish changes the rows of items in batches, each of one claim. Two callers that finish the same
// rows lock them in the same order.
func (s *SQLOutbox) finish(ctx context.Context, items []Item, most int, statement ender) error {
	text, err := s.own()
	if err != nil {
		return err
	}
	all := make([]ending, len(items))
	for n := range items {
		i, err := parseID(items[n].ID)
		if err != nil {
			return err
		}
		claim, err := parseClaim(items[n].Claim)
		if err != nil {
			return err
		}
		all[n] = ending{i, claim, &items[n]}
	}
	slices.SortFunc(all, func(a, b ending) int {
		return cmp.Or(cmp.Compare(a.claim, b.claim), strings.Compare(string(a.id[:]), string(b.id[:])))
	})
	for len(all) > 0 {
		claim := all[0].claim
		var ids []rowID
		var items []*Item
		for len(all) > 0 && all[0].claim == claim && len(ids) < most {
			ids, items = append(ids, all[0].id), append(items, all[0].item)
			all = all[1:]
		}
		if _, err := s.changed(ctx, statement(text, ids, items, claim)); err != nil {
			return err
		}
	}
	return nil
}

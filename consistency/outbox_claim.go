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

// Claim is Queue.Claim: of 1,000 items at most. A row that cannot be read is claimed like another (see Unreadable).
func (o *SQLOutbox) Claim(ctx context.Context, most int, life time.Duration) ([]Item, error) {
	if life < time.Microsecond {
		return nil, fmt.Errorf("consistency: outbox: claim: a life of %v is none", life)
	}
	if most < 1 {
		return nil, nil
	}
	text, err := o.own()
	var items []Item
	if err == nil {
		items, err = o.claim(ctx, text, min(most, batchAtMost), life)
	}
	if err != nil {
		return nil, o.failed("claim", err) // what may have been claimed is due again when its life has ended
	}
	return items, nil
}

func (o *SQLOutbox) claim(ctx context.Context, text statements, most int, life time.Duration) (items []Item, err error) {
	err = o.session(ctx, func(conn *sql.Conn) (err error) {
		claim := newClaim() // of each try
		var rows *sql.Rows
		if o.text.dialect == SQLite {
			rows, err = claimHere(ctx, conn, text, text.claim(most, claim, life))
		} else {
			rows, err = claimThere(ctx, conn, text, claim, text.claim(most, claim, life))
		}
		if rows != nil {
			items, err = o.read(rows)
		}
		return err
	})
	return items, err
}

// claimHere claims in SQLite. No rows: none.
func claimHere(ctx context.Context, conn *sql.Conn, text statements, statement string) (*sql.Rows, error) {
	err := conn.QueryRowContext(ctx, text.anyDue()).Scan(new(int))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return conn.QueryContext(ctx, statement)
}

// claimThere claims in MySQL. No rows: none.
func claimThere(ctx context.Context, conn *sql.Conn, text statements, claim int64, statement string) (*sql.Rows, error) {
	done, err := conn.ExecContext(ctx, statement)
	if err != nil {
		return nil, err
	}
	until, err := done.LastInsertId()
	if err != nil || until == 0 {
		return nil, err
	}
	point("claimed")
	return conn.QueryContext(ctx, text.claimed(claim, until))
}

// read makes items of rows, the longest due first.
func (o *SQLOutbox) read(rows *sql.Rows) ([]Item, error) {
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
			o.unreadable.Add(1)
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

// Done is Queue.Done. What has no Claim is removed whoever has claimed it: who has put it has done it himself, after the commit, and that a Relay may be about to do so again does no harm.
func (o *SQLOutbox) Done(ctx context.Context, items ...Item) error {
	return o.failed("done", o.finish(ctx, items, batchAtMost, func(ids []rowID, _ []*Item, claim int64) string { return o.text.done(ids, claim) }))
}

// laterAtMost is less, as each row of the statement may have to be found in a list of that length.
const laterAtMost = 100

// Later is Queue.Later.
func (o *SQLOutbox) Later(ctx context.Context, items ...Item) error {
	return o.failed("later", o.finish(ctx, items, laterAtMost, o.text.later))
}

// ending is an item by the names that its row has.
type ending struct {
	id    rowID
	claim int64
	item  *Item
}

// finish changes the rows of items in batches, by a statement for each claim among them. Two who finish the same rows lock them in the same order.
func (o *SQLOutbox) finish(ctx context.Context, items []Item, most int, statement func([]rowID, []*Item, int64) string) error {
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
	slices.SortFunc(all, func(a, b ending) int { return strings.Compare(string(a.id[:]), string(b.id[:])) })
	for batch := range slices.Chunk(all, most) {
		statements := byClaim(batch, statement)
		if err := o.session(ctx, func(conn *sql.Conn) error { return execute(ctx, conn, statements) }); err != nil {
			return err
		}
	}
	return nil
}

func byClaim(batch []ending, statement func([]rowID, []*Item, int64) string) (statements []string) {
	ids, items := map[int64][]rowID{}, map[int64][]*Item{}
	var claims []int64
	for _, f := range batch {
		if ids[f.claim] == nil {
			claims = append(claims, f.claim)
		}
		ids[f.claim], items[f.claim] = append(ids[f.claim], f.id), append(items[f.claim], f.item)
	}
	for _, claim := range claims {
		statements = append(statements, statement(ids[claim], items[claim], claim))
	}
	return statements
}

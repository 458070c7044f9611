package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/consistency"
)

// maxBatch is the maximum number of items that one statement claims or removes.
const maxBatch = 1000

// Claim implements consistency.Queue, for at most 1,000 items. It also claims rows without a valid
// key (see Unreadable).
func (o *Outbox) Claim(ctx context.Context, limit int, claimFor time.Duration) ([]consistency.Item, error) {
	if claimFor < time.Microsecond {
		return nil, fmt.Errorf("sqloutbox: claim: a duration of %v: must be positive", claimFor)
	}
	if limit < 1 {
		return nil, nil
	}
	text, err := o.ownStatements()
	var items []consistency.Item
	if err == nil {
		items, err = o.claim(ctx, text, min(limit, maxBatch), claimFor)
	}
	if err != nil {
		// Items that were claimed nevertheless are due again when their claim expires.
		return nil, o.failed("claim", err)
	}
	return items, nil
}

func (o *Outbox) claim(
	ctx context.Context, text statements, limit int, claimFor time.Duration,
) (items []consistency.Item, err error) {
	if o.text.dialect == SQLite {
		err = o.session(ctx, func(conn *sql.Conn) (err error) {
			items, err = o.claimSQLite(ctx, conn, text, text.claim(limit, newClaim(), claimFor))
			return err
		})
		return items, err
	}
	if o.text.dialect == Postgres {
		return o.claimPostgres(ctx, text, limit, claimFor)
	}
	var c mysqlClaim
	err = o.session(ctx, func(conn *sql.Conn) (err error) {
		c, err = claimMySQL(ctx, conn, text, limit, claimFor)
		return err
	})
	if err != nil || c.rows == 0 {
		return nil, err
	}
	err = o.reading(ctx, func(on querier) error {
		rows, err := on.QueryContext(ctx, text.selectClaimed(c, limit))
		if err == nil {
			items, err = o.read(rows)
		}
		return err
	})
	if err == nil && int64(len(items)) < c.rows {
		err = o.releaseMissing(ctx, text, c, items)
	}
	return items, err
}

// claimSQLite claims in SQLite.
func (o *Outbox) claimSQLite(
	ctx context.Context, conn *sql.Conn, text statements, statement string,
) ([]consistency.Item, error) {
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
	return o.read(rows)
}

// claimPostgres claims in PostgreSQL. If the process is stopped before the COMMIT, the server
// ends its session after claimFor, at least minIdle, and with it the locks.
func (o *Outbox) claimPostgres(
	ctx context.Context, text statements, limit int, claimFor time.Duration,
) (items []consistency.Item, err error) {
	err = o.transaction(ctx, max(minIdle, claimFor), func(conn *sql.Conn) error {
		from, err := o.claimFrom(ctx, conn)
		if err != nil {
			return err
		}
		rows, err := conn.QueryContext(ctx, text.claimReturning(), from, limit, micros(claimFor), newClaim())
		if err == nil {
			items, err = o.read(rows)
		}
		if timedOut(err) {
			o.floor.claimTimedOut()
		}
		point("claimed")
		return err
	})
	if len(items) == 0 {
		return nil, err
	}
	return items, err
}

// claimFrom returns the due time from which to claim in PostgreSQL.
func (o *Outbox) claimFrom(ctx context.Context, on querier) (int64, error) {
	if !o.floor.skips() {
		return o.floor.get(), nil
	}
	var now int64
	if err := on.QueryRowContext(ctx, "SELECT "+o.text.now()).Scan(&now); err != nil {
		return 0, err
	}
	return o.floor.skipTo(now), nil
}

// claimMySQL claims in MySQL. The caller reads the claimed rows in another transaction. A
// transaction of both statements would keep the rows locked if its process was stopped between the
// two.
func claimMySQL(
	ctx context.Context, conn *sql.Conn, text statements, limit int, claimFor time.Duration,
) (c mysqlClaim, err error) {
	c.number = newClaim()
	result, err := conn.ExecContext(ctx, text.claim(limit, c.number, claimFor))
	if err != nil {
		return c, err
	}
	if c.ends, err = result.LastInsertId(); err != nil || c.ends == 0 {
		return c, err
	}
	point("claimed")
	c.rows, err = result.RowsAffected()
	return c, err
}

// releaseMissing handles a claim that could not read all its rows. It is no error if their writer
// has removed the rows since. If rows still exist, the read went to another server than the
// writes. Then releaseMissing makes them due again and returns an error.
func (o *Outbox) releaseMissing(ctx context.Context, text statements, c mysqlClaim, items []consistency.Item) error {
	ids := make([]rowID, len(items))
	for n := range items {
		var err error
		if ids[n], err = parseID(items[n].ID); err != nil {
			return err
		}
	}
	missing, err := o.changed(ctx, text.unclaim(c, ids))
	if err == nil && missing > 0 {
		err = fmt.Errorf("%d of %d claimed rows could not be read: is there a proxy that sends reads within "+
			"transactions to a replica?", missing, c.rows)
	}
	return err
}

// read returns the items of rows, those due longest first.
func (o *Outbox) read(rows *sql.Rows) ([]consistency.Item, error) {
	defer rows.Close() //nolint:errcheck // rows.Err is checked
	var all []claimedItem
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
		all = append(all, claimedItem{item, numberOf(c[2])})
	}
	slices.SortStableFunc(all, func(a, b claimedItem) int { return cmp.Compare(a.due, b.due) })
	items := make([]consistency.Item, len(all))
	for i := range all {
		items[i] = all[i].item
	}
	return items, rows.Err()
}

// A claimedItem is an item that read has found.
type claimedItem struct {
	item consistency.Item
	due  int64 // the due time before the claim
}

// Done implements consistency.Queue. An item without a Claim is removed even if a relay has claimed
// it: the writer removes its item without a Claim when it has invalidated the key after the commit,
// and a second invalidation by the relay does no harm.
func (o *Outbox) Done(ctx context.Context, items ...consistency.Item) error {
	done := func(text statements, ids []rowID, _ []*consistency.Item, claim int64) string {
		return text.done(ids, claim)
	}
	return o.failed("done", o.finish(ctx, items, maxBatch, done))
}

// maxLaterBatch is lower than maxBatch, because the database may search a list of this length for
// each row of the statement.
const maxLaterBatch = 100

// Later implements consistency.Queue.
func (o *Outbox) Later(ctx context.Context, items ...consistency.Item) error {
	err := o.finish(ctx, items, maxLaterBatch, statements.later)
	if err == nil {
		claimed := func(i consistency.Item) bool { return i.Claim != "" } // the Relay of these knows
		o.Committed(slices.DeleteFunc(slices.Clone(items), claimed)...)
	}
	return o.failed("later", err)
}

// A finishItem is an item with its parsed ID and claim.
type finishItem struct {
	id    rowID
	claim int64
	item  *consistency.Item
}

// A finishStatement returns the statement that ends the items of one claim.
type finishStatement func(text statements, ids []rowID, items []*consistency.Item, claim int64) string

// finish executes statement for items, in batches of one claim each. Concurrent callers lock
// common rows in the same order.
func (o *Outbox) finish(ctx context.Context, items []consistency.Item, limit int, statement finishStatement) error {
	text, err := o.ownStatements()
	if err != nil {
		return err
	}
	all := make([]finishItem, len(items))
	for n := range items {
		i, err := parseID(items[n].ID)
		if err != nil {
			return err
		}
		claim, err := parseClaim(items[n].Claim)
		if err != nil {
			return err
		}
		all[n] = finishItem{i, claim, &items[n]}
	}
	slices.SortFunc(all, func(a, b finishItem) int {
		return cmp.Or(cmp.Compare(a.claim, b.claim), strings.Compare(string(a.id[:]), string(b.id[:])))
	})
	for len(all) > 0 {
		claim := all[0].claim
		var ids []rowID
		var items []*consistency.Item
		for len(all) > 0 && all[0].claim == claim && len(ids) < limit {
			ids, items = append(ids, all[0].id), append(items, all[0].item)
			all = all[1:]
		}
		if _, err := o.changed(ctx, statement(text, ids, items, claim)); err != nil {
			return err
		}
	}
	return nil
}

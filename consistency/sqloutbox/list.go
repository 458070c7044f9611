package sqloutbox

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/consistency"
)

// A Row is an item as it is stored in the table of an Outbox.
type Row struct {
	// In this Item, After is the remaining time until the item can be claimed. It is negative if
	// the item is due already. Claim is "" if no relay has claimed the item.
	consistency.Item
	Namespace  string
	Unreadable bool // the row has no valid key: another program has written it
}

const (
	maxList  = 1000
	maxRetry = 1000
)

// List returns up to limit rows, at most 1000, those due first, for monitoring: it claims none.
// The rows include claimed ones and those that are not due. An outbox without a namespace lists
// the rows of all namespaces, up to 100 namespaces, ordered by name.
func (o *Outbox) List(ctx context.Context, limit int) ([]Row, error) {
	if limit < 1 || limit > maxList {
		return nil, o.failed("list", fmt.Errorf("a limit of %d: 1 to %d", limit, maxList))
	}
	var all []listed
	err := o.reading(ctx, func(on querier) error {
		all = nil
		scope, err := o.scope(ctx, on)
		for _, text := range scope {
			query, args := text.rows(limit)
			rows, err := on.QueryContext(ctx, query, args...)
			if err != nil {
				return err
			}
			some, err := readRows(rows)
			if err != nil {
				return err
			}
			all = append(all, some...)
		}
		return err
	})
	slices.SortStableFunc(all, func(a, b listed) int { return cmp.Compare(a.due, b.due) })
	var rows []Row
	for _, l := range all[:min(len(all), limit)] {
		rows = append(rows, l.Row)
	}
	return rows, o.failed("list", err)
}

// A listed is a row and its absolute due time. The rows of several namespaces are read at
// different times, so their After cannot be compared.
type listed struct {
	Row
	due int64
}

// scope returns the statements for the outbox's namespace. If it has none, scope returns those
// for each namespace that has rows.
func (o *Outbox) scope(ctx context.Context, on querier) (all []statements, err error) {
	names := []string{o.namespace()}
	if names[0] == "" {
		names, err = o.namespaces(ctx, on)
	}
	for _, name := range names {
		all = append(all, o.text.in(name))
	}
	return all, err
}

func readRows(rows *sql.Rows) ([]listed, error) {
	defer rows.Close() //nolint:errcheck // rows.Err is checked
	var all []listed
	var c cells
	var wait, due, namespace any
	to := make([]any, 0, len(c)+3)
	for i := range c {
		to = append(to, &c[i])
	}
	to = append(to, &wait, &due, &namespace)
	for rows.Next() {
		if err := rows.Scan(to...); err != nil {
			return nil, err
		}
		item, readable := c.item()
		item.After = time.Duration(min(max(numberOf(wait), math.MinInt64/1000), math.MaxInt64/1000)) * time.Microsecond
		if item.Claim == "0" {
			item.Claim = ""
		}
		whose, _ := bytesOf(namespace)
		all = append(all, listed{Row{Item: item, Namespace: string(whose), Unreadable: !readable}, numberOf(due)})
	}
	return all, rows.Err()
}

// Retry makes items due now that are not due yet, for example items that have failed and wait for
// their next attempt. It returns their number. They stay in the queue. A claimed item may be
// handled by two relays, which does no harm. An item that waits for its second invalidation
// (DoubleDelete) is invalidated now. At most 1000 IDs. An outbox without a namespace searches all
// namespaces, as List does.
func (o *Outbox) Retry(ctx context.Context, ids ...string) (made int64, err error) {
	rows := make([]rowID, len(ids))
	for i, id := range ids {
		if rows[i], err = parseID(id); err != nil {
			return 0, o.failed("retry", err)
		}
	}
	if len(ids) > maxRetry {
		return 0, o.failed("retry", fmt.Errorf("%d items: at most %d", len(ids), maxRetry))
	}
	if len(ids) == 0 {
		return 0, nil
	}
	made, err = o.inScope(ctx, func(text statements) (int64, error) {
		return o.changed(ctx, text.retry(rows))
	})
	return made, o.failed("retry", err)
}

// RetryAll is Retry for all items that have failed. Items that have not failed and wait for their
// first or second invalidation are not affected. An outbox without a namespace covers all
// namespaces, as List does.
func (o *Outbox) RetryAll(ctx context.Context) (made int64, err error) {
	made, err = o.inScope(ctx, func(text statements) (made int64, err error) {
		for n := int64(maxRetry); n == maxRetry && err == nil; made += n {
			n, err = o.changed(ctx, text.retryFailed(maxRetry))
		}
		return made, err
	})
	return made, o.failed("retry", err)
}

// inScope calls do for each namespace of scope, and returns the total number of changed rows.
func (o *Outbox) inScope(ctx context.Context, do func(statements) (int64, error)) (made int64, err error) {
	var scope []statements
	err = o.reading(ctx, func(on querier) (err error) {
		scope, err = o.scope(ctx, on)
		return err
	})
	for _, text := range scope {
		if err == nil {
			var n int64
			n, err = do(text)
			made += n
		}
	}
	return made, err
}

func (s statements) rows(limit int) (query string, args []any) {
	most, args := s.argument(int64(limit))
	return fmt.Sprintf("%s %s, %s - created, due - %s, due, namespace FROM %s%s"+
		" WHERE namespace = %s ORDER BY due LIMIT %s", s.begin("SELECT"), itemColumns, s.now(), s.now(),
		s.table, s.hint("due"), s.namespace, most), args
}

func (s statements) retry(ids []rowID) string {
	return fmt.Sprintf("%s %s%s SET due = %s, since = %s WHERE %s AND due > %s", s.begin("UPDATE"), s.table,
		s.hint("PRIMARY"), s.now(), s.now(), s.byID(ids), s.now())
}

// retryFailed finds its rows by the index on due, and changes a limited number, so that other
// transactions do not wait long.
func (s statements) retryFailed(limit int) string {
	failed := " AND attempts > 0"
	waiting := fmt.Sprintf("FROM %s WHERE namespace = %s AND due > %s%s ORDER BY due LIMIT %d", s.clock("due"),
		s.namespace, s.instant(), failed, limit)
	switch s.dialect {
	case Postgres:
		return fmt.Sprintf("UPDATE %s SET due = %s, since = %s WHERE %s", s.table, s.now(), s.now(), found(waiting))
	case SQLite:
		return fmt.Sprintf("UPDATE %s SET due = %s, since = %s WHERE namespace = %s AND id IN (SELECT id %s)", s.table,
			s.now(), s.now(), s.namespace, waiting)
	}
	return fmt.Sprintf("%s (SELECT id %s) AS d STRAIGHT_JOIN %s AS o%s ON o.namespace = %s AND o.id = d.id SET "+
		"o.due = %s, o.since = %s", s.begin("UPDATE"), waiting, s.table, s.hint("PRIMARY"), s.namespace, s.now(),
		s.now())
}

package consistency

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"time"
)

// Row is an item as it lies in the table of an SQLOutbox.
type Row struct {
	Item              // its After is how long until it is due, or is given out again, less than 0 if it could be claimed for so long; its Claim is "" if nobody has claimed it
	Namespace  string // whose it is
	Unreadable bool   // it holds no key: somebody else's
}

const (
	listAtMost  = 1000
	retryAtMost = 1000
)

// List returns up to limit rows, at most 1000, those due first, for programs that only look: it
// claims none. Rows that relays have claimed are among them, and rows that are not due. An outbox
// without a namespace lists the rows of all namespaces (of the first 100 of them, by name).
func (s *SQLOutbox) List(ctx context.Context, limit int) ([]Row, error) {
	if limit < 1 || limit > listAtMost {
		return nil, s.failed("list", fmt.Errorf("a limit of %d: 1 to %d", limit, listAtMost))
	}
	var all []listed
	err := s.reading(ctx, func(on asker) error {
		all = nil
		scope, err := s.scope(ctx, on)
		for _, text := range scope {
			rows, err := on.QueryContext(ctx, text.list(limit))
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
	return rows, s.failed("list", err)
}

// listed is a row, and when it is due: the namespaces are not read at the same time.
type listed struct {
	Row
	due int64
}

// scope are the statements for the outbox's namespace, or for each that has rows if it has none.
func (s *SQLOutbox) scope(ctx context.Context, on asker) (all []statements, err error) {
	names := []string{s.namespace()}
	if names[0] == "" {
		names, err = s.spaces(ctx, on)
	}
	for _, name := range names {
		all = append(all, s.text.in(name))
	}
	return all, err
}

func readRows(rows *sql.Rows) ([]listed, error) {
	defer rows.Close() //nolint:errcheck // rows.Err tells
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

// Retry makes items due now that are not due yet, such as those that a relay could not do and has
// put off, and returns how many. They stay in the queue. An item that a relay has claimed may be
// done by another as well, which does no harm. With DoubleDelete, an item that has been done once
// is done the second time at once. An outbox without a namespace finds the IDs in all namespaces,
// as List does.
func (s *SQLOutbox) Retry(ctx context.Context, ids ...string) (made int64, err error) {
	rows := make([]rowID, len(ids))
	for i, id := range ids {
		if rows[i], err = parseID(id); err != nil {
			return 0, s.failed("retry", err)
		}
	}
	if len(ids) > retryAtMost {
		return 0, s.failed("retry", fmt.Errorf("%d items: at most %d", len(ids), retryAtMost))
	}
	if len(ids) == 0 {
		return 0, nil
	}
	made, err = s.inScope(ctx, func(text statements) (int64, error) {
		return s.changed(ctx, text.retry(rows))
	})
	return made, s.failed("retry", err)
}

// RetryAll is Retry for all items that have failed; not for items that wait for their time, the
// first or the second. An outbox without a namespace does so in all namespaces, as List.
func (s *SQLOutbox) RetryAll(ctx context.Context) (made int64, err error) {
	made, err = s.inScope(ctx, func(text statements) (made int64, err error) {
		for n := int64(retryAtMost); n == retryAtMost && err == nil; made += n {
			n, err = s.changed(ctx, text.retryFailed(retryAtMost))
		}
		return made, err
	})
	return made, s.failed("retry", err)
}

// inScope calls do for each namespace of scope, and adds up the rows that were changed.
func (s *SQLOutbox) inScope(ctx context.Context, do func(statements) (int64, error)) (made int64, err error) {
	var scope []statements
	err = s.reading(ctx, func(on asker) (err error) {
		scope, err = s.scope(ctx, on)
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

func (s statements) list(limit int) string {
	return fmt.Sprintf(s.begin("SELECT")+" %s, %s - created, due - %s, due, namespace FROM %s%s WHERE namespace = %s ORDER BY due LIMIT %d", itemColumns, s.now(), s.now(), s.table, s.hint("due"), s.space, limit)
}

func (s statements) retry(ids []rowID) string {
	return fmt.Sprintf("%s %s%s SET due = %s, since = %s WHERE %s AND due > %s", s.begin("UPDATE"), s.table, s.hint("PRIMARY"), s.now(), s.now(), s.named(ids), s.now())
}

// retryFailed finds its rows by the index on due, and changes few at once, so that no transaction
// waits for it for long.
func (s statements) retryFailed(most int) string {
	failed := " AND attempts > 0"
	waiting := fmt.Sprintf("SELECT id FROM %s WHERE namespace = %s AND due > %s%s ORDER BY due LIMIT %d", s.clock("due"), s.space, s.instant(), failed, most)
	if s.dialect == SQLite {
		return fmt.Sprintf("UPDATE %s SET due = %s, since = %s WHERE namespace = %s AND id IN (%s)", s.table, s.now(), s.now(), s.space, waiting)
	}
	return fmt.Sprintf("%s (%s) AS d STRAIGHT_JOIN %s AS o%s ON o.namespace = %s AND o.id = d.id SET o.due = %s, o.since = %s", s.begin("UPDATE"), waiting, s.table, s.hint("PRIMARY"), s.space, s.now(), s.now())
}

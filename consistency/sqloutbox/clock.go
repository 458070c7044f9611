package sqloutbox

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	clockSlack   = time.Second // smaller differences are ignored
	repairAtOnce = 100         // rows per statement
	repairFor    = time.Minute // transactions that were open have normally ended after that
)

// A clock tracks the clock of the database. That can go back, for example after a failover, or be
// behind the clock of another server that accepts writes. Rows would then wait longer by the
// difference.
type clock struct {
	mu         sync.Mutex
	last       int64     // the last time that was read from the database
	readAt     time.Time // when that was read, or a little later; zero: it has not been read
	suspect    bool      // the clock may have gone back since the last check of the rows
	checkUntil time.Time // until then, rows are checked again
}

// observe records the time now of the database, read between began and ended, and the time at which
// the newest row was put. The rows are also checked after the first call, because it is unknown
// whether the clock went back before.
func (c *clock) observe(now, latest int64, began, ended time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readAt.IsZero() ||
		now < c.last+began.Sub(c.readAt).Microseconds()-clockSlack.Microseconds() ||
		latest > now+clockSlack.Microseconds() {
		c.suspect = true
	}
	c.last, c.readAt = now, ended
}

// wentBack reports whether rows may wait too long because the clock has gone back. It returns true
// until a check has succeeded, and for repairFor after that, because transactions that were open
// during the check may still commit such rows.
func (c *clock) wentBack() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.suspect || time.Now().Before(c.checkUntil)
}

// checked records that the rows were checked and corrected, or why they were not. The database may
// refuse to change them for a long time, for example after a failover.
func (c *clock) checked(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		c.suspect = true
	case c.suspect:
		c.suspect, c.checkUntil = false, time.Now().Add(repairFor)
	}
}

// Repaired returns the number of rows that this process has corrected because their times were
// ahead of the database's clock. They become due as intended.
func (o *Outbox) Repaired() int64 { return o.repaired.Load() }

// The names of the conditions that an Outbox logs once.
const (
	overdueOthers = "rows of other namespaces"
	timesAhead    = "rows of a clock that is ahead"
)

// Maintain implements consistency.QueueHooks. It corrects rows, and logs conditions that an
// operator should know. It also returns an error as long as Depth cannot read the index from its
// beginning.
func (o *Outbox) Maintain(ctx context.Context, log *slog.Logger) error {
	if names := o.unclaimed(); len(names) == 0 {
		o.alarm.Works(overdueOthers)
	} else if _, news := o.alarm.Failed(overdueOthers, nil); news {
		log.Warn("cacheaside: no Relay claims the overdue items of other namespaces of the outbox: is the Relay "+
			"of their application running?", "namespaces", shownNames(names))
	}
	return cmp.Or(o.repairClock(ctx, log), o.failed("depth", o.unread()))
}

// unread returns an error if Depth could not read the index from its beginning.
func (o *Outbox) unread() error {
	if err := o.floor.failure(); err != nil {
		return fmt.Errorf("the index could not be read from its beginning, so items that were committed late "+
			"wait: is a transaction open for long? %w", err)
	}
	return nil
}

// repairClock corrects rows if the clock has gone back.
func (o *Outbox) repairClock(ctx context.Context, log *slog.Logger) error {
	text, err := o.ownStatements()
	if err != nil || !o.clock.wentBack() {
		return o.failed("repair", err)
	}
	repaired, err := o.repair(ctx, text)
	o.clock.checked(err)
	o.repaired.Add(repaired)
	if repaired > 0 {
		o.alarm.Forget(repairFor)
		if _, news := o.alarm.Failed(timesAhead, nil); news {
			log.Warn("cacheaside: corrected items of the outbox that waited too long because their times were "+
				"ahead of the database's clock: has the clock gone back, or do the clocks of two servers differ?",
				"items", repaired)
		}
	}
	return o.failed("repair", err)
}

// repair subtracts from the times of rows the difference by which the clock has gone back since
// they were set. It accesses few rows at a time by the primary key, so it never waits long.
// Several processes can repair concurrently.
func (o *Outbox) repair(ctx context.Context, text statements) (repaired int64, err error) {
	due := int64(0)
	for {
		var ids []rowID
		err := o.reading(ctx, func(on querier) (err error) {
			query, args := text.ahead(due)
			ids, due, err = readAhead(ctx, on, query, args...)
			return err
		})
		if err != nil || len(ids) == 0 {
			return repaired, err
		}
		n, err := o.changed(ctx, text.repair(ids))
		repaired += n
		if err != nil || len(ids) < repairAtOnce {
			return repaired, err
		}
	}
}

// readAhead reads IDs, and the due time of the last of them.
func readAhead(ctx context.Context, on querier, query string, args ...any) (ids []rowID, due int64, err error) {
	rows, err := on.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is checked
	for rows.Next() {
		var id []byte
		if err := rows.Scan(&id, &due); err != nil {
			return nil, 0, err
		}
		ids = append(ids, rowID(id))
	}
	return ids, due, rows.Err()
}

// dueSetAt returns an expression for the time at which the row's due was set. Put sets only the
// column created. The other statements set the column since.
func (s statements) dueSetAt() string {
	if s.dialect == SQLite {
		return "MAX(since, created)"
	}
	return "GREATEST(since, created)"
}

func (s statements) dueIsAhead() string {
	return fmt.Sprintf("%s > %s + %d", s.dueSetAt(), s.now(), micros(clockSlack))
}

// ahead returns a query for rows whose due time was set by a clock that was ahead of the current
// time.
func (s statements) ahead(due int64) (query string, args []any) {
	from, args := s.argument(due)
	return fmt.Sprintf("%s id, due FROM %s WHERE namespace = %s AND due >= %s AND due > %s + %d AND %s"+
		" ORDER BY due LIMIT %d", s.begin("SELECT"), s.clock("due"), s.namespace, from, s.instant(),
		micros(clockSlack), s.dueIsAhead(), repairAtOnce), args
}

// repair returns an UPDATE that sets due first, because assignments in MySQL see the results of
// those before them.
func (s statements) repair(ids []rowID) string {
	least := "LEAST"
	if s.dialect == SQLite {
		least = "MIN"
	}
	return fmt.Sprintf("%s %s%s SET due = due - (%s - %s), created = %s(created, %s), since = %s WHERE %s AND %s",
		s.begin("UPDATE"), s.table, s.hint("PRIMARY"), s.dueSetAt(), s.now(), least, s.now(), s.now(),
		s.byID(ids), s.dueIsAhead())
}

package consistency

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	clockSlack   = time.Second // a clock that goes back by less does not matter
	repairAtOnce = 100         // rows
	repairFor    = time.Minute // after which transactions that were open have ended, as a rule
)

// clock is what an SQLOutbox knows of its database's clock. That may go back, as after a failover,
// or be behind the clock of another server of the database that takes writes, too. Then rows would
// wait longer, by the difference.
type clock struct {
	mu    sync.Mutex
	now   int64     // the time that it showed last
	then  time.Time // when that was, or a little later; zero: it was not read yet
	until time.Time // the end of the time in which rows may be found that wait for too long
}

// saw records what the clock showed between two moments, and when the latest row was put. Before
// the first call it is not known whether the clock has gone back.
func (c *clock) saw(now, latest int64, began, ended time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.then.IsZero() || now < c.now+began.Sub(c.then).Microseconds()-clockSlack.Microseconds() || latest > now+clockSlack.Microseconds() {
		c.until = time.Now().Add(repairFor)
	}
	c.now, c.then = now, ended
}

// wentBack reports whether the clock has gone back within repairFor, so that rows may wait for too
// long: those that were there, and those of transactions that were open then.
func (c *clock) wentBack() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.until)
}

// Repaired is how many rows this process has found whose times were ahead of the database's clock,
// because that has gone back: they wait no longer than they were to.
func (s *SQLOutbox) Repaired() int64 { return s.repaired.Load() }

// lookAgain is for a caller that could not repair all.
func (c *clock) lookAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = time.Now().Add(repairFor)
}

// The names under which an SQLOutbox' alarm knows its troubles.
const (
	otherSpaces = "rows of other namespaces"
	wrongTimes  = "rows of a clock that is ahead"
)

// tend repairs rows, and logs what an operator should know of the table. A Relay calls it about
// once a second, after Depth.
func (s *SQLOutbox) tend(ctx context.Context, log *slog.Logger) error {
	if names := s.unclaimed(); len(names) == 0 {
		s.alarm.Works(otherSpaces)
	} else if _, news := s.alarm.Failed(otherSpaces, nil); news {
		log.Warn("cacheaside: nobody claims what has long been due in other namespaces of the outbox: is their application's Relay running?", "namespaces", shownNames(names))
	}
	text, err := s.own()
	if err != nil || !s.clock.wentBack() {
		return s.failed("repair", err)
	}
	repaired, err := s.repair(ctx, text)
	if err != nil {
		s.clock.lookAgain()
	}
	s.repaired.Add(repaired)
	if repaired > 0 {
		s.alarm.Forget(repairFor)
		if _, news := s.alarm.Failed(wrongTimes, nil); news {
			log.Warn("cacheaside: items of the outbox were put by a clock that is ahead of the database's, and waited too long: has the clock gone back, or do the clocks of two servers differ?", "items", repaired)
		}
	}
	return s.failed("repair", err)
}

// repair takes from the rows' times what the clock has gone back by since they were set. It goes by
// the primary key, and few rows at once, so it waits for nobody for long. That others may do the
// same does not matter.
func (s *SQLOutbox) repair(ctx context.Context, text statements) (repaired int64, err error) {
	due := int64(0)
	for {
		var ids []rowID
		err := s.reading(ctx, func(on asker) (err error) {
			ids, due, err = readAhead(ctx, on, text.ahead(due))
			return err
		})
		if err != nil || len(ids) == 0 {
			return repaired, err
		}
		n, err := s.changed(ctx, text.repair(ids))
		repaired += n
		if err != nil || len(ids) < repairAtOnce {
			return repaired, err
		}
	}
}

// readAhead reads IDs, and when the last of them is due.
func readAhead(ctx context.Context, on asker, query string) (ids []rowID, due int64, err error) {
	rows, err := on.QueryContext(ctx, query)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	for rows.Next() {
		var id []byte
		if err := rows.Scan(&id, &due); err != nil {
			return nil, 0, err
		}
		ids = append(ids, rowID(id))
	}
	return ids, due, rows.Err()
}

// set is when a row's due was: Put leaves that to created.
func (s statements) set() string {
	if s.dialect == SQLite {
		return "MAX(since, created)"
	}
	return "GREATEST(since, created)"
}

func (s statements) isAhead() string {
	return fmt.Sprintf("%s > %s + %d", s.set(), s.now(), micros(clockSlack))
}

// ahead finds rows that wait for a time which was set by a clock that was ahead of what it is now.
func (s statements) ahead(due int64) string {
	return fmt.Sprintf("%s id, due FROM %s WHERE namespace = %s AND due >= %d AND due > %s + %d AND %s ORDER BY due LIMIT %d",
		s.begin("SELECT"), s.clock("due"), s.space, due, s.instant(), micros(clockSlack), s.isAhead(), repairAtOnce)
}

// repair sets due first, as MySQL's assignments see those before them.
func (s statements) repair(ids []rowID) string {
	least := "LEAST"
	if s.dialect == SQLite {
		least = "MIN"
	}
	return fmt.Sprintf("%s %s%s SET due = due - (%s - %s), created = %s(created, %s), since = %s WHERE %s AND %s",
		s.begin("UPDATE"), s.table, s.hint("PRIMARY"), s.set(), s.now(), least, s.now(), s.now(), s.named(ids), s.isAhead())
}

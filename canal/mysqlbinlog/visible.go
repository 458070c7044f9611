package mysqlbinlog

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cacheaside/cacheaside/canal/event"
)

// place is one in a server's log.
type place struct {
	file uint64 // the number at the end of its name
	pos  uint64
}

func (p *place) rotate(name string) {
	if file := number(name); file != p.file {
		*p = place{file: file}
	}
}

// follow goes to the end of an event. The log's own numbers have 32 bits, and a file can be longer,
// if its last transactions are giants. Later versions of MariaDB leave some out.
func (p *place) follow(h *replication.EventHeader) {
	if h.Flags&replication.LOG_EVENT_ARTIFICIAL_F != 0 || h.EventType == replication.HEARTBEAT_EVENT || h.EventType == replication.HEARTBEAT_LOG_EVENT_V2 {
		return
	}
	if h.LogPos == 0 {
		p.pos += uint64(h.EventSize)
		return
	}
	pos := uint64(h.LogPos)
	for pos < p.pos {
		pos += 1 << 32
	}
	p.pos = pos
}

func number(name string) uint64 {
	n, _ := strconv.ParseUint(name[strings.LastIndexByte(name, '.')+1:], 10, 64)
	return n
}

func (p place) before(q place) bool { return p.file < q.file || p.file == q.file && p.pos < q.pos }

// mark is where a transaction begins in the log, behind what names it; or its name.
type mark struct {
	place
	mysql mysqlGTID
}

// seen is which of a server's transactions can be seen by all that ask: up to a place, or some.
type seen struct {
	place
	name  string // of the file
	mysql *mysqlPosition
}

func (s seen) has(m mark) bool {
	switch {
	case m == mark{}:
		return true
	case m.mysql == mysqlGTID{}:
		return m.before(s.place) // what can be seen ends with a transaction, so it is not in the midst of one
	}
	return s.mysql != nil && s.mysql.has(m.mysql)
}

// sight is what is known of which transactions can be seen.
type sight struct {
	server *server
	now    seen
	few    int // how many parts are asked for, after not all of more could be seen; 0: all
}

// count returns how many of the first parts can be seen.
func (s *sight) count(parts []part) int {
	n := slices.IndexFunc(parts, func(p part) bool { return !s.now.has(p.from) })
	if n < 0 {
		return len(parts)
	}
	return n
}

// ask asks the server which parts can be seen.
//
// MySQL adds a transaction to gtid_executed after its engine has committed it
// (https://dev.mysql.com/doc/refman/8.4/en/replication-gtids-lifecycle.html). That set may be long,
// so it is not fetched: WAIT_FOR_EXECUTED_GTID_SET says whether it has all of some transactions,
// and waits a moment for them. If it has not, it is asked for less of them.
func (s *sight) ask(parts []part) (err error) {
	if s.server.flavor == mysql.MariaDBFlavor {
		s.now, err = s.server.see()
		return err
	}
	if s.few > 0 {
		parts = parts[:min(s.few, len(parts))]
	}
	asked := newMySQLPosition()
	for _, p := range parts {
		if p.from.mysql.gno != 0 {
			asked.addMySQL(p.from.mysql)
		}
	}
	rows, err := s.server.ask(fmt.Sprintf("SELECT WAIT_FOR_EXECUTED_GTID_SET('%s', %g)", asked.set, askSeldom.Seconds())) // numbers and tags
	switch {
	case err != nil:
		return err
	case rows[0][0] != "0":
		s.few = max(len(parts)/2, 1)
	default:
		s.now.mysql, s.few = asked, 0
	}
	return nil
}

// see asks what can be seen.
//
// MariaDB puts a transaction into its log, and lets replicas have it, before the engine commits it
// (MYSQL_BIN_LOG::trx_group_commit_leader; with semi-synchronous replication AFTER_SYNC the time
// between lasts until a replica has answered). The variables binlog_snapshot_file and
// binlog_snapshot_position name the end of the last transaction that the engine has committed; they
// are read under the mutex that both are done under
// (https://mariadb.com/kb/en/enhancements-for-start-transaction-with-consistent-snapshot/).
func (s *server) see() (seen, error) {
	rows, err := s.ask("SHOW STATUS LIKE 'binlog_snapshot_%'")
	if err != nil {
		return seen{}, err
	}
	var now seen
	for _, r := range rows {
		switch {
		case strings.EqualFold(r[0], "binlog_snapshot_file"):
			now.name, now.file = r[1], number(r[1])
		case strings.EqualFold(r[0], "binlog_snapshot_position"):
			now.pos, err = strconv.ParseUint(r[1], 10, 64)
		}
	}
	if err != nil || now.file == 0 {
		return seen{}, fmt.Errorf("the server does not say which transactions can be seen: %d answers", len(rows))
	}
	return now, nil
}

// begin is where to begin: behind the changes that can be seen. Changes that are in the log, and
// cannot be seen yet, are still to be told: a reader of the old row would keep it.
func (s *server) begin() (position, error) {
	if s.flavor != mysql.MariaDBFlavor {
		return s.now()
	}
	now, err := s.see()
	if err != nil {
		return nil, err
	}
	rows, err := s.ask("SELECT BINLOG_GTID_POS(?, ?)", now.name, int64(now.pos)) // reads the file up to there
	if err != nil {
		return nil, err
	}
	if rows[0][0] == "" {
		logged, err := s.now()
		if err != nil {
			return nil, err
		}
		if logged.text() != mariadbPrefix { // it has logged something
			return nil, fmt.Errorf("the server does not return the event at %s:%d", now.name, now.pos)
		}
	}
	return parseSet(rows[0][0], s.flavor)
}

const (
	askEvery  = 5 * time.Millisecond  // at the oftenest
	askSeldom = 20 * time.Millisecond // and no more seldom than this, however long the last answer took
	askShare  = 4                     // but so many times as long as the last answer took is waited for the next

	unseenFor = time.Minute // is an error; what it waits for is told again
	mostParts = 1024        // that wait
)

// deliverVisible delivers parts when others can see what they tell of.
func deliverVisible(ctx context.Context, parts <-chan part, s *sight, pass func(part), deliver chan<- event.Batch) error {
	var waiting []part
	var next time.Time
	for {
		if len(waiting) == 0 {
			select {
			case p := <-parts:
				waiting = append(waiting, p)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for since := time.Now(); s.count(waiting) == 0; {
			if time.Since(since) > unseenFor {
				return fmt.Errorf("for %v a transaction in the log has not become visible", unseenFor)
			}
			if err := sleep(ctx, time.Until(next)); err != nil {
				return err
			}
			waiting = take(waiting, parts)
			began := time.Now()
			if err := s.ask(waiting); err != nil {
				return err
			}
			next = began.Add(min(max(askEvery, askShare*time.Since(began)), askSeldom))
		}
		n := s.count(waiting)
		for _, p := range waiting[:n] {
			select {
			case deliver <- p.Batch:
				pass(p)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		waiting = slices.Delete(waiting, 0, n)
	}
}

// take adds to waiting what is there.
func take(waiting []part, parts <-chan part) []part {
	for len(waiting) < mostParts {
		select {
		case p := <-parts:
			waiting = append(waiting, p)
		default:
			return waiting
		}
	}
	return waiting
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

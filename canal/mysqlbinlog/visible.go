package mysqlbinlog

import (
	"context"
	"fmt"
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
	mysql string
}

// seen is up to where a server's transactions can be seen by all that ask.
type seen struct {
	place
	name  string // of the file
	mysql mysql.GTIDSet
}

func (s seen) has(m mark) bool {
	switch {
	case m == mark{}:
		return true
	case m.mysql == "":
		return m.before(s.place) // what can be seen ends with a transaction, so it is not in the midst of one
	case s.mysql == nil:
		return false
	}
	one, err := mysql.ParseMysqlGTIDSet(m.mysql)
	return err == nil && s.mysql.Contain(one)
}

// see asks what can be seen.
//
// MariaDB puts a transaction into its log, and lets replicas have it, before the engine commits it
// (MYSQL_BIN_LOG::trx_group_commit_leader; with semi-synchronous replication AFTER_SYNC the time
// between lasts until a replica has answered). The variables binlog_snapshot_file and
// binlog_snapshot_position name the end of the last transaction that the engine has committed; they
// are read under the mutex that both are done under
// (https://mariadb.com/kb/en/enhancements-for-start-transaction-with-consistent-snapshot/).
//
// MySQL adds a transaction to gtid_executed after its engine has committed it
// (https://dev.mysql.com/doc/refman/8.4/en/replication-gtids-lifecycle.html).
func (s *server) see() (seen, error) {
	if s.flavor != mysql.MariaDBFlavor {
		at, err := s.now()
		if err != nil {
			return seen{}, err
		}
		return seen{mysql: at.gtids()}, nil
	}
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
)

// deliverVisible delivers parts when others can see what they tell of.
func deliverVisible(ctx context.Context, parts <-chan part, see func() (seen, error), pass func(part), deliver chan<- event.Batch) error {
	var now seen
	var next time.Time
	for {
		var p part
		select {
		case p = <-parts:
		case <-ctx.Done():
			return ctx.Err()
		}
		for since := time.Now(); !now.has(p.from); {
			if time.Since(since) > unseenFor {
				return fmt.Errorf("for %v a transaction in the log has not become visible", unseenFor)
			}
			if err := sleep(ctx, time.Until(next)); err != nil {
				return err
			}
			began := time.Now()
			var err error
			if now, err = see(); err != nil {
				return err
			}
			next = began.Add(min(max(askEvery, askShare*time.Since(began)), askSeldom))
		}
		select {
		case deliver <- p.Batch:
			pass(p)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
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

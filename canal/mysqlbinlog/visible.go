package mysqlbinlog

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// sight is what is known of which transactions can be seen.
type sight struct {
	server *server
	upTo   place // in MariaDB's log
	few    int   // how many parts are asked for, after not all of more could be seen; 0: all
}

// known returns how many of the first parts can be seen, as far as that is known. A position of
// MariaDB is the end of a transaction, never inside of one.
func (s *sight) known(parts []part) int {
	n := slices.IndexFunc(parts, func(p part) bool { return p.from != mark{} && !p.from.before(s.upTo) })
	if n < 0 {
		return len(parts)
	}
	return n
}

// ask asks the server how many of the first parts can be seen.
//
// MySQL adds a transaction to gtid_executed after its engine has committed it
// (https://dev.mysql.com/doc/refman/8.4/en/replication-gtids-lifecycle.html). That set may be long,
// so it is not fetched: WAIT_FOR_EXECUTED_GTID_SET says whether it has all of some transactions,
// and waits a moment for them. If it has not, it is asked for less of them.
func (s *sight) ask(parts []part) (n int, err error) {
	if s.server.flavor == mysql.MariaDBFlavor {
		_, s.upTo, err = s.server.see()
		return s.known(parts), err
	}
	if s.few > 0 {
		parts = parts[:min(s.few, len(parts))]
	}
	asked := mysql.MysqlGTIDSet{}
	for _, p := range parts {
		if p.from.mysql.gno != 0 {
			addTo(asked, p.from.mysql)
		}
	}
	rows, err := s.server.ask(fmt.Sprintf("SELECT WAIT_FOR_EXECUTED_GTID_SET('%s', %g)", &asked, askSeldom.Seconds())) // numbers and tags
	switch {
	case err != nil:
		return 0, err
	case rows[0][0] != "0":
		s.few = max(len(parts)/2, 1)
		return 0, nil
	}
	s.few = 0
	return len(parts), nil
}

// see asks up to which place in which file of the log can be seen.
//
// MariaDB puts a transaction into its log, and lets replicas have it, before the engine commits it
// (MYSQL_BIN_LOG::trx_group_commit_leader; with semi-synchronous replication AFTER_SYNC the time
// between lasts until a replica has answered). The variables binlog_snapshot_file and
// binlog_snapshot_position name the end of the last transaction that the engine has committed; they
// are read under the mutex that both are done under
// (https://mariadb.com/kb/en/enhancements-for-start-transaction-with-consistent-snapshot/).
func (s *server) see() (file string, at place, err error) {
	rows, err := s.ask("SHOW STATUS LIKE 'binlog_snapshot_%'")
	if err != nil {
		return "", place{}, err
	}
	for _, r := range rows {
		switch {
		case strings.EqualFold(r[0], "binlog_snapshot_file"):
			file, at.file = r[1], number(r[1])
		case strings.EqualFold(r[0], "binlog_snapshot_position"):
			at.pos, err = strconv.ParseUint(r[1], 10, 64)
		}
	}
	if err != nil || at.file == 0 {
		return "", place{}, fmt.Errorf("the server does not say which transactions can be seen: %d answers", len(rows))
	}
	return file, at, nil
}

// begin is where to begin: behind the changes that can be seen. Changes that are in the log, and
// cannot be seen yet, are still to be told: a reader of the old row would keep it.
func (s *server) begin() (position, error) {
	if s.flavor != mysql.MariaDBFlavor {
		return s.now()
	}
	file, at, err := s.see()
	if err != nil {
		return position{}, err
	}
	rows, err := s.ask("SELECT BINLOG_GTID_POS(?, ?)", file, int64(at.pos)) // reads the file up to there
	if err != nil {
		return position{}, err
	}
	if rows[0][0] == "" {
		logged, err := s.now()
		if err != nil {
			return position{}, err
		}
		if !logged.set.IsEmpty() { // it has logged something
			return position{}, fmt.Errorf("the server does not return the event at %s:%d", file, at.pos)
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
		n := s.known(waiting)
		for since := time.Now(); n == 0; {
			if time.Since(since) > unseenFor {
				return fmt.Errorf("for %v a transaction in the log has not become visible", unseenFor)
			}
			if err := retry.Sleep(ctx, time.Until(next)); err != nil {
				return err
			}
			waiting = take(waiting, parts)
			began := time.Now()
			var err error
			if n, err = s.ask(waiting); err != nil {
				return err
			}
			next = began.Add(min(max(askEvery, askShare*time.Since(began)), askSeldom))
		}
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

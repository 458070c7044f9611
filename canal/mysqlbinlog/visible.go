package mysqlbinlog

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/internal/visible"
)

// visibility records which transactions are known to be visible to other sessions. It implements
// visible.Server.
type visibility struct {
	server *server
	upTo   place // transactions before this place are visible (MariaDB)
	limit  int   // how many parts to ask for, after not all of more were visible; 0: all
}

// Visible returns how many of the first parts are known to be visible. A position of MariaDB is
// always the end of a transaction.
func (v *visibility) Visible(parts []part) int {
	n := slices.IndexFunc(parts, func(p part) bool { return p.from != mark{} && !p.from.before(v.upTo) })
	if n < 0 {
		return len(parts)
	}
	return n
}

// Query asks the server how many of the first parts are visible.
//
// MySQL adds a transaction to gtid_executed after its engine has committed it
// (https://dev.mysql.com/doc/refman/8.4/en/replication-gtids-lifecycle.html). That set may be long,
// so it is not fetched. WAIT_FOR_EXECUTED_GTID_SET reports whether all given transactions are in
// the set, and waits up to visible.MaxWait for them. If they are not, the next query asks for half
// of them.
func (v *visibility) Query(_ context.Context, parts []part) (n int, err error) {
	if v.server.flavor == mysql.MariaDBFlavor {
		_, v.upTo, err = v.server.visiblePosition()
		return v.Visible(parts), err
	}
	if v.limit > 0 {
		parts = parts[:min(v.limit, len(parts))]
	}
	asked := mysql.MysqlGTIDSet{}
	for _, p := range parts {
		if p.from.mysql.gno != 0 {
			addTo(asked, p.from.mysql)
		}
	}
	// a GTID set contains only numbers and tags
	rows, err := v.server.ask(fmt.Sprintf("SELECT WAIT_FOR_EXECUTED_GTID_SET('%s', %g)", &asked,
		visible.MaxWait.Seconds()))
	switch {
	case err != nil:
		return 0, err
	case rows[0][0] != "0":
		v.limit = max(len(parts)/2, 1)
		return 0, nil
	}
	v.limit = 0
	return len(parts), nil
}

// Batch implements visible.Server.
func (v *visibility) Batch(p part) event.Batch { return p.Batch }

// invisible is why a transaction may stay invisible for long.
const invisible = "its commit waits for the reply of a replica (semi-synchronous replication)"

// visiblePosition returns the file and the place in the log up to which transactions are visible.
//
// MariaDB writes a transaction to its log, and sends it to replicas, before the engine commits it
// (MYSQL_BIN_LOG::trx_group_commit_leader; with semi-synchronous replication AFTER_SYNC, the
// commit waits for the reply of a replica). The variables binlog_snapshot_file and
// binlog_snapshot_position give the end of the last transaction that the engine has committed.
// They are read under the mutex that also protects both steps
// (https://mariadb.com/kb/en/enhancements-for-start-transaction-with-consistent-snapshot/).
func (s *server) visiblePosition() (file string, end place, err error) {
	rows, err := s.ask("SHOW STATUS LIKE 'binlog_snapshot_%'")
	if err != nil {
		return "", place{}, err
	}
	for _, r := range rows {
		switch {
		case strings.EqualFold(r[0], "binlog_snapshot_file"):
			file, end.file = r[1], number(r[1])
		case strings.EqualFold(r[0], "binlog_snapshot_position"):
			end.pos, err = strconv.ParseUint(r[1], 10, 64)
		}
	}
	if err != nil || end.file == 0 {
		return "", place{}, fmt.Errorf("the server does not report which transactions are visible: %d rows", len(rows))
	}
	return file, end, nil
}

// startPosition returns the position after the visible changes. Changes that are in the log but
// not visible yet must still be delivered, because a reader may load and cache the old row.
func (s *server) startPosition() (position, error) {
	if s.flavor != mysql.MariaDBFlavor {
		return s.executed()
	}
	file, end, err := s.visiblePosition()
	if err != nil {
		return position{}, err
	}
	// the server reads the file up to this place
	rows, err := s.ask("SELECT BINLOG_GTID_POS(?, ?)", file, int64(end.pos))
	if err != nil {
		return position{}, err
	}
	if rows[0][0] == "" {
		logged, err := s.executed()
		if err != nil {
			return position{}, err
		}
		if !logged.set.IsEmpty() { // the server has logged transactions
			return position{}, fmt.Errorf("the server does not return the event at %s:%d", file, end.pos)
		}
	}
	return parseSet(rows[0][0], s.flavor)
}

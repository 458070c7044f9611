package mysqlbinlog

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/google/uuid"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
)

// position is the set of the transactions that are done: of MariaDB the last one of each
// replication domain.
type position struct{ set mysql.GTIDSet }

// gtid names a transaction: one of the two.
type gtid struct {
	mariadb mysql.MariadbGTID
	mysql   mysqlGTID
}

// mysqlGTID is source:tag:number. The tag is empty as a rule.
type mysqlGTID struct {
	sid uuid.UUID
	tag mysql.Tag
	gno int64
}

const (
	mariadbPrefix = "mariadb:"
	mysqlPrefix   = "mysql:"
)

// parse reads a position of a server's flavor. One that is not of it, or nothing that this package
// has written, is lost.
func parse(p event.Position, flavor string) (position, error) {
	prefix := mysqlPrefix
	if flavor == mysql.MariaDBFlavor {
		prefix = mariadbPrefix
	}
	set, ok := strings.CutPrefix(string(p), prefix)
	if !ok {
		kind, _, _ := strings.Cut(string(p), ":")
		return position{}, fmt.Errorf("%w: it belongs to %.20q, and the server is %s", canal.ErrPositionLost, kind, flavor)
	}
	at, err := parseSet(set, flavor)
	if err != nil {
		return position{}, fmt.Errorf("%w: %.200q is not a position: %w", canal.ErrPositionLost, set, err)
	}
	return at, nil
}

func parseSet(set, flavor string) (position, error) {
	if flavor != mysql.MariaDBFlavor {
		s, err := mysql.ParseMysqlGTIDSet(set)
		return position{s}, err
	}
	at := &mysql.MariadbGTIDSet{Sets: map[uint32]*mysql.MariadbGTID{}}
	for one := range strings.SplitSeq(set, ",") {
		if one == "" && set == "" { // a server that has logged nothing yet
			break
		}
		id, err := mysql.ParseMariadbGTID(one)
		if err != nil {
			return position{}, err
		}
		if at.Sets[id.DomainID] != nil || one == "" {
			return position{}, fmt.Errorf("domain %d appears twice", id.DomainID)
		}
		at.Sets[id.DomainID] = id
	}
	return position{at}, nil
}

func (p position) text() event.Position {
	if _, ok := p.set.(*mysql.MariadbGTIDSet); ok {
		return event.Position(mariadbPrefix + p.set.String())
	}
	return event.Position(mysqlPrefix + p.set.String())
}

func (p position) add(id gtid) {
	switch set := p.set.(type) {
	case *mysql.MariadbGTIDSet:
		if set.Sets[id.mariadb.DomainID] == nil {
			set.Sets[id.mariadb.DomainID] = &mysql.MariadbGTID{}
		}
		*set.Sets[id.mariadb.DomainID] = id.mariadb
	case *mysql.MysqlGTIDSet:
		addTo(*set, id.mysql)
	}
}

// addTo adds a transaction to a set of intervals: of each source and tag, in their order, none of
// which touches another. A set may have tens of thousands of them, if GTIDs have gaps, so that a
// transaction is added without a look at all of them, which go-mysql's own methods take.
func addTo(set mysql.MysqlGTIDSet, id mysqlGTID) {
	all := set[id.sid][id.tag]
	n := sort.Search(len(all), func(i int) bool { return all[i].Start > id.gno }) // so many begin before it or with it
	if n > 0 && id.gno < all[n-1].Stop {
		return
	}
	before := n > 0 && all[n-1].Stop == id.gno
	behind := n < len(all) && all[n].Start == id.gno+1
	switch {
	case before && behind:
		all[n-1].Stop = all[n].Stop
		all = slices.Delete(all, n, n+1)
	case before:
		all[n-1].Stop++
	case behind:
		all[n].Start--
	default:
		all = slices.Insert(all, n, mysql.Interval{Start: id.gno, Stop: id.gno + 1})
	}
	if set[id.sid] == nil {
		set[id.sid] = map[mysql.Tag]mysql.IntervalSlice{}
	}
	set[id.sid][id.tag] = all
}

// empty removes all transactions from a set that go-mysql has sent to the server. It adds each
// transaction to two such sets, and goes through the whole of them each time, but uses them only to
// connect again, which this package does itself.
func empty(set mysql.GTIDSet) {
	switch set := set.(type) {
	case *mysql.MysqlGTIDSet:
		clear(*set)
	case *mysql.MariadbGTIDSet:
		clear(set.Sets)
	}
}

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

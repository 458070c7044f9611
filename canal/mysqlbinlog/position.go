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

// position is the set of processed transactions, and the server that they were read from. For
// MariaDB the set has the last one of each replication domain.
type position struct {
	set    mysql.GTIDSet
	server string // server.id, or "" if it is unknown
}

// gtid identifies a transaction. One of the fields is set.
type gtid struct {
	mariadb mysql.MariadbGTID
	mysql   mysqlGTID
}

// mysqlGTID is source:tag:number. The tag is normally empty.
type mysqlGTID struct {
	sid uuid.UUID
	tag mysql.Tag
	gno int64
}

const (
	mariadbPrefix = "mariadb:"
	mysqlPrefix   = "mysql:"
)

// parse reads a position for a server's flavor. For a position of another flavor, or one that
// this package has not written, it returns an error that Is canal.ErrPositionLost.
func parse(p event.Position, flavor string) (position, error) {
	prefix := mysqlPrefix
	if flavor == mysql.MariaDBFlavor {
		prefix = mariadbPrefix
	}
	set, ok := strings.CutPrefix(string(p), prefix)
	if !ok {
		kind, _, _ := strings.Cut(string(p), ":")
		return position{}, fmt.Errorf("%w: it belongs to %.20q, and the server is %s", canal.ErrPositionLost,
			kind, flavor)
	}
	server, set, ok := strings.Cut(set, "@")
	if !ok {
		server, set = "", server
	}
	parsed, err := parseSet(set, flavor)
	if err != nil {
		return position{}, fmt.Errorf("%w: %.200q is not a position: %w", canal.ErrPositionLost, set, err)
	}
	parsed.server = server
	return parsed, nil
}

func parseSet(set, flavor string) (position, error) {
	if flavor != mysql.MariaDBFlavor {
		s, err := mysql.ParseMysqlGTIDSet(set)
		return position{set: s}, err
	}
	parsed := &mysql.MariadbGTIDSet{Sets: map[uint32]*mysql.MariadbGTID{}}
	for one := range strings.SplitSeq(set, ",") {
		if one == "" && set == "" { // a server that has logged nothing
			break
		}
		id, err := mysql.ParseMariadbGTID(one)
		if err != nil {
			return position{}, err
		}
		if parsed.Sets[id.DomainID] != nil || one == "" {
			return position{}, fmt.Errorf("domain %d appears twice", id.DomainID)
		}
		parsed.Sets[id.DomainID] = id
	}
	return position{set: parsed}, nil
}

func (p position) text() event.Position {
	prefix := mysqlPrefix
	if _, ok := p.set.(*mysql.MariadbGTIDSet); ok {
		prefix = mariadbPrefix
	}
	if p.server != "" {
		prefix += p.server + "@"
	}
	return event.Position(prefix + p.set.String())
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

// addTo adds a transaction to a set of ordered, non-adjacent intervals per source and tag. With
// gaps between GTIDs a set can have tens of thousands of intervals. addTo finds the place by
// binary search, while go-mysql's own methods read all of them.
func addTo(set mysql.MysqlGTIDSet, id mysqlGTID) {
	all := set[id.sid][id.tag]
	// the number of intervals that start at or before it
	n := sort.Search(len(all), func(i int) bool { return all[i].Start > id.gno })
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

// clearSet removes all transactions from a set that go-mysql has sent to the server. go-mysql
// adds each transaction to two such sets, and reads the whole set each time. It uses them only to
// reconnect, which this package does itself.
func clearSet(set mysql.GTIDSet) {
	switch set := set.(type) {
	case *mysql.MysqlGTIDSet:
		clear(*set)
	case *mysql.MariadbGTIDSet:
		clear(set.Sets)
	}
}

// place is a place in a server's log.
type place struct {
	file uint64 // the number at the end of its name
	pos  uint64
}

func (p *place) rotate(name string) {
	if file := number(name); file != p.file {
		*p = place{file: file}
	}
}

// follow advances to the end of an event. Positions in the log have 32 bits, but a file can be
// longer if its last transactions are very large. Later versions of MariaDB omit some positions.
func (p *place) follow(h *replication.EventHeader) {
	if h.Flags&replication.LOG_EVENT_ARTIFICIAL_F != 0 || h.EventType == replication.HEARTBEAT_EVENT ||
		h.EventType == replication.HEARTBEAT_LOG_EVENT_V2 {
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

// mark identifies a transaction for a query of visibility: the place after its GTID event
// (MariaDB), or its GTID (MySQL).
type mark struct {
	place
	mysql mysqlGTID
}

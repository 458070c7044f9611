package mysqlbinlog

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/google/uuid"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
)

// position is the set of the transactions that are done.
type position interface {
	text() event.Position
	gtids() mysql.GTIDSet
	add(id gtid)
}

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
		return nil, fmt.Errorf("%w: it belongs to %.20q, and the server is %s", canal.ErrPositionLost, kind, flavor)
	}
	at, err := parseSet(set, flavor)
	if err != nil {
		return nil, fmt.Errorf("%w: %.200q is not a position: %w", canal.ErrPositionLost, set, err)
	}
	return at, nil
}

func parseSet(set, flavor string) (position, error) {
	if flavor != mysql.MariaDBFlavor {
		s, err := mysql.ParseMysqlGTIDSet(set)
		if err != nil {
			return nil, err
		}
		return &mysqlPosition{s.(*mysql.MysqlGTIDSet)}, nil
	}
	at := mariadbPosition{}
	for one := range strings.SplitSeq(set, ",") {
		if one == "" && set == "" { // a server that has logged nothing yet
			break
		}
		id, err := mysql.ParseMariadbGTID(one)
		if err != nil {
			return nil, err
		}
		if _, twice := at[id.DomainID]; twice || one == "" {
			return nil, fmt.Errorf("domain %d appears twice", id.DomainID)
		}
		at[id.DomainID] = *id
	}
	return at, nil
}

// mariadbPosition has the last transaction of each replication domain.
type mariadbPosition map[uint32]mysql.MariadbGTID

func (p mariadbPosition) add(id gtid) { p[id.mariadb.DomainID] = id.mariadb }

func (p mariadbPosition) text() event.Position {
	var b strings.Builder
	b.WriteString(mariadbPrefix)
	for i, domain := range slices.Sorted(maps.Keys(p)) {
		if i > 0 {
			b.WriteByte(',')
		}
		id := p[domain]
		b.WriteString(id.String())
	}
	return event.Position(b.String())
}

func (p mariadbPosition) gtids() mysql.GTIDSet {
	s := &mysql.MariadbGTIDSet{Sets: map[uint32]*mysql.MariadbGTID{}}
	for domain, id := range p {
		s.Sets[domain] = id.Clone()
	}
	return s
}

// mysqlPosition is a set of intervals: of each source and tag, in their order, none of which
// touches another. A set may have tens of thousands of them, if GTIDs have gaps, so that a
// transaction is added without a look at all of them, which go-mysql's own methods take.
type mysqlPosition struct{ set *mysql.MysqlGTIDSet }

func newMySQLPosition() *mysqlPosition { return &mysqlPosition{&mysql.MysqlGTIDSet{}} }

// at returns the intervals of a transaction's source, and how many of them begin before it or with
// it.
func (p *mysqlPosition) at(id mysqlGTID) (mysql.IntervalSlice, int) {
	all := (*p.set)[id.sid][id.tag]
	return all, sort.Search(len(all), func(i int) bool { return all[i].Start > id.gno })
}

func (p *mysqlPosition) has(id mysqlGTID) bool {
	all, n := p.at(id)
	return n > 0 && id.gno < all[n-1].Stop
}

func (p *mysqlPosition) add(id gtid) { p.addMySQL(id.mysql) }

func (p *mysqlPosition) addMySQL(id mysqlGTID) {
	if p.has(id) {
		return
	}
	all, n := p.at(id)
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
	if (*p.set)[id.sid] == nil {
		(*p.set)[id.sid] = map[mysql.Tag]mysql.IntervalSlice{}
	}
	(*p.set)[id.sid][id.tag] = all
}

func (p *mysqlPosition) text() event.Position { return event.Position(mysqlPrefix + p.set.String()) }
func (p *mysqlPosition) gtids() mysql.GTIDSet { return p.set.Clone() }

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

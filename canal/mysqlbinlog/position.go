package mysqlbinlog

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"

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
	mysql   string // as in a set of one
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

// mysqlPosition is a set of intervals.
type mysqlPosition struct{ set *mysql.MysqlGTIDSet }

func (p *mysqlPosition) add(id gtid) {
	_ = p.set.Update(id.mysql) // made of numbers
}

func (p *mysqlPosition) text() event.Position { return event.Position(mysqlPrefix + p.set.String()) }
func (p *mysqlPosition) gtids() mysql.GTIDSet { return p.set.Clone() }

package mysqlbinlog

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/google/uuid"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// onMySQL is for what MariaDB has not got: the test says what.
func onMySQL(t *testing.T) *world { return worldOn(t, testenv.SharedMySQL(t)) }

// one runs statements in one session.
func (w *world) one(statements ...string) {
	w.Helper()
	conn, err := w.DB.Conn(w.Context())
	w.Check(err)
	defer func() { w.Check(conn.Close()) }()
	for _, s := range statements {
		w.in(conn, s)
	}
}

// MariaDB has no tags, and no gaps: GTIDs with a tag, and out of their order, are positions as
// well.
func TestGTIDs(t *testing.T) {
	x := onMySQL(t)
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)")
	need := x.Need([]string{"a", "id"})
	l := x.Listen(x.source(), need)
	const other = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
	for i, gtid := range []string{"AUTOMATIC:shop", "AUTOMATIC:shop", other + ":9", other + ":7", other + ":tag_1:5"} {
		x.one("SET gtid_next = '"+gtid+"'", "INSERT INTO a VALUES ("+string(rune('1'+i))+")",
			"SET gtid_next = 'AUTOMATIC'")
	}
	l.Want("insert a: 1", "insert a: 2", "insert a: 3", "insert a: 4", "insert a: 5")
	positions := l.Positions()
	at := string(positions[len(positions)-1])
	for _, part := range []string{":shop:1-2", other + ":7:9:tag_1:5"} {
		if !strings.Contains(at, part) {
			t.Errorf("%q is not in the position %q", part, at)
		}
	}
	_ = l.Stop()
	// So that only this transaction is delivered again.
	need.From = event.Position(strings.Replace(at, ":7:9:", ":9:", 1))
	l = x.Listen(x.source(), need)
	l.Want("insert a: 4")
	x.Do("INSERT INTO a VALUES (6)")
	l.Want("insert a: 4", "insert a: 6")
}

// A transaction without a GTID, which MariaDB has not got, has no position. The server says so
// itself, and the next Run what to set.
func TestAnonymousTransaction(t *testing.T) {
	x := onMySQL(t)
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)")
	need := x.Need([]string{"a", "id"})
	l := x.Listen(x.source(), need)
	t.Cleanup(func() { x.Do("SET GLOBAL gtid_mode = ON_PERMISSIVE", "SET GLOBAL gtid_mode = ON") })
	x.Do("SET GLOBAL gtid_mode = ON_PERMISSIVE", "SET GLOBAL gtid_mode = OFF_PERMISSIVE")
	x.Do("INSERT INTO a VALUES (1)")
	if err := l.Ended(); !errors.Is(err, canal.ErrPositionLost) {
		t.Error(err)
	}
	x.IsSetup(x.Start(x.source(), need).Ended(), "gtid_mode is OFF_PERMISSIVE")
}

// MySQL logs XA COMMIT ... ONE PHASE as a prepared transaction, with a mark; MariaDB as any other.
func TestXAInOnePhase(t *testing.T) { each(t, xaInOnePhase) }

func xaInOnePhase(x *world) {
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE other (id INT PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
	x.one("XA START 'one'", "INSERT INTO a VALUES (1), (2)", "XA END 'one'", "XA COMMIT 'one' ONE PHASE")
	x.one("XA START 'two'", "INSERT INTO other VALUES (1)", "XA END 'two'", "XA COMMIT 'two' ONE PHASE")
	x.one("XA START 'three'", "INSERT INTO a VALUES (3)", "XA END 'three'", "XA PREPARE 'three'", "XA COMMIT 'three'")
	x.Do("INSERT INTO a VALUES (4)")
	l.Want("insert a: 1", "insert a: 2", "insert a: 3", "insert a: 4")
}

// The mark of one phase, without a server: TestXAInOnePhase has one.
func TestMarkOfOnePhase(t *testing.T) {
	x := &sourcetest.World{T: t}
	const sid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
	server := uuid.MustParse(sid)
	at, err := parse("mysql:"+sid+":1", mysql.MySQLFlavor)
	x.Check(err)
	out := make(chan part, 10)
	r := &reader{ctx: t.Context(), at: at, out: out, delivered: time.Now()}
	r.tables = &tables{server: &aServer}
	give := func(kind replication.EventType, e replication.Event) {
		t.Helper()
		x.Check(r.HandleEvent(&replication.BinlogEvent{Header: &replication.EventHeader{Timestamp: 1, EventType: kind},
			Event: e}))
	}
	told := func() (all []event.Change) {
		for len(out) > 0 {
			all = append(all, (<-out).Changes...)
		}
		return all
	}
	for i, c := range []struct {
		mark []byte
		told int
	}{{[]byte{0, 1}, 0}, {[]byte{1, 1}, 1}, {[]byte{}, 1}} {
		give(replication.GTID_EVENT, &replication.GTIDEvent{SID: server[:], GNO: int64(2 + i)})
		give(replication.QUERY_EVENT, &replication.QueryEvent{Query: fmt.Appendf(nil, "XA START X'%02d',X'',1", i)})
		r.changes = []event.Change{{Kind: event.Insert, Table: "a"}}
		give(replication.XA_PREPARE_LOG_EVENT, &replication.GenericEvent{Data: c.mark})
		if got := told(); len(got) != c.told {
			t.Errorf("with the mark % x %d changes are delivered, want %d", c.mark, len(got), c.told)
		}
	}
	give(replication.GTID_EVENT, &replication.GTIDEvent{SID: server[:], GNO: 5})
	give(replication.QUERY_EVENT, &replication.QueryEvent{Query: []byte("XA COMMIT X'00',X'',1")})
	if got := told(); len(got) != 1 || got[0].Unread != nil {
		t.Errorf("the prepared transaction is delivered as %v", got)
	}
}

var aServer = server{flavor: mysql.MySQLFlavor}

// A transaction of XA that is too large to be kept invalidates everything, also when it commits in
// one phase.
func TestGiantXA(t *testing.T) {
	x := onMySQL(t) // MariaDB logs one phase as any transaction
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
	x.one("XA START 'one'", "INSERT INTO a SELECT seq FROM "+testenv.Numbers(1, xaChanges+1), "XA END 'one'",
		"XA COMMIT 'one' ONE PHASE")
	x.Do("INSERT INTO a VALUES (0)")
	l.Want("replace  unread", "insert a: 0")
}

// MariaDB has no invisible primary keys.
func TestInvisibleKey(t *testing.T) {
	x := onMySQL(t)
	x.one("SET SESSION sql_generate_invisible_primary_key = ON", "CREATE TABLE a (s VARCHAR(20))",
		"SET SESSION sql_generate_invisible_primary_key = OFF")
	l := x.Listen(x.source(), x.Need([]string{"a", "my_row_id"}))
	x.Do("INSERT INTO a VALUES ('x'), ('y')")
	x.session("binlog_row_image", "MINIMAL", "UPDATE a SET s = 'z' WHERE s = 'y'")
	l.Want("insert a: 1 x", "insert a: 2 y", "update a: 2 ? -> ? z")
}

// MySQL alters tables at once, without copying rows, and drops several as a whole; rows of any age
// are read rightly.
func TestInstantAndAtomicDDL(t *testing.T) {
	x := onMySQL(t)
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, s VARCHAR(20))", "CREATE TABLE b (id INT PRIMARY KEY)",
		"INSERT INTO a VALUES (1, 'x')")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}, []string{"b", "id"}))
	x.Do("ALTER TABLE a ADD COLUMN n INT DEFAULT 7 FIRST, ALGORITHM=INSTANT", "UPDATE a SET s = 'y'",
		"ALTER TABLE a DROP COLUMN s, ALGORITHM=INSTANT", "DELETE FROM a", "CREATE TABLE c AS SELECT 1 AS id",
		"DROP TABLE a, b")
	l.Want("alter a", "update a: 7 1 x -> 7 1 y", "alter a", "delete a: 7 1", "alter c", "alter a", "alter b")
}

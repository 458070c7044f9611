package mysqlbinlog

import (
	"testing"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"github.com/cacheaside/cacheaside/canal"
)

// There is no MySQL here: these are its events, as its documentation has them (https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html), given to the reader by hand.
func TestEventsOfMySQL(t *testing.T) {
	x := &world{T: t}
	const sid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
	server := uuid.MustParse(sid)
	from, err := parse("mysql:"+sid+":1-5", mysql.MySQLFlavor)
	x.check(err)
	if _, err := parse("mysql:"+sid+":1-5", mysql.MariaDBFlavor); err == nil {
		t.Error("a position of MySQL is one of MariaDB")
	}
	out := make(chan part, 100)
	r := &reader{ctx: t.Context(), at: from, out: out, room: semaphore.NewWeighted(heldBytes), unread: map[*replication.RowsEvent]error{}}
	r.tables = &tables{server: &aServer, need: canal.Need{Tables: map[canal.Table][]string{{Schema: "shop", Name: "users"}: {"id"}}}, known: map[uint64]knownTable{}}
	give := func(events ...replication.Event) error {
		for _, e := range events {
			if err := r.HandleEvent(&replication.BinlogEvent{Header: &replication.EventHeader{Timestamp: 1, EventSize: 50}, Event: e}); err != nil {
				return err
			}
		}
		return nil
	}
	gtid := func(n int64) *replication.GTIDEvent { return &replication.GTIDEvent{SID: server[:], GNO: n} }
	query := func(s string) *replication.QueryEvent {
		return &replication.QueryEvent{Schema: []byte("shop"), Query: []byte(s)}
	}
	next := func(kinds ...canal.Kind) part {
		t.Helper()
		select {
		case p := <-out:
			if len(p.Changes) != len(kinds) {
				t.Fatalf("%v, not %v", p.Changes, kinds)
			}
			for i, k := range kinds {
				if p.Changes[i].Kind != k {
					t.Errorf("%v, not %v", p.Changes[i], k)
				}
			}
			return p
		default:
			t.Fatal("nothing is told")
			return part{}
		}
	}

	x.check(give(gtid(6), query("ALTER TABLE users ADD x INT"))) // DDL has neither BEGIN nor a commit
	p := next(canal.Alter)
	if p.Position != "mysql:"+sid+":1-6" || p.from.mysql != sid+":6" {
		t.Errorf("%q from %q", p.Position, p.from.mysql)
	}
	for set, has := range map[string]bool{sid + ":1-6": true, sid + ":1-5": false, sid + ":1-5:7-9": false, "": false} {
		now, err := mysql.ParseMysqlGTIDSet(set)
		x.check(err)
		if got := (seen{mysql: now}).has(p.from); got != has {
			t.Errorf("with %q done it can be seen: %v", set, got)
		}
	}
	x.check(give(gtid(7), query("BEGIN"), query("TRUNCATE users"))) // not over
	if len(out) > 0 {
		t.Error("a transaction is told before it is committed")
	}
	x.check(give(&replication.XIDEvent{}))
	if p := next(canal.Truncate); p.Position != "mysql:"+sid+":1-7" {
		t.Errorf("%q", p.Position)
	}
	compressed := &replication.TransactionPayloadEvent{}
	for _, e := range []replication.Event{query("BEGIN"), query("TRUNCATE users"), &replication.XIDEvent{}} {
		compressed.Events = append(compressed.Events, &replication.BinlogEvent{Header: &replication.EventHeader{}, Event: e})
	}
	x.check(give(gtid(9), compressed)) // 8 is of a transaction that comes later
	if p := next(canal.Truncate); p.Position != "mysql:"+sid+":1-7:9" {
		t.Errorf("%q", p.Position)
	}
	x.check(give(gtid(8), query("BEGIN"), query("UPDATE users SET n = 1"), &replication.XIDEvent{})) // a session with binlog_format=STATEMENT
	if p := next(canal.Replace); p.Changes[0].Unread == nil || p.Position != "mysql:"+sid+":1-9" {
		t.Errorf("%+v %q", p.Changes[0], p.Position)
	}
	x.isSetup(give(gtid(0)), "gtid_mode")
}

var aServer = server{flavor: mysql.MySQLFlavor}

package mysqlbinlog

import (
	"database/sql"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// replica starts an asynchronous replica of the server of x, which writes a binary log of its own.
func (w *world) replica() *world {
	w.Helper()
	host, port, err := net.SplitHostPort(w.server.Addr)
	w.Check(err)
	args := []string{"--server-id=2"}
	commands := []string{"CHANGE REPLICATION SOURCE TO SOURCE_HOST='" + host + "', SOURCE_PORT=" + port +
		", SOURCE_USER='" + w.server.User + "', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1", "START REPLICA"}
	if !w.mysql() {
		args = append(args, "--log-slave-updates")
		commands = []string{"CHANGE MASTER TO MASTER_HOST='" + host + "', MASTER_PORT=" + port + ", MASTER_USER='" +
			w.server.User + "', MASTER_USE_GTID=slave_pos", "START SLAVE"}
	}
	server := w.server.Engine.Start(w.T, args...)
	dsn := strings.Replace(w.server.DSN(w.T), w.server.Addr, server.Addr, 1)
	admin, err := sql.Open("mysql", strings.Replace(dsn, "/"+w.Schema, "/", 1)) // it does not have the database
	w.Check(err)
	defer admin.Close()
	for _, c := range commands {
		_, err := admin.Exec(c)
		w.Check(err)
	}
	db, err := sql.Open("mysql", dsn)
	w.Check(err)
	w.Cleanup(func() { db.Close() })
	return &world{sourcetest.World{T: w.T, DB: db, Schema: w.Schema}, server}
}

// promote ends the replication.
func (w *world) promote() {
	w.Helper()
	if w.mysql() {
		w.Do("STOP REPLICA", "RESET REPLICA ALL")
	} else {
		w.Do("STOP SLAVE", "RESET SLAVE ALL")
	}
}

// A promoted replica lacks a commit that readers have cached, and the Source has not read. No log
// has it. So all tables are replaced, once.
func TestPromotedReplica(t *testing.T) {
	t.Parallel() // it mostly waits for its servers
	eachOwn(t, func(x *world) {
		t := x.T
		x.Do("CREATE TABLE a (id INT PRIMARY KEY, n INT)", "CREATE TABLE b (id INT PRIMARY KEY)",
			"INSERT INTO a VALUES (1, 0)")
		need := x.Need([]string{"a", "id"}, []string{"b", "id"})
		l := x.Listen(x.source(), need)
		x.Do("UPDATE a SET n = 1")
		l.Want("update a: 1 0 -> 1 1")
		_ = l.Stop()
		need.From = l.Positions()[len(l.Positions())-1]
		y := x.replica()
		testenv.Eventually(t, "the replica has the row", func() bool {
			var n int
			return y.DB.QueryRow("SELECT n FROM a WHERE id = 1").Scan(&n) == nil && n == 1
		})
		y.promote()
		x.Do("UPDATE a SET n = 2") // readers cache it
		x.server.Kill()
		y.Do("INSERT INTO b VALUES (7)")

		l = y.Listen(y.source(), need)
		l.Until("the log of the replica", func() bool { return slices.Contains(l.Texts(), "insert b: 7") })
		if got := l.Texts(); !slices.Equal(got, []string{"replace a", "replace b", "insert b: 7"}) {
			t.Errorf("%q", got)
		}
		_ = l.Stop()
		need.From = l.Positions()[len(l.Positions())-1]
		y.Do("INSERT INTO b VALUES (8)")
		l = y.Listen(y.source(), need)
		l.Want("insert b: 8")
		_ = l.Stop()
	})
}

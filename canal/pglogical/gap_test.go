package pglogical

import (
	"database/sql"
	"slices"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// idle begins a transaction that has an ID, and returns the ID.
func (w *world) idle() (*sql.Tx, string) {
	w.Helper()
	tx, err := w.DB.Begin()
	w.Check(err)
	w.Cleanup(func() { _ = tx.Rollback() })
	var xid string
	w.Check(tx.QueryRow("SELECT pg_current_xact_id()").Scan(&xid))
	return tx, xid
}

// asksAgain waits until the Source has had time to notice what has changed.
func asksAgain(l *sourcetest.Listener) {
	l.Helper()
	n := len(l.Positions())
	l.Until("the Source has asked again", func() bool { return len(l.Positions()) >= n+3 })
}

// wantReplaced fails unless the table was replaced n times so far.
func wantReplaced(l *sourcetest.Listener, n int) {
	l.Helper()
	if got := counts(l, "replace users"); got != n {
		l.Errorf("replaced %d times, want %d", got, n)
	}
}

// Creating a slot takes until the transactions that ran before have ended, twice. The slot lacks a
// commit of this time, which can wait for a standby, so that other sessions do not see it.
func TestCommitsWhileTheSlotIsCreated(t *testing.T) {
	x := own(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, n INT)", "INSERT INTO users VALUES (1, 1)",
		"ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
	testenv.Eventually(x, "it is set", func() bool { return x.Ask("SHOW synchronous_standby_names") == "nobody" })
	waitsFor := func(xid string) {
		testenv.Eventually(x, "the slot waits for a transaction", func() bool {
			return x.Ask("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND "+
				"transactionid = $1", xid) == "1"
		})
	}
	first, xid := x.idle()
	need := x.Need([]string{"users", "id"})
	l := x.Start(x.source(), need)
	waitsFor(xid)
	second, xid := x.idle()
	x.Check(first.Rollback())
	waitsFor(xid)
	done := make(chan error, 1)
	go func() {
		_, err := x.DB.Exec("UPDATE users SET n = 2")
		done <- err
	}()
	testenv.Eventually(x, "the commit waits for the standby",
		func() bool { return x.Ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1" })
	x.Check(second.Rollback())
	l.Until("it begins", func() bool { return len(l.Batches()) > 0 })
	pending := l.Positions()[0]
	asksAgain(l)
	wantReplaced(l, 0)
	if n := x.Ask("SELECT n FROM users"); n != "1" {
		t.Fatal("it is visible: this shows nothing")
	}
	x.Do("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	x.Check(<-done)
	replaced(l, "the commit is visible", 1)
	settled := saved(l)
	for i, from := range []event.Position{pending, settled} { // as if the Run had ended before and after that
		need.From = from
		l = x.Listen(x.source(), need)
		asksAgain(l)
		wantReplaced(l, 1-i)
		l.Stop()
	}
}

// When a table is added to a publication, the log has no change that was written before that. Its
// transaction may be open.
func TestWritersOfAnAddedTable(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, n INT)", "INSERT INTO users VALUES (1, 1)",
		"DROP PUBLICATION cacheaside", "CREATE PUBLICATION cacheaside FOR TABLE users")
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}))
	tx, err := x.DB.Begin() // so that the Source always sees the table in the publication
	x.Check(err)
	_, err = tx.Exec("ALTER PUBLICATION cacheaside DROP TABLE users; ALTER PUBLICATION cacheaside ADD TABLE users")
	x.Check(err)
	early, _ := x.idle()
	x.Check(tx.Commit())
	replaced(l, "it was added", 1)
	asksAgain(l)
	wantReplaced(l, 1)
	x.Check(early.Commit())
	replaced(l, "the earlier transaction has ended", 2)
}

// A Run that needs no messages skips items. A later Run that needs them learns that from the
// position, also if the position was saved while a transaction was running.
func TestOutboxIsSkippedWhileAWriterRuns(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, n INT)")
	both, tables := x.Need([]string{"users", "id"}), x.Need([]string{"users", "id"})
	both.Messages = []string{"cacheaside:shop"}
	last := func(l *sourcetest.Listener) event.Position {
		all := l.Positions()
		return all[len(all)-1]
	}

	l := x.Listen(x.source(), both)
	x.Do("INSERT INTO users VALUES (1, 1)")
	l.Want("insert users: 1 1")
	asksAgain(l)
	tables.From = last(l)
	l.Stop()

	writer, _ := x.idle()
	l = x.Listen(x.source(), tables)
	x.Do("SELECT pg_logical_emit_message(true, 'cacheaside:shop', 'x')", "INSERT INTO users VALUES (2, 2)")
	l.Until("the row after the item", func() bool { return counts(l, "insert users: 2 2") == 1 })
	asksAgain(l)
	both.From = last(l)
	l.Stop()
	x.Check(writer.Rollback())

	l = x.Listen(x.source(), both)
	l.Until("all is replaced", func() bool {
		return slices.ContainsFunc(l.All(),
			func(c event.Change) bool { return c.Kind == event.Replace && c.Schema+c.Table == "" })
	})
}

package pglogical

import (
	"database/sql"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// idle begins a transaction that has an ID, and returns the ID.
func (w *world) idle() (*sql.Tx, string) {
	w.Helper()
	tx, err := w.db.Begin()
	w.check(err)
	w.Cleanup(func() { _ = tx.Rollback() })
	var xid string
	w.check(tx.QueryRow("SELECT pg_current_xact_id()").Scan(&xid))
	return tx, xid
}

// asksAgain waits until the Source has had time to notice what has changed.
func (l *listener) asksAgain() {
	l.Helper()
	n := len(l.positions())
	l.until("the Source has asked again", func() bool { return len(l.known()) >= n+3 })
}

// wantReplaced fails unless the table was replaced n times so far.
func (l *listener) wantReplaced(n int) {
	l.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := counts(l.all(), "replace users"); got != n {
		l.Errorf("replaced %d times, want %d", got, n)
	}
}

// Creating a slot takes until the transactions that ran before have ended, twice. The slot lacks a
// commit of this time, which can wait for a standby, so that other sessions do not see it.
func TestCommitsWhileTheSlotIsCreated(t *testing.T) {
	x := own(t)
	x.do("CREATE TABLE users (id INT PRIMARY KEY, n INT)", "INSERT INTO users VALUES (1, 1)", "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
	testenv.Eventually(x, "it is set", func() bool { return x.ask("SHOW synchronous_standby_names") == "nobody" })
	waitsFor := func(xid string) {
		testenv.Eventually(x, "the slot waits for a transaction", func() bool {
			return x.ask("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid = $1", xid) == "1"
		})
	}
	first, xid := x.idle()
	need := x.need([]string{"users", "id"})
	l := x.run(x.source(), need)
	waitsFor(xid)
	second, xid := x.idle()
	x.check(first.Rollback())
	waitsFor(xid)
	done := make(chan error, 1)
	go func() {
		_, err := x.db.Exec("UPDATE users SET n = 2")
		done <- err
	}()
	testenv.Eventually(x, "the commit waits for the standby", func() bool { return x.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1" })
	x.check(second.Rollback())
	l.until("it begins", func() bool { return len(l.batches) > 0 })
	pending := l.positions()[0]
	l.asksAgain()
	l.wantReplaced(0)
	if n := x.ask("SELECT n FROM users"); n != "1" {
		t.Fatal("it is visible: this shows nothing")
	}
	x.do("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	x.check(<-done)
	l.replaced("the commit is visible", 1)
	settled := l.saved()
	for i, from := range []event.Position{pending, settled} { // as if the Run had ended before and after that
		need.From = from
		l = x.listen(x.source(), need)
		l.asksAgain()
		l.wantReplaced(1 - i)
		l.end()
	}
}

// When a table is added to a publication, the log has no change that was written before that. Its
// transaction may be open.
func TestWritersOfAnAddedTable(t *testing.T) {
	x := shared(t)
	x.do("CREATE TABLE users (id INT PRIMARY KEY, n INT)", "INSERT INTO users VALUES (1, 1)", "DROP PUBLICATION cacheaside", "CREATE PUBLICATION cacheaside FOR TABLE users")
	l := x.listen(x.source(), x.need([]string{"users", "id"}))
	tx, err := x.db.Begin() // so that the Source always sees the table in the publication
	x.check(err)
	_, err = tx.Exec("ALTER PUBLICATION cacheaside DROP TABLE users; ALTER PUBLICATION cacheaside ADD TABLE users")
	x.check(err)
	early, _ := x.idle()
	x.check(tx.Commit())
	l.replaced("it was added", 1)
	l.asksAgain()
	l.wantReplaced(1)
	x.check(early.Commit())
	l.replaced("the earlier transaction has ended", 2)
}

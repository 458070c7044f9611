package mysqlbinlog

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// For a column of an unknown type, the length of its description is unknown, and so are the offsets
// of the columns after it, even if it is NULL. MySQL has no compressed columns.
func TestTypeThatIsNotKnown(t *testing.T) {
	x := onMariaDB(t)
	x.Do("CREATE TABLE a (z VARCHAR(100) COMPRESSED, id VARCHAR(200) PRIMARY KEY, n INT)")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
	x.Do("INSERT INTO a VALUES (NULL, 'x', 1)", "INSERT INTO a VALUES (REPEAT('long', 20), 'y', 1)")
	l.Want("replace a unread", "replace a unread")
}

// A user who may not see the table does not know whether 16 bytes are a UUID. Then it is not known,
// which invalidates all keys. MySQL has no UUID.
func TestUUIDOfWhoMayNotSeeIt(t *testing.T) {
	x := onMariaDB(t)
	x.Do("CREATE TABLE a (u UUID PRIMARY KEY, n INT)", "CREATE USER blind", "GRANT REPLICATION SLAVE ON *.* TO blind")
	t.Cleanup(func() { x.Do("DROP USER blind") })
	l := x.Listen(x.source(func(o *Options) { o.User = "blind" }), x.Need([]string{"a", "u"}))
	x.Do("INSERT INTO a VALUES ('01234567-89ab-1def-8123-456789abcdef', 1)")
	l.Want("insert a: ? 1")
}

// What an image leaves out is not known: it is not NULL.
func TestImagesOfASession(t *testing.T) { each(t, testImagesOfASession) }

func testImagesOfASession(x *world) {
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, e VARCHAR(20), b BLOB)")
	l := x.Listen(x.source(), x.Need([]string{"a", "id", "e"}))
	x.Do("INSERT INTO a VALUES (1, 'x', 'b'), (2, NULL, NULL)")
	x.session("binlog_row_image", "MINIMAL", "UPDATE a SET e = 'y' WHERE id = 1", "DELETE FROM a WHERE id = 2")
	x.session("binlog_row_image", "NOBLOB", "UPDATE a SET e = 'z' WHERE id = 1")
	l.Want("insert a: 1 x b", "insert a: 2 NULL NULL", "update a: 1 ? ? -> ? y ?", "delete a: 2 ? ?",
		"update a: 1 y ? -> 1 z ?")
}

// session executes statements on a connection of their own, with a variable set to the value.
func (w *world) session(variable, value string, statements ...string) {
	w.Helper()
	conn, err := w.DB.Conn(w.Context())
	w.Check(err)
	defer conn.Close()
	for _, s := range append([]string{"SET SESSION " + variable + " = '" + value + "'"}, statements...) {
		if _, err := conn.ExecContext(w.Context(), s); err != nil {
			w.Fatalf("%.200s: %v", s, err)
		}
	}
	_, err = conn.ExecContext(w.Context(), "SET SESSION "+variable+" = DEFAULT")
	w.Check(err)
}

// A session that logs statements has all rows of the tables be forgotten that it may have changed.
func TestStatementsOfASession(t *testing.T) { each(t, testStatementsOfASession) }

func testStatementsOfASession(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, n INT)", "INSERT INTO a VALUES (1, 1)")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
	for i, s := range []string{"UPDATE a SET n = 2", "INSERT INTO a VALUES (2, 2)", "DELETE FROM a WHERE id = 1",
		"REPLACE INTO a VALUES (2, 3)"} {
		x.session("binlog_format", "STATEMENT", s)
		c := l.Changes(i + 1)[i]
		if c.Kind != event.Replace || c.Unread == nil || c.Schema != "" && (c.Schema != x.Schema || c.Table != "a") {
			t.Errorf("%s: %v, unread %v", s, c, c.Unread)
		}
	}
}

// Text of a character set that is not understood is not known.
func TestKeyInARareCharacterSet(t *testing.T) { each(t, testKeyInARareCharacterSet) }

func testKeyInARareCharacterSet(x *world) {
	x.Do("CREATE TABLE a (id VARCHAR(20) CHARACTER SET gbk PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
	x.session("character_set_client", "utf8mb4", "INSERT INTO a VALUES ('plain'), ('\u4e2d')")
	l.Want("insert a: plain", "insert a: ?")
}

// Run ends while the server hangs: it does not wait for a reply.
func TestRunEndsWhileTheServerHangs(t *testing.T) { each(t, testRunEndsWhileTheServerHangs) }

func testRunEndsWhileTheServerHangs(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)")
	dialled := make(chan struct{}, 10)
	source := func(o *Options) {
		o.Timeout = time.Hour // a call that waits for a reply hangs
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			dialled <- struct{}{}
			return c, err
		}
	}
	l := x.Listen(x.source(source), x.Need([]string{"a", "id"}))
	for len(dialled) > 0 {
		<-dialled
	}
	x.server.Pause()
	defer x.server.Resume()
	began := time.Now()
	_ = l.Stop()
	t.Logf("it took %v", time.Since(began))
	l = x.Start(x.source(source), x.Need([]string{"a", "id"}))
	testenv.Receive(x, "it is connecting", dialled)
	began = time.Now()
	_ = l.Stop()
	t.Logf("while it connects it took %v", time.Since(began))
}

// A giant transaction is delivered in parts, and only the last part has its position.
func TestGiantTransactionIsDeliveredInParts(t *testing.T) { each(t, testGiantTransactionIsToldInParts) }

func testGiantTransactionIsToldInParts(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, s VARCHAR(200))")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
	begun := len(l.Positions())
	const rows = 20_000
	x.Do("INSERT INTO a SELECT seq, REPEAT('x', 100) FROM " + testenv.Numbers(1, rows) + " ORDER BY seq")
	all := l.Changes(rows)
	for i, c := range all {
		if c.After.Get("id").Text() != fmt.Sprint(i+1) {
			t.Fatalf("change %d is of row %s", i, c.After.Get("id").Text())
		}
	}
	// The last event may be one without changes and without a position.
	l.Until("the end", func() bool { return len(l.Positions()) > begun })
	_ = l.Stop()
	if n := len(l.Positions()) - begun; n != 1 {
		t.Errorf("%d positions", n)
	}
	for _, b := range l.Batches() {
		if len(b.Changes) > 2*partChanges || b.Bytes > 2*partBytes {
			t.Errorf("%d changes of %d bytes at once", len(b.Changes), b.Bytes)
		}
	}
}

// oldTimes makes columns as tables have kept them since MariaDB 5.3.
func (w *world) oldTimes() {
	w.Do("SET GLOBAL mysql56_temporal_format = OFF")
	w.Cleanup(func() { w.Do("SET GLOBAL mysql56_temporal_format = ON") })
}

// What cannot be read does not keep the rest from being read.
// MySQL has no such old columns.
func TestEventThatCannotBeRead(t *testing.T) {
	x := onMariaDB(t)
	x.oldTimes()
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, d DATETIME(3))", "CREATE TABLE b (id INT PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}, []string{"b", "id"}))
	x.Do("INSERT INTO a VALUES (1, '2026-11-22 01:02:03.456')", "INSERT INTO b VALUES (1)")
	l.Want("replace a unread", "insert b: 1")
}

// Columns of times in their old format, of other lengths than the log seems to say, hide no key.
// MySQL has no such old columns.
func TestOldTimes(t *testing.T) {
	x := onMariaDB(t)
	x.oldTimes()
	kinds := []string{"TIME", "TIME(1)", "TIME(3)", "TIME(6)", "DATETIME", "DATETIME(2)", "DATETIME(4)", "DATETIME(6)",
		"TIMESTAMP NULL", "TIMESTAMP(1) NULL", "TIMESTAMP(3) NULL", "TIMESTAMP(6) NULL"}
	var need [][]string
	for i := range kinds {
		for j := range kinds {
			if !testenv.Accepting && (j-i+len(kinds))%len(kinds) > 2 {
				continue // each with itself and the two that follow it
			}
			name := fmt.Sprintf("a%d_%d", i, j)
			x.Do(fmt.Sprintf("CREATE TABLE %s (a %s, id VARCHAR(300) PRIMARY KEY, b %s, s VARCHAR(10))", name, kinds[i],
				kinds[j]))
			need = append(need, []string{name, "id"})
		}
	}
	l := x.Listen(x.source(), x.Need(need...))
	n := 0
	for _, table := range need {
		for _, row := range []string{"NULL, 'k', NULL, 's'",
			"'2026-11-22 01:02:03', 'key', '2026-11-22 04:05:06', 'a text'", "'2026-11-22 01:02:03', 'k', NULL, NULL"} {
			x.Do("INSERT IGNORE INTO " + table[0] + " VALUES (" + row + ")")
			n++
		}
		x.Do("DELETE FROM " + table[0])
	}
	known := 0
	for _, c := range l.Changes(n) {
		for _, r := range []event.Row{c.Before, c.After} {
			if r.Get("id").Known() {
				known++
			}
			if v := r.Get("id"); v.Known() && v.Text() != "k" && v.Text() != "key" {
				t.Errorf("%s: the key is %q", c.Table, v.Text())
			}
		}
	}
	if known < n/4 {
		t.Errorf("of %d changes %d keys were read", n, known)
	}
}

// DDL has no commit, and is delivered before the next statement is written.
func TestDDLIsDeliveredAtOnce(t *testing.T) { each(t, testDDLIsToldAtOnce) }

func testDDLIsToldAtOnce(x *world) {
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
	x.Do("TRUNCATE TABLE a")
	l.Want("truncate a")
}

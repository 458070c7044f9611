package mysqlbinlog

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

var contains = strings.Contains

func TestChangesAreTold(t *testing.T) { each(t, testChangesAreTold) }

func testChangesAreTold(x *world) {
	t := x.T
	x.do("CREATE TABLE a (id INT PRIMARY KEY, s VARCHAR(20), n INT UNSIGNED)", "CREATE TABLE other (id INT)")
	l := x.listen(x.source(), x.need([]string{"a", "id"}))
	x.do("INSERT INTO a VALUES (1, 'x', NULL), (2, 'y', 4000000000)", "UPDATE a SET id = 3, n = 5 WHERE id = 2", "INSERT INTO other VALUES (1)", "DELETE FROM a WHERE id = 1", "TRUNCATE TABLE a", "ALTER TABLE a ADD COLUMN z INT FIRST", "INSERT INTO a VALUES (7, 8, '', 0)")
	l.want("insert a: 1 x NULL", "insert a: 2 y 4000000000", "update a: 2 y 4000000000 -> 3 y 5", "delete a: 1 x NULL", "truncate a", "alter a", "insert a: 7 8  0")
	for _, c := range l.changes(7) {
		if d := time.Since(c.Time); d < -time.Second || d > time.Minute {
			t.Errorf("%v was committed %v ago", c, d)
		}
	}
}

// What was told up to a position is not told again from there, and the rest is.
func TestPositions(t *testing.T) { each(t, testPositions) }

func testPositions(x *world) {
	t := x.T
	x.do("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM")
	need := x.need([]string{"a", "id"}, []string{"m", "id"}, []string{"c", "id"})
	l := x.listen(x.source(), need)
	var want []string
	for i := range 5 {
		x.do(fmt.Sprintf("INSERT INTO a VALUES (%d), (%d)", 10*i, 10*i+1), fmt.Sprintf("INSERT INTO m VALUES (%d)", i))
		want = append(want, fmt.Sprint("insert a: ", 10*i), fmt.Sprint("insert a: ", 10*i+1), fmt.Sprint("insert m: ", i))
	}
	x.do("CREATE TABLE c SELECT id FROM a WHERE id < 2", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (100)")
	want = append(want, "alter c", "insert c: 0", "insert c: 1", "insert a: 100")
	l.want(want...)
	_ = l.end()
	done := 0
	for _, b := range l.batches {
		done += len(b.Changes)
		if b.Position == "" {
			continue
		}
		need.From = b.Position
		again := x.listen(x.source(), need)
		again.want(want[done:]...)
		if p := again.positions()[0]; p != need.From {
			t.Errorf("it was told to begin at %s and says %s", need.From, p)
		}
		_ = again.end()
	}
}

func TestSetup(t *testing.T) { each(t, testSetup) }

func testSetup(x *world) {
	t := x.T
	x.do("CREATE TABLE a (id INT PRIMARY KEY, e INT UNIQUE)")
	run := func(t *testing.T, edit ...func(*Options)) error {
		y := *x
		y.T = t
		return y.run(y.source(edit...), y.need([]string{"a", "id", "e"})).ended()
	}
	for variable, value := range map[string]string{"binlog_format": "MIXED", "binlog_row_metadata": "MINIMAL", "binlog_row_image": "MINIMAL"} {
		t.Run(variable, func(t *testing.T) {
			y := *x
			y.T = t
			y.set(variable, value)
			y.isSetup(run(t), variable+" is "+value)
		})
	}
	t.Run("log_bin", func(t *testing.T) {
		y := worldOn(t, x.server.Engine.Start(t, "--skip-log-bin"))
		y.isSetup(y.run(y.source(), y.need()).ended(), "log_bin is OFF")
	})
	t.Run("user", func(t *testing.T) {
		y := *x
		y.T = t
		y.do("CREATE USER nobody IDENTIFIED BY 'secret word'")
		defer y.do("DROP USER nobody")
		err := run(t, func(o *Options) { o.User, o.Password = "nobody", "another word" })
		y.isSetup(err, "nobody")
		err = run(t, func(o *Options) { o.User, o.Password = "nobody", "secret word" })
		y.isSetup(err, "REPLICATION SLAVE")
		if contains(err.Error(), "secret") {
			t.Error("the error shows the password")
		}
		y.do("GRANT REPLICATION SLAVE ON *.* TO nobody")
		l := y.listen(y.source(func(o *Options) { o.User, o.Password = "nobody", "secret word" }), y.need([]string{"a", "id"}))
		y.do("INSERT INTO a VALUES (1, 2)")
		l.want("insert a: 1 2")
	})
	t.Run("options", func(t *testing.T) {
		for _, o := range []Options{{}, {Addr: "x", User: "u"}, {Addr: "h:1"}, {Addr: "h:abc", User: "u"}, {Addr: " h:1", User: "u"}, {Addr: "h:1/app", User: "u"}, {Addr: "a:1,b:1", User: "u"}, {Addr: "::1", User: "u"}, {Addr: "h:0", User: "u"}, {Addr: "h:1", User: "u", Timeout: 1}, {Addr: "h:1", User: strings.Repeat("u", 256)}} {
			if _, err := New(o); err == nil || !contains(err.Error(), "Options.") {
				t.Errorf("%v", err)
			}
		}
	})
}

func TestLostPositions(t *testing.T) { eachOwn(t, lostPositions) }

func lostPositions(x *world) {
	t := x.T
	x.do("CREATE TABLE a (id INT PRIMARY KEY)")
	need := x.need([]string{"a", "id"})
	l := x.listen(x.source(), need)
	x.do("INSERT INTO a VALUES (1)")
	l.want("insert a: 1")
	early := l.positions()[0]
	_ = l.end()
	lost := func(what string, p event.Position) {
		t.Helper()
		need.From = p
		if err := x.run(x.source(), need).ended(); !errors.Is(err, canal.ErrPositionLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	x.do("FLUSH BINARY LOGS", "INSERT INTO a VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (3)")
	x.purge("binlog.000003")
	lost("purged", early)
	lost("of nothing", "x")
	if x.mysql() {
		// A position of another server, or of the future, names transactions that this one has not
		// got: MySQL sends all the others.
		lost("of MariaDB", "mariadb:0-1-5")
		for _, p := range []event.Position{"mysql:3e11fa47", "mysql:3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5,", "mysql:a:1", "mysql:3e11fa47-71ca-11e1-9e33-c80aa9429562:1-1' OR 1='"} {
			lost("damaged", p)
		}
		x.do("RESET BINARY LOGS AND GTIDS", "INSERT INTO a VALUES (4)")
	} else {
		lost("of another server", "mariadb:0-77-5")
		lost("of the future", "mariadb:0-1-500000")
		lost("of MySQL", "mysql:3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5")
		for _, p := range []event.Position{"mariadb:0-1", "mariadb:0-1-2,", "mariadb:,", "mariadb:0-1-2,0-1-3", "mariadb:a-b-c", "mariadb:0-1-1' OR 1='"} {
			lost("damaged", p)
		}
		x.do("RESET MASTER", "INSERT INTO a VALUES (4)")
	}
	lost("reset", l.positions()[1])
}

// unseen has the commit of "UPDATE a SET n = 2" be in the log, and not seen by others until show
// is called: it waits for a replica that answers, and there is none.
func (w *world) unseen() (show func()) {
	w.Helper()
	semi := "rpl_semi_sync_master_"
	wait := "wait_no_slave"
	if w.mysql() {
		semi, wait = "rpl_semi_sync_source_", "wait_no_replica"
		w.do("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
		w.Cleanup(func() { w.do("UNINSTALL PLUGIN rpl_semi_sync_source") })
	}
	w.set(semi+"wait_point", "AFTER_SYNC")
	w.set(semi+"timeout", "3600000")
	w.set(semi+wait, "ON")
	before := w.logged()
	w.set(semi+"enabled", "ON")
	wrote := make(chan error, 1)
	go func() {
		_, err := w.db.Exec("UPDATE a SET n = 2")
		wrote <- err
	}()
	testenv.Eventually(w, "it is in the log", func() bool { return w.logged() != before })
	return func() {
		w.Helper()
		if n := w.seen(); n != 1 {
			w.Errorf("n is %d, though the server waits for a replica", n)
		}
		w.do("SET GLOBAL " + semi + "enabled=OFF")
		w.check(testenv.Receive(w, "the commit", wrote))
	}
}

// seen is what another session sees.
func (w *world) seen() (n int) {
	w.Helper()
	w.check(w.db.QueryRow("SELECT n FROM a").Scan(&n))
	return n
}

// A commit becomes visible to other sessions some time after it was logged. The Source delivers it
// then, not before.
func TestDeliveredWhenVisible(t *testing.T) { each(t, testDeliveredWhenVisible) }

func testDeliveredWhenVisible(x *world) {
	t := x.T
	x.do("CREATE TABLE a (id INT PRIMARY KEY, n INT)", "INSERT INTO a VALUES (1, 1)")
	l := x.listen(x.source(), x.need([]string{"a", "id"}))
	show := x.unseen()
	asked := func() (n int) { // what can be seen
		var name string
		counter := "Com_show_status"
		if x.mysql() {
			counter = "Com_select"
		}
		x.check(x.db.QueryRow("SHOW GLOBAL STATUS LIKE '"+counter+"'").Scan(&name, &n))
		return n
	}
	told := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.all())
	}
	before := asked()
	testenv.Eventually(x, "the Source asks what can be seen", func() bool { return asked() >= before+3 || told() > 0 })
	if told() > 0 {
		t.Error("it was told of what others cannot see yet")
	}
	show()
	l.changes(1)
	if n := x.seen(); n != 2 {
		t.Error("it was told of what others cannot see yet")
	}
}

// A listener that begins while the log has a transaction that cannot be seen yet is told of it.
func TestBeginsBehindWhatCanBeSeen(t *testing.T) { each(t, testBeginsBehindWhatCanBeSeen) }

func testBeginsBehindWhatCanBeSeen(x *world) {
	t := x.T
	x.do("CREATE TABLE a (id INT PRIMARY KEY, n INT)", "INSERT INTO a VALUES (1, 1)", "CREATE USER app", "GRANT REPLICATION SLAVE ON *.* TO app")
	t.Cleanup(func() { x.do("DROP USER app") })
	show := x.unseen()
	l := x.listen(x.source(func(o *Options) { o.User = "app" }), x.need([]string{"a", "id"}))
	show()
	x.do("INSERT INTO a VALUES (2, 2)")
	if got, want := text(l.changes(1)[0]), "update a: 1 1 -> 1 2"; got != want {
		t.Errorf("the first that it is told is %q, want %q", got, want)
	}
}

// logged is what stands in the log, though others may not see it yet.
func (w *world) logged() (at string) {
	w.Helper()
	if !w.mysql() {
		w.check(w.db.QueryRow("SELECT @@global.gtid_binlog_pos").Scan(&at))
		return at
	}
	// gtid_executed tells what others can see, so that it is the end of the file.
	rows, err := w.db.Query("SHOW BINARY LOG STATUS")
	w.check(err)
	defer rows.Close()
	var file, do, ignore, gtids string
	for rows.Next() {
		w.check(rows.Scan(&file, &at, &do, &ignore, &gtids))
	}
	w.check(rows.Err())
	return file + ":" + at
}

func TestXA(t *testing.T) { each(t, testXA) }

func testXA(x *world) {
	t := x.T
	x.do("CREATE TABLE a (id INT PRIMARY KEY)")
	need := x.need([]string{"a", "id"})
	l := x.listen(x.source(), need)
	conn, err := x.db.Conn(t.Context())
	x.check(err)
	defer conn.Close()
	on := func(statements ...string) {
		t.Helper()
		for _, s := range statements {
			_, err := conn.ExecContext(t.Context(), s)
			x.check(err)
		}
	}
	on("XA START 'one'", "INSERT INTO a VALUES (1), (2)", "XA END 'one'", "XA PREPARE 'one'")
	x.do("INSERT INTO a VALUES (10)")
	l.want("insert a: 10")
	between := l.positions()[len(l.positions())-1]
	on("XA COMMIT 'one'")
	first := func() (all []string) { // each once, in the order in which they were told first
		for _, c := range l.all() {
			if s := text(c); !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
		return all
	}
	told := func(want ...string) {
		t.Helper()
		l.until(fmt.Sprint(want), func() bool { return len(first()) >= len(want) })
		l.mu.Lock()
		defer l.mu.Unlock()
		if got := first(); !slices.Equal(got, want) {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	told("insert a: 10", "insert a: 1", "insert a: 2")
	on("XA START 'two'", "INSERT INTO a VALUES (3)", "XA END 'two'", "XA PREPARE 'two'", "XA ROLLBACK 'two'")
	on("XA START 'three'", "INSERT INTO a VALUES (4)", "XA END 'three'", "XA COMMIT 'three' ONE PHASE")
	told("insert a: 10", "insert a: 1", "insert a: 2", "insert a: 4")
	l.until("what was prepared is told again", func() bool { // for the log is committed before the engine
		n := 0
		for _, c := range l.all() {
			if text(c) == "insert a: 1" {
				n++
			}
		}
		return n == 2
	})
	_ = l.end()
	need.From = between // what was prepared before is not known
	l = x.listen(x.source(), need)
	l.until("what was prepared before", func() bool { return len(l.all()) >= 2 })
	l.mu.Lock()
	defer l.mu.Unlock()
	if a, b := text(l.all()[0]), text(l.all()[1]); a != "replace  unread" || b != "insert a: 4" {
		t.Errorf("%s, %s", a, b)
	}
}

// cachingSHA2 has a user let in by the authentication that MySQL has by default, without TLS: as
// the server has not seen him before, he sends his password under the server's key. Over TLS it is
// that of the rest of the test.
func (w *world) cachingSHA2(need event.Need) {
	w.Helper()
	w.do("CREATE USER plain IDENTIFIED BY 'word'", "GRANT REPLICATION SLAVE ON *.* TO plain")
	var plugins int
	w.check(w.db.QueryRow("SELECT COUNT(*) FROM mysql.user WHERE user IN ('app', 'plain') AND plugin = 'caching_sha2_password'").Scan(&plugins))
	if plugins != 2 {
		w.Fatalf("%d users have it", plugins)
	}
	for _, password := range []string{"word", "word"} { // the second time the server knows it
		l := w.listen(w.source(func(o *Options) { o.User, o.Password = "plain", password }), need)
		_ = l.end()
	}
	w.isSetup(w.run(w.source(func(o *Options) { o.User, o.Password = "plain", "another" }), need).ended(), "plain")
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	roots := testenv.Certificates(t, dir)
	eachOwn(t, func(x *world) { overTLS(x, roots) }, "--ssl-ca="+dir+"/ca.pem", "--ssl-cert="+dir+"/server.pem", "--ssl-key="+dir+"/server.key")
}

func overTLS(x *world, roots *x509.CertPool) {
	t := x.T
	x.do("CREATE USER app IDENTIFIED BY 'word' REQUIRE SSL", "GRANT REPLICATION SLAVE ON *.* TO app", "CREATE TABLE a (id INT PRIMARY KEY)")
	app := func(trust *tls.Config) *Source {
		return x.source(func(o *Options) { o.User, o.Password, o.TLS = "app", "word", trust })
	}
	need := x.need([]string{"a", "id"})
	if x.mysql() {
		x.cachingSHA2(need)
	}
	if err := x.run(app(nil), need).ended(); err == nil {
		t.Error("without TLS it is let in")
	}
	if err := x.run(app(&tls.Config{MinVersion: tls.VersionTLS12}), need).ended(); err == nil || !contains(err.Error(), "certificate") {
		t.Errorf("a certificate that nobody knows: %v", err)
	}
	l := x.listen(app(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}), need)
	x.do("INSERT INTO a VALUES (1)")
	l.want("insert a: 1")
}

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

func TestRowChangesAreDelivered(t *testing.T) { each(t, testRowChangesAreDelivered) }

func testRowChangesAreDelivered(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, s VARCHAR(20), n INT UNSIGNED)", "CREATE TABLE other (id INT)")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
	x.Do("INSERT INTO a VALUES (1, 'x', NULL), (2, 'y', 4000000000)", "UPDATE a SET id = 3, n = 5 WHERE id = 2",
		"INSERT INTO other VALUES (1)", "DELETE FROM a WHERE id = 1", "TRUNCATE TABLE a",
		"ALTER TABLE a ADD COLUMN z INT FIRST", "INSERT INTO a VALUES (7, 8, '', 0)")
	l.Want("insert a: 1 x NULL", "insert a: 2 y 4000000000", "update a: 2 y 4000000000 -> 3 y 5", "delete a: 1 x NULL",
		"truncate a", "alter a", "insert a: 7 8  0")
	for _, c := range l.Changes(7) {
		if d := time.Since(c.Time); d < -time.Second || d > time.Minute {
			t.Errorf("%v was committed %v ago", c, d)
		}
	}
}

// A Source that resumes from a position delivers only the changes after it.
func TestPositions(t *testing.T) { each(t, testPositions) }

func testPositions(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM")
	need := x.Need([]string{"a", "id"}, []string{"m", "id"}, []string{"c", "id"})
	l := x.Listen(x.source(), need)
	var want []string
	for i := range 5 {
		x.Do(fmt.Sprintf("INSERT INTO a VALUES (%d), (%d)", 10*i, 10*i+1), fmt.Sprintf("INSERT INTO m VALUES (%d)", i))
		want = append(want, fmt.Sprint("insert a: ", 10*i), fmt.Sprint("insert a: ", 10*i+1),
			fmt.Sprint("insert m: ", i))
	}
	x.Do("CREATE TABLE c SELECT id FROM a WHERE id < 2", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (100)")
	want = append(want, "alter c", "insert c: 0", "insert c: 1", "insert a: 100")
	l.Want(want...)
	_ = l.Stop()
	done := 0
	for _, b := range l.Batches() {
		done += len(b.Changes)
		if b.Position == "" {
			continue
		}
		need.From = b.Position
		again := x.Listen(x.source(), need)
		again.Want(want[done:]...)
		if p := again.Positions()[0]; p != need.From {
			t.Errorf("it was to begin at %s and reports %s", need.From, p)
		}
		_ = again.Stop()
	}
}

func TestSetup(t *testing.T) { each(t, testSetup) }

func testSetup(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, e INT UNIQUE)")
	run := func(t *testing.T, edit ...func(*Options)) error {
		y := *x
		y.T = t
		return y.Start(y.source(edit...), y.Need([]string{"a", "id", "e"})).Ended()
	}
	for variable, value := range map[string]string{"binlog_format": "MIXED", "binlog_row_metadata": "MINIMAL",
		"binlog_row_image": "MINIMAL"} {
		t.Run(variable, func(t *testing.T) {
			y := *x
			y.T = t
			y.set(variable, value)
			y.IsSetup(run(t), variable+" is "+value)
		})
	}
	t.Run("log_bin", func(t *testing.T) {
		y := worldOn(t, x.server.Engine.Start(t, "--skip-log-bin"))
		y.IsSetup(y.Start(y.source(), y.Need()).Ended(), "log_bin is OFF")
	})
	t.Run("user", func(t *testing.T) {
		y := *x
		y.T = t
		y.Do("CREATE USER nobody IDENTIFIED BY 'secret word'")
		defer y.Do("DROP USER nobody")
		err := run(t, func(o *Options) { o.User, o.Password = "nobody", "another word" })
		y.IsSetup(err, "nobody")
		err = run(t, func(o *Options) { o.User, o.Password = "nobody", "secret word" })
		y.IsSetup(err, "REPLICATION SLAVE")
		if contains(err.Error(), "secret") {
			t.Error("the error shows the password")
		}
		y.Do("GRANT REPLICATION SLAVE ON *.* TO nobody")
		l := y.Listen(y.source(func(o *Options) { o.User, o.Password = "nobody", "secret word" }),
			y.Need([]string{"a", "id"}))
		y.Do("INSERT INTO a VALUES (1, 2)")
		l.Want("insert a: 1 2")
	})
	t.Run("options", func(t *testing.T) {
		for _, o := range []Options{{}, {Addr: "x", User: "u"}, {Addr: "h:1"}, {Addr: "h:abc", User: "u"},
			{Addr: " h:1", User: "u"}, {Addr: "h:1/app", User: "u"}, {Addr: "a:1,b:1", User: "u"}, {Addr: "::1", User: "u"}, {Addr: "h:0", User: "u"}, {Addr: "h:1", User: "u", Timeout: 1}, {Addr: "h:1", User: strings.Repeat("u", 256)}} {
			if _, err := New(o); err == nil || !contains(err.Error(), "Options.") {
				t.Errorf("%v", err)
			}
		}
	})
}

func TestLostPositions(t *testing.T) { eachOwn(t, lostPositions) }

func lostPositions(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)")
	need := x.Need([]string{"a", "id"})
	l := x.Listen(x.source(), need)
	x.Do("INSERT INTO a VALUES (1)")
	l.Want("insert a: 1")
	early := l.Positions()[0]
	_ = l.Stop()
	lost := func(what string, p event.Position) {
		t.Helper()
		need.From = p
		if err := x.Start(x.source(), need).Ended(); !errors.Is(err, canal.ErrPositionLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	x.Do("FLUSH BINARY LOGS", "INSERT INTO a VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (3)")
	x.purge("binlog.000003")
	lost("purged", early)
	lost("of nothing", "x")
	if x.mysql() {
		// A position of another server, or of the future, names transactions that this one has not
		// got: MySQL sends all the others.
		lost("of MariaDB", "mariadb:0-1-5")
		for _, p := range []event.Position{"mysql:3e11fa47", "mysql:3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5,",
			"mysql:a:1", "mysql:3e11fa47-71ca-11e1-9e33-c80aa9429562:1-1' OR 1='"} {
			lost("damaged", p)
		}
		x.Do("RESET BINARY LOGS AND GTIDS", "INSERT INTO a VALUES (4)")
	} else {
		lost("of another server", "mariadb:0-77-5")
		lost("of the future", "mariadb:0-1-500000")
		lost("of MySQL", "mysql:3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5")
		for _, p := range []event.Position{"mariadb:0-1", "mariadb:0-1-2,", "mariadb:,", "mariadb:0-1-2,0-1-3",
			"mariadb:a-b-c", "mariadb:0-1-1' OR 1='"} {
			lost("damaged", p)
		}
		x.Do("RESET MASTER", "INSERT INTO a VALUES (4)")
	}
	lost("reset", l.Positions()[1])
}

// unseen commits "UPDATE a SET n = 2" so that it is in the log but invisible to other sessions
// until show is called: the commit waits for a replica's acknowledgement, and no replica is
// connected.
func (w *world) unseen() (show func()) {
	w.Helper()
	semi := "rpl_semi_sync_master_"
	wait := "wait_no_slave"
	if w.mysql() {
		semi, wait = "rpl_semi_sync_source_", "wait_no_replica"
		w.Do("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
		w.Cleanup(func() { w.Do("UNINSTALL PLUGIN rpl_semi_sync_source") })
	}
	w.set(semi+"wait_point", "AFTER_SYNC")
	w.set(semi+"timeout", "3600000")
	w.set(semi+wait, "ON")
	before := w.logged()
	w.set(semi+"enabled", "ON")
	wrote := make(chan error, 1)
	go func() {
		_, err := w.DB.Exec("UPDATE a SET n = 2")
		wrote <- err
	}()
	testenv.Eventually(w, "it is in the log", func() bool { return w.logged() != before })
	return func() {
		w.Helper()
		if n := w.seen(); n != 1 {
			w.Errorf("n is %d, though the server waits for a replica", n)
		}
		w.Do("SET GLOBAL " + semi + "enabled=OFF")
		w.Check(testenv.Receive(w, "the commit", wrote))
	}
}

// seen returns the value that another session reads.
func (w *world) seen() (n int) {
	w.Helper()
	w.Check(w.DB.QueryRow("SELECT n FROM a").Scan(&n))
	return n
}

// A commit becomes visible to other sessions some time after it was logged. The Source delivers it
// then, not before.
func TestDeliveredWhenVisible(t *testing.T) { each(t, testDeliveredWhenVisible) }

func testDeliveredWhenVisible(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, n INT)", "INSERT INTO a VALUES (1, 1)")
	l := x.Listen(x.source(), x.Need([]string{"a", "id"}))
	show := x.unseen()
	asked := func() (n int) { // what can be seen
		var name string
		counter := "Com_show_status"
		if x.mysql() {
			counter = "Com_select"
		}
		x.Check(x.DB.QueryRow("SHOW GLOBAL STATUS LIKE '"+counter+"'").Scan(&name, &n))
		return n
	}
	told := func() int {
		return l.Count()
	}
	before := asked()
	testenv.Eventually(x, "the Source asks what can be seen", func() bool { return asked() >= before+3 || told() > 0 })
	if told() > 0 {
		t.Error("a change arrived that other sessions cannot see")
	}
	show()
	l.Changes(1)
	if n := x.seen(); n != 2 {
		t.Error("a change arrived that other sessions cannot see")
	}
}

// A listener that begins while a logged transaction is not visible still receives that transaction.
func TestBeginsBehindWhatCanBeSeen(t *testing.T) { each(t, testBeginsBehindWhatCanBeSeen) }

func testBeginsBehindWhatCanBeSeen(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY, n INT)", "INSERT INTO a VALUES (1, 1)", "CREATE USER app",
		"GRANT REPLICATION SLAVE ON *.* TO app")
	t.Cleanup(func() { x.Do("DROP USER app") })
	show := x.unseen()
	l := x.Listen(x.source(func(o *Options) { o.User = "app" }), x.Need([]string{"a", "id"}))
	show()
	x.Do("INSERT INTO a VALUES (2, 2)")
	if got, want := x.Text(l.Changes(1)[0]), "update a: 1 1 -> 1 2"; got != want {
		t.Errorf("the first change is %q, want %q", got, want)
	}
}

// logged returns the end of the log, including transactions that are not visible to other sessions.
func (w *world) logged() (at string) {
	w.Helper()
	if !w.mysql() {
		w.Check(w.DB.QueryRow("SELECT @@global.gtid_binlog_pos").Scan(&at))
		return at
	}
	// gtid_executed has only visible transactions, so the end of the file is used.
	rows, err := w.DB.Query("SHOW BINARY LOG STATUS")
	w.Check(err)
	defer rows.Close()
	var file, do, ignore, gtids string
	for rows.Next() {
		w.Check(rows.Scan(&file, &at, &do, &ignore, &gtids))
	}
	w.Check(rows.Err())
	return file + ":" + at
}

func TestXA(t *testing.T) { each(t, testXA) }

func testXA(x *world) {
	t := x.T
	x.Do("CREATE TABLE a (id INT PRIMARY KEY)")
	need := x.Need([]string{"a", "id"})
	l := x.Listen(x.source(), need)
	conn, err := x.DB.Conn(t.Context())
	x.Check(err)
	defer conn.Close()
	on := func(statements ...string) {
		t.Helper()
		for _, s := range statements {
			_, err := conn.ExecContext(t.Context(), s)
			x.Check(err)
		}
	}
	on("XA START 'one'", "INSERT INTO a VALUES (1), (2)", "XA END 'one'", "XA PREPARE 'one'")
	x.Do("INSERT INTO a VALUES (10)")
	l.Want("insert a: 10")
	between := l.Positions()[len(l.Positions())-1]
	on("XA COMMIT 'one'")
	first := func() (all []string) { // each once, in the order of its first delivery
		for _, s := range l.Texts() {
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
		return all
	}
	told := func(want ...string) {
		t.Helper()
		l.Until(fmt.Sprint(want), func() bool { return len(first()) >= len(want) })
		if got := first(); !slices.Equal(got, want) {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	told("insert a: 10", "insert a: 1", "insert a: 2")
	on("XA START 'two'", "INSERT INTO a VALUES (3)", "XA END 'two'", "XA PREPARE 'two'", "XA ROLLBACK 'two'")
	on("XA START 'three'", "INSERT INTO a VALUES (4)", "XA END 'three'", "XA COMMIT 'three' ONE PHASE")
	told("insert a: 10", "insert a: 1", "insert a: 2", "insert a: 4")
	l.Until("the prepared transaction arrives again", func() bool { // for the log is committed before the engine
		n := 0
		for _, s := range l.Texts() {
			if s == "insert a: 1" {
				n++
			}
		}
		return n == 2
	})
	_ = l.Stop()
	need.From = between // what was prepared before is not known
	l = x.Listen(x.source(), need)
	l.Until("what was prepared before", func() bool { return l.Count() >= 2 })
	if all := l.Texts(); all[0] != "replace  unread" || all[1] != "insert a: 4" {
		t.Errorf("%q", all)
	}
}

// cachingSHA2 logs a new user in without TLS by MySQL's default authentication: the server has not
// cached the password, so the client sends it encrypted with the server's public key. The rest of
// the test logs in over TLS.
func (w *world) cachingSHA2(need event.Need) {
	w.Helper()
	w.Do("CREATE USER plain IDENTIFIED BY 'word'", "GRANT REPLICATION SLAVE ON *.* TO plain")
	var plugins int
	w.Check(w.DB.QueryRow("SELECT COUNT(*) FROM mysql.user WHERE user IN ('app', 'plain') AND plugin = " +
		"'caching_sha2_password'").Scan(&plugins))
	if plugins != 2 {
		w.Fatalf("%d users have it", plugins)
	}
	for _, password := range []string{"word", "word"} { // the second time the server knows it
		l := w.Listen(w.source(func(o *Options) { o.User, o.Password = "plain", password }), need)
		_ = l.Stop()
	}
	w.IsSetup(w.Start(w.source(func(o *Options) { o.User, o.Password = "plain", "another" }), need).Ended(), "plain")
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	roots := testenv.Certificates(t, dir)
	eachOwn(t, func(x *world) { overTLS(x, roots) }, "--ssl-ca="+dir+"/ca.pem", "--ssl-cert="+dir+"/server.pem",
		"--ssl-key="+dir+"/server.key")
}

func overTLS(x *world, roots *x509.CertPool) {
	t := x.T
	x.Do("CREATE USER app IDENTIFIED BY 'word' REQUIRE SSL", "GRANT REPLICATION SLAVE ON *.* TO app",
		"CREATE TABLE a (id INT PRIMARY KEY)")
	app := func(trust *tls.Config) *Source {
		return x.source(func(o *Options) { o.User, o.Password, o.TLS = "app", "word", trust })
	}
	need := x.Need([]string{"a", "id"})
	if x.mysql() {
		x.cachingSHA2(need)
	}
	if err := x.Start(app(nil), need).Ended(); err == nil {
		t.Error("without TLS it is let in")
	}
	if err := x.Start(app(&tls.Config{MinVersion: tls.VersionTLS12}), need).Ended(); err == nil ||
		!contains(err.Error(), "certificate") {
		t.Errorf("an untrusted certificate: %v", err)
	}
	l := x.Listen(app(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}), need)
	x.Do("INSERT INTO a VALUES (1)")
	l.Want("insert a: 1")
}

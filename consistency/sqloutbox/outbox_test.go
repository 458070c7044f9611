package sqloutbox

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const (
	claimLong = time.Hour
	testSpace = "cacheaside" // the default
)

// dialects are those of drivers.
var dialects = map[string]Dialect{"mysql": MySQL, "sqlite": SQLite, "pgx": Postgres}

// set returns a write of a row.
func set(id int, v string) func(context.Context, *sqlx.Tx) error {
	return func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, tx.Rebind("UPDATE item SET v = ? WHERE id = ?"), v, id)
		return err
	}
}

// outboxTest is an outbox in a database of the test's own.
type outboxTest struct {
	testing.TB
	*Outbox
	db     *sqlx.DB
	server *testenv.SQLServer // nil: SQLite or PostgreSQL
}

func (t *outboxTest) ctx() context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Hang)
	t.Cleanup(cancel)
	return ctx
}

func (t *outboxTest) check(err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (t *outboxTest) exec(on sqlx.ExecerContext, statement string, args ...any) {
	t.Helper()
	_, err := on.ExecContext(t.ctx(), statement, args...)
	t.check(err)
}

func (t *outboxTest) begin(db *sqlx.DB) *sqlx.Tx {
	t.Helper()
	tx, err := db.BeginTxx(t.Context(), nil)
	t.check(err)
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

// some claims, for an hour.
func (t *outboxTest) some(o *Outbox, most int) []consistency.Item {
	t.Helper()
	items, err := o.Claim(t.ctx(), most, claimLong)
	t.check(err)
	return items
}

// holds asserts the number of rows.
func (t *outboxTest) holds(n int, why string) {
	t.Helper()
	d, err := t.Depth(t.ctx())
	t.check(err)
	if d.Items != n {
		t.Errorf("%d items, want %d: %s", d.Items, n, why)
	}
}

// eventually claims until there are n of them.
func (t *outboxTest) eventually(o *Outbox, n int) (items []consistency.Item) {
	t.Helper()
	for ctx := t.ctx(); len(items) < n; time.Sleep(5 * time.Millisecond) {
		more, err := o.Claim(ctx, n, claimLong)
		if err != nil {
			t.Fatalf("claimed %d of %d: %v", len(items), n, err)
		}
		items = append(items, more...)
	}
	return items
}

// texts are those of the items' keys, sorted.
func texts(items []consistency.Item) []string {
	all := []string{}
	for _, i := range items {
		all = append(all, i.Key.Text)
	}
	slices.Sort(all)
	return all
}

func (t *outboxTest) same(items []consistency.Item, want ...string) {
	t.Helper()
	if got := texts(items); !slices.Equal(got, want) {
		t.Fatalf("claimed %q, want %q", got, want)
	}
}

func (t *outboxTest) open(dsn string) *sqlx.DB {
	t.Helper()
	db, err := sqlx.Open("mysql", dsn)
	t.check(err)
	t.Cleanup(func() { db.Close() })
	return db
}

func (t *outboxTest) outbox(db *sqlx.DB) *Outbox {
	t.Helper()
	o, err := New(db, dialects[t.db.DriverName()], &Options{Namespace: testSpace})
	t.check(err)
	return o
}

// mine are the statements for its own rows.
func (t *outboxTest) mine() statements {
	t.Helper()
	s, err := t.ownStatements()
	t.check(err)
	return s
}

// hex is a text as a literal.
func (t *outboxTest) hex(text string) string { return string(t.text.literal(nil, []byte(text))) }

func textItem(text string) consistency.Item {
	return consistency.Item{Key: cacheaside.Key{Loader: "user", Version: "1", Text: text}}
}

func textItems(n int) []consistency.Item {
	items := make([]consistency.Item, n)
	for i := range items {
		items[i] = textItem(fmt.Sprintf("%06d", i))
	}
	return items
}

func outboxOn(tb testing.TB, e testenv.Engine) *outboxTest {
	if e == testenv.PostgreSQL {
		return outboxOnPostgres(tb)
	}
	m := e.Shared(tb)
	return newOutboxTest(&outboxTest{TB: tb, db: sqlx.NewDb(m.DB(tb), "mysql"), server: m})
}

func outboxOnSQLite(tb testing.TB) *outboxTest {
	return newOutboxTest(&outboxTest{TB: tb, db: sqlx.NewDb(sqlite.Open(tb), "sqlite")})
}

func outboxOnPostgres(tb testing.TB) *outboxTest {
	return newOutboxTest(&outboxTest{TB: tb, db: sqlx.NewDb(testenv.SharedPostgres(tb).DB(tb), "pgx")})
}

func newOutboxTest(t *outboxTest) *outboxTest {
	t.Outbox = t.outbox(t.db)
	t.check(t.CreateTable(t.ctx()))
	t.check(t.CreateTable(t.ctx())) // which does nothing
	return t
}

func eachOutbox(t *testing.T, f func(t *outboxTest)) {
	testenv.OneUnlessAccepting(t, func(t *testing.T, e testenv.Engine) { f(outboxOn(t, e)) })
	t.Run("sqlite", func(t *testing.T) { f(outboxOnSQLite(t)) })
	t.Run("postgres", func(t *testing.T) { f(outboxOnPostgres(t)) })
}

// TestPutIn: what is put in a transaction is there if that is committed, not before, and not
// otherwise.
func TestPutIn(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		t.exec(t.db, "CREATE TABLE product (id INTEGER)")
		for _, commit := range []bool{false, true} {
			tx := t.begin(t.db)
			t.exec(tx, "INSERT INTO product VALUES (1)")
			t.check(t.PutIn(t.ctx(), tx, textItem("a"), textItem("b")))
			t.same(t.some(t.Outbox, 10))
			if commit {
				t.check(tx.Commit())
			} else {
				t.check(tx.Rollback())
				t.holds(0, "rolled back")
			}
		}
		t.same(t.some(t.Outbox, 10), "a", "b")
		if err := t.PutIn(t.ctx(), nil, textItem("a")); err == nil {
			t.Error("put in nothing")
		}
	})
}

// TestPutInIsOneTrip: with any interpolateParams in the DSN, and for many items as for one.
func TestPutInIsOneTrip(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testPutInIsOneTrip) }

func testPutInIsOneTrip(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	d := testenv.DatabaseOf(t, e)
	p := testenv.NewProxy(t, d.Addr)
	db, err := testenv.OpenDSN(strings.Replace(d.DSN(t), d.Addr, p.Addr, 1))
	o.check(err)
	defer db.Close()
	tx := o.begin(db)
	before := p.Trips()
	o.check(o.PutIn(o.ctx(), tx, textItem("a")))
	o.check(o.PutIn(o.ctx(), tx, textItems(200)...))
	if trips := p.Trips() - before; trips != 2 {
		t.Errorf("%d trips, want 2", trips)
	}
}

func init() {
	testenv.RegisterChild("outbox put", func() {
		o, db := outboxOfChild()
		tx, err := db.Beginx()
		if err == nil {
			err = o.PutIn(context.Background(), tx, textItems(3)...)
		}
		fmt.Println(err)
		select {}
	})
}

// TestKilledBeforeCommit: a process that is killed between PutIn and COMMIT, or whose connection
// is, leaves nothing.
func TestKilledBeforeCommit(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		child := testenv.SpawnChild(t, "outbox put", t.environment()...)
		said, err := child.ReadLine(testenv.Hang)
		if err != nil || said != "<nil>" {
			t.Fatal(said, err)
		}
		child.Kill()
		t.check(t.Put(t.ctx(), textItem("a")))
		t.same(t.eventually(t.Outbox, 1), "a")
		t.holds(1, "the transaction's process was killed")
	})
	testenv.TwoServersUnlessAccepting(t, func(tb *testing.T, e testenv.Engine) {
		t := outboxOn(tb, e)
		tx := t.begin(t.db)
		t.check(t.PutIn(t.ctx(), tx, textItem("a")))
		var id int
		if e == testenv.PostgreSQL {
			t.check(tx.Get(&id, "SELECT pg_backend_pid()"))
			t.exec(t.db, fmt.Sprintf("SELECT pg_terminate_backend(%d)", id))
		} else {
			t.check(tx.Get(&id, "SELECT CONNECTION_ID()"))
			t.exec(t.db, fmt.Sprint("KILL ", id))
		}
		if tx.Commit() == nil {
			t.Error("committed on a connection that was killed")
		}
		t.holds(0, "the connection was killed")
	})
}

// TestOutOfOrder: transactions may commit in another order than they have put.
func TestOutOfOrder(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testOutOfOrder) }

func testOutOfOrder(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	first, second := o.begin(o.db), o.begin(o.db)
	o.check(o.PutIn(o.ctx(), first, textItem("a")))
	o.check(o.PutIn(o.ctx(), second, textItem("b")))
	o.check(second.Commit())
	o.same(o.eventually(o.Outbox, 1), "b")
	o.same(o.some(o.Outbox, 10))
	o.check(first.Commit())
	o.same(o.some(o.Outbox, 10), "a")
}

// TestNobodyWaits: open transactions do not block others from claiming and finishing items that are
// already committed.
func TestNobodyWaits(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testNobodyWaits) }

func testNobodyWaits(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	early, late := o.begin(o.db), o.begin(o.db)
	o.check(o.PutIn(o.ctx(), early, textItems(1)...))
	items := textItems(400)
	items[7].ID = consistency.NewID()
	id, err := parseID(items[7].ID)
	o.check(err)
	o.check(o.Put(o.ctx(), items...))
	o.check(o.PutIn(o.ctx(), late, textItems(1)...))
	locked := o.begin(o.db)
	o.exec(locked, "SELECT id FROM cacheaside_outbox WHERE namespace = "+o.mine().namespace+" AND id = "+
		o.mine().list([]rowID{id})+" FOR UPDATE")

	claimed := o.some(o.Outbox, 1000)
	if len(claimed) != 399 {
		t.Fatalf("claimed %d, want all but the one that is locked", len(claimed))
	}
	for i := range claimed {
		claimed[i].After = time.Duration(i) * time.Microsecond
	}
	o.check(locked.Rollback())
	o.check(o.Later(o.ctx(), claimed...))
	claimed = o.eventually(o.Outbox, 400)
	o.check(o.Done(o.ctx(), claimed...))
	o.holds(0, "all are done")
	o.check(early.Commit())
	o.check(late.Commit())
	o.holds(2, "committed")
}

// TestClaimBlocksNoOtherTransaction: while a claim is under way, others claim what it does not, and
// put, wherever in the order.
func TestClaimBlocksNoOtherTransaction(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, testClaimBlocksNoOtherTransaction)
}

func testClaimBlocksNoOtherTransaction(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	o.check(o.Put(o.ctx(), textItems(20)...))
	underWay := func(most int) {
		conn, err := o.db.Conn(o.ctx())
		o.check(err)
		t.Cleanup(func() { conn.Close() })
		if e == testenv.PostgreSQL {
			o.exec(conn, "BEGIN")
			o.exec(conn, o.mine().claimReturning(), int64(noFloor), most, micros(claimLong), newClaim())
			return
		}
		before, _ := o.text.sessionStatements()
		o.check(execute(o.ctx(), conn, before))
		o.exec(conn, "START TRANSACTION") // so that it does not end
		o.exec(conn, o.mine().claim(most, newClaim(), claimLong))
	}
	underWay(5)
	o.check(o.Done(o.ctx(), o.eventually(o.Outbox, 15)...))
	o.check(o.Put(o.ctx(), textItems(5)...))
	underWay(100) // all that there is
	tx := o.begin(o.db)
	for _, after := range []time.Duration{0, time.Second, 2 * claimLong} {
		o.check(o.PutIn(o.ctx(), tx, consistency.Item{Key: textItem("new").Key, After: after}))
	}
	o.check(tx.Commit())
	o.check(o.Done(o.ctx(), o.eventually(o.Outbox, 1)...))
	o.holds(12, "10 that are being claimed, and 2 that are not due")
}

// TestStoppedWhileClaiming: a process that is stopped in the middle of Claim, or cut off, keeps
// nothing locked beyond the life of the claim.
func TestStoppedWhileClaiming(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, testStoppedWhileClaiming)
}

func testStoppedWhileClaiming(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	o.check(o.Put(o.ctx(), textItems(3)...))
	stopped, resume := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(resume) })
	defer goOn()
	defer func(old func(string)) { point = old }(point)
	point = func(at string) {
		if at == "claimed" {
			close(stopped)
			<-resume
		}
	}
	done := make(chan []consistency.Item, 1)
	go func() {
		items, err := o.Claim(o.ctx(), 10, 100*time.Millisecond)
		if err != nil && e != testenv.PostgreSQL { // which has ended the session
			t.Error(err)
		}
		done <- items
	}()
	<-stopped
	point = func(string) {}
	got := o.eventually(o.outbox(o.db), 3)
	goOn()
	o.same(<-done) // another process has claimed them
	o.check(o.Done(o.ctx(), got...))
	o.holds(0, "done")
}

// TestTimeZones: the time zones of sessions do not matter.
func TestTimeZones(t *testing.T) { testenv.EachEngine(t, testTimeZones) }

func testTimeZones(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	at := func(zone string) *Outbox {
		c, err := mysql.ParseDSN(o.server.DSN(t))
		o.check(err)
		c.Params = map[string]string{"time_zone": "'" + zone + "'"}
		return o.outbox(o.open(c.FormatDSN()))
	}
	for _, zones := range [][2]string{{"-08:00", "+09:30"}, {"+09:30", "-08:00"}} {
		put, claim := at(zones[0]), at(zones[1])
		o.check(put.Put(o.ctx(), textItem("now"), consistency.Item{Key: textItem("later").Key, After: time.Hour}))
		got := o.eventually(claim, 1)
		o.same(got, "now")
		if got[0].Age > time.Minute {
			t.Errorf("%v old", got[0].Age)
		}
		o.same(o.some(claim, 10))
		o.exec(o.db, "DELETE FROM cacheaside_outbox")
	}
}

// TestSessions: what a session has set changes nothing, and nothing of it is changed.
func TestSessions(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testSessions) }

func testSessions(tb *testing.T, e testenv.Engine) {
	o := outboxOn(tb, e)
	all := textItem("")
	all.Key.All = true
	far := textItem("far")
	far.After = 30 * time.Minute
	sessions := postgresSessions
	if e != testenv.PostgreSQL {
		sessions = e.Sessions()
	}
	for _, settings := range sessions {
		good := tb.Run(settings, func(t *testing.T) {
			o := &outboxTest{TB: t, Outbox: o.Outbox, db: o.db, server: o.server}
			o.exec(o.db, "DELETE FROM cacheaside_outbox")
			var db *sqlx.DB
			if e == testenv.PostgreSQL {
				db = o.openPostgres(testenv.SharedPostgres(t).DSN(tb) + "&" + settings)
			} else {
				db = o.open(o.server.SessionDSN(tb, settings))
			}
			db.SetMaxOpenConns(1)
			before := o.sessionOf(db)
			with := o.outbox(db)
			o.check(with.Put(o.ctx(), textItem("a'b`c\"d\\e\xff\x00é"), textItem("b"), all,
				consistency.Item{Key: textItem("d").Key, After: time.Millisecond}, far))
			d, err := with.Depth(o.ctx())
			o.check(err)
			if d.Items != 5 || d.Due < 3 || d.Oldest > testenv.Hang {
				t.Errorf("%+v", d)
			}
			if err := with.Maintain(o.ctx(), slog.New(slog.DiscardHandler)); err != nil || with.Repaired() > 0 {
				t.Errorf("%d repaired, %v", with.Repaired(), err)
			}
			got := append(o.eventually(with, 1), o.eventually(with, 3)...)
			o.same(got, "", "a'b`c\"d\\e\xff\x00é", "b", "d")
			o.same(o.some(o.Outbox, 10)) // which others do not get
			o.check(with.Done(o.ctx(), got[:3]...))
			o.holds(2, "others see it")
			got[3].After, got[3].Attempts = 25*time.Minute, 1
			o.check(with.Later(o.ctx(), got[3]))
			for text, least := range map[string]time.Duration{"d": 20 * time.Minute, "far": 25 * time.Minute} {
				if r := rowOf(o, text); r.After < least || r.After > 30*time.Minute || r.Age > testenv.Hang {
					t.Errorf("%+v", r)
				}
			}
			if n, err := with.RetryAll(o.ctx()); n != 1 || err != nil {
				t.Errorf("%d retried, %v", n, err)
			}
			o.check(o.Done(o.ctx(), o.eventually(o.Outbox, 1)...))
			o.check(o.Put(o.ctx(), textItem("by another")))
			o.check(with.Done(o.ctx(), o.eventually(with, 1)...))
			if rows, err := with.List(o.ctx(), 10); err != nil || len(rows) != 1 {
				t.Error(rows, err)
			}
			if n, err := with.Retry(o.ctx(), rowOf(o, "far").ID); n != 1 || err != nil {
				t.Errorf("%d retried, %v", n, err)
			}
			o.check(with.Done(o.ctx(), o.eventually(o.Outbox, 1)...))
			o.holds(0, "all is done")
			if after := o.sessionOf(db); after != before {
				t.Errorf("the session has %s, and had %s", after, before)
			}
		})
		if !good {
			return
		}
	}
}

// sessionOf returns what a session has set of what the statements of an outbox set for themselves,
// and whether its clock stands still.
func (t *outboxTest) sessionOf(db *sqlx.DB) string {
	t.Helper()
	var settings string
	if t.text.dialect == Postgres {
		tx := t.begin(db)
		defer tx.Rollback()
		t.exec(tx, "SET LOCAL standard_conforming_strings = on") // without it the driver refuses some queries
		t.check(tx.Get(&settings,
			"SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE name <> "+
				"'standard_conforming_strings'"))
		return settings
	}
	var times [2]string
	t.check(db.Get(&settings, "SELECT CONCAT_WS(' ', @@time_zone, @@sql_safe_updates) LIMIT 1"))
	for i := range times {
		t.check(db.Get(&times[i], "SELECT @@timestamp LIMIT 1"))
		time.Sleep(time.Millisecond)
	}
	return fmt.Sprint(settings, times[0] == times[1])
}

// TestHostileKeys: nothing in a key, nor in an item's name, gets into a statement.
func TestHostileKeys(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		for _, text := range []string{
			"'); DROP TABLE cacheaside_outbox; --", "x'41', 0, 0); --", "\\'", "\x00", "%s%d", "?", ":name", "$1",
			"/*! SELECT */", strings.Repeat("'", 300), "\xff\xfe", "-- \n", "''",
		} {
			t.check(t.Put(t.ctx(), textItem(text)))
			got := t.eventually(t.Outbox, 1)
			t.same(got, text)
			t.check(t.Done(t.ctx(), got...))
		}
		for _, bad := range []consistency.Item{
			{ID: "1' OR '1'='1", Key: textItem("a").Key},
			{ID: "x", Key: textItem("a").Key},
			{ID: strings.Repeat("a", 31), Key: textItem("a").Key},
			{ID: strings.Repeat("a", 33), Key: textItem("a").Key},
			{Key: cacheaside.Key{Loader: "user'", Text: "a"}},
			{Key: cacheaside.Key{Loader: "user", Version: "1)", Text: "a"}},
			{Key: cacheaside.Key{Text: "a"}},
		} {
			if t.Put(t.ctx(), textItem("good"), bad) == nil {
				t.Errorf("%+v was put", bad)
			}
		}
		for _, bad := range []consistency.Item{{}, {ID: "x"}, {ID: consistency.NewID(), Claim: "1 OR 1"},
			{ID: consistency.NewID(), Claim: "-1"}, {ID: consistency.NewID(), Claim: "0"}} {
			if t.Done(t.ctx(), bad) == nil || t.Later(t.ctx(), bad) == nil {
				t.Errorf("%+v was finished", bad)
			}
		}
		t.holds(0, "what is not right is refused as a whole")
	})
}

// TestLongKeys: what the table has no room for is refused, and shown as a hash.
func TestLongKeys(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		private := strings.Repeat("secret", 20000)
		longest := []consistency.Item{textItem(private[:maxText]),
			{Key: cacheaside.Key{Loader: private[:maxName], Version: private[:maxName]}}}
		t.check(t.Put(t.ctx(), longest...))
		got := t.eventually(t.Outbox, 2)
		for i := range longest {
			if !slices.ContainsFunc(got, func(g consistency.Item) bool { return g.Key == longest[i].Key }) {
				t.Errorf("%v is not as it was put", longest[i].Key)
			}
		}
		t.check(t.Done(t.ctx(), got...))
		long := textItem(private[:maxText+1])
		for _, items := range [][]consistency.Item{
			{textItem("good"), long},
			{{Key: cacheaside.Key{Loader: private[:maxName+1]}}},
			{{Key: cacheaside.Key{Loader: "user", Version: private[:maxName+1]}}},
		} {
			err := t.Put(t.ctx(), items...)
			if err == nil {
				t.Error("put")
			} else if strings.Contains(err.Error(), "secretsecret") {
				t.Error("the error shows the key")
			}
		}
		if err := t.Put(t.ctx(), long); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprintf("%016x", long.Key.Hash())) {
			t.Error(err)
		}
		t.holds(0, "refused as a whole")
	})
}

// TestLargestStatement: servers refuse statements that are too long, some from a megabyte on.
func TestLargestStatement(t *testing.T) { testenv.OneUnlessAccepting(t, testLargestStatement) }

func testLargestStatement(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	var old int
	o.check(o.db.Get(&old, "SELECT @@GLOBAL.max_allowed_packet"))
	defer o.db.Exec(fmt.Sprint("SET GLOBAL max_allowed_packet = ", old))
	o.exec(o.db, "SET GLOBAL max_allowed_packet = 1048576") // of new connections
	strict := o.outbox(o.open(o.server.DSN(t)))
	items := textItems(2200)
	for i := range 20 {
		items[i].Key.Text += strings.Repeat("k", 65000)
	}
	o.check(strict.Put(o.ctx(), items...))
	got := o.eventually(strict, len(items))
	for i := range got {
		got[i].Attempts, got[i].After, got[i].Again = i, time.Duration(i)*time.Second, time.Duration(i)
	}
	o.check(strict.Later(o.ctx(), got...))
	o.check(strict.Done(o.ctx(), got...))
	o.holds(len(got), "put back")
}

// TestForeignRows: rows that hold no key are returned by a claim, so that the caller notices, and
// do not block the other rows.
func TestForeignRows(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		insert := func(loader, version string, numbers ...int64) {
			id, err := parseID(consistency.NewID())
			t.check(err)
			t.exec(t.db, fmt.Sprintf(
				"INSERT INTO cacheaside_outbox (namespace, id, due, created, claim, loader, version, text, all_keys, "+
					"again, reload, attempts, admit) VALUES (%s, %s, %d, %d, %d, %s, %s, %s, %d, %d, %d, %d, 0)",
				t.mine().namespace, t.hex(string(id[:])), numbers[0], numbers[1], numbers[2], t.hex(loader),
				t.hex(version), t.hex("ab"), numbers[3], numbers[4], numbers[5], numbers[6]))
		}
		const most, least = 1<<63 - 1, -1 << 63
		insert("user'", "1", 0, 0, 0, 0, 0, 0, 0)
		insert("", "1", 0, 0, 0, 0, 0, 0, 0)
		insert("\xff\x00", "\n", 1, 1, -1, 1, 1, 1, 1)
		insert("user", "1", -5, -5, -5, -5, -5, -5, -5)
		insert("user", "1", least, 0, most, 127, most, 127, 1<<31-1)
		insert("user", "1", 0, most/2, least, -128, least, -128, -1<<31)
		t.check(t.Put(t.ctx(), textItem("good")))
		got := t.eventually(t.Outbox, 7)
		bad := 0
		for _, i := range got {
			if err := i.Key.Check(); err != nil {
				bad++
				if i.Key != (cacheaside.Key{}) {
					t.Errorf("shows what it cannot read: %q", i.Key.Loader)
				}
			}
			if i.Again < 0 || i.Age < 0 || i.Attempts < 0 {
				t.Errorf("%+v", i)
			}
		}
		if bad != 3 || t.Unreadable() != 3 {
			t.Errorf("%d unreadable, %d counted, want 3", bad, t.Unreadable())
		}
		for i := range got {
			got[i].After = time.Hour
		}
		t.check(t.Later(t.ctx(), got...))
		t.same(t.some(t.Outbox, 10))
		t.check(t.Done(t.ctx(), got...)) // as their writer would do
		t.holds(7, "the claim has ended")
		for i := range got {
			got[i].Claim = ""
		}
		t.check(t.Done(t.ctx(), got...))
		t.holds(0, "done")
	})
}

func FuzzOutboxRow(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), []byte("user"), []byte("1"), []byte("42"), int64(1), int64(2), int64(3), int64(4),
		[]byte("5"), uint8(0))
	f.Add([]byte("0123456789abcdef"), []byte("user"), []byte("1"), []byte("team:7"), int64(1), int64(groupOfKeys),
		int64(3), int64(4), []byte("5"), uint8(0))
	f.Add([]byte{}, []byte("user'"), []byte{}, []byte{0xff}, int64(-1), int64(1<<63-1), int64(-1<<63), int64(1<<62),
		[]byte("x"), uint8(255))
	f.Fuzz(func(t *testing.T, id, loader, version, text []byte, claim, all, again, reload int64, attempts []byte,
		absent uint8) {
		c := cells{id, claim, int64(0), loader, version, text, all, again, reload, attempts, again}
		for i := range 8 { // NULL, or of another type
			if absent&(1<<i) != 0 {
				c[i] = []any{nil, 1.5, true, string(text)}[i%4]
			}
		}
		item, readable := c.item()
		if readable && (item.Key.Check() != nil || tooLong(item.Key) != nil) {
			t.Error("an Item with a Key that is none")
		}
		if !readable && item.Key != (cacheaside.Key{}) {
			t.Error("shows what it cannot read")
		}
		if item.Again < 0 || item.Age < 0 || item.Attempts < 0 || len(item.ID) > hex.EncodedLen(len(rowID{})) {
			t.Errorf("%+v", item)
		}
		if readable && absent == 0 && len(id) == len(rowID{}) {
			b := (statements{table: "t"}).insertRow(nil, rowID(id), &item)
			if strings.ContainsAny(strings.ReplaceAll(string(b), "x'", ""), "\"`;\\") ||
				strings.Count(string(b), "'")%2 != 0 {
				t.Errorf("%q", b)
			}
			if back, err := parseID(item.ID); err != nil || string(back[:]) != string(id) {
				t.Error(back, err)
			}
		}
	})
}

// TestOutboxRefuses what cannot be right, and says what.
func TestOutboxRefuses(t *testing.T) {
	db := sqlx.NewDb(sqlite.Open(t), "sqlite")
	for _, c := range []struct {
		db      *sqlx.DB
		dialect Dialect
		table   string
		want    string
	}{
		{nil, MySQL, "", "db"},
		{db, 0, "", "Dialect"},
		{db, 4, "", "Dialect"},
		{db, MySQL, "a b", "Table"},
		{db, MySQL, "a`b", "Table"},
		{db, MySQL, "a.b.c", "Table"},
		{db, MySQL, ".b", "Table"},
		{db, MySQL, "a.", "Table"},
		{db, MySQL, "1", "Table"},
		{db, MySQL, "x\n", "Table"},
		{db, MySQL, strings.Repeat("a", 61), "Table"},
		{db, SQLite, "main.b", "Table"},
	} {
		if _, err := New(c.db, c.dialect, &Options{Table: c.table}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %q: %v", c.dialect, c.table, err)
		}
	}
	if _, err := MySQL.Schema(""); err == nil {
		t.Error("a table without a name")
	}
	o, err := New(db, SQLite, &Options{Namespace: testSpace})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Claim(t.Context(), 1, time.Second); err == nil || !strings.Contains(err.Error(), "Schema") {
		t.Errorf("without a table: %v", err)
	}
	if _, err := o.Claim(t.Context(), 1, 0); err == nil {
		t.Error("a claim without a life")
	}
	if items, err := o.Claim(t.Context(), 0, time.Second); err != nil || items != nil {
		t.Error(items, err)
	}
}

// TestTables: more than one in a database, and in another schema.
func TestTables(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		tables := []string{"cacheaside_outbox", "other", "Third_1"}
		if t.server != nil {
			tables = append(tables, t.server.Database(t.TB)+".fourth")
		}
		var all []*Outbox
		for _, table := range tables {
			o, err := New(t.db, t.text.dialect, &Options{Table: table, Namespace: testSpace})
			t.check(err)
			schema, err := t.text.dialect.Schema(table)
			t.check(err)
			t.exec(t.db, schema)
			t.check(o.Put(t.ctx(), textItem(table)))
			all = append(all, o)
		}
		for i, o := range all {
			t.same(t.eventually(o, 1), tables[i])
		}
	})
}

// TestErrors: what is wrong with the server or with the table is said, and no key shown.
func TestErrors(t *testing.T) { testenv.EachEngine(t, testErrors) }

func testErrors(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	o.exec(o.db, "ALTER TABLE cacheaside_outbox RENAME INDEX due TO other")
	if _, err := o.Claim(o.ctx(), 1, time.Second); err == nil || !strings.Contains(err.Error(), "Schema") {
		t.Errorf("without the index: %v", err)
	}
	o.exec(o.db, "ALTER TABLE cacheaside_outbox MODIFY text VARCHAR(100) CHARACTER SET utf8mb4")
	if err := o.Put(o.ctx(), textItem("secret\xff")); err == nil || strings.Contains(err.Error(), "secret") ||
		!strings.Contains(err.Error(), "Schema") {
		t.Errorf("with a column that is not binary: %v", err)
	}
	o.exec(o.db, "DROP TABLE cacheaside_outbox")
	if err := o.Put(o.ctx(), textItem("a")); err == nil || !strings.Contains(err.Error(), "Schema") {
		t.Errorf("without a table: %v", err)
	}
	err := o.failed("claim", &mysql.MySQLError{Number: 1064, Message: "near 'SKIP LOCKED, secret'"})
	if !strings.Contains(err.Error(), "10.6") || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// TestDeadlock: a call that is in the way of others tries again.
func TestDeadlock(t *testing.T) { testenv.EachEngine(t, testDeadlock) }

func testDeadlock(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	a, b := textItem("a"), textItem("b")
	a.ID, b.ID = "00"+consistency.NewID()[2:], "ff"+consistency.NewID()[2:]
	o.check(o.Put(o.ctx(), a, b))
	o.exec(o.db, "CREATE TABLE heavy (n INT)")
	tx := o.begin(o.db)
	o.exec(tx, "INSERT INTO heavy SELECT 1 FROM "+testenv.Numbers(1, 1000)) // so that it is not the victim
	o.exec(tx, "UPDATE cacheaside_outbox SET attempts = 1 WHERE namespace = "+o.mine().namespace+" AND id = x'"+
		b.ID+"'")
	done := make(chan error, 1)
	go func() { done <- o.Done(o.ctx(), a, b) }()              // it has a, and waits for b
	for ctx := o.ctx(); ; time.Sleep(150 * time.Millisecond) { // asked more often, the server does not look again
		var waiting int
		o.check(o.db.GetContext(ctx, &waiting,
			"SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"))
		if waiting > 0 {
			break
		}
	}
	o.exec(tx, "UPDATE cacheaside_outbox SET attempts = 1 WHERE namespace = "+o.mine().namespace+" AND id = x'"+
		a.ID+"'")
	o.check(tx.Commit())
	o.check(<-done)
	o.holds(0, "done")
}

// TestBusy: a database that is busy is tried again.
func TestBusy(t *testing.T) {
	o := outboxOnSQLite(t)
	impatient, err := o.db.Connx(o.ctx())
	o.check(err)
	o.exec(impatient, "PRAGMA busy_timeout = 0")
	tx := o.begin(o.db)
	o.check(o.PutIn(o.ctx(), tx, textItem("a")))
	_, busy := impatient.ExecContext(o.ctx(), o.mine().done([]rowID{{}}, 0))
	o.check(tx.Commit())
	o.exec(impatient, "PRAGMA busy_timeout = 10000")
	o.check(impatient.Close())
	if busy == nil {
		t.Fatal("two writers at once")
	}
	calls := 0
	o.check(o.session(o.ctx(), func(*sql.Conn) error {
		if calls++; calls < outboxAttempts {
			return busy
		}
		return nil
	}))
	if calls != outboxAttempts {
		t.Errorf("%d tries", calls)
	}
	if err := o.session(o.ctx(), func(*sql.Conn) error { calls++; return busy }); !errors.Is(err, busy) ||
		calls != 2*outboxAttempts {
		t.Errorf("%d tries, %v", calls-outboxAttempts, err)
	}
}

package sqloutbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/consistency/pgnotify"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestNotifier: the first notification is sent at once, further ones are joined. A call that has
// begun does not count for a later request.
func TestNotifier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n notifier
		var sent []time.Duration
		began := time.Now()
		takes := time.Duration(0)
		send := func(context.Context) error {
			sent = append(sent, time.Since(began))
			time.Sleep(takes)
			return errors.New("which has no consequence")
		}
		at := func(d time.Duration) { time.Sleep(time.Until(began.Add(d))); synctest.Wait() }
		for range 100 {
			n.request(send)
		}
		at(time.Millisecond)
		n.request(send)
		n.request(send)
		at(time.Second)
		n.wait()
		takes = 300 * time.Millisecond
		n.request(send)
		at(time.Second + time.Millisecond)
		n.request(send) // the one on its way may have begun before the commit
		n.wait()
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.running {
			t.Error("its goroutine does not end")
		}
		want := []time.Duration{0, notifyEvery, time.Second, time.Second + takes}
		if len(sent) != len(want) {
			t.Fatalf("sent after %v", sent)
		}
		for i := range want {
			if sent[i] != want[i] {
				t.Errorf("sent after %v, want %v", sent, want)
			}
		}
	})
}

// TestNotifierWait: wait returns after the notification that was requested before it, although
// others are requested all the time.
func TestNotifierWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n notifier
		var begun, ended atomic.Int64
		var send func(context.Context) error
		send = func(context.Context) error {
			if begun.Add(1) < 100 {
				n.request(send)
			}
			time.Sleep(time.Second)
			ended.Add(1)
			return nil
		}
		n.wait() // for nothing
		n.request(send)
		n.wait()
		if got := ended.Load(); got != 1 {
			t.Errorf("wait has returned after %d notifications, want 1", got)
		}
		time.Sleep(500 * time.Millisecond) // the second one is on its way, and the third is requested
		n.wait()
		if got := ended.Load(); got != 3 {
			t.Errorf("wait has returned after %d notifications, want 3", got)
		}
		time.Sleep(time.Hour)
	})
}

// A statementLog is a PostgreSQL that records statements and where they were executed.
type statementLog struct {
	driver.Connector
	before func(statement string) // called before each statement, and with COMMIT

	mu  sync.Mutex
	all []string // those inside of transactions of database/sql begin with "tx: "
}

func (s *statementLog) add(statement string, inside bool) {
	if s.before != nil {
		s.before(statement)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if inside {
		statement = "tx: " + statement
	}
	s.all = append(s.all, statement)
}

// take returns the statements since its last call.
func (s *statementLog) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return all
}

func (s *statementLog) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := s.Connector.Connect(ctx)
	return &loggedConn{Conn: c, by: s}, err
}

type loggedConn struct {
	driver.Conn
	by     *statementLog
	inside bool
}

func (l *loggedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := l.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
	l.inside = err == nil
	return loggedTx{tx, l}, err
}

func (l *loggedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	l.by.add(query, l.inside)
	return l.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (l *loggedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	l.by.add(query, l.inside)
	return l.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

type loggedTx struct {
	driver.Tx
	l *loggedConn
}

func (l loggedTx) Commit() error {
	l.l.by.add("COMMIT", true)
	l.l.inside = false
	return l.Tx.Commit()
}

func (l loggedTx) Rollback() error { l.l.inside = false; return l.Tx.Rollback() }

// logged opens the test's database with a statementLog.
func (t *outboxTest) logged(s *statementLog) *sqlx.DB {
	t.Helper()
	c, err := pgx.ParseConfig(testenv.SharedPostgres(t).DSN(t.TB))
	t.check(err)
	s.Connector = stdlib.GetConnector(*c)
	db := sqlx.NewDb(sql.OpenDB(s), "pgx")
	t.Cleanup(func() { db.Close() })
	return db
}

// listening returns an outbox whose relays listen by the server dsn.
func (t *outboxTest) listening(db *sqlx.DB, dsn string) *Outbox {
	t.Helper()
	listen, err := pgnotify.Listen(dsn)
	t.check(err)
	o, err := New(db, Postgres, &Options{Namespace: testSpace, Listen: listen})
	t.check(err)
	return o
}

// listener starts a listener without a Relay, and waits until it listens.
func (t *outboxTest) hears(o *Outbox) (l *listener, told *testenv.Log) {
	t.Helper()
	told = &testenv.Log{}
	l = newListener(o, time.Millisecond, func() int { return 1 }, slog.New(slog.NewTextHandler(told, nil)))
	ctx, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() { l.run(ctx) })
	t.Cleanup(func() { stop(); ended.Wait() })
	testenv.Eventually(t, "it listens", l.live.Load)
	return l, told
}

// hinted reports whether a notification of items has arrived.
func (l *listener) hinted() bool {
	select {
	case <-l.hints:
		return true
	default:
		return false
	}
}

// TestNotify: Put, Later by a Writer, and a Writer at the level Async notify the relays of other
// processes, after the commit and not in the transaction. Items that relays find in time are not
// notified.
func TestNotify(t *testing.T) {
	o := outboxOnPostgres(t)
	dsn := testenv.SharedPostgres(t).DSN(t)
	l, _ := o.hears(o.listening(o.db, dsn))
	var log statementLog
	db := o.logged(&log)
	box := o.listening(db, dsn)
	log.before = func(statement string) {
		if statement != "COMMIT" {
			return
		}
		box.notifier.mu.Lock()
		defer box.notifier.mu.Unlock()
		if box.notifier.pending || box.notifier.running {
			t.Error("notified before the commit")
		}
	}
	o.exec(db, "CREATE TABLE item (id BIGINT PRIMARY KEY, v VARCHAR(100)); INSERT INTO item VALUES (1, 'old')")
	cache, err := cacheaside.NewLocal(nil)
	o.check(err)
	defer cache.Close()
	w, err := consistency.NewWriter(db, cache, &consistency.Options{Queue: box, NoRelay: true})
	o.check(err)
	defer w.Close()
	key := textItem("a").Key
	item := textItem("a")
	item.ID = consistency.NewID()
	later := item
	later.ID, later.After = consistency.NewID(), listenInterval
	repeated := item
	repeated.After = time.Second
	claimed := repeated
	claimed.Claim = "1"
	for _, c := range []struct {
		what string
		do   func() error
		want bool
	}{
		{"Put", func() error { return box.Put(o.ctx(), item) }, true},
		{"Put of an item that is due later", func() error { return box.Put(o.ctx(), later) }, false},
		{"Later by a Writer", func() error { return box.Later(o.ctx(), repeated) }, true},
		{"Later by a Relay", func() error { return box.Later(o.ctx(), claimed) }, false},
		{"Async", func() error { return w.At(consistency.Async).Update(o.ctx(), set(1, "a"), key) }, true},
		{"Outbox", func() error { return w.Update(o.ctx(), set(1, "b"), key) }, false},
	} {
		log.take()
		o.check(c.do())
		box.Flush()
		var notified, inside int
		for _, statement := range log.take() {
			if strings.Contains(strings.ToUpper(statement), "NOTIFY") {
				notified++
				if statement != "NOTIFY "+box.channel()+", 'items'" {
					inside++
				}
			}
		}
		if want := map[bool]int{true: 1}[c.want]; notified != want || inside != 0 {
			t.Errorf("%s: %d notifications, %d of them with other statements", c.what, notified, inside)
		}
		if c.want {
			testenv.Eventually(t, c.what+" is received", l.hinted)
		}
	}
	if l.hinted() {
		t.Error("notified of items that are due later")
	}
}

// TestNotifyClose: Close of a Writer returns after the notifications of its writes.
func TestNotifyClose(t *testing.T) {
	o := outboxOnPostgres(t)
	var log statementLog
	log.before = func(statement string) {
		if strings.HasPrefix(statement, "NOTIFY") {
			time.Sleep(200 * time.Millisecond)
		}
	}
	db := o.logged(&log)
	cache, err := cacheaside.NewLocal(nil)
	o.check(err)
	defer cache.Close()
	w, err := consistency.NewWriter(db, cache,
		&consistency.Options{Queue: o.listening(db, testenv.SharedPostgres(t).DSN(t)), NoRelay: true,
			Level: consistency.Async})
	o.check(err)
	defer w.Close()
	o.check(w.Update(o.ctx(), func(context.Context, *sqlx.Tx) error { return nil }, textItem("a").Key))
	o.check(w.Close())
	if all := log.take(); !slices.ContainsFunc(all, func(s string) bool { return strings.HasPrefix(s, "NOTIFY") }) {
		t.Errorf("%q", all)
	}
}

// TestNotifyNamespaces: only relays of its own namespace and table are woken.
func TestNotifyNamespaces(t *testing.T) {
	o := outboxOnPostgres(t)
	channels := map[string]bool{}
	for _, options := range []Options{{Namespace: "a"}, {Namespace: "b"}, {Namespace: "a", Table: "other"},
		{Namespace: "a", Table: "public.cacheaside_outbox"}} {
		box, err := New(o.db, Postgres, &options)
		o.check(err)
		channels[box.channel()] = true
	}
	if len(channels) != 3 {
		t.Errorf("channels %v", channels)
	}
	if _, err := New(sqlx.NewDb(sqlite.Open(t), "sqlite"), SQLite,
		&Options{Listen: func(context.Context, string, func(string)) error { return nil }}); err == nil ||
		!strings.Contains(err.Error(), "Listen") {
		t.Errorf("Listen with SQLite: %v", err)
	}
}

// TestNotifyReconnects: a Relay whose connection is ended listens again. It handles what is put in
// between.
func TestNotifyReconnects(t *testing.T) {
	o := outboxOnPostgres(t)
	var told testenv.Log
	box := o.listening(o.db, testenv.SharedPostgres(t).DSN(t))
	relay := o.relayed(box, &told)
	for n := range 3 {
		testenv.Eventually(t, "it listens",
			func() bool { return strings.Count(told.String(), "a Relay listens") == n+1 })
		o.exec(o.db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname "+
			"= current_database()")
		testenv.Eventually(t, "the end", func() bool { return strings.Count(told.String(), "cannot listen") == n+1 })
		o.check(o.Put(o.ctx(), textItem("a")))
		testenv.Eventually(t, "the item", func() bool { return relay.Stats().Done == int64(n+1) })
	}
}

// TestListenIdleStatements: an idle Relay that listens executes only the statements of a look every
// listenInterval, and those of a claim and a depth at every fifth of them.
func TestListenIdleStatements(t *testing.T) {
	o := outboxOnPostgres(t)
	var log statementLog
	var looks atomic.Int64
	log.before = func(statement string) {
		if strings.HasPrefix(statement, "SELECT due - ") {
			looks.Add(1)
		}
	}
	var told testenv.Log
	o.relayed(o.listening(o.logged(&log), testenv.SharedPostgres(t).DSN(t)), &told)
	testenv.Eventually(t, "it listens", func() bool { return strings.Contains(told.String(), "a Relay listens") })
	testenv.Eventually(t, "a look", func() bool { return looks.Load() > 0 })
	looks.Store(0)
	log.take()
	testenv.Eventually(t, "two looks", func() bool { return looks.Load() >= 2 })
	all := log.take()
	if len(all) > 30 {
		t.Errorf("%d statements: %s", len(all), strings.Join(all, "\n"))
	}
	t.Logf("%d statements", len(all))
}

// TestListenThroughPgBouncer: through a pool that gives each transaction another connection, a
// Relay receives no notifications. It logs that, and polls. The notifications that it sends through
// the pool arrive.
func TestListenThroughPgBouncer(t *testing.T) {
	o := outboxOnPostgres(t)
	direct := testenv.SharedPostgres(t)
	pooled := testenv.StartPgBouncer(t, direct)
	l, _ := o.hears(o.listening(o.db, direct.DSN(t)))
	box := o.listening(o.openPostgres(pooled), pooled)
	var told testenv.Log
	relay := o.relayed(box, &told)
	o.check(box.Put(o.ctx(), textItem("a")))
	testenv.Eventually(t, "the notification", l.hinted)
	testenv.Eventually(t, "the item", func() bool { return relay.Stats().Done == 1 })
	testenv.Eventually(t, "the log", func() bool { return strings.Contains(told.String(), "such as PgBouncer") })
}

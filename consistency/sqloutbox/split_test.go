package sqloutbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// splitter imitates a proxy that splits reads from writes: a SELECT outside of a transaction goes
// to a replica.
type splitter struct {
	primary, replica driver.Connector
	within           atomic.Bool // one inside of a transaction does, too
	readOnly         bool        // so does all of a transaction that begins as READ ONLY
	split            atomic.Int64
}

func (s *splitter) Driver() driver.Driver { return s.primary.Driver() }

func (s *splitter) Connect(ctx context.Context) (driver.Conn, error) {
	p, err := s.primary.Connect(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.replica.Connect(ctx)
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	return &splitConn{Conn: p, replica: r, by: s}, nil
}

type splitConn struct {
	driver.Conn
	replica driver.Conn
	by      *splitter
	inside  bool
	away    bool // the transaction goes to the replica
}

func (s *splitConn) Close() error {
	_ = s.replica.Close()
	return s.Conn.Close()
}

func (s *splitConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := s.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
	s.inside = err == nil
	return splitTx{tx, s}, err
}

type splitTx struct {
	driver.Tx
	c *splitConn
}

func (s splitTx) Commit() error   { s.c.inside = false; return s.Tx.Commit() }
func (s splitTx) Rollback() error { s.c.inside = false; return s.Tx.Rollback() }

func (s *splitConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	on := s.Conn
	switch strings.Fields(query)[0] {
	case "BEGIN", "START":
		s.inside, s.away = true, s.by.readOnly && strings.Contains(query, "READ ONLY")
	case "COMMIT", "ROLLBACK":
		defer func() { s.inside, s.away = false, false }()
	}
	if s.away {
		s.by.split.Add(1)
		on = s.replica
	}
	return on.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (s *splitConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	to := s.Conn
	if s.away || firstWord(query) == "SELECT" && (!s.inside || s.by.within.Load()) {
		s.by.split.Add(1)
		to = s.replica
	}
	return to.(driver.QueryerContext).QueryContext(ctx, query, args)
}

// firstWord returns the verb of a statement, which a comment may precede.
func firstWord(query string) string {
	if rest, found := strings.CutPrefix(query, "/*"); found {
		_, query, _ = strings.Cut(rest, "*/")
	}
	return strings.Fields(query)[0]
}

// split returns an outbox behind a splitter. Its replica is a database with the same table into
// which nothing comes: it lags for ever.
func (t *outboxTest) split() (*splitter, *Outbox) {
	t.Helper()
	if t.server == nil {
		return t.splitPostgres()
	}
	c, err := mysql.ParseDSN(t.server.DSN(t.TB))
	t.check(err)
	s := &splitter{}
	s.primary, err = mysql.NewConnector(c)
	t.check(err)
	lags := c.Clone()
	lags.DBName += "_replica"
	t.exec(t.db, "CREATE DATABASE "+lags.DBName)
	t.Cleanup(func() { t.db.Exec("DROP DATABASE " + lags.DBName) })
	s.replica, err = mysql.NewConnector(lags)
	t.check(err)
	schema, err := MySQL.Schema(lags.DBName + ".cacheaside_outbox")
	t.check(err)
	t.exec(t.db, schema)
	db := sqlx.NewDb(sql.OpenDB(s), "mysql")
	t.Cleanup(func() { db.Close() })
	return s, t.outbox(db)
}

// splitPostgres is split for PostgreSQL, whose proxies send a READ ONLY transaction to a replica,
// too.
func (t *outboxTest) splitPostgres() (*splitter, *Outbox) {
	t.Helper()
	c, err := pgx.ParseConfig(testenv.SharedPostgres(t).DSN(t.TB))
	t.check(err)
	lags := c.Copy()
	lags.Database += "_replica"
	t.exec(t.db, "CREATE DATABASE "+lags.Database)
	t.Cleanup(func() { t.db.Exec("DROP DATABASE " + lags.Database + " WITH (FORCE)") })
	s := &splitter{primary: stdlib.GetConnector(*c), replica: stdlib.GetConnector(*lags), readOnly: true}
	replica := sqlx.NewDb(sql.OpenDB(s.replica), "pgx")
	t.Cleanup(func() { replica.Close() })
	t.check(t.outbox(replica).CreateTable(t.ctx()))
	db := sqlx.NewDb(sql.OpenDB(s), "pgx")
	t.Cleanup(func() { db.Close() })
	return s, t.outbox(db)
}

// TestSplitReads: a proxy that sends reads to a replica that lags does not matter.
func TestSplitReads(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(tb *testing.T, e testenv.Engine) {
		t := outboxOn(tb, e)
		s, o := t.split()
		t.check(o.Put(t.ctx(), textItem("a"), textItem("b")))
		if e == testenv.PostgreSQL { // a backlog, which a floor would hide
			t.exec(t.db, fmt.Sprintf("UPDATE cacheaside_outbox SET due = due - %[1]d, created = created - %[1]d",
				micros(time.Minute)))
		}
		if d, err := o.Depth(t.ctx()); err != nil || d.Items != 2 || d.Due != 2 {
			t.Errorf("%+v, %v", d, err)
		}
		if rows, err := o.List(t.ctx(), 10); err != nil || len(rows) != 2 {
			t.Errorf("listed %d, %v", len(rows), err)
		}
		got := t.some(o, 10)
		t.same(got, "a", "b")
		got[1].After = 0
		t.check(o.Later(t.ctx(), got[1]))
		t.check(o.Done(t.ctx(), got[0]))
		t.check(o.Done(t.ctx(), t.some(o, 10)...))
		t.holds(0, "done")
		if n := s.split.Load(); n > 0 {
			t.Errorf("%d reads have gone to the replica", n)
		}
	})
}

// TestReadingLocksNothing: a process that is stopped while it reads its claimed rows blocks no
// other process, even where sessions are SERIALIZABLE.
func TestReadingLocksNothing(t *testing.T) {
	testenv.OneUnlessAccepting(t, func(tb *testing.T, e testenv.Engine) {
		t := outboxOn(tb, e)
		isolation := map[testenv.Engine]string{testenv.MariaDB: "tx_isolation",
			testenv.MySQL: "transaction_isolation"}[e]
		stopped := t.outbox(t.open(t.server.DSN(t.TB) + "&" + isolation + "=%27SERIALIZABLE%27"))
		other := t.outbox(t.open(t.server.DSN(t.TB) + "&innodb_lock_wait_timeout=1"))
		t.check(t.Put(t.ctx(), textItem("a")))
		got := t.some(t.Outbox, 1)
		var done error
		t.check(stopped.reading(t.ctx(), func(on querier) error {
			rows, err := on.QueryContext(t.ctx(), "SELECT id FROM cacheaside_outbox")
			t.check(err)
			if !rows.Next() {
				t.Error("it has read nothing")
			}
			t.check(rows.Close())
			done = other.Done(t.ctx(), got...)
			return nil
		}))
		t.check(done)
		t.holds(0, "done")
	})
}

// TestClaimedAndNotFound is an error, and what was claimed is due at once.
func TestClaimedAndNotFound(t *testing.T) {
	testenv.OneUnlessAccepting(t, func(tb *testing.T, e testenv.Engine) {
		t := outboxOn(tb, e)
		s, o := t.split()
		s.within.Store(true)
		t.check(t.Put(t.ctx(), textItems(3)...))
		for range 2 {
			got, err := o.Claim(t.ctx(), 10, claimLong)
			if err == nil || !strings.Contains(err.Error(), "3 of 3 claimed rows could not be read") || len(got) > 0 {
				t.Fatalf("claimed %v: %v", got, err)
			}
		}
		got := t.some(t.Outbox, 10)
		if len(got) != 3 {
			t.Fatalf("%d of 3 are due", len(got))
		}
		t.check(t.Done(t.ctx(), got...))
		s.within.Store(false)

		// Rows that their writer removes between claim and read cause no error.
		items := textItems(3)
		for n := range items {
			items[n].ID = consistency.NewID()
		}
		t.check(o.Put(t.ctx(), items...))
		defer func(old func(string)) { point = old }(point)
		point = func(at string) {
			if at == "claimed" {
				t.check(t.Done(t.ctx(), items[1]))
			}
		}
		got = t.some(o, 10)
		t.same(got, "000000", "000002")
	})
}

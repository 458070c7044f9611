package sqloutbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// wrongClock makes connections to a server whose clock is ahead: it adds the difference wherever a
// statement reads the clock.
type wrongClock struct {
	driver.Connector
	ahead atomic.Int64 // ns
}

func (w *wrongClock) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &wrongConn{&splitConn{Conn: c, replica: noConn{}, by: &splitter{}}, w}, nil
}

type wrongConn struct {
	*splitConn
	by *wrongClock
}

func (w *wrongConn) at(query string) string {
	ahead := time.Duration(w.by.ahead.Load()).Microseconds()
	return strings.NewReplacer(
		"SYSDATE(6)", fmt.Sprintf("(SYSDATE(6) + INTERVAL %d MICROSECOND)", ahead),
		"clock_timestamp()", fmt.Sprintf("(clock_timestamp() + INTERVAL '%d microseconds')", ahead), // of PostgreSQL
	).Replace(query)
}

func (w *wrongConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return w.splitConn.ExecContext(ctx, w.at(query), args)
}

func (w *wrongConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return w.Conn.(driver.QueryerContext).QueryContext(ctx, w.at(query), args)
}

type noConn struct{ driver.Conn }

func (noConn) Close() error { return nil }

// wrong returns connections to the test's database by a clock that is right to begin with.
func (t *outboxTest) wrong() (*wrongClock, *sqlx.DB) {
	t.Helper()
	w := &wrongClock{}
	if t.text.dialect == Postgres {
		c, err := pgx.ParseConfig(testenv.SharedPostgres(t).DSN(t.TB))
		t.check(err)
		w.Connector = stdlib.GetConnector(*c)
	} else {
		c, err := mysql.ParseDSN(t.server.DSN(t.TB))
		t.check(err)
		w.Connector, err = mysql.NewConnector(c)
		t.check(err)
	}
	db := sqlx.NewDb(sql.OpenDB(w), t.db.DriverName())
	t.Cleanup(func() { db.Close() })
	return w, db
}

// clocks returns a function that sets the database's clock ahead, and a connection that sees it.
func (t *outboxTest) clocks() (ahead func(time.Duration), db *sqlx.DB) {
	t.Helper()
	if t.text.dialect != SQLite {
		w, db := t.wrong()
		return func(d time.Duration) { w.ahead.Store(int64(d)) }, db
	}
	var is time.Duration
	return func(d time.Duration) { // the clock cannot be moved, but the rows can
		by := (is - d).Microseconds()
		is = d
		t.exec(t.db, fmt.Sprintf(
			"UPDATE cacheaside_outbox SET due = due + %d, created = created + %d, since = CASE since WHEN 0 THEN 0 "+
				"ELSE since + %d END", by, by, by))
	}, t.db
}

// relayed runs a relay of an outbox, until the test ends.
func (t *outboxTest) relayed(o *Outbox, told *testenv.Log) *consistency.Relay {
	t.Helper()
	cache, err := cacheaside.NewLocal(nil)
	t.check(err)
	relay, err := consistency.NewRelay(cache, o,
		&consistency.RelayOptions{Poll: time.Millisecond, Logger: slog.New(slog.NewTextHandler(told, nil))})
	t.check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		t.check(<-ended)
		cache.Close()
	})
	return relay
}

// TestClockWentBack: a process that starts when the database's clock is an hour behind its earlier
// time delivers the due items and logs the step.
func TestClockWentBack(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		ahead, db := t.clocks()
		put := t.outbox(db)
		t.check(put.Put(t.ctx(), textItems(2*repairAtOnce+50)...))
		late := textItem("late")
		late.After = 30 * time.Minute
		t.check(put.Put(t.ctx(), late))
		claimed := t.some(put, 20) // by a process that is gone, and shorter:
		_, err := put.Retry(t.ctx(), claimed[0].ID, claimed[1].ID)
		t.check(err)
		back := t.some(put, 20)
		for i := range back {
			back[i].After, back[i].Attempts = 0, 1
		}
		t.check(put.Later(t.ctx(), back...))
		t.exec(t.db, fmt.Sprintf("UPDATE cacheaside_outbox SET due = since + 1000 WHERE claim = %s", claimed[2].Claim))

		ahead(-time.Hour)
		o := t.outbox(db)
		if got := t.some(o, 1000); len(got) > 0 {
			t.Fatalf("%d are due: the clock is right", len(got))
		}
		var told testenv.Log
		relay := t.relayed(o, &told)
		n := int64(2*repairAtOnce + 50)
		testenv.Eventually(t.TB, "all is done", func() bool { return relay.Stats().Done == n })
		testenv.Eventually(t.TB, "it is logged", func() bool {
			return strings.Count(told.String(), "has the clock gone back") == 1
		})
		if o.Repaired() != n+1 {
			t.Errorf("%d rows repaired, want %d", o.Repaired(), n+1)
		}
		if r := rowOf(&outboxTest{TB: t.TB, Outbox: o}, "late"); r.After < 25*time.Minute || r.After > 30*time.Minute {
			t.Errorf("what was to wait for 30 minutes waits for %v", r.After)
		}
		if lag := relay.Stats().MaxLag; lag > time.Minute+testenv.Hang {
			t.Errorf("it says that items have waited for %v", lag)
		}
	})
}

// TestClockGoesBack: a process that works notices it.
func TestClockGoesBack(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(tb *testing.T, e testenv.Engine) {
		t := outboxOn(tb, e)
		ahead, db := t.clocks()
		o := t.outbox(db)
		var told testenv.Log
		relay := t.relayed(o, &told)
		testenv.Eventually(t.TB, "it has looked", func() bool { return relay.Stats().DepthAge > 0 })
		late := textItem("late")
		late.After = 30 * time.Minute
		t.check(o.Put(t.ctx(), late))
		ahead(-time.Hour)
		testenv.Eventually(t.TB, "it is repaired", func() bool { return o.Repaired() == 1 })
		testenv.Eventually(t.TB, "it is logged", func() bool {
			return strings.Count(told.String(), "has the clock gone back") == 1
		})
		if r := rowOf(&outboxTest{TB: t.TB, Outbox: o}, "late"); r.After > 30*time.Minute {
			t.Errorf("it waits for %v", r.After)
		}
	})
}

// TestTwoClocks: what is put by a server whose clock is ahead of that of the relay's server waits
// no longer than it was to, each time, and that is logged once.
func TestTwoClocks(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(tb *testing.T, e testenv.Engine) {
		t := outboxOn(tb, e)
		ahead, db := t.clocks()
		ahead(20 * time.Minute)
		put, o := t.outbox(db), t.outbox(t.db)
		var told testenv.Log
		relay := t.relayed(o, &told)
		testenv.Eventually(t.TB, "it has looked", func() bool { return relay.Stats().DepthAge > 0 })
		for n := range 3 {
			o.clock.mu.Lock()
			o.clock.suspect, o.clock.checkUntil = false, time.Time{} // as if a minute had passed
			o.clock.mu.Unlock()
			late := textItem(fmt.Sprint("late", n))
			late.After = 30 * time.Minute
			t.check(put.Put(t.ctx(), textItem(fmt.Sprint(n)), late))
			testenv.Eventually(t.TB, "it is done", func() bool { return relay.Stats().Done == int64(n+1) })
			if r := rowOf(&outboxTest{TB: t.TB, Outbox: o}, late.Key.Text); r.After > 30*time.Minute ||
				r.After < 25*time.Minute {
				t.Errorf("what was to wait for 30 minutes waits for %v", r.After)
			}
		}
		if n := strings.Count(told.String(), "ahead of the database's"); n != 1 {
			t.Errorf("logged %d times: %s", n, told.String())
		}
		if lag := relay.Stats().MaxLag; lag > testenv.Hang {
			t.Errorf("it says that items have waited for %v", lag)
		}
	})
}

// TestClockReadOnly: rows that cannot be changed for a while are repaired then, as after a failover
// to a server that is read-only at first.
func TestClockReadOnly(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		ahead, db := t.clocks()
		late := textItem("late")
		late.After = 30 * time.Minute
		t.check(t.outbox(db).Put(t.ctx(), late))
		ahead(-time.Hour)
		o := t.outbox(db)
		_, err := o.Depth(t.ctx())
		t.check(err)
		refused, cancel := context.WithCancel(t.ctx())
		cancel()
		log := slog.New(slog.DiscardHandler)
		if err := o.Maintain(refused, log); err == nil {
			t.Fatal("it was not refused")
		}
		o.clock.mu.Lock()
		o.clock.checkUntil = time.Time{} // as if a minute had passed
		o.clock.mu.Unlock()
		t.check(o.Maintain(t.ctx(), log))
		if r := rowOf(&outboxTest{TB: t.TB, Outbox: o}, "late"); r.After > 30*time.Minute || o.Repaired() != 1 {
			t.Errorf("it waits for %v, and %d rows were repaired", r.After, o.Repaired())
		}
	})
}

// TestClockAhead: what is put by a clock that goes forward an hour is done, and not absurdly old.
func TestClockAhead(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(tb *testing.T, e testenv.Engine) {
		t := outboxOn(tb, e)
		ahead, db := t.clocks()
		o := t.outbox(db)
		soon := textItem("soon")
		soon.After = 30 * time.Minute
		t.check(o.Put(t.ctx(), soon))
		ahead(time.Hour)
		t.check(o.Put(t.ctx(), textItem("now")))
		if d, err := o.Depth(t.ctx()); err != nil || d.Due != 2 || d.Oldest < time.Hour || d.Oldest > 2*time.Hour {
			t.Errorf("%+v, %v", d, err)
		}
		if err := o.Maintain(t.ctx(), slog.New(slog.DiscardHandler)); err != nil || o.Repaired() != 0 {
			t.Errorf("%d rows repaired: %v", o.Repaired(), err)
		}
		t.same(t.some(o, 10), "now", "soon")
	})
}

// TestClockSince: what counts is when a row was given its time last, by Put, Later, a claim or a
// retry; and what is to wait for long waits.
func TestClockSince(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		ahead, db := t.clocks()
		put := t.outbox(db)
		items := textItems(4)
		for i := range items {
			items[i].ID = consistency.NewID()
		}
		items[3].After = 30 * time.Minute
		t.check(put.Put(t.ctx(), items...))
		t.exec(t.db, "UPDATE cacheaside_outbox SET created = created - 7200000000") // as if put two hours ago
		got := t.eventually(put, 3)
		got[0].After, got[1].After = 30*time.Minute, time.Minute
		t.check(put.Later(t.ctx(), got[0], got[1]))
		_, err := put.Retry(t.ctx(), got[1].ID)
		t.check(err)
		ahead(-time.Hour)
		far := textItem("far")
		far.After = 4 * time.Hour
		o := t.outbox(db)
		t.check(o.Put(t.ctx(), far))

		n, err := o.repair(t.ctx(), t.mine())
		if err != nil || n != 3 {
			t.Fatalf("%d rows repaired of 3: %v", n, err)
		}
		rows, err := o.List(t.ctx(), 10)
		t.check(err)
		for _, r := range rows {
			most := map[string]time.Duration{got[0].Key.Text: 30 * time.Minute, got[1].Key.Text: 0,
				got[2].Key.Text: claimLong, "000003": 90 * time.Minute, "far": 4 * time.Hour}[r.Key.Text]
			if r.After > most || r.After < most-20*time.Minute {
				t.Errorf("%s waits for %v, not %v", r.Key.Text, r.After, most)
			}
		}
	})
}

// TestRepairTwice: that more than one process repairs does not matter.
func TestRepairTwice(t *testing.T) {
	eachOutbox(t, func(t *outboxTest) {
		ahead, db := t.clocks()
		put := t.outbox(db)
		items := textItems(3 * repairAtOnce)
		ids := make([]rowID, len(items))
		for i := range items {
			items[i].After, items[i].ID = 30*time.Minute, consistency.NewID()
			ids[i], _ = parseID(items[i].ID)
		}
		t.check(put.Put(t.ctx(), items...))
		ahead(-time.Hour)
		var all sync.WaitGroup
		var repaired atomic.Int64
		for range 4 {
			all.Go(func() {
				n, err := t.outbox(db).repair(t.ctx(), t.mine())
				if err != nil {
					t.Error(err)
				}
				repaired.Add(n)
			})
		}
		all.Wait()
		if n := repaired.Load(); n != int64(len(items)) {
			t.Errorf("%d rows repaired of %d", n, len(items))
		}
		late, err := db.ExecContext(t.ctx(), t.mine().repair(ids)) // by a process that has read them before
		t.check(err)
		if n, err := late.RowsAffected(); err != nil || n > 0 {
			t.Errorf("%d rows repaired twice: %v", n, err)
		}
		rows, err := t.outbox(db).List(t.ctx(), 1000)
		t.check(err)
		for _, r := range rows {
			if r.After > 30*time.Minute || r.After < 20*time.Minute {
				t.Fatalf("a row waits for %v", r.After)
			}
		}
	})
}

// TestClock: what it takes for having gone back.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clock
		began := time.Now()
		at := func(d time.Duration) time.Time { return began.Add(d) }
		back := func(want bool, when string) {
			t.Helper()
			if got := c.wentBack(); got != want {
				t.Errorf("%s: %t", when, got)
			}
		}
		sees := func(shown, from, to time.Duration, want bool) {
			t.Helper()
			c.suspect, c.checkUntil = false, time.Time{}
			c.observe(time.Hour.Microseconds()+shown.Microseconds(), 0, at(from), at(to))
			back(want, fmt.Sprintf("%v, between %v and %v", shown, from, to))
		}
		back(false, "before the first time")
		sees(0, 0, time.Second, true)                                      // the first time
		sees(time.Second, time.Second, 2*time.Second, false)               // the clock runs
		sees(2*time.Second, 4*time.Second, 5*time.Second, false)           // or is asked late, or slowly
		sees(3*time.Hour, 6*time.Second, 7*time.Second, false)             // or goes forward
		sees(2*time.Hour, 8*time.Second, 9*time.Second, true)              // it goes back
		sees(2*time.Hour, 8*time.Second, 9*time.Second, false)             // not again
		sees(2*time.Hour, 12*time.Second, 13*time.Second, true)            // it stands still, for longer than a second
		sees(2*time.Hour-time.Second, 1*time.Second, time.Second*2, false) // an older reply that comes later
		sees(time.Hour, 14*time.Second, 15*time.Second, true)              // it goes back
		time.Sleep(time.Hour)                                              // and the rows cannot be changed
		back(true, "an hour later")
		c.checked(errors.New("read-only"))
		time.Sleep(time.Hour)
		back(true, "after a check that failed")
		c.checked(nil)
		back(true, "after a check")
		time.Sleep(repairFor / 2)
		c.checked(nil) // which does not prolong it
		time.Sleep(repairFor/2 - 1)
		back(true, "for transactions that were open")
		time.Sleep(time.Nanosecond)
		back(false, "when they have ended")
		c.checked(nil)
		back(false, "after a check that was not needed")
		c.checked(errors.New("read-only"))
		time.Sleep(time.Hour)
		back(true, "after a later check that failed")
	})
}

package consistency

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// sessionCounts says how often the session of db's only connection has done what the server counts
// by a name.
func sessionCounts(t testing.TB, db *sqlx.DB, name string) (n int) {
	t.Helper()
	if err := db.QueryRow("SHOW SESSION STATUS LIKE '"+name+"'").Scan(new(string), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestWriterPutsPrepared: the row of an outbox is one trip of a transaction, by a statement that is
// parsed once; also in a pool of one connection; and the server forgets it with the Writer.
func TestWriterPutsPrepared(t *testing.T) { testenv.EachEngine(t, writerPutsPrepared) }

func writerPutsPrepared(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e, proxied: true})
	x.writes.SetMaxOpenConns(1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	update := func() {
		t.Helper()
		ended := make(chan error, 1)
		go func() {
			ended <- x.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE item SET v = 'new' WHERE id = 1")
				return err
			}, x.rows.Key(1))
		}()
		for {
			select {
			case err := <-ended:
				x.check(err)
				return
			case <-time.After(time.Millisecond):
				if x.writes.Stats().WaitCount > 0 {
					cancel() // it would wait for ever
					t.Error("a write waits for a second connection")
				}
			}
		}
	}
	update()
	trips, executed := x.database.Count(), sessionCounts(t, x.writes, "Com_stmt_execute")
	asked := x.database.Count() - trips
	for range 5 {
		update()
	}
	if n := x.database.Count() - trips - asked; n != 5*4 {
		t.Errorf("%d trips of 5 transactions, want BEGIN, UPDATE, INSERT and COMMIT of each", n)
	}
	if n := sessionCounts(t, x.writes, "Com_stmt_execute") - executed; n != 5 {
		t.Errorf("5 rows were put, %d of them by the prepared statement", n)
	}
	closed := sessionCounts(t, x.writes, "Com_stmt_close")
	x.check(x.Close())
	if n := sessionCounts(t, x.writes, "Com_stmt_close") - closed; n != 1 {
		t.Errorf("%d statements were closed with the Writer", n)
	}
}

// preparedOf is a statement that has been prepared for an outbox.
func (t *outboxTest) preparedOf(o *SQLOutbox, db *sqlx.DB) *prepared {
	t.Helper()
	p := &prepared{outbox: o, db: db, wait: testenv.Hang}
	t.Cleanup(func() { p.close(context.Background()) })
	p.ready(t.ctx())
	if p.stmt.Load() == nil {
		t.Fatal("nothing was prepared")
	}
	return p
}

// put puts an item in a transaction of its own.
func (p *prepared) put(t *outboxTest, item Item) {
	t.Helper()
	t.check(p.tryToPut(t, item))
}

func (p *prepared) tryToPut(t *outboxTest, item Item) error {
	item.ID = newID()
	tx, err := p.db.Beginx()
	if err != nil {
		return err
	}
	if err := p.putIn(t.ctx(), tx, []Item{item}); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// TestPreparedPutsTheSame: an item is the same, whichever way it goes.
func TestPreparedPutsTheSame(t *testing.T) { testenv.EachEngine(t, preparedPutsTheSame) }

func preparedPutsTheSame(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	p := o.preparedOf(o.SQLOutbox, o.db)
	all := textItem("")
	all.Key.All = true
	for _, item := range []Item{
		textItem(strings.Repeat("a", preparedLongest)),
		textItem(strings.Repeat("\xff", preparedLongest+1)),
		all,
		{Key: textItem("d").Key, Again: 3 * time.Second, Reload: true, Attempts: 7},
		{Key: textItem("d").Key, Admit: true},
		{Key: textItem("e").Key, Attempts: -1, After: -time.Second},
	} {
		o.check(o.Put(o.ctx(), item))
		want := o.eventually(o.SQLOutbox, 1)[0]
		o.check(o.Done(o.ctx(), want))
		p.put(o, item)
		got := o.eventually(o.SQLOutbox, 1)[0]
		o.check(o.Done(o.ctx(), got))
		if got.Age > testenv.Hang {
			t.Errorf("it is %v old", got.Age)
		}
		got.ID, got.Claim, got.Age = want.ID, want.Claim, want.Age
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v by the prepared statement, %+v by the text", got, want)
		}
	}
	later := textItem("f")
	later.After = time.Hour
	p.put(o, later)
	o.same(o.some(o.SQLOutbox, 10))
	o.holds(1, "it is due in an hour")
}

// TestPreparedIsRefused: where the server prepares no statement, or no more, rows go as text, and
// those of transactions that are under way, too, whatever other connections do.
func TestPreparedIsRefused(t *testing.T) { testenv.EachEngine(t, preparedIsRefused) }

func preparedIsRefused(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	most := func(n int) { o.exec(o.db, fmt.Sprint("SET GLOBAL max_prepared_stmt_count = ", n)) }
	defer most(16382)
	most(0)
	p := &prepared{outbox: o.SQLOutbox, db: o.db, wait: testenv.Hang}
	p.ready(o.ctx())
	p.put(o, textItem("a"))
	o.same(o.eventually(o.SQLOutbox, 1), "a")
	most(16382)
	p.ready(o.ctx())
	if p.stmt.Load() != nil {
		t.Error("the server was asked again at once")
	}
	p = o.preparedOf(o.SQLOutbox, o.db)
	first, err := o.db.Conn(o.ctx()) // on which it has been prepared
	o.check(err)
	defer first.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slept := make(chan struct{})
	go func() {
		defer close(slept)
		_, _ = first.ExecContext(ctx, "DO SLEEP(600)")
	}()
	testenv.Eventually(t, "it sleeps", func() bool {
		var n int
		o.check(o.db.Get(&n, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO = 'DO SLEEP(600)'"))
		return n == 1
	})
	most(0)
	put := make(chan error, 1)
	go func() { put <- p.tryToPut(o, textItem("b")) }()
	o.check(testenv.Receive(t, "the end of the write", put))
	o.same(o.eventually(o.SQLOutbox, 1), "b")
	if !p.resting() {
		t.Error("the next one is refused, too")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	p.close(ended) // does not wait either
	cancel()
	<-slept
}

// TestNotPrepared: where the DSN has the driver put arguments into the text nothing is prepared.
func TestNotPrepared(t *testing.T) { testenv.EachEngine(t, notPrepared) }

func notPrepared(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	p := &prepared{outbox: o.SQLOutbox, db: o.open(o.server.DSN(t) + "&interpolateParams=true"), wait: testenv.Hang}
	p.ready(o.ctx())
	if p.stmt.Load() != nil || !p.resting() {
		t.Error("a statement was prepared")
	}
	p.put(o, textItem("a"))
	o.same(o.eventually(o.SQLOutbox, 1), "a")
}

// TestPreparingHangs: a proxy that does not answer has a write wait for a while only, and the next
// ones not at all.
func TestPreparingHangs(t *testing.T) { testenv.EachEngine(t, preparingHangs) }

func preparingHangs(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	proxy := testenv.NewProxy(t, o.server.Addr)
	p := &prepared{outbox: o.SQLOutbox, db: o.open(strings.Replace(o.server.DSN(t), o.server.Addr, proxy.Addr, 1)), wait: time.Millisecond}
	proxy.Hang(true)
	p.ready(o.ctx())
	if !p.resting() {
		t.Error("the next one waits, too")
	}
}

// TestPreparedFails: after an error that is no refusal nothing more is sent in the transaction,
// which may have ended with it.
func TestPreparedFails(t *testing.T) { testenv.EachEngine(t, preparedFails) }

func preparedFails(t *testing.T, e testenv.Engine) {
	o := outboxOn(t, e)
	proxy := testenv.NewProxy(t, o.server.Addr)
	db := o.open(strings.Replace(o.server.DSN(t), o.server.Addr, proxy.Addr, 1))
	p := o.preparedOf(o.SQLOutbox, db)
	o.exec(o.db, "DROP TABLE cacheaside_outbox")
	tx := o.begin(db)
	before := proxy.Count()
	item := textItem("a")
	item.ID = newID()
	if err := p.putIn(o.ctx(), tx, []Item{item}); err == nil || !strings.Contains(err.Error(), "is missing (see Dialect.Schema)") {
		t.Error(err)
	}
	if n := proxy.Count() - before; n != 1 {
		t.Errorf("%d statements were sent, want 1", n)
	}
	if !p.resting() {
		t.Error("it is used again")
	}
}

package sqloutbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// postgresSessions are settings of sessions, as parameters of a DSN of pgx, and its ways of
// executing statements. The defaults of a server, a database or a user may have any of them.
var postgresSessions = []string{
	"default_transaction_isolation=serializable",
	"default_transaction_isolation=repeatable%20read",
	"default_transaction_read_only=on",
	"default_transaction_deferrable=on&default_transaction_read_only=on&default_transaction_isolation=serializable",
	"timezone=Asia/Kathmandu",
	"timezone=America/St_Johns&datestyle=SQL,DMY&intervalstyle=sql_standard",
	"search_path=nowhere",
	"search_path=nowhere,pg_catalog",
	"standard_conforming_strings=off",
	"standard_conforming_strings=off&backslash_quote=on&escape_string_warning=on",
	"bytea_output=escape",
	"bytea_output=escape&default_query_exec_mode=simple_protocol",
	"standard_conforming_strings=off&default_query_exec_mode=simple_protocol",
	"default_query_exec_mode=exec&bytea_output=escape",
	"default_query_exec_mode=cache_describe",
	"default_query_exec_mode=describe_exec",
	"enable_indexscan=off&enable_indexonlyscan=off",
	"plan_cache_mode=force_generic_plan",
	"plan_cache_mode=force_custom_plan",
	"extra_float_digits=-15",
	"transform_null_equals=on&quote_all_identifiers=on&array_nulls=off",
	"synchronous_commit=off&jit=on&jit_above_cost=0",
}

func (t *outboxTest) openPostgres(dsn string) *sqlx.DB {
	t.Helper()
	db, err := sqlx.Open("pgx", dsn)
	t.check(err)
	t.Cleanup(func() { db.Close() })
	return db
}

// TestPostgresClock: an item is as old as its PutIn, not as its transaction, and is due so.
func TestPostgresClock(t *testing.T) {
	o := outboxOnPostgres(t)
	tx := o.begin(o.db)
	o.exec(tx, "SELECT 1")
	time.Sleep(50 * time.Millisecond)
	o.check(o.PutIn(o.ctx(), tx, textItem("a")))
	var after time.Duration
	o.check(tx.GetContext(o.ctx(), &after,
		"SELECT MIN(LEAST(created, due)) - (EXTRACT(EPOCH FROM now()) * 1000000)::bigint FROM cacheaside_outbox"))
	if after *= time.Microsecond; after < 50*time.Millisecond {
		t.Errorf("put %v after the beginning of the transaction", after)
	}
}

// TestPostgresCallersTransaction: PutIn changes no setting of the transaction. What the outbox
// refuses itself leaves the transaction as it was. After an error of the server nothing of the
// transaction can be committed.
func TestPostgresCallersTransaction(t *testing.T) {
	o := outboxOnPostgres(t)
	o.exec(o.db, "CREATE TABLE product (id INTEGER)")
	settings := func(tx *sqlx.Tx) (all string) {
		o.check(tx.Get(&all, "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings"))
		return all
	}
	tx := o.begin(o.db)
	before := settings(tx)
	o.exec(tx, "INSERT INTO product VALUES (1)")
	o.check(o.PutIn(o.ctx(), tx, textItems(1000)...))
	if err := o.PutIn(o.ctx(), tx, consistency.Item{}); err == nil {
		t.Error("put an item without a key")
	}
	if settings(tx) != before {
		t.Error("PutIn has changed settings")
	}
	o.check(tx.Commit())
	o.holds(1000, "committed")

	o.exec(o.db, "ALTER TABLE cacheaside_outbox RENAME TO elsewhere")
	tx = o.begin(o.db)
	o.exec(tx, "INSERT INTO product VALUES (2)")
	if err := o.PutIn(o.ctx(), tx, textItem("a")); err == nil || !strings.Contains(err.Error(), "Schema") {
		t.Errorf("put without a table: %v", err)
	}
	if tx.Commit() == nil {
		t.Error("committed after an error")
	}
	var n int
	o.check(o.db.Get(&n, "SELECT COUNT(*) FROM product"))
	if n != 1 {
		t.Errorf("%d rows", n)
	}
}

// TestPostgresConflicts: a statement that PostgreSQL refuses because of another transaction is
// repeated, for each kind of refusal.
func TestPostgresConflicts(t *testing.T) {
	o := outboxOnPostgres(t)
	o.exec(o.db, "CREATE TABLE n (id INT PRIMARY KEY, n INT)")
	o.exec(o.db, "INSERT INTO n VALUES (1, 0), (2, 0)")
	update := func(tx *sqlx.Tx, id int) error {
		_, err := tx.ExecContext(o.ctx(), "UPDATE n SET n = n + 1 WHERE id = $1", id)
		return err
	}
	two := func(settings string) (a, b *sqlx.Tx) {
		a, b = o.begin(o.db), o.begin(o.db)
		for _, tx := range []*sqlx.Tx{a, b} {
			o.exec(tx, settings+"; SELECT * FROM n")
		}
		return a, b
	}
	refused := map[string]func() error{
		postgresSerialization: func() error {
			a, b := two("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
			o.check(update(a, 1))
			o.check(a.Commit())
			return errors.Join(update(b, 1), b.Rollback())
		},
		postgresLockTimeout: func() error {
			a, b := two("SET LOCAL lock_timeout = 1")
			o.check(update(a, 1))
			return errors.Join(update(b, 1), b.Rollback(), a.Rollback())
		},
		postgresDeadlock: func() error {
			a, b := two("SET LOCAL deadlock_timeout = 1")
			o.check(update(a, 1))
			o.check(update(b, 2))
			other := make(chan error, 1)
			go func() { other <- errors.Join(update(a, 2), a.Rollback()) }()
			err := errors.Join(update(b, 1), b.Rollback())
			return errors.Join(err, testenv.Receive(t, "the other transaction", other))
		},
	}
	for state, refuse := range refused {
		err := refuse()
		if sqldb.SQLState(err) != state {
			t.Fatalf("%s: %v", state, err)
		}
		calls := 0
		o.check(o.session(o.ctx(), func(*sql.Conn) error {
			if calls++; calls < outboxAttempts {
				return err
			}
			return nil
		}))
		if calls != outboxAttempts {
			t.Errorf("%s: %d tries", state, calls)
		}
	}
	if isConflict(&pgconn.PgError{Code: "23505"}) {
		t.Error("a row that exists is no conflict")
	}
}

// TestStoppedWhileReading: a process that is stopped while it reads keeps the table from being
// altered only until the server ends its session.
func TestStoppedWhileReading(t *testing.T) {
	o := outboxOnPostgres(t)
	o.check(o.Put(o.ctx(), textItem("a")))
	err := o.reading(o.ctx(), func(on querier) error {
		o.check(on.QueryRowContext(o.ctx(), "SELECT COUNT(*) FROM cacheaside_outbox").Scan(new(int)))
		o.exec(o.db, "ALTER TABLE cacheaside_outbox ADD COLUMN later INT") // it waits for this transaction
		return nil
	})
	if err == nil {
		t.Error("the table was altered before its reader had ended")
	}
	o.holds(1, "read again")
}

// TestPostgresLongClaim: a claim may be longer than a setting of PostgreSQL can be.
func TestPostgresLongClaim(t *testing.T) {
	o := outboxOnPostgres(t)
	o.check(o.Put(o.ctx(), textItem("a")))
	items, err := o.Claim(o.ctx(), 1, 10_000*time.Hour)
	o.check(err)
	o.same(items, "a")
	if r := rowOf(o, "a"); r.After < 9_999*time.Hour {
		t.Errorf("claimed for %v", r.After)
	}
}

// TestPostgresPrepared: what differs between two calls of a query is an argument, so that a driver
// prepares one statement for both.
func TestPostgresPrepared(t *testing.T) {
	o := outboxOnPostgres(t)
	db := o.openPostgres(testenv.SharedPostgres(t).DSN(t))
	db.SetMaxOpenConns(1)
	own := o.outbox(db)
	prepared := map[int]string{}
	for n := range 3 {
		name := fmt.Sprintf("other%d", n)
		other, err := New(o.db, Postgres, &Options{Namespace: name})
		o.check(err)
		o.check(other.Put(o.ctx(), textItem(name)))
		o.check(o.Put(o.ctx(), textItem(name)))
		names, err := own.namespaces(o.ctx(), db)
		if err != nil || len(names) != n+2 {
			t.Fatalf("%q, %v", names, err)
		}
		_, err = own.List(o.ctx(), 10+n)
		o.check(err)
		o.some(own, 10+n)
		_, err = own.Depth(o.ctx())
		o.check(err)
		for _, f := range []func() (string, []any){
			func() (string, []any) { return o.mine().ahead(int64(n)) },
			func() (string, []any) { return o.mine().overdue(10 + n) },
		} {
			query, args := f()
			rows, err := db.QueryContext(o.ctx(), query, args...)
			o.check(err)
			o.check(rows.Close())
		}
		var texts []string
		o.check(db.SelectContext(o.ctx(), &texts, "SELECT statement FROM pg_prepared_statements ORDER BY statement"))
		prepared[n] = strings.Join(texts, "\n")
	}
	if prepared[2] != prepared[1] {
		t.Errorf("prepared after two rounds:\n%s\nafter three:\n%s", prepared[1], prepared[2])
	}
}

// TestPreparedThroughPgBouncer: a pool may not know prepared statements. Then an error says what to
// set, and no item is lost. Statements without arguments work.
func TestPreparedThroughPgBouncer(t *testing.T) {
	o := outboxOnPostgres(t)
	pooled := o.openPostgres(testenv.StartPgBouncer(t, testenv.SharedPostgres(t)))
	box := o.outbox(pooled)
	var open []*sqlx.Tx
	for range 3 { // at the same time, so that there are three sessions
		open = append(open, o.begin(pooled))
	}
	for _, tx := range open {
		o.check(tx.Rollback())
	}
	pooled.SetMaxIdleConns(1)
	var claimed []consistency.Item
	failed := 0
	for n := range 20 {
		o.check(box.Put(o.ctx(), textItem(fmt.Sprint("put", n))))
		tx := o.begin(pooled)
		o.check(box.PutIn(o.ctx(), tx, textItem(fmt.Sprint("putIn", n))))
		o.check(tx.Commit())
		items, err := box.Claim(o.ctx(), 1, claimLong)
		if err == nil {
			o.check(box.Done(o.ctx(), items...))
			claimed = append(claimed, items...)
			continue
		}
		failed++
		if !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
			t.Error(err)
		}
	}
	t.Logf("%d of 20 claims failed", failed)
	o.holds(40-len(claimed), "not claimed")
	if got := len(o.some(o.Outbox, 100)); got != 40-len(claimed) {
		t.Errorf("%d of %d can be claimed", got, 40-len(claimed))
	}
}

// TestPostgresErrors: an error names the problem of the table, and no key.
func TestPostgresErrors(t *testing.T) {
	for change, want := range map[string]string{
		"DROP TABLE cacheaside_outbox":                    "is missing",
		"ALTER TABLE cacheaside_outbox DROP COLUMN admit": "wrong columns",
	} {
		o := outboxOnPostgres(t)
		o.exec(o.db, "DROP TABLE cacheaside_outbox")
		o.check(o.CreateTable(o.ctx()))
		o.exec(o.db, change)
		if err := o.Put(o.ctx(), textItem("secret")); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "Schema") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", change, err)
		}
	}
}

// TestPostgresSearchPath: a table without a schema is in the schema public, even if the search_path
// of the session finds another table of that name first.
func TestPostgresSearchPath(t *testing.T) {
	o := outboxOnPostgres(t)
	o.exec(o.db, "CREATE SCHEMA tenant")
	tenant, err := New(o.db, Postgres, &Options{Table: "tenant.cacheaside_outbox", Namespace: testSpace})
	o.check(err)
	o.check(tenant.CreateTable(o.ctx()))
	tx := o.begin(o.db)
	o.exec(tx, "SET LOCAL search_path = tenant")
	o.check(o.PutIn(o.ctx(), tx, textItem("a")))
	o.check(tx.Commit())
	o.same(o.some(tenant, 10))
	o.same(o.some(o.Outbox, 10), "a")
}

// claimPlan is the plan of a claim.
func (t *outboxTest) claimPlan(from int64) (nodes string, pages int) {
	t.Helper()
	return t.plan(strings.NewReplacer("$1", fmt.Sprintf("'%d'", from), "$2", "500", "$3", "1000", "$4",
		"1").Replace(t.mine().claimReturning()))
}

// plan returns PostgreSQL's plan of a statement: its nodes, and how many pages they read.
func (t *outboxTest) plan(statement string) (nodes string, pages int) {
	t.Helper()
	tx := t.begin(t.db)
	defer tx.Rollback()
	t.exec(tx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "+postgresSettings)
	var text []byte
	t.check(tx.Get(&text, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+statement))
	type node struct {
		Kind  string `json:"Node Type"`
		Index string `json:"Index Name"`
		Hit   int    `json:"Shared Hit Blocks"`
		Read  int    `json:"Shared Read Blocks"`
		Plans []node
	}
	var all []struct{ Plan node }
	t.check(json.Unmarshal(text, &all))
	var walk func(n node)
	walk = func(n node) {
		nodes += n.Kind + " " + n.Index + "; "
		for _, below := range n.Plans {
			walk(below)
		}
	}
	walk(all[0].Plan)
	return nodes, all[0].Plan.Hit + all[0].Plan.Read
}

// fill puts n items that have been due since ago.
func (t *outboxTest) fill(n int, ago time.Duration) {
	t.Helper()
	t.exec(t.db, fmt.Sprintf(
		"INSERT INTO cacheaside_outbox (namespace, id, due, created, loader, version, text, all_keys, again, reload, "+
			"attempts, admit) "+
			"SELECT %s, decode(lpad(to_hex(n), 32, '0'), 'hex'), %s - %d + n, %s - %d + n, 'user', '1', "+
			"convert_to(n::text, 'UTF8'), 0, 0, 0, 0, 0 FROM generate_series(1, %d) AS n",
		t.mine().namespace, postgresNow, micros(ago), postgresNow, micros(ago), n))
}

// TestPostgresDeadRows: next to a transaction that stays open, a claim does not scan the rows
// removed since then, and uses the index whatever the statistics are.
func TestPostgresDeadRows(t *testing.T) {
	o := outboxOnPostgres(t)
	o.exec(o.db, "ANALYZE cacheaside_outbox") // it is empty
	open := o.begin(o.db)
	o.exec(open, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT COUNT(*) FROM cacheaside_outbox")
	o.fill(50_000, time.Minute)
	if nodes, _ := o.claimPlan(noFloor); !strings.Contains(nodes, "Index Scan cacheaside_outbox_due") ||
		strings.Contains(nodes, "Sort") {
		t.Errorf("the plan is %s", nodes)
	}
	o.exec(o.db, "DELETE FROM cacheaside_outbox")
	o.exec(o.db, "VACUUM cacheaside_outbox") // which may remove nothing
	_, all := o.claimPlan(noFloor)
	_, err := o.Depth(o.ctx())
	o.check(err)
	if all < 200 {
		t.Fatalf("%d pages are read of all rows that were removed: this shows nothing", all)
	}
	o.check(o.Put(o.ctx(), textItems(3)...))
	ids := make([]rowID, 100)
	for i := range ids {
		ids[i], err = parseID(consistency.NewID())
		o.check(err)
	}
	text := o.mine()
	for what, f := range map[string]func() (string, int){
		"cacheaside_outbox_due":  func() (string, int) { return o.claimPlan(o.floor.get()) },
		"cacheaside_outbox_pkey": func() (string, int) { return o.plan(text.done(ids, 1)) },
	} {
		nodes, pages := f()
		t.Logf("%d pages, %d by claims without a floor: %s", pages, all, nodes)
		if pages > 350 { // three for each ID, which is not found
			t.Errorf("%d pages are read", pages)
		}
		if !strings.Contains(nodes, "Index Scan "+what) || strings.Contains(nodes, "Seq Scan") ||
			strings.Contains(nodes, "Sort") || strings.Contains(nodes, "Bitmap") {
			t.Errorf("the plan is %s", nodes)
		}
	}
	o.same(o.some(o.Outbox, 10), "000000", "000001", "000002")
}

// TestPostgresLateCommit: a row that is committed long after it was put is found.
func TestPostgresLateCommit(t *testing.T) {
	o := outboxOnPostgres(t)
	tx := o.begin(o.db)
	o.check(o.PutIn(o.ctx(), tx, textItem("late")))
	// as if a minute had passed
	o.exec(tx, fmt.Sprintf("UPDATE cacheaside_outbox SET due = due - %[1]d, created = created - %[1]d",
		micros(time.Minute)))
	_, err := o.Depth(o.ctx())
	o.check(err)
	o.check(tx.Commit())
	o.same(o.some(o.Outbox, 10)) // not before all is read again
	o.floor.mu.Lock()
	o.floor.expiry = time.Now() // as if its time had passed
	o.floor.mu.Unlock()
	o.holds(1, "late")
	o.same(o.some(o.Outbox, 10), "late")
}

// A slowConnector is a PostgreSQL in which, while slow is true, a query from the beginning of the
// index exceeds the statement timeout.
type slowConnector struct {
	driver.Connector
	slow atomic.Bool
}

func (s *slowConnector) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := s.Connector.Connect(ctx)
	return &slowConn{c, s}, err
}

type slowConn struct {
	driver.Conn
	by *slowConnector
}

func (s *slowConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return s.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (s *slowConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if s.by.slow.Load() && len(args) > 0 && args[0].Value == int64(noFloor) {
		return nil, &pgconn.PgError{Code: postgresCanceled, Message: "too slow"}
	}
	return s.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

// TestPostgresSlowReading: if the index cannot be read from its beginning in time, new items are
// claimed nevertheless. That is an error until it can be read.
func TestPostgresSlowReading(t *testing.T) {
	o := outboxOnPostgres(t)
	c, err := pgx.ParseConfig(testenv.SharedPostgres(t).DSN(t))
	o.check(err)
	server := &slowConnector{Connector: stdlib.GetConnector(*c)}
	db := sqlx.NewDb(sql.OpenDB(server), "pgx")
	t.Cleanup(func() { db.Close() })
	fresh := o.outbox(db)
	maintain := func() error { return fresh.Maintain(o.ctx(), slog.New(slog.DiscardHandler)) }
	isSlow := func(what string, err error) {
		t.Helper()
		if sqldb.SQLState(err) != postgresCanceled {
			t.Errorf("%s: %v", what, err)
		}
	}

	server.slow.Store(true)
	o.fill(3, time.Minute)
	_, err = fresh.Claim(o.ctx(), 10, claimLong)
	isSlow("the first claim", err)
	o.same(o.some(fresh, 10))
	o.check(fresh.Put(o.ctx(), textItem("new")))
	o.same(o.some(fresh, 10), "new")

	_, err = fresh.Depth(o.ctx())
	isSlow("the depth", err)
	d, err := fresh.Depth(o.ctx())
	if err != nil || d.Items != 1 {
		t.Errorf("the depth from the floor: %+v, %v", d, err)
	}
	isSlow("maintain", maintain())

	server.slow.Store(false)
	fresh.floor.expiry = time.Now() // as if its time had passed
	d, err = fresh.Depth(o.ctx())
	if err != nil || d.Items != 4 {
		t.Errorf("the depth: %+v, %v", d, err)
	}
	o.check(maintain())
	o.same(o.some(fresh, 10), "1", "2", "3")
}

// TestPostgresTimedOut: a query that took too long is recognised, whether the server or the client
// ended it.
func TestPostgresTimedOut(t *testing.T) {
	o := outboxOnPostgres(t)
	sleep := func(ctx context.Context) error {
		return o.reading(ctx, func(on querier) error {
			return on.QueryRowContext(ctx, "SELECT pg_sleep(3600)::text").Scan(new(string))
		})
	}
	ctx, cancel := context.WithTimeout(o.ctx(), 100*time.Millisecond)
	defer cancel()
	if err := sleep(ctx); !timedOut(err) {
		t.Errorf("at the end of its context: %v", err)
	}
	o.exec(o.db, "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET statement_timeout = 100'; END "+
		"$$")
	limited := o.openPostgres(testenv.SharedPostgres(t).DSN(t))
	o.Outbox = o.outbox(limited)
	if err := sleep(o.ctx()); !timedOut(err) {
		t.Errorf("at the end of its statement_timeout: %v", err)
	}
	for _, err := range []error{nil, context.Canceled, &pgconn.PgError{Code: "57P01"}} {
		if timedOut(err) {
			t.Errorf("%v", err)
		}
	}
}

// TestFloor: a floor is below all rows, and below those that transactions of the last time may
// still commit, also when the clock has gone back.
func TestFloor(t *testing.T) {
	const age = int64(floorAge / time.Microsecond)
	var f floor
	if f.get() != noFloor || f.expire() != noFloor {
		t.Error("a floor before the first reading")
	}
	for _, c := range []struct {
		what             string
		from, first, now int64
		want             int64
	}{
		{"no rows", noFloor, 100 * age, 100 * age, 99 * age},
		{"not raised by what was read from it on", 99 * age, 200 * age, 200 * age, 99 * age},
		{"an old row", noFloor, 5 * age, 200 * age, 5 * age},
		{"rows that are not due", noFloor, 300 * age, 200 * age, 199 * age},
		{"the clock has gone back", 199 * age, 150 * age, 150 * age, 149 * age},
		{"and forward", 149 * age, 400 * age, 400 * age, 149 * age},
	} {
		f.observe(c.from, c.first, c.now, 0)
		if f.get() != c.want || f.expire() != c.want {
			t.Errorf("%s: %d, want %d", c.what, f.get(), c.want)
		}
	}
	f.observe(noFloor, 0, 0, time.Minute)
	if left := time.Until(f.expiry); left < 19*time.Minute {
		t.Errorf("what takes a minute is repeated after %v", left)
	}

	// If the index cannot be read from its beginning, readings from the floor raise it.
	f.readingTimedOut(context.DeadlineExceeded, time.Minute)
	if left := time.Until(f.expiry); left < 39*time.Minute {
		t.Errorf("what takes too long is repeated after %v", left)
	}
	f.observe(f.get(), 300*age, 301*age, 0)
	if got := f.get(); got != 300*age {
		t.Errorf("raised to %d", got)
	}
	if got := f.skipTo(400 * age); got != 399*age || f.get() != got || f.expire() != got || f.skips() {
		t.Errorf("skipped to %d", got)
	}
	f.observe(noFloor, 500*age, 500*age, 0)
	f.claimTimedOut()
	if !f.skips() || f.skipTo(600*age) != 599*age || f.expire() != noFloor {
		t.Error("after a slow claim the index is not read from its beginning")
	}
}

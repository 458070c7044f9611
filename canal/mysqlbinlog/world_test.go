package mysqlbinlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// world is a server, and what a Source tells of it.
type world struct {
	*testing.T
	server *testenv.SQLServer
	db     *sql.DB
	schema string
}

// each runs a test on the shared server of each engine.
func each(t *testing.T, f func(x *world)) {
	t.Helper()
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) { f(worldOn(t, e.Shared(t))) })
}

// eachOwn is each with servers of the test's own.
func eachOwn(t *testing.T, f func(x *world), args ...string) {
	t.Helper()
	testenv.EachEngine(t, func(t *testing.T, e testenv.Engine) { f(worldOn(t, e.Start(t, args...))) })
}

// onMariaDB is for what MySQL has not got: the test says what.
func onMariaDB(t *testing.T) *world { return worldOn(t, testenv.SharedMariaDB(t)) }

// mysql tells whether the server is MySQL.
func (w *world) mysql() bool { return w.server.Engine == testenv.MySQL }

func worldOn(t *testing.T, m *testenv.SQLServer) *world {
	return &world{T: t, server: m, db: m.DB(t), schema: m.Database(t)}
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// do runs statements.
func (w *world) do(statements ...string) {
	w.Helper()
	for _, s := range statements {
		if _, err := w.db.Exec(s); err != nil {
			w.Fatalf("%.200s: %v", s, err)
		}
	}
}

// set sets a global variable for the time of the test.
func (w *world) set(name, value string) {
	w.Helper()
	set := func(value string) string {
		if _, err := strconv.Atoi(value); err != nil {
			value = "'" + value + "'"
		}
		return "SET GLOBAL " + name + "=" + value
	}
	var old string
	w.check(w.db.QueryRow("SELECT @@global." + name).Scan(&old))
	w.do(set(value))
	w.Cleanup(func() {
		if _, err := w.db.Exec(set(old)); err != nil {
			w.Error(err)
		}
	})
}

func (w *world) source(edit ...func(*Options)) *Source {
	w.Helper()
	o := Options{Addr: w.server.Addr, User: w.server.User}
	for _, e := range edit {
		e(&o)
	}
	s, err := New(o)
	w.check(err)
	return s
}

// need is of tables of the test's schema, each with the columns after its name.
func (w *world) need(tables ...[]string) event.Need {
	n := event.Need{Tables: map[event.Table][]string{}}
	for _, t := range tables {
		n.Tables[event.Table{Schema: w.schema, Name: t[0]}] = t[1:]
	}
	return n
}

// listener is what a Source has told.
type listener struct {
	*world
	stop context.CancelFunc
	done chan struct{} // closed when Run has returned err, and all that it has delivered is in batches
	err  error

	mu      sync.Mutex
	batches []event.Batch
	news    chan struct{}
}

// listen runs s, and returns when it has begun.
func (w *world) listen(s *Source, need event.Need) *listener {
	w.Helper()
	l := w.run(s, need)
	l.until("it begins", func() bool { return len(l.batches) > 0 })
	return l
}

func (w *world) run(s *Source, need event.Need) *listener {
	ctx, stop := context.WithCancel(context.Background())
	l := &listener{world: w, stop: stop, done: make(chan struct{}), news: make(chan struct{}, 1)}
	batches := make(chan event.Batch)
	go func() {
		defer close(batches)
		l.err = s.Run(ctx, need, batches)
	}()
	go func() {
		defer close(l.done) // when all that was delivered is known
		for b := range batches {
			l.mu.Lock()
			l.batches = append(l.batches, b)
			l.mu.Unlock()
			select {
			case l.news <- struct{}{}:
			default:
			}
		}
	}()
	w.Cleanup(func() { l.end() })
	return l
}

// end stops it, and returns why Run has ended.
func (l *listener) end() error {
	l.stop()
	select {
	case <-l.done:
	case <-time.After(testenv.Hang):
		l.Fatal("hung: Run does not end")
	}
	return l.err
}

// until waits for something, for which it holds the mutex.
func (l *listener) until(what string, is func() bool) {
	l.Helper()
	limit := time.After(testenv.Hang)
	for {
		l.mu.Lock()
		ok := is()
		l.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-l.news:
		case <-l.done:
			l.Fatalf("%s: Run has ended: %v", what, l.err)
		case <-limit:
			l.mu.Lock()
			defer l.mu.Unlock()
			all := l.all()
			l.Fatalf("hung, waited for %s; %d changes, first %v", what, len(all), all[:min(len(all), 20)])
		}
	}
}

// all are the changes so far; the mutex is held.
func (l *listener) all() (all []event.Change) {
	for _, b := range l.batches {
		all = append(all, b.Changes...)
	}
	return all
}

// changes waits for n changes, and returns them.
func (l *listener) changes(n int) (all []event.Change) {
	l.Helper()
	l.until(fmt.Sprint(n, " changes"), func() bool {
		all = l.all()
		return len(all) >= n
	})
	return all
}

// ended waits until Run has ended by itself, and returns why.
func (l *listener) ended() error {
	l.Helper()
	select {
	case <-l.done:
	case <-time.After(testenv.Hang):
		l.Fatal("hung: Run does not end")
	}
	return l.err
}

// positions are those that were told.
func (l *listener) positions() (all []event.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known()
}

// known is positions; the mutex is held.
func (l *listener) known() (all []event.Position) {
	for _, b := range l.batches {
		if b.Position != "" {
			all = append(all, b.Position)
		}
	}
	return all
}

// text is what a change says, with the columns in the order of the table: "insert a: 1 x", "update
// a: 1 x -> 1 ?".
func text(c event.Change) string {
	row := func(r event.Row) (s string) {
		for _, name := range r.Columns().Names() {
			switch v := r.Get(name); {
			case !v.Known():
				s += " ?"
			case v.IsNull():
				s += " NULL"
			default:
				s += " " + v.Text()
			}
		}
		return s
	}
	s := fmt.Sprint(c.Kind, " ", c.Table)
	if c.Unread != nil {
		s += " unread"
	}
	if c.Before.Exists() || c.After.Exists() {
		s += ":" + row(c.Before)
	}
	if c.After.Exists() {
		if c.Before.Exists() {
			s += " ->"
		}
		s += row(c.After)
	}
	return s
}

// want fails unless the changes are these.
func (l *listener) want(want ...string) {
	l.Helper()
	var got []string
	for _, c := range l.changes(len(want)) {
		got = append(got, text(c))
	}
	if !slices.Equal(got, want) {
		l.Fatalf("got\n%q\nwant\n%q", got, want)
	}
}

func (w *world) isSetup(err error, names ...string) {
	w.Helper()
	if !errors.Is(err, canal.ErrSetup) {
		w.Fatalf("%v is no ErrSetup", err)
	}
	for _, n := range names {
		if !contains(err.Error(), n) {
			w.Fatalf("%q does not say %q", err, n)
		}
	}
}

// logs are the files of the log.
func (w *world) logs() []string {
	w.Helper()
	all, err := logFiles(w.db)
	w.check(err)
	return all
}

// logFiles are the files of the log, of which servers tell more or less.
func logFiles(db *sql.DB) (all []string, err error) {
	rows, err := db.Query("SHOW BINARY LOGS")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	values := make([]any, len(columns))
	for i := range values {
		values[i] = new(string)
	}
	for rows.Next() {
		if err := rows.Scan(values...); err != nil {
			return nil, err
		}
		all = append(all, *values[0].(*string))
	}
	return all, rows.Err()
}

// purge removes the logs before the one of this name. A server keeps those that it still sends to
// somebody.
func (w *world) purge(name string) {
	w.Helper()
	testenv.Eventually(w, "the logs are purged", func() bool {
		w.do("PURGE BINARY LOGS TO '" + name + "'")
		return w.logs()[0] == name
	})
}

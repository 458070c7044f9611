package pglogical

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// world is a database with its own slot, and a publication "cacheaside" for all tables.
type world struct {
	*testing.T
	server *testenv.Postgres
	db     *sql.DB
	name   string // of the database and the slot
}

// shared returns a database on the shared server.
func shared(t *testing.T) *world { return worldOn(t, testenv.SharedPostgres(t)) }

// own returns a database on a server of the test's own.
func own(t *testing.T, settings ...string) *world {
	return worldOn(t, testenv.StartPostgres(t, settings...))
}

func worldOn(t *testing.T, p *testenv.Postgres) *world {
	w := &world{T: t, server: p, db: p.DB(t), name: p.Database(t)}
	w.do("CREATE PUBLICATION cacheaside FOR ALL TABLES")
	t.Cleanup(w.dropSlot) // otherwise the database cannot be dropped
	return w
}

func (w *world) dropSlot() {
	w.Helper()
	testenv.Eventually(w, "the slot is dropped", func() bool {
		_, err := w.db.Exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", w.name)
		return err == nil
	})
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// do executes statements.
func (w *world) do(statements ...string) {
	w.Helper()
	for _, s := range statements {
		if _, err := w.db.Exec(s); err != nil {
			w.Fatalf("%.200s: %v", s, err)
		}
	}
}

// ask returns the text of the only column of the only row.
func (w *world) ask(query string, args ...any) (text string) {
	w.Helper()
	w.check(w.db.QueryRow(query, args...).Scan(&text))
	return text
}

func (w *world) source(edit ...func(*Options)) *Source {
	w.Helper()
	o := Options{ConnString: w.server.DSN(w.T), Slot: w.name}
	for _, e := range edit {
		e(&o)
	}
	s, err := New(o)
	w.check(err)
	return s
}

func tableNamed(name string) event.Table {
	if schema, table, ok := strings.Cut(name, "."); ok {
		return event.Table{Schema: schema, Name: table}
	}
	return event.Table{Schema: "public", Name: name}
}

// need is of tables, each with the columns after its name, which may have a schema.
func (w *world) need(tables ...[]string) event.Need {
	n := event.Need{Tables: map[event.Table][]string{}}
	for _, t := range tables {
		n.Tables[tableNamed(t[0])] = t[1:]
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
	if c.Schema != "public" {
		s = fmt.Sprint(c.Kind, " ", c.Schema, ".", c.Table)
	}
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
		if !strings.Contains(err.Error(), n) {
			w.Fatalf("%q does not say %q", err, n)
		}
	}
}

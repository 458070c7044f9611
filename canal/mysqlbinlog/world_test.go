package mysqlbinlog

import (
	"database/sql"
	"strconv"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// world is a test with a database on a server.
type world struct {
	sourcetest.World
	server *testenv.SQLServer
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

// mysql reports whether the server is MySQL.
func (w *world) mysql() bool { return w.server.Engine == testenv.MySQL }

func worldOn(t *testing.T, m *testenv.SQLServer) *world {
	return &world{sourcetest.World{T: t, DB: m.DB(t), Schema: m.Database(t)}, m}
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
	old := w.Ask("SELECT @@global." + name)
	w.Do(set(value))
	w.Cleanup(func() {
		if _, err := w.DB.Exec(set(old)); err != nil {
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
	w.Check(err)
	return s
}

// logs are the files of the log.
func (w *world) logs() []string {
	w.Helper()
	all, err := logFiles(w.DB)
	w.Check(err)
	return all
}

// logFiles returns the files of the log. Servers return different columns.
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

// purge removes the logs before the one of this name. A server keeps logs that it still sends to a
// client.
func (w *world) purge(name string) {
	w.Helper()
	testenv.Eventually(w, "the logs are purged", func() bool {
		w.Do("PURGE BINARY LOGS TO '" + name + "'")
		return w.logs()[0] == name
	})
}

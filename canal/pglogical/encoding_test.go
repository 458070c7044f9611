package pglogical

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
)

// inEncoding returns a world whose database has this encoding.
func inEncoding(t *testing.T, encoding string) *world {
	t.Helper()
	x := shared(t)
	name := x.name + "_" + strings.ToLower(encoding)
	x.Do(fmt.Sprintf("CREATE DATABASE %s ENCODING '%s' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'", name, encoding))
	t.Cleanup(func() { x.Do("DROP DATABASE " + name + " WITH (FORCE)") })
	db, err := sql.Open("pgx", x.dsnOf(name))
	if err != nil {
		t.Fatal(err)
	}
	other := &world{sourcetest.World{T: t, DB: db, Schema: "public"}, x.server, name}
	t.Cleanup(func() {
		other.dropSlot()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	other.Do("CREATE PUBLICATION cacheaside FOR ALL TABLES")
	return other
}

// dsnOf returns the URL of a database of the same server.
func (w *world) dsnOf(database string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", w.server.User, w.server.Addr, database)
}

// A text that the server cannot convert is not known, and the log continues. Other texts arrive in
// UTF-8.
func TestTextsThatTheServerCannotConvert(t *testing.T) {
	for _, c := range []struct{ encoding, readable, text, unreadable string }{
		{"SQL_ASCII", `'\xc3a9'`, "é", `'\xe9'`},
		{"WIN1252", `'\xe980'`, "é€", `'\x81'`},
		{"KOI8R", `'\xc1'`, "а", ""},
		{"EUC_JP", `'\xc6fc'`, "日", ""},
		{"UTF8", `'\xc3a9'`, "é", ""},
	} {
		t.Run(c.encoding, func(t *testing.T) {
			x := inEncoding(t, c.encoding)
			x.Do("CREATE TABLE users (id INT PRIMARY KEY, name TEXT)",
				"CREATE TABLE other (id INT PRIMARY KEY, name TEXT)")
			l := x.Listen(x.source(func(o *Options) { o.ConnString = x.dsnOf(x.name) }),
				x.Need([]string{"users", "id"}))
			insert := func(table string, id int, text string) {
				x.Do(fmt.Sprintf("INSERT INTO %s VALUES (%d, convert_from(%s::bytea, '%s'))", table, id, text,
					c.encoding))
			}
			n := 0
			if c.unreadable != "" {
				insert("other", 1, c.unreadable) // is not bound
				insert("users", 1, c.unreadable)
				n++
				if v := l.Changes(n)[0].After.Get("name"); v.Known() {
					t.Errorf("an unreadable text arrived as %q", v.Text())
				}
			}
			insert("users", 2, c.readable)
			if v := l.Changes(n + 1)[n].After.Get("name"); !v.Known() || v.Text() != c.text {
				t.Errorf("a text arrived as %q, want %q", v.Text(), c.text)
			}
		})
	}
}

package mysqllock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"regexp"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/cacheaside/cacheaside/internal/test/rowtest"
)

// stripper connects through a proxy that removes comments, or to a server that is too old to
// interpret them.
type stripper struct{ driver.Connector }

func (s stripper) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := s.Connector.Connect(ctx)
	return stripped{c}, err
}

type stripped struct{ driver.Conn }

var comments = regexp.MustCompile(`/\*.*?\*/`)

func (s stripped) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return s.Conn.(driver.ExecerContext).ExecContext(ctx, comments.ReplaceAllString(query, ""), args)
}

func (s stripped) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return s.Conn.(driver.QueryerContext).QueryContext(ctx, comments.ReplaceAllString(query, ""), args)
}

// TestWithoutComments: if a statement cannot set its time zone, no lock is acquired by a local
// time, and the error says what is missing.
func TestWithoutComments(t *testing.T) {
	eachParallel(t, func(t *testing.T, w rowtest.World) {
		c, err := mysql.ParseDSN(w.DSN)
		check(t, err)
		connector, err := mysql.NewConnector(c)
		check(t, err)
		db := sql.OpenDB(stripper{connector})
		t.Cleanup(func() { db.Close() })
		_, err = w.Locker(t, db, rowtest.Long).Acquire(within(t, patience), "a", nil)
		if err == nil || !strings.Contains(err.Error(), "does not set the time zone of a statement") {
			t.Error(err)
		}
	})
}

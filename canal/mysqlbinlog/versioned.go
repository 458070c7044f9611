package mysqlbinlog

import (
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/cacheaside/cacheaside/canal/event"
)

// MariaDB keeps the rows that a system-versioned table has had in the table itself, and logs them
// as rows:
// https://mariadb.com/docs/server/reference/sql-structure/temporal-tables/system-versioned-tables.
// A row is current if its period ends at the greatest time that there is. An UPDATE is logged as
// one, and as an insert of what the row was; a DELETE as an update that ends the period.

// endless are the ends of the period of a current row: before MariaDB 11.5, since then, and the
// number of a transaction.
var endless = []string{"2038-01-19 03:14:07.999999", "2106-02-07 06:28:15.999999", "18446744073709551615"}

// rowEnd returns the name, in lower case, of the column that has the end of a row's period; "" if
// the table is not system-versioned, or the user may not see whether it is. Columns that were not
// declared have fixed names, and are not in information_schema.
func (d *described) rowEnd() (string, error) {
	if d.server.flavor != mysql.MariaDBFlavor {
		return "", nil
	}
	implicit := ""
	for i, name := range d.ColumnName {
		lower := strings.ToLower(string(name))
		t, seen := d.types[lower]
		if t.generated == "row end" {
			return lower, nil
		}
		if lower == "row_end" && !seen && d.ColumnType[i] == mysql.MYSQL_TYPE_TIMESTAMP2 {
			implicit = lower
		}
	}
	if implicit == "" {
		return "", nil
	}
	kind, err := d.server.kindOf(d.table)
	if err != nil || kind == "SYSTEM VERSIONED" {
		return implicit, err
	}
	if len(d.types) == 0 {
		d.warn("mysqlbinlog: a table may be system-versioned, and the user may not see whether: handlers and filters also get its history; grant SELECT on the table", "table", d.table.Schema+"."+d.table.Name)
	}
	return "", nil
}

// asOfNow makes a change of a system-versioned table one of the table as it is now. ok is false if
// that has not changed.
func (s *shape) asOfNow(c event.Change) (_ event.Change, ok bool) {
	was, is := s.current(c.Before), s.current(c.After.Over(c.Before))
	switch {
	case !was && !is:
		return c, false
	case c.Kind == event.Update && !is:
		c.Kind, c.After = event.Delete, event.Row{}
	case c.Kind == event.Update && !was:
		c.Kind, c.Before = event.Insert, event.Row{}
	}
	return c, true
}

// current reports whether there is a row, and its period has not ended. One of which that is not
// known counts as current.
func (s *shape) current(r event.Row) bool {
	end := r.Get(s.rowEnd)
	return r.Exists() && (!end.Known() || slices.Contains(endless, end.Text()))
}

// isPrecise reports whether a table is versioned by transactions, as far as the user may see it.
func (s *server) isPrecise(table event.Table) (bool, error) {
	types, err := s.typesOf(table)
	for _, t := range types {
		if t.generated == "row end" && t.name == "bigint" {
			return true, err
		}
	}
	return false, err
}

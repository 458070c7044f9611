package mysqlbinlog

import (
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/cacheaside/cacheaside/canal/event"
)

// MariaDB keeps the former rows of a system-versioned table in the table itself, and logs them
// as rows:
// https://mariadb.com/docs/server/reference/sql-structure/temporal-tables/system-versioned-tables.
// A row is current if its period ends at the greatest possible time. An UPDATE is logged as an
// update and an insert of the former row. A DELETE is logged as an update that ends the period.

// currentEnds are the values that end the period of a current row: before MariaDB 11.5, since
// then, and for a table that is versioned by transactions.
var currentEnds = []string{"2038-01-19 03:14:07.999999", "2106-02-07 06:28:15.999999", "18446744073709551615"}

// rowEnd returns the name, in lower case, of the column with the end of a row's period. It
// returns "" if the table is not system-versioned, or if the user cannot see whether it is.
// Columns that were not declared have fixed names, and are not in information_schema.
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
		d.warn("mysqlbinlog: a table may be system-versioned, but the user cannot see that: handlers and filters "+
			"also get its history; grant SELECT on the table", "table", d.table.Schema+"."+d.table.Name)
	}
	return "", nil
}

// asOfNow converts a change of a system-versioned table to a change of its current rows. ok is
// false if no current row has changed.
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

// current reports whether there is a row whose period has not ended. A row with an unknown period
// counts as current.
func (s *shape) current(r event.Row) bool {
	end := r.Get(s.rowEnd)
	return r.Exists() && (!end.Known() || slices.Contains(currentEnds, end.Text()))
}

// versionedByTransaction returns the names of all tables that are versioned by transactions. It
// returns only those that the user can see. Needed tables are not enough, because the log names no
// table in their statements.
func (s *server) versionedByTransaction() (tables []string, err error) {
	if s.flavor != mysql.MariaDBFlavor {
		return nil, nil
	}
	rows, err := s.ask("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.COLUMNS WHERE GENERATION_EXPRESSION " +
		"= 'ROW END' AND DATA_TYPE = 'bigint' ORDER BY TABLE_SCHEMA, TABLE_NAME")
	for _, r := range rows {
		tables = append(tables, r[0]+"."+r[1])
	}
	return tables, err
}

package ddl

import (
	"slices"

	"github.com/cacheaside/cacheaside/canal/event"
)

// object skips what may stand between CREATE or ALTER and the word that names the kind of object,
// and returns that word in upper case.
func (r *reader) object() string {
	value := false // the next word is a value, as in DEFINER = user@host or ALGORITHM =
	for r.token.kind != end {
		t := r.token
		r.next()
		switch {
		case t.kind != word:
			value = t.text == "=" || t.text == "@" || t.text == "."
		case value:
			value = false
		case !slices.Contains(attributes, upper(t.text)):
			return upper(t.text)
		}
	}
	return ""
}

// attributes are the words that may stand before the kind of object.
var attributes = []string{
	"UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "ONLINE", "OFFLINE", "IGNORE", "AGGREGATE", "UNDO",
	"JSON", "RELATIONAL", "DUALITY", "OR", "REPLACE", "SQL", "SECURITY", "DEFINER", "INVOKER",
	"ALGORITHM",
}

// programs are the objects that contain statements. CREATE and ALTER do not execute them.
var programs = []string{"PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "PACKAGE", "LIBRARY"}

// objects are the other objects that contain no rows of a table.
var objects = []string{
	"DATABASE", "SCHEMA", "INDEX", "VIEW", "USER", "ROLE", "SERVER", "SEQUENCE", "LOGFILE",
	"TABLESPACE", "REFERENCE", "RESOURCE", "INSTANCE",
}

// other reads what follows the name of an object that is not a table.
func (r *reader) other(object string) bool {
	return slices.Contains(programs, object) || slices.Contains(objects, object) && r.skipRest()
}

// create reads what follows CREATE.
func (r *reader) create() bool {
	replace := r.token.is("OR")
	switch object := r.object(); object {
	case "TABLE":
		return r.ifExists() && r.createTable()
	case "TEMPORARY": // a table, or a sequence
		return r.skipRest()
	case "DATABASE", "SCHEMA":
		if replace { // in MariaDB it drops the existing schema
			return r.database() && r.skipRest()
		}
		return r.skipRest()
	default:
		return r.other(object)
	}
}

// createTable reads a new table. If the statement was logged with a SELECT, the rows are not
// logged, so the change is a Replace. If the rows were logged, the SELECT is not in the log:
// https://dev.mysql.com/doc/refman/8.4/en/create-table-select.html.
func (r *reader) createTable() bool {
	t, ok := r.table()
	if !ok {
		return false
	}
	k := event.Alter
	ok = r.walk(func(w token, depth int) bool {
		if w.is("SELECT") || depth == 0 && (w.is("VALUES") || w.is("TABLE")) {
			k = event.Replace
		}
		return true
	})
	r.addChange(k, t)
	return ok
}

// alter reads what follows ALTER.
func (r *reader) alter() bool {
	if object := r.object(); object != "TABLE" {
		return r.other(object)
	}
	if !r.ifExists() {
		return false
	}
	t, ok := r.table()
	if !ok {
		return false
	}
	r.addChange(event.Alter, t)
	return r.walk(func(w token, depth int) bool {
		return depth != 0 || r.specification(w)
	})
}

// specification reads one word of an ALTER TABLE, outside of parentheses, and the table that
// follows it. A column may have the name of a word that is not reserved. If it is uncertain whether
// the word is such a name, the altered table is a Replace.
//
// https://dev.mysql.com/doc/refman/8.4/en/alter-table.html,
// https://dev.mysql.com/doc/refman/8.4/en/partitioning-management-exchange.html,
// https://mariadb.com/docs/server/reference/sql-statements/data-definition/alter/alter-table
func (r *reader) specification(w token) bool {
	switch upper(w.text) {
	case "RENAME":
		if r.keyword("COLUMN", "INDEX", "KEY") {
			return true
		}
		if !r.keyword("TO", "AS") {
			r.accept('=')
		}
		return r.replaced()
	case "TABLE": // a table that is exchanged with a partition, or created from one
		return r.replaced()
	case "CONVERT", "EXCHANGE", "IMPORT", "REPAIR", "UNION": // UNION names the tables of a MERGE table
		if !r.token.is("TO") { // CONVERT TO CHARACTER SET
			r.effect.Changes[0].Kind = event.Replace
		}
	}
	return true
}

// replaced reads the name of another table, which now has other rows.
func (r *reader) replaced() bool {
	t, ok := r.table()
	r.addChange(event.Replace, t)
	return ok
}

package ddl

import (
	"github.com/cacheaside/cacheaside/canal/event"
)

// object reads past what may stand between CREATE or ALTER and the word that says what is created
// or altered, and gives that.
func (r *reader) object() string {
	for r.token.kind == word {
		w := r.token.text
		r.next()
		switch upper(w) {
		case "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "ONLINE", "OFFLINE", "IGNORE", "AGGREGATE", "UNDO", "JSON", "RELATIONAL", "DUALITY":
		case "OR":
			r.keyword("REPLACE")
		case "SQL":
			r.keyword("SECURITY")
			r.next()
		case "ALGORITHM":
			r.accept('=')
			r.next()
		case "DEFINER":
			r.definer()
		default:
			return upper(w)
		}
	}
	return ""
}

// definer reads = user[@host].
func (r *reader) definer() {
	r.accept('=')
	r.next()
	if r.accept('(') { // CURRENT_USER()
		r.accept(')')
	}
	if r.accept('@') {
		r.next()
		for r.accept('.') {
			r.next()
		}
	}
}

// other tells whether a statement about an object that is no table was understood.
func (r *reader) other(object string) bool {
	switch object {
	case "PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "PACKAGE", "LIBRARY":
		return true // the statements in it are not executed now
	case "DATABASE", "SCHEMA", "INDEX", "VIEW", "USER", "ROLE", "SERVER", "SEQUENCE", "LOGFILE", "TABLESPACE", "REFERENCE", "RESOURCE", "INSTANCE":
		return r.rest()
	}
	return false
}

// create reads what follows CREATE.
func (r *reader) create() bool {
	replace := r.token.is("OR")
	switch object := r.object(); object {
	case "TABLE":
		return r.ifExists() && r.createTable()
	case "TEMPORARY": // a table, or a sequence
		return r.rest()
	case "DATABASE", "SCHEMA":
		if replace { // in MariaDB it drops the one that was there
			return r.database() && r.rest()
		}
		return r.rest()
	default:
		return r.other(object)
	}
}

// createTable reads a table that is created. If its rows were logged as rows, then what they were
// selected with is not in the log:
// https://dev.mysql.com/doc/refman/8.4/en/create-table-select.html. If it is, nothing tells of the
// rows.
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
	r.change(k, t)
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
	r.change(event.Alter, t)
	return r.walk(func(w token, depth int) bool {
		return depth != 0 || r.specification(w)
	})
}

// specification reads one word of what is altered, outside of parentheses, and what follows if it
// is one of those that bring other rows into a table. A column may have the name of those that are
// not reserved; so it takes more than a word to be one of them. In doubt the rows are others.
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
	case "EXCHANGE":
		if !r.keyword("PARTITION") || r.keyword("BY") { // a column, and PARTITION BY
			return true
		}
		_, ok := r.name()
		r.others()
		return ok && r.keyword("WITH") && r.keyword("TABLE") && r.replaced()
	case "CONVERT":
		switch {
		case r.keyword("TABLE"):
			r.others()
			return r.replaced()
		case r.keyword("PARTITION"):
			_, ok := r.name()
			r.others()
			return ok && r.keyword("TO") && r.keyword("TABLE") && r.replaced()
		}
	case "IMPORT", "REPAIR":
		if r.token.is("TABLESPACE") || r.token.is("PARTITION") {
			r.others()
		}
	case "UNION": // the tables of which one of the engine MERGE consists
		r.others()
	}
	return true
}

// replaced reads another table that has other rows now.
func (r *reader) replaced() bool {
	t, ok := r.table()
	r.change(event.Replace, t)
	return ok
}

// others tells that the altered table has other rows now.
func (r *reader) others() { r.effect.Changes[0].Kind = event.Replace }

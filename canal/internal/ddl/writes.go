package ddl

import (
	"slices"

	"github.com/cacheaside/cacheaside/canal/event"
)

// Writes returns the table, or the view, whose rows an INSERT, REPLACE, UPDATE or DELETE changes.
// ok is false of other statements, and of those that name several tables to change. Triggers, and
// functions that the statement calls, may change others. schema is the default one of its session.
func Writes(statement, schema string) (t event.Table, ok bool) {
	t, ok = writes(statement, schema, true)
	if other, alike := writes(statement, schema, false); other != t || alike != ok { // see Read
		return event.Table{}, false
	}
	return t, ok
}

func writes(statement, schema string, escapes bool) (event.Table, bool) {
	r := reader{lexer: lexer{text: statement, escapes: escapes}, schema: schema}
	r.next()
	verb := upper(r.token.text)
	r.next()
	for r.keyword("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK", "IGNORE") {
	}
	several := false // tables may be named
	switch verb {
	case "INSERT", "REPLACE":
		r.keyword("INTO")
	case "UPDATE":
		several = true
	case "DELETE":
		r.keyword("HISTORY")
		if several = true; !r.keyword("FROM") {
			return event.Table{}, false
		}
	default:
		return event.Table{}, false
	}
	t, ok := r.table()
	if !ok || t.schema == "" || several && !r.alone() || r.bad {
		return event.Table{}, false
	}
	return event.Table{Schema: t.schema, Name: t.name}, true
}

// alone reports whether what follows the name of a table, with an alias or without, says that no
// other table is named with it.
func (r *reader) alone() bool {
	next := func() bool {
		return r.token.kind == end || slices.ContainsFunc([]string{"SET", "WHERE", "ORDER", "LIMIT", "RETURNING", "BEFORE"}, r.token.is)
	}
	if next() {
		return true
	}
	if !r.keyword("AS") && (r.token.is("USING") || r.token.is("JOIN")) {
		return false
	}
	_, ok := r.name()
	return ok && next()
}

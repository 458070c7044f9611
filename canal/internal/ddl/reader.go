package ddl

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/canal/event"
)

// reader reads one statement. Methods that return only a bool report whether they understood the
// input.
type reader struct {
	lexer
	token  token // the next token
	schema string
	effect Effect
}

func (r *reader) next() { r.token = r.scan() }

// accept skips a sign, if it is the next token.
func (r *reader) accept(c byte) bool {
	if r.token.kind != sign || r.token.text[0] != c {
		return false
	}
	r.next()
	return true
}

// keyword skips a keyword, if the next token is one of these.
func (r *reader) keyword(any ...string) bool {
	if !slices.ContainsFunc(any, r.token.is) {
		return false
	}
	r.next()
	return true
}

// ifExists skips IF EXISTS or IF NOT EXISTS.
func (r *reader) ifExists() bool {
	if !r.keyword("IF") {
		return true
	}
	r.keyword("NOT")
	return r.keyword("EXISTS")
}

// atEnd reports whether only semicolons follow.
func (r *reader) atEnd() bool {
	for r.accept(';') {
	}
	return r.token.kind == end
}

// skipRest skips the rest of the statement, and reports whether it was well-formed.
func (r *reader) skipRest() bool { return r.walk(nil) }

// walk calls do for each keyword and each other word that is not part of a qualified name, with
// the number of open parentheses. The word is already skipped. walk stops if do returns false.
func (r *reader) walk(do func(word token, depth int) bool) bool {
	depth := 0
	for r.token.kind != end {
		t := r.token
		if t.kind == sign && t.text == ";" {
			return depth == 0 && r.atEnd()
		}
		r.next()
		switch {
		case t.kind == word:
			if do != nil && !do(t, depth) {
				return false
			}
		case t.kind != sign:
		case t.text == "(":
			depth++
		case t.text == ")":
			depth--
		case t.text == "." && r.token.kind == word:
			r.next()
		}
	}
	return depth == 0
}

// name reads one name.
func (r *reader) name() (string, bool) {
	t := r.token
	switch t.kind {
	case quoted:
		t.text = strings.ReplaceAll(t.text, "``", "`")
	case double:
		t.text = strings.ReplaceAll(t.text, `""`, `"`)
	case word:
	default:
		return "", false
	}
	if t.text == "" || !utf8.ValidString(t.text) {
		return "", false
	}
	r.next()
	return t.text, true
}

// table is the name of a table.
type table struct{ schema, name string }

// table reads [schema.]table, or .table.
func (r *reader) table() (t table, ok bool) {
	t.schema = r.schema
	if !r.accept('.') {
		if r.token.kind == word && strings.Trim(r.token.text, "0123456789") == "" {
			return table{}, false
		}
		if t.name, ok = r.name(); !ok || !r.accept('.') {
			return t, ok
		}
		t.schema = t.name
	}
	if t.name, ok = r.name(); !ok || r.accept('.') {
		return table{}, false
	}
	return t, true
}

// addChange adds a change of a table to the effect.
func (r *reader) addChange(k event.Kind, t table) {
	if len(r.effect.Changes) > maxChanges {
		return
	}
	if t.schema == "" {
		t.name = "" // the table may belong to any schema
		if k == event.Truncate {
			k = event.Replace // tables of other schemas are not empty
		}
	}
	r.effect.Changes = append(r.effect.Changes, event.Change{Kind: k, Schema: t.schema, Table: t.name})
}

// tables reads a list of tables and its options, to the end of the statement.
func (r *reader) tables(k event.Kind) bool {
	if !r.ifExists() {
		return false
	}
	for {
		t, ok := r.table()
		if !ok {
			return false
		}
		r.addChange(k, t)
		if !r.accept(',') {
			r.options()
			return r.atEnd()
		}
	}
}

// options skips the words that may follow tables, and the number of WAIT.
func (r *reader) options() {
	for r.keyword("WAIT", "NOWAIT", "RESTRICT", "CASCADE", "QUICK", "EXTENDED", "USE_FRM", "FORCE") {
		for r.token.kind == word && strings.Trim(r.token.text, "0123456789") == "" {
			r.next()
			r.accept('.')
		}
	}
}

package ddl

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/canal/event"
)

// reader reads one statement. Its methods that answer a bool tell whether they have understood what
// stands there.
type reader struct {
	lexer
	token  token // the one that comes next
	schema string
	effect Effect
}

func (r *reader) next() { r.token = r.scan() }

// accept goes past a sign, if that is next.
func (r *reader) accept(c byte) bool {
	if r.token.kind != sign || r.token.text[0] != c {
		return false
	}
	r.next()
	return true
}

// keyword goes past a keyword, if one of these is next.
func (r *reader) keyword(any ...string) bool {
	if !slices.ContainsFunc(any, r.token.is) {
		return false
	}
	r.next()
	return true
}

// ifExists goes past IF EXISTS or IF NOT EXISTS.
func (r *reader) ifExists() bool {
	if !r.keyword("IF") {
		return true
	}
	r.keyword("NOT")
	return r.keyword("EXISTS")
}

// done tells whether nothing comes any more.
func (r *reader) done() bool {
	for r.accept(';') {
	}
	return r.token.kind == end
}

// rest goes past all that is left of the statement, and tells whether that was one.
func (r *reader) rest() bool { return r.walk(nil) }

// walk calls do for each keyword, and each other word, that is not a part of a name, with how many
// parentheses are open there; the word has been gone past. It ends when do does not understand what
// stands there.
func (r *reader) walk(do func(word token, depth int) bool) bool {
	depth := 0
	for r.token.kind != end {
		t := r.token
		if t.kind == sign && t.text == ";" {
			return depth == 0 && r.done()
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

// table is a table's name.
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

// change tells of a table.
func (r *reader) change(k event.Kind, t table) {
	if len(r.effect.Changes) > maxChanges {
		return
	}
	if t.schema == "" {
		t.name = "" // of whichever schema
		if k == event.Truncate {
			k = event.Replace // the others are not empty
		}
	}
	r.effect.Changes = append(r.effect.Changes, event.Change{Kind: k, Schema: t.schema, Table: t.name})
}

// tables reads a list of tables, and what may follow it, to the end of the statement.
func (r *reader) tables(k event.Kind) bool {
	if !r.ifExists() {
		return false
	}
	for {
		t, ok := r.table()
		if !ok {
			return false
		}
		r.change(k, t)
		if !r.accept(',') {
			r.options()
			return r.done()
		}
	}
}

// options goes past the words that may follow tables, and past the number of WAIT.
func (r *reader) options() {
	for r.keyword("WAIT", "NOWAIT", "RESTRICT", "CASCADE", "QUICK", "EXTENDED", "USE_FRM", "FORCE") {
		for r.token.kind == word && strings.Trim(r.token.text, "0123456789") == "" {
			r.next()
			r.accept('.')
		}
	}
}

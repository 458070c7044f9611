package entwrites

import (
	"regexp"
	"strconv"
	"strings"
)

// A query is an INSERT, UPDATE or DELETE of one table, as ent writes them.
type query struct {
	text  string
	args  []any
	verb  string // "" if the statement may change rows in another way
	table string

	head  string // of an UPDATE or DELETE: the text before WHERE
	where string // the condition; "" if there is none
	skip  int    // the number of placeholders before the condition, in dialects with "?"

	columns []string // of an INSERT
	values  bool     // an INSERT whose values are all arguments
	upsert  bool
}

// A word is a word of a statement outside of parentheses and quotation marks.
type word struct {
	text       string
	begin, end int
	skip       int // the number of "?" before it
}

// words returns the words of a statement. It returns false if the statement contains something that
// ent does not write, such as comments.
func words(text string) (all []word, ok bool) {
	depth, marks := 0, 0
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c == '\'' || c == '"' || c == '`':
			end := strings.IndexByte(text[i+1:], c)
			if end < 0 || strings.Contains(text[i+1:i+1+end], `\`) {
				return nil, false
			}
			i += end + 2
			continue
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '?':
			marks++
		case c == ';' || strings.HasPrefix(text[i:], "--") || strings.HasPrefix(text[i:], "/*"):
			return nil, false
		case isLetter(c):
			end := i
			for end < len(text) && (isLetter(text[end]) || '0' <= text[end] && text[end] <= '9') {
				end++
			}
			if depth == 0 {
				all = append(all, word{strings.ToUpper(text[i:end]), i, end, marks})
			}
			i = end
			continue
		}
		i++
	}
	return all, depth == 0
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' }

var (
	name      = regexp.MustCompile("^[`\"]?\\w+[`\"]?(\\.[`\"]?\\w+[`\"]?)?$")
	arguments = regexp.MustCompile(`^\((\?|\$\d+)(, ?(\?|\$\d+))*\)(, ?\((\?|\$\d+)(, ?(\?|\$\d+))*\))*$`)
	numbered  = regexp.MustCompile(`\$\d+`)
)

// unquoted returns a name of a table without quotation marks, or "" if it is no simple name.
func unquoted(text string) string {
	if text = strings.TrimSpace(text); !name.MatchString(text) {
		return ""
	}
	return strings.NewReplacer("`", "", `"`, "").Replace(text)
}

// parse returns the parts of a statement. Its verb is "" if it is not of the simple form.
func parse(text string, args []any) query {
	q := query{text: text, args: args}
	all, ok := words(text)
	if !ok || len(all) == 0 {
		return q
	}
	switch all[0].text {
	case "UPDATE":
		q.parseChange(all, "SET")
	case "DELETE":
		if len(all) > 1 && all[1].text == "FROM" {
			q.parseChange(all[1:], "")
		}
	case "INSERT":
		q.parseInsert(all)
	}
	if q.table == "" {
		q.verb = ""
	} else {
		q.verb = all[0].text
	}
	return q
}

// parseChange parses an UPDATE, whose table ends at SET, or a DELETE. first is the word before the
// table.
func (q *query) parseChange(all []word, set string) {
	tableEnd, where := len(q.text), -1
	for i, w := range all[1:] {
		switch w.text {
		case set:
			tableEnd = min(tableEnd, w.begin)
		case "WHERE":
			if where >= 0 {
				return
			}
			where = i + 1
			tableEnd = min(tableEnd, w.begin)
		case "FROM", "JOIN", "USING", "RETURNING", "ORDER", "LIMIT", "UNION":
			return
		}
	}
	q.head = q.text
	if where >= 0 {
		q.head, q.where, q.skip = q.text[:all[where].begin], q.text[all[where].end:], all[where].skip
	}
	q.table = unquoted(q.text[all[0].end:tableEnd])
}

// parseInsert parses an INSERT.
func (q *query) parseInsert(all []word) {
	if len(all) < 2 || all[1].text != "INTO" {
		return
	}
	rest := q.text[all[1].end:]
	end := strings.IndexByte(rest, '(')
	if end < 0 {
		end = strings.Index(rest, " DEFAULT VALUES")
	}
	values, tail := -1, len(q.text)
	for _, w := range all[2:] {
		switch w.text {
		case "VALUES":
			if values < 0 { // otherwise the function of ON DUPLICATE KEY UPDATE
				values = w.end
			}
		case "ON":
			q.upsert = true
			tail = min(tail, w.begin)
		case "RETURNING":
			tail = min(tail, w.begin)
		case "SELECT", "SET", "WITH":
			return
		}
	}
	if end < 0 || values < 0 {
		return
	}
	q.table = unquoted(rest[:end])
	if close := strings.IndexByte(rest, ')'); close > end && rest[end] == '(' {
		for column := range strings.SplitSeq(rest[end+1:close], ",") {
			q.columns = append(q.columns, unquoted(column))
		}
	}
	q.values = len(q.columns) > 0 && arguments.MatchString(strings.TrimSpace(q.text[values:tail]))
}

// condition returns the condition of an UPDATE or DELETE, and its arguments, as those of another
// statement.
func (q *query) condition(postgres bool) (where string, args []any) {
	switch {
	case q.where == "":
		return "", nil
	case !postgres:
		return q.where, q.args[q.skip:]
	}
	where = numbered.ReplaceAllStringFunc(q.where, func(mark string) string {
		if n, err := strconv.Atoi(mark[1:]); err == nil && n <= len(q.args) {
			args = append(args, q.args[n-1])
		}
		return "$" + strconv.Itoa(len(args))
	})
	return where, args
}

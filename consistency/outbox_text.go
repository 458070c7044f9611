package consistency

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/internal/sqlclock"
)

// statements are the texts of one table's statements. They hold values as digits, and as literals
// x'…' of hexadecimal ones, and nothing else that a caller has given: so nothing can be injected,
// no character set or SQL mode changes what they mean, and each is one trip to a server, whatever
// the DSN says of interpolateParams.
type statements struct {
	dialect Dialect
	name    string
	table   string // quoted
	space   string // the namespace, as a literal; "": there is none
}

// now is the time of the database in microseconds since 1970. In MySQL each evaluation reads the
// clock again, and an index cannot be used to compare with it: see clock.
func (s statements) now() string {
	if s.dialect == SQLite {
		return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"
	}
	return sqlclock.Micros()
}

// clock is what to select rows from that are compared with instant, which is one time for the whole
// statement.
func (s statements) clock(index string) string {
	if s.dialect == SQLite {
		return s.table
	}
	return fmt.Sprintf("(SELECT %s AS instant) AS clock STRAIGHT_JOIN %s%s", s.now(), s.table, s.hint(index))
}

func (s statements) instant() string {
	if s.dialect == SQLite {
		return s.now() // one time for the whole statement, too
	}
	return "clock.instant"
}

// hint names the index that a statement has to go by. Left to itself, the optimizer reads all rows
// where it is to change most of them: then it waits for rows whose transactions have not ended.
func (s statements) hint(index string) string {
	if s.dialect == SQLite {
		return ""
	}
	return " FORCE INDEX (" + index + ")"
}

// in returns the same statements for the rows of a namespace.
func (s statements) in(namespace string) statements {
	s.space = string(appendHex(nil, []byte(namespace)))
	return s
}

// due is the condition that a row of the namespace could be claimed.
func (s statements) due() string {
	return fmt.Sprintf("namespace = %s AND due <= %s", s.space, s.instant())
}

// begin begins a statement that changes rows, or compares them with the time: SELECT, INSERT,
// UPDATE or DELETE.
func (s statements) begin(verb string) string {
	if s.dialect == SQLite {
		return verb
	}
	return sqlclock.Begin(verb)
}

// micros is a duration in whole microseconds, from 0 to some hundred years.
func micros(d time.Duration) int64 { return max(0, d.Microseconds()) }

func (s statements) beginInsert(b []byte) []byte {
	return append(b, "INSERT INTO "+s.table+" (namespace, id, created, due, loader, version, text, all_keys, again, reload, attempts, admit) VALUES "...)
}

func (s statements) insertRow(b []byte, id rowID, item *Item) []byte {
	b = append(append(b, '('), s.space...)
	b = appendHex(append(b, ", "...), id[:])
	if s.dialect == SQLite {
		b = append(b, ", "+s.now()+", "+s.now()+" + "...)
	} else {
		b = append(b, ", "+sqlclock.InsertMicros()+", created + "...) // created of this row
	}
	b = strconv.AppendInt(b, micros(item.After), 10)
	for _, text := range []string{item.Key.Loader, item.Key.Version, item.Key.Text} {
		b = appendHex(append(b, ", "...), []byte(text))
	}
	return fmt.Appendf(b, ", %d, %d, %d, %d, %d)", digit(item.Key.All), micros(item.Again), digit(item.Reload), max(0, item.Attempts), digit(item.Admit))
}

// endInsert leaves a row as it is that is there already. In a MySQL table of an older release,
// whose primary key is the ID alone, the row may belong to another namespace: then the sum is too
// large for a BIGINT, and the statement fails (see explain). SQLite refuses the statement for such
// a table.
func (s statements) endInsert(b []byte) []byte {
	if s.dialect == SQLite {
		return append(b, " ON CONFLICT (namespace, id) DO NOTHING"...)
	}
	return append(b, " ON DUPLICATE KEY UPDATE id = IF(namespace = "+s.space+", id, ~0 + claim + 1)"...)
}

func appendHex(b, value []byte) []byte {
	b = hex.AppendEncode(append(b, "x'"...), value)
	return append(b, '\'')
}

func digit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// around is what is sent before and after the statements of a session.
func (s statements) around() (before, after []string) {
	switch {
	case s.dialect == SQLite:
		return nil, nil
	}
	return []string{"SET TRANSACTION ISOLATION LEVEL READ COMMITTED"}, []string{"COMMIT"}
}

// The columns of cells.
const itemColumns = "id, claim, was_due, loader, version, text, all_keys, again, reload, attempts, admit"

// claim claims what is due. In MySQL, where it says when the claims end as the insert id, it passes
// over rows that others have locked, and, as it goes by the index in its order, locks none but
// those that it claims: nobody waits for it, nor it for anybody.
func (s statements) claim(most int, claim int64, life time.Duration) string {
	due := fmt.Sprintf("SELECT id, due, %s AS instant FROM %s WHERE %s ORDER BY due LIMIT %d", s.instant(), s.clock("due"), s.due(), most)
	if s.dialect == SQLite {
		return fmt.Sprintf("UPDATE %s SET was_due = due, since = %s, due = %s + %d, claim = %d WHERE namespace = %s AND id IN (SELECT id FROM (%s)) RETURNING %s, %s - created",
			s.table, s.now(), s.now(), micros(life), claim, s.space, due, itemColumns, s.now())
	}
	skip := " SKIP LOCKED"
	return fmt.Sprintf("%s (%s FOR UPDATE%s) AS d STRAIGHT_JOIN %s AS o%s ON o.namespace = %s AND o.id = d.id SET o.was_due = d.due, o.since = d.instant, o.due = LAST_INSERT_ID(d.instant + %d), o.claim = %d",
		s.begin("UPDATE"), due, skip, s.table, s.hint("PRIMARY"), s.space, micros(life), claim)
}

// claimed reads what was claimed. The LIMIT is for sessions with an sql_select_limit.
func (s statements) claimed(c claiming, most int) string {
	return fmt.Sprintf("%s %s, %s - created FROM %s%s WHERE %s LIMIT %d", s.begin("SELECT"), itemColumns, s.now(), s.table, s.hint("due"), s.by(c), most)
}

// by finds the rows of a claim.
func (s statements) by(c claiming) string {
	return fmt.Sprintf("namespace = %s AND due = %d AND claim = %d", s.space, c.until, c.name)
}

// unclaim has the rows of a claim be due as before, but those.
func (s statements) unclaim(c claiming, but []rowID) string {
	where := s.by(c)
	if len(but) > 0 {
		where += " AND id NOT IN (" + hexList(but) + ")"
	}
	return fmt.Sprintf("%s %s%s SET due = was_due, claim = 0 WHERE %s", s.begin("UPDATE"), s.table, s.hint("due"), where)
}

// anyDue finds a row if one is due: a caller that only looks need not keep others from writing.
func (s statements) anyDue() string {
	return fmt.Sprintf("SELECT 1 FROM %s WHERE %s LIMIT 1", s.table, s.due())
}

// of finds items of one claim; 0 is for those that were not claimed, by the caller that has put
// them.
func (s statements) of(ids []rowID, claim int64) string {
	where := s.named(ids)
	if claim != 0 {
		where += fmt.Sprintf(" AND claim = %d", claim)
	}
	return where
}

// named finds items by their IDs, which are unique in their namespace.
func (s statements) named(ids []rowID) string {
	return fmt.Sprintf("namespace = %s AND id IN (%s)", s.space, hexList(ids))
}

func (s statements) done(ids []rowID, claim int64) string {
	where := s.of(ids, claim)
	if s.dialect == SQLite {
		return fmt.Sprintf("DELETE FROM %s WHERE %s", s.table, where)
	}
	return fmt.Sprintf("%s o FROM %s AS o%s WHERE %s", s.begin("DELETE"), s.table, s.hint("PRIMARY"), where) // only this form takes a hint
}

func (s statements) later(ids []rowID, items []*Item, claim int64) string {
	each := func(value func(*Item) int64) string { return choose(ids, items, value) }
	return fmt.Sprintf("%s %s%s SET due = %s + %s, since = %s, again = %s, attempts = %s, claim = 0 WHERE %s", s.begin("UPDATE"), s.table, s.hint("PRIMARY"), s.now(),
		each(func(i *Item) int64 { return micros(i.After) }), s.now(),
		each(func(i *Item) int64 { return micros(i.Again) }),
		each(func(i *Item) int64 { return max(0, int64(i.Attempts)) }),
		s.of(ids, claim))
}

// choose is an expression for the value of each id.
func choose(ids []rowID, items []*Item, value func(*Item) int64) string {
	first, same := value(items[0]), true
	for _, item := range items {
		same = same && value(item) == first
	}
	if same {
		return strconv.FormatInt(first, 10)
	}
	b := []byte("CASE id")
	for i, item := range items {
		b = appendHex(append(b, " WHEN "...), ids[i][:])
		b = append(b, " THEN "...)
		b = strconv.AppendInt(b, value(item), 10)
	}
	return string(append(b, " END"...))
}

// depth counts over the index alone.
func (s statements) depth() string {
	return fmt.Sprintf("%s COUNT(due), COALESCE(SUM(due <= instant), 0), COALESCE(MIN(created), 0), COALESCE(MAX(created), 0), MAX(instant) FROM (SELECT %s AS instant) AS clock LEFT JOIN (SELECT due, created FROM %s%s WHERE namespace = %s ORDER BY due LIMIT %d) AS earliest ON 1 = 1 LIMIT 1",
		s.begin("SELECT"), s.now(), s.table, s.hint("due"), s.space, depthAtMost)
}

func hexList(ids []rowID) string {
	var b strings.Builder
	for i := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(appendHex(nil, ids[i][:]))
	}
	return b.String()
}

package sqloutbox

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/sqldb"
)

// statements builds the SQL statements for one table. They contain the caller's values only as
// digits and as hexadecimal literals (see literal). So SQL injection is impossible, no character
// set, SQL mode or other setting changes their meaning, and each statement is one trip to the
// server, with or without interpolateParams in the DSN. See outbox_postgres.go for the exceptions
// in PostgreSQL.
type statements struct {
	dialect   Dialect
	name      string
	table     string // quoted
	namespace string // the namespace as a literal; "": none
}

// now returns an expression for the time of the database in microseconds since 1970. In MySQL
// each evaluation reads the clock, so an index cannot be used to compare with it: see clock.
func (s statements) now() string {
	switch s.dialect {
	case SQLite:
		return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"
	case Postgres:
		return postgresNow
	}
	return sqldb.ServerMicros()
}

// clock returns the FROM clause for a comparison with instant, which is one time for the whole
// statement.
func (s statements) clock(index string) string {
	if s.dialect != MySQL {
		return s.table
	}
	return fmt.Sprintf("(SELECT %s AS instant) AS clock STRAIGHT_JOIN %s%s", s.now(), s.table, s.hint(index))
}

func (s statements) instant() string {
	switch s.dialect {
	case SQLite:
		return s.now() // SQLite evaluates the time once per statement
	case Postgres:
		return "(SELECT " + s.now() + ")" // PostgreSQL evaluates such a subquery once
	}
	return "clock.instant"
}

// hint forces the use of an index. Without it, the optimizer scans the table if most rows are to
// be changed, and then waits for rows of open transactions.
func (s statements) hint(index string) string {
	if s.dialect != MySQL {
		return "" // for PostgreSQL see postgresSettings
	}
	return " FORCE INDEX (" + index + ")"
}

// in returns the statements for the rows of a namespace.
func (s statements) in(namespace string) statements {
	s.namespace = string(s.literal(nil, []byte(namespace)))
	return s
}

// due returns the condition that a row of the namespace can be claimed.
func (s statements) due() string {
	return fmt.Sprintf("namespace = %s AND due <= %s", s.namespace, s.instant())
}

// begin returns the beginning of a statement that changes rows or compares them with the time.
// verb is SELECT, INSERT, UPDATE or DELETE.
func (s statements) begin(verb string) string {
	if s.dialect != MySQL {
		return verb
	}
	return sqldb.WithServerTime(verb)
}

// argument returns an expression for the number n, and the arguments that its query needs. In
// PostgreSQL n is an argument, so that the text of the query is the same for every number.
func (s statements) argument(n int64) (expression string, args []any) {
	if s.dialect == Postgres {
		return "$1::bigint", []any{n}
	}
	return strconv.FormatInt(n, 10), nil
}

// fromFloor returns a further condition for the rows of the namespace; $1 is the floor.
func (s statements) fromFloor() string {
	if s.dialect == Postgres {
		return " AND due >= $1::bigint"
	}
	return ""
}

// micros converts a duration to whole microseconds, at least 0.
func micros(d time.Duration) int64 { return max(0, d.Microseconds()) }

func (s statements) beginInsert(b []byte) []byte {
	const columns = "namespace, id, created, due, loader, version, text, all_keys, again, reload, attempts, admit"
	return append(b, "INSERT INTO "+s.table+" ("+columns+") VALUES "...)
}

func (s statements) insertRow(b []byte, id rowID, item *consistency.Item) []byte {
	b = append(append(b, '('), s.namespace...)
	b = s.literal(append(b, ", "...), id[:])
	if s.dialect != MySQL {
		b = append(b, ", "+s.now()+", "+s.now()+" + "...)
	} else {
		b = append(b, ", "+sqldb.InsertMicros()+", created + "...) // "created" is the value of this row
	}
	b = strconv.AppendInt(b, micros(item.After), 10)
	for _, text := range []string{item.Key.Loader, item.Key.Version, item.Key.Text} {
		b = s.literal(append(b, ", "...), []byte(text))
	}
	return fmt.Appendf(b, ", %d, %d, %d, %d, %d)", scopeOf(item.Key), micros(item.Again), digit(item.Reload),
		max(0, item.Attempts), digit(item.Inserting))
}

// endInsert makes the INSERT ignore rows that exist. In a MySQL table of an older release, whose
// primary key is the ID alone, the existing row may belong to another namespace. Then the sum
// overflows BIGINT, and the statement fails (see explain). The other databases refuse the
// statement for such a table.
func (s statements) endInsert(b []byte) []byte {
	if s.dialect != MySQL {
		return append(b, " ON CONFLICT (namespace, id) DO NOTHING"...)
	}
	return append(b, " ON DUPLICATE KEY UPDATE id = IF(namespace = "+s.namespace+", id, ~0 + claim + 1)"...)
}

// literal appends a binary value. In PostgreSQL x'…' is a string of bits, and '\x…' depends on
// the setting standard_conforming_strings.
func (s statements) literal(b, value []byte) []byte {
	if s.dialect == Postgres {
		return append(hex.AppendEncode(append(b, "decode('"...), value), "', 'hex')"...)
	}
	return append(hex.AppendEncode(append(b, "x'"...), value), '\'')
}

func digit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sessionStatements returns the statements at the start and at the end of a session.
func (s statements) sessionStatements() (before, after []string) {
	if s.dialect != MySQL {
		return nil, nil
	}
	return []string{"SET TRANSACTION ISOLATION LEVEL READ COMMITTED"}, []string{"COMMIT"}
}

// itemColumns are the columns of cells, except the age.
const itemColumns = "id, claim, was_due, loader, version, text, all_keys, again, reload, attempts, admit"

// claim returns the statement that claims due rows. In MySQL, it skips rows that other
// transactions have locked. It reads the index in order, and so locks only the rows that it
// claims: no transaction waits for another. MySQL returns only one number from an UPDATE, the
// insert ID. LAST_INSERT_ID(expression) sets it to the time at which the claims end, by which
// selectClaimed finds the rows.
func (s statements) claim(limit int, claim int64, claimFor time.Duration) string {
	due := fmt.Sprintf("SELECT id, due, %s AS instant FROM %s WHERE %s ORDER BY due LIMIT %d", s.instant(),
		s.clock("due"), s.due(), limit)
	if s.dialect == SQLite {
		return fmt.Sprintf("UPDATE %s SET was_due = due, since = %s, due = %s + %d, claim = %d"+
			" WHERE namespace = %s AND id IN (SELECT id FROM (%s)) RETURNING %s, %s - created",
			s.table, s.now(), s.now(), micros(claimFor), claim, s.namespace, due, itemColumns, s.now())
	}
	skip := " SKIP LOCKED"
	return fmt.Sprintf("%s (%s FOR UPDATE%s) AS d STRAIGHT_JOIN %s AS o%s ON o.namespace = %s AND o.id = d.id"+
		" SET o.was_due = d.due, o.since = d.instant, o.due = LAST_INSERT_ID(d.instant + %d), o.claim = %d",
		s.begin("UPDATE"), due, skip, s.table, s.hint("PRIMARY"), s.namespace, micros(claimFor), claim)
}

// selectClaimed returns a query for the claimed rows. The LIMIT is for sessions with an
// sql_select_limit.
func (s statements) selectClaimed(c mysqlClaim, limit int) string {
	return fmt.Sprintf("%s %s, %s - created FROM %s%s WHERE %s LIMIT %d", s.begin("SELECT"), itemColumns, s.now(),
		s.table, s.hint("due"), s.byClaim(c), limit)
}

// byClaim returns the condition for the rows of a claim.
func (s statements) byClaim(c mysqlClaim) string {
	return fmt.Sprintf("namespace = %s AND due = %d AND claim = %d", s.namespace, c.ends, c.number)
}

// unclaim returns the statement that ends the claim of its rows, except those with the IDs except.
// The rows become due at the time at which they were due before the claim.
func (s statements) unclaim(c mysqlClaim, except []rowID) string {
	where := s.byClaim(c)
	if len(except) > 0 {
		where += " AND id NOT IN (" + s.list(except) + ")"
	}
	return fmt.Sprintf("%s %s%s SET due = was_due, claim = 0 WHERE %s", s.begin("UPDATE"), s.table, s.hint("due"),
		where)
}

// anyDue returns a query that finds a row if any is due. A caller without due rows then takes no
// write lock.
func (s statements) anyDue() string {
	return fmt.Sprintf("SELECT 1 FROM %s WHERE %s LIMIT 1", s.table, s.due())
}

// byIDAndClaim returns the condition for items of one claim. claim is 0 for items that were not
// claimed: their writer removes them, whether a relay has claimed them since or not. Otherwise the
// number of the claim decides, and not its end. So a relay may complete an item after its claim has
// ended, unless another relay has claimed the row since.
func (s statements) byIDAndClaim(ids []rowID, claim int64) string {
	where := s.byID(ids)
	if claim != 0 {
		where += fmt.Sprintf(" AND claim = %d", claim)
	}
	return where
}

// byID returns the condition for items by ID, which is unique in the namespace. In PostgreSQL only
// the primary key, which begins with the ID, can serve it. With statistics of an empty table the
// planner might otherwise read the whole namespace by the other index.
func (s statements) byID(ids []rowID) string {
	if s.dialect == Postgres {
		return fmt.Sprintf("id IN (%s) AND namespace || '' = %s", s.list(ids), s.namespace)
	}
	return fmt.Sprintf("namespace = %s AND id IN (%s)", s.namespace, s.list(ids))
}

func (s statements) done(ids []rowID, claim int64) string {
	where := s.byIDAndClaim(ids, claim)
	if s.dialect != MySQL {
		return fmt.Sprintf("DELETE FROM %s WHERE %s", s.table, where)
	}
	// Only this form accepts a hint.
	return fmt.Sprintf("%s o FROM %s AS o%s WHERE %s", s.begin("DELETE"), s.table, s.hint("PRIMARY"), where)
}

func (s statements) later(ids []rowID, items []*consistency.Item, claim int64) string {
	each := func(value func(*consistency.Item) int64) string { return s.choose(ids, items, value) }
	return fmt.Sprintf("%s %s%s SET due = %s + %s, since = %s, again = %s, attempts = %s, claim = 0 WHERE %s",
		s.begin("UPDATE"), s.table, s.hint("PRIMARY"), s.now(),
		each(func(i *consistency.Item) int64 { return micros(i.After) }), s.now(),
		each(func(i *consistency.Item) int64 { return micros(i.Again) }),
		each(func(i *consistency.Item) int64 { return max(0, int64(i.Attempts)) }),
		s.byIDAndClaim(ids, claim))
}

// choose returns an expression for the value of each ID.
func (s statements) choose(ids []rowID, items []*consistency.Item, value func(*consistency.Item) int64) string {
	first, same := value(items[0]), true
	for _, item := range items {
		same = same && value(item) == first
	}
	if same {
		return strconv.FormatInt(first, 10)
	}
	b := []byte("CASE id")
	for i, item := range items {
		b = s.literal(append(b, " WHEN "...), ids[i][:])
		b = append(b, " THEN "...)
		b = strconv.AppendInt(b, value(item), 10)
	}
	return string(append(b, " END"...))
}

// depth returns a query that reads only the index.
func (s statements) depth() string {
	return fmt.Sprintf("%s COUNT(due), COALESCE(SUM(CASE WHEN due <= instant THEN 1 ELSE 0 END), 0),"+
		" COALESCE(MIN(created), 0), COALESCE(MAX(created), 0), COALESCE(MIN(due), 0), MAX(instant)"+
		" FROM (SELECT %s AS instant) AS clock LEFT JOIN"+
		" (SELECT due, created FROM %s%s WHERE namespace = %s%s ORDER BY due LIMIT %d) AS earliest ON 1 = 1 LIMIT 1",
		s.begin("SELECT"), s.now(), s.table, s.hint("due"), s.namespace, s.fromFloor(), maxDepth)
}

func (s statements) list(ids []rowID) string {
	var b strings.Builder
	for i := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(s.literal(nil, ids[i][:]))
	}
	return b.String()
}

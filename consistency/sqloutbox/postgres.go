package sqloutbox

import "fmt"

// The statements of an Outbox in PostgreSQL.
//
// A statement without arguments is sent as text, in one trip, by pgx and by lib/pq. That works
// behind every pool of connections. So statements that return no rows have no arguments, and one
// text may contain several of them. A driver prepares a query that returns rows, and caches it by
// its text. So the text of such a query depends only on the namespace. All other values are
// arguments.

// postgresNow is an expression for the time at which it is evaluated. now() would be the time at
// which the transaction began, and the items that a long transaction puts would look old. The time
// zone of the session has no effect.
const postgresNow = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"

// postgresSettings makes statements independent of the settings of the session until the end of
// the transaction. The planner must read the index in its order. Without the settings for it, and
// with statistics of an empty table, it would read and sort all rows for each claim.
const postgresSettings = "SET LOCAL standard_conforming_strings = on; SET LOCAL bytea_output = hex; " +
	"SET LOCAL enable_indexscan = on; SET LOCAL enable_tidscan = on; SET LOCAL enable_seqscan = off; " +
	"SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; SET LOCAL jit = off"

// allRows makes a statement fail if row-level security may hide rows from it. Otherwise a relay
// whose role sees no items would take the outbox for empty. The server does not compare the
// policies: it also refuses roles whose policy is USING (true).
const allRows = "SET LOCAL row_security = off"

// alone returns a statement that is a transaction of its own, at READ COMMITTED, and sees all rows.
// With a stricter default of the session, transactions of the user could fail because of the
// outbox. The server receives all of it at once. So no process that is stopped in between holds
// locks, and after an error no transaction is open.
func (s statements) alone(statement string) string {
	if s.dialect != Postgres {
		return statement
	}
	return s.aloneInsert(allRows + "; " + statement)
}

// aloneInsert is alone for an INSERT, which a policy may permit to roles that see no rows.
func (s statements) aloneInsert(statement string) string {
	if s.dialect != Postgres {
		return statement
	}
	return "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; " + postgresSettings + "; " + statement
}

// claimReturning returns the query that claims due rows and returns them. Its arguments are the
// floor, the maximum number of rows, the duration and the number of the claim. The query skips rows
// that other transactions have locked, so it never waits for them.
func (s statements) claimReturning() string {
	due := fmt.Sprintf("FROM %s WHERE %s AND due >= $1::bigint ORDER BY due LIMIT $2::bigint FOR UPDATE SKIP LOCKED",
		s.table, s.due())
	return fmt.Sprintf("UPDATE %s SET was_due = due, since = %s, due = %s + $3::bigint, claim = $4::bigint"+
		" WHERE %s RETURNING %s, %s - created",
		s.table, s.instant(), s.instant(), found(due), itemColumns, s.now())
}

// nextDue returns the query for the time until the first item of the namespace is due. Its argument
// is the floor.
func (s statements) nextDue() string {
	return fmt.Sprintf("SELECT due - %s FROM %s WHERE namespace = %s%s ORDER BY due LIMIT 1", s.now(), s.table,
		s.namespace, s.fromFloor())
}

// found returns the condition for the rows that a query finds. It names them by their place, so
// that no index is searched again. A row that another transaction moves in between is left out.
func found(query string) string { return "ctid = ANY (ARRAY(SELECT ctid " + query + "))" }

// Package sqlclock writes statements that read the clock of a MySQL or MariaDB server.
//
// UTC_TIMESTAMP returns the session variable timestamp where a session has set it, and a pooled
// connection keeps that. SYSDATE does not, but it is in the time zone of the session, where an hour
// comes twice each autumn. So each statement sets its own time zone: MariaDB by SET STATEMENT,
// MySQL (from 8.0.17) by a hint. Both leave the session as it is and cost no trip.
package sqlclock

// Now returns an expression for the UTC time of the server, with microseconds, whenever it is
// evaluated. It is NULL in a statement whose time zone was not set, as behind a proxy that removes
// comments: such a statement fails, or matches no row, instead of using another time.
func Now() string {
	return "IF(@@session.time_zone = '+00:00', SYSDATE(6), NULL)"
}

// Micros returns an expression for Now in microseconds since 1970.
func Micros() string {
	return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', " + Now() + ")"
}

// InsertMicros returns an expression for the UTC time of the server in microseconds since 1970, for
// an INSERT without Begin, whose settings take up to a fifth of an INSERT of one row. Where
// UTC_TIMESTAMP is not the time, because a session has set the variable timestamp, it converts
// SYSDATE: only then can an hour that comes twice in the session's time zone be taken for the
// other. A server that was started with sysdate-is-now hides such a variable.
func InsertMicros() string {
	return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', IF(ABS(TIMESTAMPDIFF(SECOND, NOW(6), SYSDATE(6))) < 2, UTC_TIMESTAMP(6), CONVERT_TZ(SYSDATE(6), @@session.time_zone, _ascii'+00:00')))"
}

// Hint is the error text for a time that is NULL.
const Hint = "the server does not set the time zone of a statement: MariaDB needs 10.6, MySQL needs 8.0.17, and a proxy must leave comments in statements"

// Begin returns the beginning of a statement that may contain Now and Micros: its verb, which is
// SELECT, INSERT, UPDATE or DELETE, with the settings. The statement is also accepted where a
// session has sql_safe_updates, which demands a key by rules that each server has of its own, and
// that statements by a key do not meet either.
//
// A server that was started with sysdate-is-now makes SYSDATE follow the session variable, too. In
// MariaDB that is undone by timestamp = 0. In MySQL the same setting would stop the clock of the
// session after the statement.
func Begin(verb string) string {
	return "/*M!100200 SET STATEMENT time_zone = _ascii'+00:00', timestamp = 0, sql_safe_updates = 0 FOR */ " + verb +
		" /*+ SET_VAR(time_zone = '+00:00') SET_VAR(sql_safe_updates = 0) */"
}

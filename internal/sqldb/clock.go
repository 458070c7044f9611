package sqldb

// The statements below read the clock of a MySQL or MariaDB server.
//
// UTC_TIMESTAMP returns the session variable timestamp if the session has set it, and a pooled
// connection keeps such a setting. SYSDATE ignores it, but returns a time in the time zone of the
// session, where one hour occurs twice each autumn. So each statement sets its own time zone: in
// MariaDB by SET STATEMENT, in MySQL (from 8.0.17) by a hint. Both leave the session unchanged
// and cost no additional trip.

// ServerTime returns an expression for the UTC time of the server, in microseconds, at its
// evaluation. It is NULL if the time zone of the statement was not set, for example behind a proxy
// that removes comments. Such a statement fails, or matches no row, instead of using a wrong time.
func ServerTime() string {
	return "IF(@@session.time_zone = '+00:00', SYSDATE(6), NULL)"
}

// ServerMicros returns an expression for ServerTime in microseconds since 1970.
func ServerMicros() string {
	return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', " + ServerTime() + ")"
}

// InsertMicros returns an expression for the UTC time of the server in microseconds since 1970, for
// an INSERT that does not start with WithServerTime. (Its settings take up to a fifth of the time
// of an INSERT of one row.) If a session has set the variable timestamp, UTC_TIMESTAMP is wrong,
// and the expression converts SYSDATE instead. Only then can the hour that occurs twice in the
// session's time zone be ambiguous. A server that was started with sysdate-is-now hides such a
// variable.
func InsertMicros() string {
	return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', IF(ABS(TIMESTAMPDIFF(SECOND, NOW(6), SYSDATE(6))) < 2, " +
		"UTC_TIMESTAMP(6), CONVERT_TZ(SYSDATE(6), @@session.time_zone, _ascii'+00:00')))"
}

// NoServerTime is the error text for a time that is NULL.
const NoServerTime = "the server does not set the time zone of a statement: MariaDB needs 10.6, MySQL needs 8.0.17, " +
	"and a " +
	"proxy must leave comments in statements"

// WithServerTime returns the beginning of a statement that may contain ServerTime and ServerMicros:
// its verb (SELECT, INSERT, UPDATE or DELETE) with the settings. The settings include
// sql_safe_updates = 0. In a session with sql_safe_updates = 1, a server may refuse an UPDATE or
// DELETE, even one that finds its rows by a key.
//
// On a server that was started with sysdate-is-now, SYSDATE returns the session variable too. In
// MariaDB, timestamp = 0 undoes that. In MySQL, that setting would stop the clock of the session
// after the statement.
func WithServerTime(verb string) string {
	return "/*M!100200 SET STATEMENT time_zone = _ascii'+00:00', timestamp = 0, sql_safe_updates = 0 FOR */ " + verb +
		" /*+ SET_VAR(time_zone = '+00:00') SET_VAR(sql_safe_updates = 0) */"
}

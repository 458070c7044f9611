package mysqllock

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/lock/internal/rowlock"
)

// The columns are those of rowlock.Table. expires_at is in UTC. No session variable affects the
// clock (see internal/sqldb/clock.go).
//
// LAST_INSERT_ID(expression) puts the outcome of a statement into the insert id of its reply: 0
// if no row has matched, otherwise four times the token, plus a bit for ok (2) and a bit for
// autocommit (1). The number of affected rows would depend on clientFoundRows and on whether a
// value has changed. The order of the assignments is correct whether they see the old values or,
// as by default, those of earlier assignments.
//
// Statements contain their values as digits. Each is therefore one round trip, with or without
// interpolateParams, and no character set or SQL mode affects it.
var (
	now    = sqldb.ServerTime()
	micros = sqldb.ServerMicros()
	free   = "'1970-01-01 00:00:00'"
)

func schema(table string) string {
	return "CREATE TABLE IF NOT EXISTS " + table + ` (
	name VARBINARY(1088) NOT NULL,
	owner MEDIUMBLOB NOT NULL,
	token BIGINT NOT NULL,
	expires_at DATETIME(6) NOT NULL,
	PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC`
}

var identifier = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,63}\.)?[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// setToken returns the assignment that sets the token and the outcome.
func setToken(token, ok string) string {
	return fmt.Sprintf("token = LAST_INSERT_ID(4 * %s + 2 * (%s) + @@autocommit) DIV 4", token, ok)
}

func after(ttl time.Duration) string {
	return fmt.Sprintf("%s + INTERVAL %d MICROSECOND", now, ttl.Microseconds())
}

// readSQL returns a statement that returns one row, even if the lock does not exist. The LIMIT
// overrides sql_select_limit.
func readSQL(table, key string) string {
	return fmt.Sprintf("%s @@autocommit, %s, l.token, l.owner, TIMESTAMPDIFF(MICROSECOND, %s, l.expires_at) FROM "+
		"(SELECT 1) AS one LEFT JOIN %s AS l ON l.name = x'%x' LIMIT 1", sqldb.WithServerTime("SELECT"), micros, now,
		table, key)
}

// insertSQL returns a statement that inserts a free lock. INSERT IGNORE would truncate a name
// that is too long for the column of a table that was created differently. The empty owner is not
// a text literal, because sessions with EMPTY_STRING_IS_NULL read an empty one as NULL.
func insertSQL(table, key string) string {
	return fmt.Sprintf("INSERT INTO %s (name, owner, token, expires_at) VALUES (x'%x', x'', 0, %s) ON DUPLICATE KEY "+
		"UPDATE name = name", table, key, free)
}

// takeSQL returns the statement of rowlock.Table.Take.
func takeSQL(table, key string, t rowlock.Take) string {
	notHeld := fmt.Sprintf(" AND expires_at <= %s", now)
	if t.Mine {
		notHeld = ""
	}
	sameToken := fmt.Sprintf(" AND token = %d", t.Seen)
	inTime := fmt.Sprintf(" AND %s <= %d", micros, t.Bound)
	return fmt.Sprintf("%s %s SET %s, owner = x'%x', expires_at = %s WHERE name = x'%x'%s%s%s",
		sqldb.WithServerTime("UPDATE"), table, setToken(fmt.Sprint(t.Token), "1"), t.ID, after(t.TTL), key, notHeld,
		sameToken, inTime)
}

func extendSQL(table, key, id string, ttl time.Duration) string {
	return fmt.Sprintf("%s %s SET %s, expires_at = %s WHERE name = x'%x' AND owner = x'%x' AND expires_at > %s",
		sqldb.WithServerTime("UPDATE"), table, setToken("token", "1"), after(ttl), key, id, now)
}

// releaseSQL returns a statement that releases a lock. Its outcome is ok if the lock was still
// held, or if an earlier release of the same holder has released it.
func releaseSQL(table, key, id string) string {
	return fmt.Sprintf("%s %s SET %s, expires_at = IF(expires_at > %s, %s, expires_at) WHERE name = x'%x' AND owner "+
		"= x'%x'",
		sqldb.WithServerTime("UPDATE"), table, setToken("token",
			fmt.Sprintf("expires_at > %s OR expires_at = %s", now, free)), now, free, key, id)
}

// cleanUpSQL returns the statement of rowlock.Table.CleanUp.
func cleanUpSQL(table, key string, requests []rowlock.Request) string {
	owners := make([]string, len(requests))
	tokens := make([]string, len(requests))
	for i, r := range requests {
		owners[i], tokens[i] = fmt.Sprintf("x'%x'", r.ID), fmt.Sprint(r.Seen)
	}
	mine := "owner IN (" + strings.Join(owners, ", ") + ")"
	return fmt.Sprintf("%s %s SET %s, expires_at = IF(%s, %s, expires_at) WHERE name = x'%x' AND (%s OR token IN (%s))",
		sqldb.WithServerTime("UPDATE"), table, setToken("(token + 1)",
			"1"), mine, free, key, mine, strings.Join(tokens, ", "))
}

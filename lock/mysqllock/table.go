package mysqllock

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/internal/sqlclock"
)

// A lock is a row: its name; the id of the request that has got it last; the last token; and when
// it is free, in UTC by the server's clock, which no variable of a session moves (see package
// sqlclock). A release sets that to 1970, and leaves the holder's id: so the holder knows it again
// if it has to ask twice.
//
// The clock is read when a row is compared or changed. A statement that had to wait for the row, or
// for the table, therefore compares with the time after the wait.
//
// The effect of a statement is in the insert id of its reply, by LAST_INSERT_ID(expression): 0 if
// no row has matched, else four times the token, and a bit for "yes", and one for autocommit. The
// number of affected rows would depend on clientFoundRows, and on whether a value has changed.
// Assignments stand in an order that is right whether they see the old values or, as is the
// default, those of the assignments before them.
//
// Values are in the text of the statements, as digits only: so each is one round trip, whatever the
// DSN says of interpolateParams, and no character set or SQL mode changes it.
var (
	now    = sqlclock.Now()
	micros = sqlclock.Micros()
	free   = "'1970-01-01 00:00:00'"
	next   = "GREATEST(token + 1, " + micros + ")"
)

func schema(table string) string {
	return "CREATE TABLE IF NOT EXISTS " + table + ` (
	name VARBINARY(1088) NOT NULL,
	owner VARBINARY(32) NOT NULL,
	token BIGINT NOT NULL,
	expires_at DATETIME(6) NOT NULL,
	PRIMARY KEY (name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC`
}

var identifier = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,63}\.)?[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// set is the token, and what the reply is to say.
func set(token, yes string) string {
	return fmt.Sprintf("token = LAST_INSERT_ID(4 * %s + 2 * (%s) + @@autocommit) DIV 4", token, yes)
}

func after(ttl time.Duration) string {
	return fmt.Sprintf("%s + INTERVAL %d MICROSECOND", now, ttl.Microseconds())
}

// readSQL returns one row, also where there is none of that name. The LIMIT is for sessions with an
// sql_select_limit.
func readSQL(table, key string) string {
	return fmt.Sprintf("%s @@autocommit, %s, l.token, l.owner, TIMESTAMPDIFF(MICROSECOND, %s, l.expires_at) FROM (SELECT 1) AS one LEFT JOIN %s AS l ON l.name = x'%x' LIMIT 1", sqlclock.Begin("SELECT"), micros, now, table, key)
}

// makeSQL makes a free row. It is no INSERT IGNORE, which would cut a name short that is too long
// for the column of a table that somebody else has made. The owner is no text, which a session may
// take for NULL where it is empty (EMPTY_STRING_IS_NULL).
func makeSQL(table, key string) string {
	return fmt.Sprintf("INSERT INTO %s (name, owner, token, expires_at) VALUES (x'%x', x'', 0, %s) ON DUPLICATE KEY UPDATE name = name", table, key, free)
}

// takeSQL takes a lock that is free, or mine, if its token is still the one that was seen, and the
// time not past the bound: so a request that was delayed on its way is not carried out when no
// caller waits for it any more.
func takeSQL(table, key, id string, seen int64, mine bool, bound int64, ttl time.Duration) string {
	over := fmt.Sprintf(" AND expires_at <= %s", now)
	if mine {
		over = ""
	}
	unseen := fmt.Sprintf(" AND token = %d", seen)
	late := fmt.Sprintf(" AND %s <= %d", micros, bound)
	return fmt.Sprintf("%s %s SET %s, owner = x'%x', expires_at = %s WHERE name = x'%x'%s%s%s",
		sqlclock.Begin("UPDATE"), table, set(next, "1"), id, after(ttl), key, over, unseen, late)
}

func extendSQL(table, key, id string, ttl time.Duration) string {
	return fmt.Sprintf("%s %s SET %s, expires_at = %s WHERE name = x'%x' AND owner = x'%x' AND expires_at > %s",
		sqlclock.Begin("UPDATE"), table, set("token", "1"), after(ttl), key, id, now)
}

// releaseSQL says "yes" if the lock was still held, or has been released by this already.
func releaseSQL(table, key, id string) string {
	return fmt.Sprintf("%s %s SET %s, expires_at = IF(expires_at > %s, %s, expires_at) WHERE name = x'%x' AND owner = x'%x'",
		sqlclock.Begin("UPDATE"), table, set("token", fmt.Sprintf("expires_at > %s OR expires_at = %s", now, free)), now, free, key, id)
}

// settleSQL undoes requests, or keeps them from being carried out later, by a token that is not the
// one they have seen.
func settleSQL(table, key string, requests []request) string {
	owners := make([]string, len(requests))
	tokens := make([]string, len(requests))
	for i, r := range requests {
		owners[i], tokens[i] = fmt.Sprintf("x'%x'", r.id), fmt.Sprint(r.seen)
	}
	mine := "owner IN (" + strings.Join(owners, ", ") + ")"
	return fmt.Sprintf("%s %s SET %s, expires_at = IF(%s, %s, expires_at) WHERE name = x'%x' AND (%s OR token IN (%s))",
		sqlclock.Begin("UPDATE"), table, set("(token + 1)", "1"), mine, free, key, mine, strings.Join(tokens, ", "))
}

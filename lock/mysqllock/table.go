package mysqllock

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// A lock is a row: its name; the id of the request that has got it last; the last token; and when
// it is free, by UTC_TIMESTAMP, which no session's time zone changes. A release sets that to 1970,
// and leaves the holder's id: so the holder knows it again if it has to ask twice.
//
// UTC_TIMESTAMP is when a statement begins. If it waits for another then, for a row or for the
// table, that is earlier than when it is carried out: a lock that it gets, or extends, is over the
// sooner.
//
// The effect of a statement is in the insert id of its reply, by LAST_INSERT_ID(expression): 0 if
// no row has matched, else four times the token, and a bit for "yes", and one for autocommit. The
// number of affected rows would depend on clientFoundRows, and on whether a value has changed.
// Assignments stand in an order that is right whether they see the old values or, as is the
// default, those of the assignments before them.
//
// Values are in the text of the statements, as digits only: so each is one round trip, whatever the
// DSN says of interpolateParams, and no character set or SQL mode changes it.
const (
	now    = "UTC_TIMESTAMP(6)"
	micros = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
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

// readSQL answers with one row, also where there is none of that name.
func readSQL(table, key string) string {
	return fmt.Sprintf("SELECT @@autocommit, %s, l.token, l.owner, TIMESTAMPDIFF(MICROSECOND, %s, l.expires_at) FROM (SELECT 1) AS one LEFT JOIN %s AS l ON l.name = x'%x'", micros, now, table, key)
}

// makeSQL makes a free row. It is no INSERT IGNORE, which would cut a name short that is too long
// for the column of a table that somebody else has made.
func makeSQL(table, key string) string {
	return fmt.Sprintf("INSERT INTO %s (name, owner, token, expires_at) VALUES (x'%x', '', 0, %s) ON DUPLICATE KEY UPDATE name = name", table, key, free)
}

// takeSQL takes a lock that is free, if its token is still the one that was seen, and the time not
// past the bound: so one that was delayed on its way is not carried out when nobody waits for it
// any more.
func takeSQL(table, key, id string, seen, bound int64, ttl time.Duration) string {
	unseen := fmt.Sprintf(" AND token = %d", seen)
	late := fmt.Sprintf(" AND %s <= %d", micros, bound)
	return fmt.Sprintf("UPDATE %s SET %s, owner = x'%x', expires_at = %s WHERE name = x'%x' AND expires_at <= %s%s%s",
		table, set(next, "1"), id, after(ttl), key, now, unseen, late)
}

func extendSQL(table, key, id string, ttl time.Duration) string {
	return fmt.Sprintf("UPDATE %s SET %s, expires_at = %s WHERE name = x'%x' AND owner = x'%x' AND expires_at > %s",
		table, set("token", "1"), after(ttl), key, id, now)
}

// releaseSQL says "yes" if the lock was still held, or has been released by this already.
func releaseSQL(table, key, id string) string {
	return fmt.Sprintf("UPDATE %s SET %s, expires_at = IF(expires_at > %s, %s, expires_at) WHERE name = x'%x' AND owner = x'%x'",
		table, set("token", fmt.Sprintf("expires_at > %s OR expires_at = %s", now, free)), now, free, key, id)
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
	return fmt.Sprintf("UPDATE %s SET %s, expires_at = IF(%s, %s, expires_at) WHERE name = x'%x' AND (%s OR token IN (%s))",
		table, set("(token + 1)", "1"), mine, free, key, mine, strings.Join(tokens, ", "))
}

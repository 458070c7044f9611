package pglock

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/lock/internal/rowlock"
)

// The columns are those of rowlock.Table.
//
// An UPDATE computes its values and conditions before it waits for a row, and computes them again
// only if the row has changed. So each first locks the row in a subquery, and then reads the
// clock.
//
// All statements but the read contain their values, as digits and letters, and have no
// parameters. Drivers send such a statement as it is, without preparing it.
const (
	now    = "clock_timestamp()" // now() would be the start of the transaction
	micros = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
	free   = "timestamptz 'epoch'"
)

// schema returns the statement that creates the table. Each change of a lock writes a new version
// of its row. The free space keeps them in the same page, where they need no index entries.
func schema(table string) string {
	return "CREATE TABLE IF NOT EXISTS " + table + ` (
	name BYTEA NOT NULL PRIMARY KEY,
	owner TEXT NOT NULL,
	token BIGINT NOT NULL,
	expires_at TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50)`
}

// PostgreSQL cuts off what is longer.
var identifier = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)

func after(ttl time.Duration) string {
	return fmt.Sprintf("%s + interval '%d microseconds'", now, ttl.Microseconds())
}

// name returns a literal. Backslashes would depend on standard_conforming_strings.
func name(key string) string { return fmt.Sprintf("decode('%x', 'hex')", key) }

// readSQL returns a statement that returns one row, even if the lock does not exist.
func readSQL(table string) string {
	return fmt.Sprintf("SELECT %s, l.token, l.owner, (extract(epoch FROM l.expires_at - %s) * 1000000)::bigint FROM "+
		"(SELECT 1) AS one LEFT JOIN %s AS l ON l.name = $1", micros, now, table)
}

// insertSQL returns the statement of rowlock.Table.Insert. The token makes the row different from
// an earlier one that was deleted.
func insertSQL(table, key string) string {
	return fmt.Sprintf("INSERT INTO %s (name, owner, token, expires_at) VALUES (%s, '', %s, %s) ON CONFLICT (name) "+
		"DO NOTHING", table, name(key), micros, free)
}

// update returns a statement that locks the row and then changes it if the conditions hold. It
// fails if a row-level security policy applies. Otherwise a hidden lock would look like a held one.
func update(table, key, set string, conditions ...string) string {
	return fmt.Sprintf("SET LOCAL row_security = off; UPDATE %s SET %s WHERE name = (SELECT name FROM %s WHERE name "+
		"= %s FOR UPDATE) AND %s",
		table, set, table, name(key), strings.Join(conditions, " AND "))
}

func takeSQL(table, key string, t rowlock.Take) string {
	conditions := []string{
		fmt.Sprintf("token = %d", t.Seen),
		fmt.Sprintf("%s <= %d", micros, t.Bound),
	}
	if !t.Mine {
		conditions = append(conditions, "expires_at <= "+now)
	}
	return update(table, key, fmt.Sprintf("token = %d, owner = '%s', expires_at = %s", t.Token, t.ID, after(t.TTL)),
		conditions...)
}

func extendSQL(table, key, id string, ttl time.Duration) string {
	return update(table, key, "expires_at = "+after(ttl), fmt.Sprintf("owner = '%s'", id), "expires_at > "+now)
}

func releaseSQL(table, key, id string) string {
	held := fmt.Sprintf("(expires_at > %s OR expires_at = %s)", now, free)
	return update(table, key, "expires_at = "+free, fmt.Sprintf("owner = '%s'", id), held)
}

func cleanUpSQL(table, key string, requests []rowlock.Request) string {
	owners := make([]string, len(requests))
	tokens := make([]string, len(requests))
	for i, r := range requests {
		owners[i], tokens[i] = "'"+r.ID+"'", fmt.Sprint(r.Seen)
	}
	mine := "owner IN (" + strings.Join(owners, ", ") + ")"
	return update(table, key, fmt.Sprintf("token = token + 1, expires_at = CASE WHEN %s THEN %s ELSE expires_at END",
		mine, free),
		fmt.Sprintf("(%s OR token IN (%s))", mine, strings.Join(tokens, ", ")))
}

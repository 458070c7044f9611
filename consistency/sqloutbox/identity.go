package sqloutbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// Identity implements consistency.QueueIdentity. It returns "" for SQLite, whose relays ask no
// server, and otherwise a text with the namespace, the table, the database and what identifies the
// running server. After a failover it is another one.
func (o *Outbox) Identity(ctx context.Context) (string, error) {
	if o.text.dialect == SQLite {
		return "", nil
	}
	parts := []string{o.text.table, o.namespace()}
	if parts[1] == "" {
		return "", errNoNamespace
	}
	err := o.reading(ctx, func(on querier) error {
		server, err := o.server(ctx, on)
		parts = append(parts[:2], server...)
		return err
	})
	if err != nil {
		return "", o.failed("identity", err)
	}
	return strings.Join(parts, "\x00"), nil
}

// server returns what identifies the server and the database.
func (o *Outbox) server(ctx context.Context, on querier) (parts []string, err error) {
	if o.text.dialect == Postgres {
		// A copy of a server has its system identifier, but was started in another microsecond.
		var database string
		var started int64
		err = on.QueryRowContext(ctx, "SELECT pg_catalog.current_database()::text, "+
			"(extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint").Scan(&database, &started)
		return []string{database, fmt.Sprint(started)}, err
	}
	// MariaDB and MySQL have different variables.
	rows, err := on.QueryContext(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN "+
		"('hostname', 'port', 'datadir', 'server_id', 'server_uid', 'server_uuid')")
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is checked
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		parts = append(parts, strings.ToLower(name)+"="+value)
	}
	slices.Sort(parts)
	if strings.Contains(o.text.name, ".") { // the table has a database
		return parts, rows.Err()
	}
	var database *string
	err = cmp.Or(rows.Err(), on.QueryRowContext(ctx, "SELECT DATABASE()").Scan(&database))
	if err == nil && database != nil {
		parts = append(parts, *database)
	}
	return parts, err
}

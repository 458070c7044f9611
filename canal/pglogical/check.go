package pglogical

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cacheaside/cacheaside/canal/event"
)

// inspect reads the catalog, and returns an error if changes of a needed table would not be
// published, or could not be understood. If create is set, it first creates what is missing.
func (s *session) inspect(ctx context.Context, name string, create bool, need event.Need) (*catalog, error) {
	c, err := s.catalog(ctx, name, need)
	if err != nil {
		return nil, err
	}
	if create {
		changed, err := s.publish(ctx, name, c)
		if err != nil {
			return nil, err
		}
		if changed {
			if c, err = s.catalog(ctx, name, need); err != nil {
				return nil, err
			}
		}
	}
	return c, c.check(name, need)
}

func (c *catalog) check(name string, need event.Need) error {
	p := c.publication
	quoted := pgx.Identifier{name}.Sanitize()
	switch {
	case !p.Exists:
		return setup("the publication %s does not exist: CREATE PUBLICATION %s%s", name, quoted, c.forTables(need))
	case !p.Insert || !p.Update || !p.Delete || !p.Truncate:
		return setup("the publication %s does not publish all operations: ALTER PUBLICATION %s SET (publish = 'insert, update, delete, truncate')", name, quoted)
	}
	for _, t := range sortedTables(need) {
		if is := c.tables[t]; is != nil && is.whyNotLogged() == "" {
			if err := is.check(name, need.Tables[t], p); err != nil {
				return err
			}
		}
	}
	return nil
}

// forTables returns the clause of CREATE PUBLICATION that names the needed tables. A publication
// can have none.
func (c *catalog) forTables(need event.Need) string {
	if len(need.Tables) == 0 {
		return ""
	}
	var all []string
	for _, t := range sortedTables(need) {
		all = append(all, pgx.Identifier{t.Schema, t.Name}.Sanitize())
	}
	return " FOR TABLE " + strings.Join(all, ", ")
}

// check returns an error if changes of the table would not be published under its name, or if they
// would lack one of the columns. Bindings make keys of these.
func (t *table) check(name string, columns []string, p publication) error {
	quoted, table := pgx.Identifier{name}.Sanitize(), pgx.Identifier{t.Schema, t.Name}.Sanitize()
	for _, m := range t.members {
		switch {
		case !m.Published:
			return setup("the publication %s lacks the table %s: ALTER PUBLICATION %s ADD TABLE %s", name, m.Name, quoted, table)
		case m.Filtered:
			return setup("the publication %s has a row filter (WHERE) for the table %s, which hides changes: remove it with ALTER PUBLICATION %s SET TABLE …", name, m.Name, quoted)
		case p.ViaRoot && !slices.ContainsFunc(t.members, func(n member) bool { return n.Name == m.Top }):
			return setup("the publication %s publishes changes of %s as those of %s (publish_via_partition_root): bind %s, or ALTER PUBLICATION %s SET (publish_via_partition_root = false)", name, m.Name, m.Top, m.Top, quoted)
		}
		if err := m.check(name, columns, p); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error if one of the columns is not in the log, or not in the old row of a
// change. Bindings make keys of these.
func (m member) check(name string, columns []string, p publication) error {
	table := m.quoted()
	has := func(all []string, column string) (n int) {
		for _, a := range all {
			if strings.EqualFold(a, column) {
				n++
			}
		}
		return n
	}
	if m.Leaf && len(columns) > 0 && !m.full() && len(m.Key) == 0 {
		return setup("the table %s has no replica identity, so that an UPDATE or DELETE fails or is not understood: add a primary key, or ALTER TABLE %s REPLICA IDENTITY FULL", m.Name, table)
	}
	for _, column := range columns {
		switch n := has(m.Logged, column); {
		case n == 0:
			return setup("the table %s has no column %s, or it is generated: a Binding makes keys of it, and it is not in the log", m.Name, column)
		case n > 1:
			return setup("the table %s has several columns %s, which differ in case: a Binding cannot make keys of one of them", m.Name, column)
		case m.Listed != nil && has(m.Listed, column) == 0:
			return setup("the publication %s has a column list for the table %s, which lacks %s: a Binding makes keys of it", name, m.Name, column)
		case m.Leaf && !m.full() && has(m.Key, column) == 0 && m.refused(p.Generated):
			return setup("the REPLICA IDENTITY of the table %s has the columns (%s), and an UPDATE or DELETE logs only these of the old row; a Binding makes keys of %s: ALTER TABLE %s REPLICA IDENTITY USING INDEX …, with an index that contains it. With FULL the server would refuse UPDATE and DELETE, because the table has generated columns that are not published", m.Name, strings.Join(m.Key, ", "), column, table)
		case m.Leaf && !m.full() && has(m.Key, column) == 0:
			return setup("the REPLICA IDENTITY of the table %s has the columns (%s), and an UPDATE or DELETE logs only these of the old row; a Binding makes keys of %s: ALTER TABLE %s REPLICA IDENTITY FULL", m.Name, strings.Join(m.Key, ", "), column, table)
		}
	}
	return nil
}

// quoted returns the name of the relation for a statement.
func (m member) quoted() string { return pgx.Identifier(strings.SplitN(m.Name, ".", 2)).Sanitize() }

// whyNotLogged returns the reason why no change of a table can arrive, or "".
func (t *table) whyNotLogged() string {
	switch {
	case t.kind == 'v' || t.kind == 'm':
		return "it is a view: bind the tables that it reads, because the log only contains their changes"
	case t.kind == 'f':
		return "it is a foreign table: its changes are not in the log of this server"
	case t.kind != 'r' && t.kind != 'p':
		return "it is not a table"
	case t.persistence == 'u':
		return "it is UNLOGGED: its changes are not in the log"
	case t.persistence == 't':
		return "it is temporary: its changes are not in the log"
	}
	return ""
}

// missing returns the needed tables whose changes cannot arrive, each with the reason.
func (s *session) missing(ctx context.Context, c *catalog, need event.Need) (map[event.Table]string, error) {
	missing := map[event.Table]string{}
	for _, t := range sortedTables(need) {
		if is := c.tables[t]; is != nil {
			if why := is.whyNotLogged(); why != "" {
				missing[t] = why
			}
			continue
		}
		missing[t] = "the database has no such table"
		names, err := json.Marshal([]string{t.Schema, t.Name})
		if err != nil {
			return nil, err
		}
		rows, err := s.ask(ctx, `SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE lower(n.nspname) = lower($1::jsonb->>0) AND lower(c.relname) = lower($1::jsonb->>1) AND c.relkind IN ('r', 'p') LIMIT 1`, string(names))
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			missing[t] = "the database has " + r[0] + "." + r[1] + ": table names are case-sensitive"
		}
	}
	return missing, nil
}

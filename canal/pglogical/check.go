package pglogical

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cacheaside/cacheaside/canal/event"
)

// inspect reads the catalog, and returns an error if the publication does not suffice. If create is
// set, it first creates what is missing. If the changes of a needed table would not all be
// published, or could not be understood, this is an error only if strict is set. Otherwise
// catalog.incomplete has the table, so that the others can be followed.
func (s *session) inspect(ctx context.Context, name string, create, strict bool, need event.Need) (*catalog, error) {
	c, err := s.catalog(ctx, name, need)
	if err != nil {
		return nil, err
	}
	if create {
		changed, err := s.publish(ctx, name, c, strict, need)
		if err != nil {
			return nil, err
		}
		if changed {
			if c, err = s.catalog(ctx, name, need); err != nil {
				return nil, err
			}
		}
	}
	return c, c.check(name, strict, s.refused, need)
}

// check fills incomplete. refused has the tables that could not be added to the publication.
func (c *catalog) check(name string, strict bool, refused map[event.Table]error, need event.Need) error {
	c.incomplete = map[event.Table]string{}
	p := c.publication
	quoted := pgx.Identifier{name}.Sanitize()
	var wrong, every []string
	for _, t := range sortedTables(need) {
		is := c.tables[t]
		if is == nil || is.whyNotLogged() != "" {
			continue
		}
		problems, notLogged := is.problems(name, need.Tables[t], p)
		if err := refused[t]; err != nil && len(problems) > 0 {
			problems = append([]string{err.Error()}, problems...)
		}
		all := slices.Concat(problems, notLogged)
		wrong, every = append(wrong, problems...), append(every, all...)
		if len(all) > 0 {
			c.incomplete[t] = joined(all)
		}
	}
	switch {
	case !p.Exists:
		return setup("%s", joined(
			append([]string{fmt.Sprintf("the publication %s does not exist: CREATE PUBLICATION %s%s", name, quoted,
				c.forTables(need))}, every...)))
	case !p.Insert || !p.Update || !p.Delete || !p.Truncate:
		return setup("%s", joined(
			append([]string{fmt.Sprintf(
				"the publication %s does not publish all operations: ALTER PUBLICATION %s SET (publish = 'insert, "+
					"update, delete, truncate')", name, quoted)}, every...)))
	case strict && len(wrong) > 0:
		return setup("%s", joined(wrong))
	}
	return nil
}

// maxProblems is the maximum number of problems of tables in an error: a table can have thousands
// of partitions.
const maxProblems = 20

// joined returns the text of problems, each with the statement that corrects it.
func joined(problems []string) string {
	text := strings.Join(problems[:min(len(problems), maxProblems)], "; ")
	if more := len(problems) - maxProblems; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// forTables returns the clause of CREATE PUBLICATION that names the needed tables. A publication
// can have none.
func (c *catalog) forTables(need event.Need) string {
	var all []string
	for _, t := range sortedTables(need) {
		if is := c.tables[t]; is != nil && is.whyNotLogged() == "" {
			all = append(all, is.toPublish(func(member) bool { return true })...)
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return " FOR TABLE " + strings.Join(slices.Compact(all), ", ")
}

// toPublish returns what to add to a publication so that it has the members of a table for which
// lacking returns true. A partitioned table stands for all its partitions. Inherited tables are
// named one by one: the server refuses a table that the publication has, and a name without ONLY
// if a table that inherits from it is UNLOGGED, temporary or foreign.
func (t *table) toPublish(lacking func(member) bool) (all []string) {
	for _, m := range t.members {
		if lacking(m) && m.Kind != "f" && (t.kind == 'p' || m.Persistence != "u") {
			all = append(all, t.publishedAs(m))
		}
	}
	return slices.Compact(all)
}

// publishedAs returns the name to add to a publication, so that it has a member of a table.
func (t *table) publishedAs(m member) string {
	switch {
	case t.kind == 'p':
		return pgx.Identifier{t.Schema, t.Name}.Sanitize()
	case len(t.members) == 1:
		return m.quoted()
	}
	return "ONLY " + m.quoted()
}

// problems returns why changes of the table would not be published under its name, or would lack
// one of the columns, each with the statement that corrects it. Bindings make keys of the columns.
// notLogged has the same for members whose changes are not in the log.
func (t *table) problems(name string, columns []string, p publication) (all, notLogged []string) {
	for _, m := range t.members {
		parent := pgx.Identifier(strings.SplitN(m.Parent, ".", 2)).Sanitize()
		switch {
		case m.Kind == "f" && m.Partition:
			notLogged = append(notLogged,
				fmt.Sprintf("the partition %s is a foreign table, whose changes are not in the log of this server: "+
					"ALTER TABLE %s DETACH PARTITION %s, or bind the other partitions instead of the table", m.Name,
					parent, m.quoted()))
		case m.Kind == "f":
			notLogged = append(notLogged,
				fmt.Sprintf("the table %s, which inherits from it, is a foreign table, whose changes are not in the "+
					"log of this server: ALTER FOREIGN TABLE %s NO INHERIT %s", m.Name, m.quoted(), parent))
		case m.Leaf && m.Persistence == "u":
			notLogged = append(notLogged,
				fmt.Sprintf("the table %s, whose rows are rows of it, is UNLOGGED, so that its changes are not in "+
					"the log: ALTER TABLE %s SET LOGGED", m.Name, m.quoted()))
			notLogged = append(notLogged, t.problemsOf(m, name, columns, p)...)
		default:
			all = append(all, t.problemsOf(m, name, columns, p)...)
		}
	}
	return unique(all), notLogged
}

// problemsOf returns the problems of a member.
func (t *table) problemsOf(m member, name string, columns []string, p publication) (all []string) {
	quoted := pgx.Identifier{name}.Sanitize()
	switch {
	case !m.Published && !p.Exists && (t.kind == 'p' || m.Persistence != "u"): // CREATE PUBLICATION names it
	case !m.Published && t.kind == 'p':
		all = append(all, fmt.Sprintf("the publication %s lacks the table %s.%s: ALTER PUBLICATION %s ADD TABLE %s",
			name, t.Schema, t.Name, quoted, t.publishedAs(m)))
	case !m.Published:
		all = append(all, fmt.Sprintf("the publication %s lacks the table %s: ALTER PUBLICATION %s ADD TABLE %s", name,
			m.Name, quoted, t.publishedAs(m)))
	case m.Filtered:
		all = append(all, fmt.Sprintf(
			"the publication %s has a row filter (WHERE) for the table %s, which hides changes: remove it with ALTER "+
				"PUBLICATION %s SET TABLE …", name, m.Name, quoted))
	case p.ViaRoot && !slices.ContainsFunc(t.members, func(n member) bool { return n.Name == m.Top }):
		all = append(all, fmt.Sprintf(
			"the publication %s publishes changes of %s as those of %s (publish_via_partition_root): bind %s, or "+
				"ALTER PUBLICATION %s SET (publish_via_partition_root = false)", name, m.Name, m.Top, m.Top, quoted))
	}
	if reason := m.check(name, columns, p); reason != "" {
		all = append(all, reason)
	}
	return all
}

// unique returns texts without repetitions.
func unique(texts []string) (all []string) {
	seen := map[string]bool{}
	for _, text := range texts {
		if !seen[text] {
			seen[text] = true
			all = append(all, text)
		}
	}
	return all
}

// check returns why one of the columns is not in the log, or not in the old row of a change, with
// the statement that corrects it; or "". Bindings make keys of these.
func (m member) check(name string, columns []string, p publication) string {
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
		return fmt.Sprintf("the table %s has no replica identity, so that an UPDATE or DELETE fails or is not "+
			"understood: add a primary key, or ALTER TABLE %s REPLICA IDENTITY FULL", m.Name, table)
	}
	for _, column := range columns {
		switch n := has(m.Logged, column); {
		case n == 0:
			return fmt.Sprintf("the table %s has no column %s, or it is generated: a Binding makes keys of it, and "+
				"it is not in the log", m.Name, column)
		case n > 1:
			return fmt.Sprintf("the table %s has several columns %s, which differ in case: a Binding cannot make "+
				"keys of one of them", m.Name, column)
		case m.Listed != nil && has(m.Listed, column) == 0:
			return fmt.Sprintf("the publication %s has a column list for the table %s, which lacks %s: a Binding "+
				"makes keys of it", name, m.Name, column)
		case m.Leaf && !m.full() && has(m.Key, column) == 0 && m.refused(p.Generated):
			return fmt.Sprintf("the REPLICA IDENTITY of the table %s has the columns (%s), and an UPDATE or DELETE "+
				"logs only these of the old row; a Binding makes keys of %s: ALTER TABLE %s REPLICA IDENTITY USING "+
				"INDEX …, with an index that contains it. With FULL the server would refuse UPDATE and DELETE, "+
				"because the table has generated columns that are not published", m.Name, strings.Join(m.Key,
				", "), column, table)
		case m.Leaf && !m.full() && has(m.Key, column) == 0:
			return fmt.Sprintf("the REPLICA IDENTITY of the table %s has the columns (%s), and an UPDATE or DELETE "+
				"logs only these of the old row; a Binding makes keys of %s: ALTER TABLE %s REPLICA IDENTITY FULL",
				m.Name, strings.Join(m.Key, ", "), column, table)
		}
	}
	return ""
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
			if reason := is.whyNotLogged(); reason != "" {
				missing[t] = reason
			}
			continue
		}
		missing[t] = "the database has no such table"
		names, err := json.Marshal([]string{t.Schema, t.Name})
		if err != nil {
			return nil, err
		}
		rows, err := s.ask(ctx, `SELECT n.nspname, c.relname FROM pg_class c
			JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE lower(n.nspname) = lower($1::jsonb->>0) AND lower(c.relname) = lower($1::jsonb->>1)
				AND c.relkind IN ('r', 'p') LIMIT 1`, string(names))
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			missing[t] = "the database has " + r[0] + "." + r[1] + ": table names are case-sensitive"
		}
	}
	return missing, nil
}

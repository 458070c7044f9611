package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
	"github.com/cacheaside/cacheaside/internal/sqldb"
)

// rights are the least rights of a user on the table of a part. docs/guides/database.md lists them.
type rights struct {
	part, why       string
	postgres, mysql string
}

// writerRights are the rights of a Writer whose relay runs as another user.
var writerRights = rights{partOutbox, "A Writer adds and deletes its own rows.",
	"INSERT, SELECT (namespace, id), DELETE", "SELECT, INSERT, UPDATE, DELETE"}

// appRights are the rights of programs with all parts.
var appRights = []rights{
	{partOutbox, "A relay claims, executes and deletes the rows of all Writers.",
		"SELECT, INSERT, UPDATE, DELETE", "SELECT, INSERT, UPDATE, DELETE"},
	{partCheckpoint, "A Consumer saves its position, and reads it when it starts.",
		"SELECT, INSERT, UPDATE", "SELECT, INSERT, UPDATE"},
	{partParked, "A Consumer parks changes; operators list and remove them.",
		"SELECT, INSERT, DELETE", "SELECT, INSERT, DELETE"},
	{partLocks, "Locks are acquired, extended and released.",
		"SELECT, INSERT, UPDATE", "SELECT, INSERT, UPDATE"},
}

// The right to read the log.
const (
	postgresLogRight = "REPLICATION"
	mysqlLogRight    = "REPLICATION SLAVE"
)

// role is a user with rights on tables.
type role struct {
	name   string // "": the user of the session
	why    string
	rights []rights
}

// on returns the rights for GRANT.
func (r rights) on(dialect sqloutbox.Dialect) string {
	if dialect == sqloutbox.MySQL {
		return r.mysql
	}
	return r.postgres
}

// roleSteps returns the users and their rights.
func (s *schema) roleSteps() (all []step) {
	if !s.has(partRoles) {
		return nil
	}
	roles := []role{{s.appRole, "The user of the programs. Add the rights on your own tables.", appRights}}
	if s.writer != "" {
		roles = append(roles, role{s.writer, "The user of programs that only write, and whose relay runs elsewhere.",
			[]rights{writerRights}})
	}
	for _, r := range roles {
		r.rights = slices.DeleteFunc(slices.Clone(r.rights), func(r rights) bool { return !s.has(r.part) })
		if len(r.rights) == 0 {
			continue
		}
		if r.name != "" { // the user of the session exists
			all = append(all, s.userStep(r.name, r.why, ""))
		}
		all = append(all, s.usageSteps(r)...)
		for _, right := range r.rights {
			all = append(all, s.grantStep(r.name, right))
		}
	}
	if s.has(partLog) && s.logRole != "" {
		all = append(all, s.logUserSteps()...)
	}
	return all
}

// userStep creates a user without a password.
func (s *schema) userStep(name, why, attributes string) step {
	if s.dialect == sqloutbox.MySQL {
		account := s.account(name)
		create := "CREATE USER IF NOT EXISTS " + account + " ACCOUNT LOCK;"
		return step{Part: partRoles, SQL: create,
			Why: why + " It has no password yet, and is locked:\n  ALTER USER " + account +
				" IDENTIFIED BY '…' ACCOUNT UNLOCK;",
			compare: func(ctx context.Context, c *comparison) error { return s.compareAccount(ctx, c, name, create) }}
	}
	create := "DO $$ BEGIN\n  CREATE ROLE " + quoteRole(name) + " LOGIN" + attributes +
		";\nEXCEPTION WHEN duplicate_object THEN NULL; -- it exists\nEND $$;"
	return step{Part: partRoles, SQL: create,
		Why: why + " It has no password yet: \\password " + name + " in psql.",
		compare: func(ctx context.Context, c *comparison) error {
			rows, err := c.ask(ctx, "SELECT 1 AS one FROM pg_roles WHERE rolname = $1", name)
			if err == nil && len(rows) == 0 {
				c.add(partRoles, create, "the role %s does not exist", name)
			}
			return err
		}}
}

// usageSteps grant the use of the schemas that are not "public", which PostgreSQL demands.
func (s *schema) usageSteps(r role) (all []step) {
	if s.dialect != sqloutbox.Postgres {
		return nil
	}
	var done []string
	for _, right := range r.rights {
		schema, _ := splitName(s.tableOf(right.part))
		if schema == "" || slices.Contains(done, schema) {
			continue
		}
		done = append(done, schema)
		all = append(all, step{Part: partRoles, Why: "Without this the tables of the schema cannot be used.",
			SQL: "GRANT USAGE ON SCHEMA " + sqldb.QuoteStandard(schema) + " TO " + quoteRole(r.name) + ";",
			compare: func(ctx context.Context, c *comparison) error {
				rows, err := c.ask(ctx, "SELECT 1 AS one FROM pg_roles r, pg_namespace n WHERE rolname = $1 AND "+
					"nspname = $2 "+
					"AND has_schema_privilege(r.oid, n.oid, 'USAGE')", c.userOr(r.name), schema)
				if err == nil && len(rows) == 0 {
					c.add(partRoles, "GRANT USAGE ON SCHEMA "+sqldb.QuoteStandard(schema)+" TO "+
						""+quoteRole(c.userOr(r.name))+";",
						"the role %s lacks USAGE on the schema %s", c.userOr(r.name), schema)
				}
				return err
			}})
	}
	return all
}

// userOr returns the name of a role, or the user of the session if it is "".
func (c *comparison) userOr(name string) string {
	if name == "" {
		return c.user
	}
	return name
}

// grantStep grants the rights on a table.
func (s *schema) grantStep(name string, r rights) step {
	grant := func(name string) string {
		return "GRANT " + r.on(s.dialect) + " ON " + s.quoted(s.tableOf(r.part)) + " TO " + s.account(name) + ";"
	}
	return step{Part: partRoles, Why: r.why, SQL: grant(name),
		compare: func(ctx context.Context, c *comparison) error {
			if s.dialect == sqloutbox.MySQL {
				return s.compareMySQLRights(ctx, c, s.tableOf(r.part), c.userOr(s.accountOf(name)), list(r.mysql),
					grant(c.userOr(name)))
			}
			return s.comparePostgresRights(ctx, c, s.tableOf(r.part), c.userOr(name), r.postgres, grant(c.userOr(name)))
		}}
}

// account returns a user for a statement.
func (s *schema) account(name string) string {
	if s.dialect != sqloutbox.MySQL {
		return quoteRole(name)
	}
	user, host := name, "%"
	if i := strings.LastIndexByte(name, '@'); i >= 0 { // an account of the server
		user, host = name[:i], name[i+1:]
	}
	quote := func(text string) string {
		return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + "'"
	}
	return quote(user) + "@" + quote(host)
}

// accountOf returns the account of MySQL for a name of the flags, or "".
func (s *schema) accountOf(name string) string {
	if name == "" {
		return ""
	}
	return name + "@%"
}

func quoteRole(name string) string { return pgx.Identifier{name}.Sanitize() }

// comparePostgresRights compares the rights on a table, and its row-level security.
func (s *schema) comparePostgresRights(
	ctx context.Context, c *comparison, table, name, wanted, grant string,
) error {
	const known = "SELECT %s FROM pg_roles r, pg_class t WHERE rolname = $1 AND t.oid = to_regclass($2)"
	var terms []string
	for _, privilege := range topLevel(wanted) {
		verb, columns, some := strings.Cut(strings.TrimSuffix(privilege, ")"), " (")
		if !some {
			terms = append(terms, "has_table_privilege(r.oid, t.oid, '"+verb+"')")
		}
		for _, column := range list(columns) {
			terms = append(terms, "has_column_privilege(r.oid, t.oid, (SELECT attnum FROM pg_attribute WHERE "+
				"attrelid = "+
				"t.oid AND attname = '"+column+"'), '"+verb+"')")
		}
	}
	rows, err := c.ask(ctx, fmt.Sprintf(known, "CASE WHEN coalesce("+strings.Join(terms, " AND ")+
		", false) THEN 'yes' ELSE 'no' END AS granted, CASE WHEN t.relrowsecurity AND NOT r.rolbypassrls AND NOT "+
		"r.rolsuper AND (t.relforcerowsecurity OR NOT pg_has_role(r.oid, t.relowner, 'USAGE')) THEN 'yes' ELSE "+
		"'no' END "+
		"AS hidden"), name, s.quoted(table))
	if err != nil {
		return err
	}
	// without a row the role or the table does not exist, and the repair creates it before
	if len(rows) == 0 || rows[0]["granted"] != "yes" {
		c.add(partRoles, grant, "the role %s lacks a right on the table %s: it needs %s", name, table, wanted)
	}
	if len(rows) > 0 && rows[0]["hidden"] == "yes" {
		c.add(partRoles, "ALTER TABLE "+s.quoted(table)+" DISABLE ROW LEVEL SECURITY;",
			"row-level security hides rows of the table %s from the role %s", table, name)
	}
	return nil
}

// logUserSteps create the user that reads the log.
func (s *schema) logUserSteps() (all []step) {
	const why = "The user who reads the log for a Consumer."
	if s.dialect == sqloutbox.Postgres {
		all = append(all, s.userStep(s.logRole, why+" The attribute is enough: it needs no right on tables.",
			" "+postgresLogRight))
		repair := "ALTER ROLE " + quoteRole(s.logRole) + " " + postgresLogRight + ";"
		return append(all, step{Part: partRoles, Why: "The attribute, if the role existed before.", SQL: repair,
			compare: func(ctx context.Context, c *comparison) error {
				rows, err := c.ask(ctx, "SELECT 1 AS one FROM pg_roles WHERE rolname = $1 AND NOT rolreplication "+
					"AND NOT "+
					"rolsuper", s.logRole)
				if err == nil && len(rows) > 0 {
					c.add(partRoles, repair, "the role %s lacks the attribute %s", s.logRole, postgresLogRight)
				}
				return err
			}})
	}
	all = append(all, s.userStep(s.logRole, why, ""))
	grant := "GRANT " + mysqlLogRight + " ON *.* TO " + s.account(s.logRole) + ";"
	all = append(all, step{Part: partRoles, Why: "It receives the binary log, which contains all databases of " +
		"the server.",
		SQL: grant, compare: func(ctx context.Context, c *comparison) error {
			return s.compareMySQLRights(ctx, c, "", s.accountOf(s.logRole), []string{mysqlLogRight}, grant)
		}})
	for _, name := range slices.Concat(s.tables, s.fullSet) {
		grant := "GRANT SELECT ON " + sqldb.Quote(name) + " TO " + s.account(s.logRole) + ";"
		all = append(all, step{Part: partRoles, Why: "It reads what the log does not contain: the types of some " +
			"columns.",
			SQL: grant, compare: func(ctx context.Context, c *comparison) error {
				return s.compareMySQLRights(ctx, c, name, s.accountOf(s.logRole), []string{"SELECT"}, grant)
			}})
	}
	return all
}

// mysqlRights returns the privileges that an account has on a table, or on the whole server.
const mysqlRights = `SELECT PRIVILEGE_TYPE AS name FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = ?
	UNION SELECT PRIVILEGE_TYPE FROM information_schema.SCHEMA_PRIVILEGES
	WHERE GRANTEE = ? AND COALESCE(NULLIF(?, ''), DATABASE()) LIKE TABLE_SCHEMA
	UNION SELECT PRIVILEGE_TYPE FROM information_schema.TABLE_PRIVILEGES
	WHERE GRANTEE = ? AND TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ?`

// compareMySQLRights compares rights on a table, or on the server if table is "". The server shows
// the rights of another account only to users that can read mysql.user, and does not show those
// that an account has by a role.
func (s *schema) compareMySQLRights(
	ctx context.Context, c *comparison, table, account string, wanted []string, grant string,
) error {
	if _, known, err := s.exists(ctx, c, account); err != nil || !known {
		return err
	}
	schema, name := splitName(table)
	grantee := s.account(account)
	rows, err := c.ask(ctx, mysqlRights, grantee, grantee, schema, grantee, schema, name)
	if err != nil {
		return err
	}
	var lacking []string
	for _, privilege := range wanted {
		if !slices.ContainsFunc(rows, func(r map[string]string) bool {
			return strings.EqualFold(r["name"],
				privilege)
		}) {
			lacking = append(lacking, privilege)
		}
	}
	where := "the table " + table
	if table == "" {
		where = "the server"
	}
	if len(lacking) > 0 {
		c.add(partRoles, grant, "the user %s lacks %s on %s", account, strings.Join(lacking, ", "), where)
	}
	return nil
}

// exists reports whether an account exists. known is false, and c.skip has a note, if the user of
// the session may not know that.
func (s *schema) exists(ctx context.Context, c *comparison, account string) (exists, known bool, err error) {
	if account == c.user {
		return true, true, nil
	}
	i := strings.LastIndexByte(account, '@')
	rows, err := c.ask(ctx, "SELECT 1 AS one FROM mysql.user WHERE User = ? AND Host = ?", account[:i], account[i+1:])
	if refused(err) {
		note := "not checked: the rights of " + account + ", because the user of the DSN may not read mysql.user"
		if !slices.Contains(c.skip, note) {
			c.skip = append(c.skip, note)
		}
		return false, false, nil
	}
	return len(rows) > 0, err == nil, err
}

func (s *schema) compareAccount(ctx context.Context, c *comparison, name, create string) error {
	account := s.accountOf(name)
	exists, known, err := s.exists(ctx, c, account)
	if known && !exists {
		c.add(partRoles, create, "the user %s does not exist", account)
	}
	return err
}

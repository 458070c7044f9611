package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cacheaside/cacheaside/internal/sqldb"
)

// postgresLog returns the steps of package pglogical: the publication, its tables, and the slot.
func (s *schema) postgresLog() (all []step) {
	if !s.has(partLog) {
		return nil
	}
	level := step{Part: partLog,
		Why: "The log must contain the changes of rows. If SHOW wal_level is not logical, execute this, and " +
			"restart the server:\n" +
			"  ALTER SYSTEM SET wal_level = logical;\n" +
			"Also set max_slot_wal_keep_size, so that a Consumer that is down cannot fill the disk.",
		compare: func(ctx context.Context, c *comparison) error {
			rows, err := c.ask(ctx, "SELECT current_setting('wal_level') AS level")
			if err == nil && len(rows) > 0 && rows[0]["level"] != "logical" {
				c.add(partLog, "ALTER SYSTEM SET wal_level = logical; -- then restart the server",
					"wal_level is %s: it must be logical", rows[0]["level"])
			}
			return err
		}}
	publication := sqldb.QuoteStandard(s.publication)
	pub := step{Part: partLog,
		Why: "The publication: the changes of its tables are sent to the Consumer. PostgreSQL 18 and later must also " +
			"publish stored generated columns, or would refuse UPDATE and DELETE of some tables.",
		SQL: unless("SELECT FROM pg_publication WHERE pubname = '"+s.publication+"'", 180000,
			"CREATE PUBLICATION "+publication+" WITH (publish_generated_columns = stored)",
			"CREATE PUBLICATION "+publication)}
	pub.compare = func(ctx context.Context, c *comparison) error { return s.comparePublication(ctx, c, pub.SQL) }
	all = append(all, level, pub)
	if len(s.tables)+len(s.fullSet) == 0 {
		all = append(all, step{Part: partLog, Why: "The publication has no tables: name those that a Consumer " +
			"follows by " +
			"--tables and --full-tables.\nAn outbox in the log needs none."})
	}
	for _, name := range slices.Concat(s.tables, s.fullSet) {
		all = append(all, s.publishedStep(name))
	}
	for _, name := range s.fullSet {
		all = append(all, step{Part: partLog,
			Why: fmt.Sprintf("Without this an UPDATE or DELETE logs only the primary key of the old row of %s, "+
				"and keys or "+
				"groups are made of other columns. Of a partitioned table, execute it for each partition, as "+
				"--check prints it.", name),
			SQL: "ALTER TABLE " + sqldb.OwnPostgres(name) + " REPLICA IDENTITY FULL;"})
	}
	slot := step{Part: partLog,
		Why: "The replication slot: the server keeps its log until the Consumer has handled it, so create it " +
			"only if a " +
			"Consumer will run, and drop it with the Consumer. It must be younger than the publication. This cannot " +
			"be executed in a transaction that has written something (psql -1).",
		SQL: unless("SELECT FROM pg_replication_slots WHERE slot_name = '"+s.slot+"'", 170000,
			"SELECT pg_create_logical_replication_slot('"+s.slot+"', 'pgoutput', failover => true)",
			"SELECT pg_create_logical_replication_slot('"+s.slot+"', 'pgoutput')")}
	slot.compare = func(ctx context.Context, c *comparison) error { return s.compareSlot(ctx, c, slot.SQL) }
	return append(all, slot)
}

// unless returns a block that executes a statement unless a query has a row. The statement depends
// on the version of the server.
func unless(query string, version int, newer, older string) string {
	literal := func(statement string) string { return "'" + strings.ReplaceAll(statement, "'", "''") + "'" }
	return fmt.Sprintf("DO $$ BEGIN\n"+
		"  IF NOT EXISTS (%s) THEN\n"+
		"    IF current_setting('server_version_num')::int >= %d THEN\n"+
		"      EXECUTE %s;\n"+
		"    ELSE\n"+
		"      EXECUTE %s;\n"+
		"    END IF;\n"+
		"  END IF;\n"+
		"END $$;", query, version, literal(newer), literal(older))
}

func (s *schema) comparePublication(ctx context.Context, c *comparison, create string) error {
	rows, err := c.ask(ctx, `SELECT CASE WHEN pubinsert AND pubupdate AND pubdelete AND pubtruncate THEN 'yes'
		ELSE 'no' END AS every FROM pg_publication WHERE pubname = $1`, s.publication)
	switch {
	case err != nil:
		return err
	case len(rows) == 0:
		c.add(partLog, create, "the publication %s does not exist", s.publication)
	case rows[0]["every"] != "yes":
		c.add(partLog, "ALTER PUBLICATION "+sqldb.QuoteStandard(s.publication)+
			" SET (publish = 'insert, update, delete, truncate');",
			"the publication %s does not publish all operations", s.publication)
	}
	return nil
}

// publishedStep adds a table to the publication.
func (s *schema) publishedStep(name string) step {
	table := sqldb.OwnPostgres(name)
	add := "DO $$ BEGIN\n  ALTER PUBLICATION " + sqldb.QuoteStandard(s.publication) + " ADD TABLE " + table +
		";\nEXCEPTION WHEN duplicate_object THEN NULL; -- it has the table\nEND $$;"
	return step{Part: partLog, Why: "A Consumer follows the table " + name + ".", SQL: add,
		compare: func(ctx context.Context, c *comparison) error {
			return s.compareFollowed(ctx, c, name, add)
		}}
}

// leavesQuery returns the relations that hold the rows of the table $1, and whether the publication
// $2 publishes them.
const leavesQuery = `WITH top AS (SELECT to_regclass($1)::oid AS oid),
	leaves AS (SELECT c.oid FROM pg_class c, top WHERE c.oid = top.oid AND c.relkind <> 'p'
		UNION SELECT t.relid FROM top, pg_partition_tree(top.oid) t WHERE t.isleaf)
	SELECT format('%I.%I', n.nspname, c.relname) AS name, c.relreplident::text AS identity, c.relkind::text AS kind,
	c.relpersistence::text AS persistence,
	CASE WHEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
		THEN 'yes' ELSE 'no' END AS key,
	CASE WHEN EXISTS (SELECT FROM pg_publication_tables p JOIN pg_namespace pn ON pn.nspname = p.schemaname
		JOIN pg_class pc ON pc.relname = p.tablename AND pc.relnamespace = pn.oid
		WHERE p.pubname = $2 AND (pc.oid = c.oid OR pc.oid IN (SELECT pg_partition_ancestors(c.oid))))
		THEN 'yes' ELSE 'no' END AS published
	FROM leaves l JOIN pg_class c ON c.oid = l.oid JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1`

func (s *schema) compareFollowed(ctx context.Context, c *comparison, name, add string) error {
	rows, err := c.ask(ctx, leavesQuery, sqldb.OwnPostgres(name), s.publication)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		c.add(partLog, "", "the table %s, which a Consumer should follow, does not exist, or has no partitions", name)
		return nil
	}
	published := true
	for _, r := range rows {
		identity := "ALTER TABLE " + r["name"] + " REPLICA IDENTITY FULL;"
		published = published && r["published"] == "yes"
		switch {
		case r["kind"] != "r":
			c.add(partLog, "", "%s is a view or a foreign table: its changes are not in the log", r["name"])
		case r["persistence"] != "p":
			c.add(partLog, "ALTER TABLE "+r["name"]+" SET LOGGED;", "the table %s is UNLOGGED: its changes are "+
				"not in the log",
				r["name"])
		case slices.Contains(s.fullSet, name) && r["identity"] != "f":
			c.add(partLog, identity, "the REPLICA IDENTITY of the table %s is not FULL, so that the log lacks "+
				"columns of "+
				"its old rows", r["name"])
		case r["identity"] == "n" || r["identity"] == "d" && r["key"] != "yes":
			c.add(partLog, identity, "the table %s has no replica identity, so that an UPDATE or DELETE fails; a "+
				"primary "+
				"key is also enough", r["name"])
		}
	}
	if !published {
		c.add(partLog, add, "the publication %s lacks the table %s", s.publication, name)
	}
	return nil
}

func (s *schema) compareSlot(ctx context.Context, c *comparison, create string) error {
	rows, err := c.ask(ctx, slotQuery, s.slot)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		c.add(partLog, create, "the slot %s does not exist, so that the server does not keep its log for a Consumer",
			s.slot)
		return nil
	}
	is := newSlot(s.slot, rows[0])
	rows, err = c.ask(ctx, "SELECT current_database()::text AS name")
	if err != nil || len(rows) == 0 {
		return orNothing(err)
	}
	for _, set := range is.settings(rows[0]["name"]) {
		c.add(partLog, "", "the slot %s has %s = %s: %s", s.slot, set.Name, set.Value, set.Needed)
	}
	if is.Status == "lost" {
		c.add(partLog, "SELECT pg_drop_replication_slot('"+s.slot+"');\n"+create,
			"the slot %s is invalid: the server has removed its log", s.slot)
	}
	return nil
}

// mysqlLog returns the steps of package mysqlbinlog.
func (s *schema) mysqlLog() (all []step) {
	if !s.has(partLog) {
		return nil
	}
	all = append(all, step{Part: partLog,
		Why: "The binary log must contain whole rows, with the names of their columns. In the server's " +
			"configuration:\n" +
			"  log_bin\n  binlog_format       = ROW\n  binlog_row_metadata = FULL\n" +
			"  binlog_row_image    = FULL  # MINIMAL is enough if all keys and groups are made of primary keys\n" +
			"  gtid_mode           = ON    # MySQL only; with enforce_gtid_consistency",
		compare: s.compareBinlog})
	for _, name := range slices.Concat(s.tables, s.fullSet) {
		schema, table := splitName(name)
		all = append(all, step{Part: partLog,
			compare: func(ctx context.Context, c *comparison) error {
				rows, err := c.ask(ctx, "SELECT 1 AS one FROM information_schema.TABLES WHERE TABLE_SCHEMA = "+
					"COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ? AND TABLE_TYPE LIKE '%TABLE%' OR "+
					"TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ? AND TABLE_TYPE = "+
					"'SYSTEM VERSIONED'", schema, table, schema, table)
				if err == nil && len(rows) == 0 {
					c.add(partLog, "", "the table %s, which a Consumer should follow, does not exist, or the "+
						"user of the DSN "+
						"has no right on it", name)
				}
				return err
			}})
	}
	return all
}

// binlogRepairs are the statements for settings that a running server can change.
var binlogRepairs = map[string]string{
	"binlog_format": "ROW", "binlog_row_metadata": "FULL", "binlog_row_image": "FULL",
}

func (s *schema) compareBinlog(ctx context.Context, c *comparison) error {
	var is serverStatus
	rows, err := c.ask(ctx, "SELECT VERSION() AS version")
	if err != nil || len(rows) == 0 {
		return orNothing(err)
	}
	is.mariadb = strings.Contains(rows[0]["version"], "MariaDB")
	if err := is.settings(ctx, c.ask); err != nil {
		return err
	}
	for _, set := range is.Settings {
		if set.OK || set.Name == "binlog_row_image" && set.Value == "MINIMAL" && len(s.fullSet) == 0 {
			continue
		}
		repair := ""
		if value := binlogRepairs[set.Name]; value != "" {
			repair = fmt.Sprintf("SET GLOBAL %s = '%s'; -- and in the server's configuration", set.Name, value)
		}
		c.add(partLog, repair, "%s is %q: %s. Set it in the server's configuration", set.Name, set.Value, set.Needed)
	}
	return nil
}

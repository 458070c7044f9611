package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/consistency/sqloutbox"
)

// The parts of a schema.
const (
	partOutbox     = "outbox"
	partCheckpoint = "checkpoint"
	partParked     = "parked"
	partLocks      = "locks"
	partLog        = "log"
	partRoles      = "roles"
)

const schemaLong = `Each statement follows a comment that says why it is needed. The output can be reviewed,
edited and passed to %s as it is. A second run of it changes nothing. Passwords are
not part of it.
With --check it compares the database of the DSN with all that, and prints what is missing or
differs: each as a comment, followed by the SQL that repairs it. It changes nothing itself.
Exit code 1: something is missing or differs.`

var schemaPostgresCommand = schemaCommand(sqloutbox.Postgres, "postgres", "PostgreSQL", "psql",
	"schema postgres --tables products,categories")

var schemaMySQLCommand = schemaCommand(sqloutbox.MySQL, "mysql", "MySQL and MariaDB", "mysql",
	"schema mysql --parts outbox,roles")

var schemaSQLiteCommand = command{
	name: "schema sqlite", args: "",
	short: "print the tables that the library needs on SQLite",
	long: `Prints the tables that the library needs on SQLite, each after a comment that says why. The
output can be passed to sqlite3 as it is. A second run of it changes nothing.`,
	example: "schema sqlite --parts outbox",
	prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
		s := &schema{tool: t, dialect: sqloutbox.SQLite, name: "sqlite"}
		s.registerTables(flags)
		return s.run
	},
}

func schemaCommand(dialect sqloutbox.Dialect, name, database, client, example string) command {
	return command{
		name: "schema " + name, args: "",
		short: "print all that a DBA runs for the library on " + database + ", or check it",
		long: "Prints all that the library needs on " + database + ": tables, what a Consumer of the log\n" +
			"reads, and users with their least rights. " + fmt.Sprintf(schemaLong, client),
		example: example,
		prepare: func(t *tool, flags *flag.FlagSet) func(context.Context, []string) error {
			s := &schema{tool: t, dialect: dialect, name: name}
			s.registerTables(flags)
			s.registerLog(flags)
			return s.run
		},
	}
}

// schema is one run of the commands.
type schema struct {
	*tool
	dialect sqloutbox.Dialect
	name    string // of the dialect in the command

	parts, schema                     string
	outbox, checkpoint, parked, locks string

	check                     bool
	followed, full            string
	publication, slot         string
	appRole, writer, logRole  string
	partList, tables, fullSet []string
}

func (s *schema) registerTables(flags *flag.FlagSet) {
	flags.StringVar(&s.parts, "parts", strings.Join(s.allParts(), ","),
		"the `PARTS`, separated by commas. Default: all of "+strings.Join(s.allParts(), ","))
	flags.StringVar(&s.outbox, "outbox-table", "cacheaside_outbox",
		"sqloutbox.Options.Table: the `TABLE` of the outbox. Default: cacheaside_outbox")
	flags.StringVar(&s.checkpoint, "checkpoint-table", "cacheaside_checkpoint",
		"SQLCheckpointOptions.Table: the `TABLE` of the positions of Consumers. Default: cacheaside_checkpoint")
	flags.StringVar(&s.parked, "parking-table", "cacheaside_parked",
		"parking.TableOptions.Table: the `TABLE` of parked changes. Default: cacheaside_parked")
	if s.dialect == sqloutbox.SQLite {
		return
	}
	flags.StringVar(&s.locks, "locks-table", "cacheaside_locks",
		"Options.Table of pglock and mysqllock: the `TABLE` of locks. Default: cacheaside_locks")
	flags.StringVar(&s.schema, "schema", "",
		"the `SCHEMA` (in MySQL the database) of those tables whose name has none. Default: public in PostgreSQL, "+
			"the database of the session in MySQL")
}

func (s *schema) registerLog(flags *flag.FlagSet) {
	flags.BoolVar(&s.check, "check", false, "compare the database of the DSN, and print what repairs it")
	flags.StringVar(&s.followed, "tables", "",
		"the `TABLES` that a Consumer follows, separated by commas: all whose keys and groups are made of columns of "+
			"the primary key")
	flags.StringVar(&s.full, "full-tables", "",
		"more such `TABLES`, whose keys or groups are made of other columns: the log must hold their old rows whole")
	flags.StringVar(&s.appRole, "app-role", "",
		"the `USER` of the programs: Writer, relay, lock, checkpoint and parked changes. Default: "+
			"cacheaside_app, with "+
			"--check the user of the DSN")
	flags.StringVar(&s.writer, "writer-role", "",
		"the `USER` of programs that only write, and whose relay runs elsewhere. Default: none")
	flags.StringVar(&s.logRole, "log-role", "cacheaside_log",
		"the `USER` who reads the log for a Consumer. Default: cacheaside_log")
	if s.dialect == sqloutbox.Postgres {
		flags.StringVar(&s.publication, "publication", "cacheaside",
			"pglogical.Options.Publication: its `NAME`. Default: cacheaside")
		flags.StringVar(&s.slot, "slot", "cacheaside",
			"pglogical.Options.Slot: the `NAME` of the replication slot. Default: cacheaside")
	}
}

func (s *schema) allParts() []string {
	all := []string{partOutbox, partCheckpoint, partParked, partLocks, partLog, partRoles}
	if s.dialect == sqloutbox.SQLite {
		return all[:3]
	}
	return all
}

func (s *schema) has(part string) bool { return slices.Contains(s.partList, part) }

var (
	schemaTable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)
	schemaName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)
	schemaRole  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,31}$`) // MySQL permits 32 characters
	schemaSlot  = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
)

// validate checks the flags, and splits the lists. All names that become parts of statements are
// identifiers.
func (s *schema) validate() error {
	s.partList = list(s.parts)
	s.fullSet = list(s.full)
	s.tables = slices.DeleteFunc(list(s.followed), func(t string) bool { return slices.Contains(s.fullSet, t) })
	for _, part := range s.partList {
		if !slices.Contains(s.allParts(), part) {
			return usagef("--parts: one or more of %s, separated by commas", strings.Join(s.allParts(), ", "))
		}
	}
	if len(s.partList) == 0 {
		return usagef("--parts: at least one part")
	}
	checks := []struct {
		flag, text string
		form       *regexp.Regexp
		optional   bool
	}{
		{"--schema", s.schema, schemaName, true},
		{"--outbox-table", s.outbox, schemaTable, false},
		{"--checkpoint-table", s.checkpoint, schemaTable, false},
		{"--parking-table", s.parked, schemaTable, false},
		{"--locks-table", s.locks, schemaTable, s.dialect == sqloutbox.SQLite},
		{"--app-role", s.appRole, schemaRole, true},
		{"--writer-role", s.writer, schemaRole, true},
		{"--log-role", s.logRole, schemaRole, true},
		{"--publication", s.publication, schemaName, s.dialect != sqloutbox.Postgres},
		{"--slot", s.slot, schemaSlot, s.dialect != sqloutbox.Postgres},
	}
	for _, c := range checks {
		if (c.text != "" || !c.optional) && !c.form.MatchString(c.text) {
			return usagef("%s: not a name of letters, digits and '_'", c.flag)
		}
	}
	for _, table := range slices.Concat(s.tables, s.fullSet) {
		if !schemaTable.MatchString(table) {
			return usagef("--tables, --full-tables: names of letters, digits and '_', or schema.table, separated " +
				"by commas")
		}
	}
	return nil
}

// list splits a list of a flag.
func list(text string) (all []string) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			all = append(all, item)
		}
	}
	return all
}

// step is a statement of the output.
type step struct {
	Part string `json:"part"`
	Why  string `json:"why"` // the comment, in one or more lines; empty: the step is only compared
	SQL  string `json:"sql"` // empty: nothing to execute

	// compare adds what is missing or differs in a database. It is nil if nothing can be compared.
	compare func(ctx context.Context, c *comparison) error
}

// difference is something that a database lacks, or has in another form.
type difference struct {
	Part    string `json:"part"`
	Problem string `json:"problem"`
	Repair  string `json:"repair"` // SQL; empty if no statement repairs it
}

// comparison is a database that is compared, and the result.
type comparison struct {
	ask  asker
	user string // of the session, as an account name in MySQL
	all  []difference
	skip []string // what could not be compared, and why
}

func (c *comparison) add(part, repair, problem string, args ...any) {
	c.all = append(c.all, difference{part, fmt.Sprintf(problem, args...), repair})
}

func (s *schema) run(ctx context.Context, args []string) error {
	if len(args) > 0 {
		return usagef("schema %s: it has no arguments", s.name)
	}
	if err := s.validate(); err != nil {
		return err
	}
	if !s.check {
		if s.appRole == "" {
			s.appRole = "cacheaside_app"
		}
		steps, err := s.steps()
		if err != nil {
			return err
		}
		return s.print(steps)
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	other := map[sqloutbox.Dialect]string{sqloutbox.Postgres: "schema mysql", sqloutbox.MySQL: "schema postgres"}
	c := &comparison{}
	if err := s.onlyOn(ctx, s.dialect, other[s.dialect], func(ctx context.Context, db *sqlx.DB) error {
		c.ask = askerOf(db)
		return s.compareAll(ctx, c)
	}); err != nil {
		return err
	}
	return s.report(c)
}

// compareAll executes the comparisons of all steps. A server that fails in the middle is an error.
func (s *schema) compareAll(ctx context.Context, c *comparison) error {
	rows, err := c.ask(ctx, "SELECT CURRENT_USER AS name")
	if s.dialect == sqloutbox.MySQL {
		rows, err = c.ask(ctx, "SELECT CURRENT_USER() AS name")
	}
	if err != nil || len(rows) == 0 {
		return orNothing(err)
	}
	c.user = rows[0]["name"]
	steps, err := s.steps()
	if err != nil {
		return err
	}
	for _, st := range steps {
		if st.compare == nil {
			continue
		}
		if err := st.compare(ctx, c); err != nil {
			return fmt.Errorf("checking the part %s: %w", st.Part, err)
		}
	}
	return nil
}

func (s *schema) steps() ([]step, error) {
	var all []step
	tables, err := s.tableSteps()
	if err != nil {
		return nil, err
	}
	all = append(all, tables...)
	if s.dialect == sqloutbox.Postgres {
		all = append(all, s.postgresLog()...)
	} else {
		all = append(all, s.mysqlLog()...)
	}
	return append(all, s.roleSteps()...), nil
}

// print prints the steps as SQL, or as JSON.
func (s *schema) print(steps []step) error {
	if s.json {
		return s.showJSON(steps)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "-- The schema of cacheaside, as printed by: cacheaside schema %s\n"+
		"-- It can be executed again: what exists stays as it is.\n", s.name)
	for _, st := range steps {
		if st.Why == "" { // only compared
			continue
		}
		text.WriteString("\n" + commented(st.Why))
		if st.SQL != "" {
			text.WriteString(st.SQL + "\n")
		}
	}
	_, err := fmt.Fprint(s.stdout, text.String())
	return written(err)
}

// commentWidth is the width of comments in the output.
const commentWidth = 90

// commented returns a text as comments of SQL. Lines that begin with a space are not wrapped.
// Control characters, which a name of the server can contain, are escaped: a line break would end
// the comment.
func commented(text string) string {
	var all strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		line = escape(line)
		for len(line) > commentWidth && line[0] != ' ' {
			i := strings.LastIndexByte(line[:commentWidth], ' ')
			if i < 0 {
				break
			}
			all.WriteString("-- " + line[:i] + "\n")
			line = line[i+1:]
		}
		all.WriteString("-- " + line + "\n")
	}
	return all.String()
}

// report prints the differences, and returns an error if there are any.
func (s *schema) report(c *comparison) error {
	if s.json {
		if c.all == nil {
			c.all = []difference{}
		}
		if err := s.showJSON(c.all); err != nil {
			return err
		}
	} else if err := s.reportSQL(c); err != nil {
		return err
	}
	for _, text := range c.skip {
		s.complain(errors.New(text))
	}
	if n := len(c.all); n > 0 {
		return fmt.Errorf("%s that the database lacks, or has in another form", count(n, "thing"))
	}
	return nil
}

func (s *schema) reportSQL(c *comparison) error {
	if len(c.all) == 0 {
		_, err := fmt.Fprintf(s.stdout, "-- Nothing is missing: %s.\n", strings.Join(s.partList, ", "))
		return written(err)
	}
	for i, d := range c.all {
		if i > 0 {
			fmt.Fprintln(s.stdout)
		}
		text := commented(d.Part + ": " + d.Problem)
		if d.Repair != "" {
			text += d.Repair + "\n"
		}
		if _, err := fmt.Fprint(s.stdout, text); err != nil {
			return written(err)
		}
	}
	return nil
}

package pglogical

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// following is a Consumer that has worked, of a process that caches the rows of users.
type following struct {
	*world
	*sourcetest.Process
	consumer *canal.Consumer

	mu     sync.Mutex
	alerts []canal.Alert
}

// follow starts a Consumer. The table users has the row 1, which is cached.
func (w *world) follow(edit ...func(*Options)) *following {
	w.Helper()
	w.Do("INSERT INTO users VALUES (1, 'a@x', 0)")
	p, err := sourcetest.Open("pgx", w.server.DSN(w.T), testenv.SharedRedis(w.T).Addr,
		&cacheaside.Options{Prefix: w.name}, "public", "users")
	w.Check(err)
	f := &following{world: w, Process: p}
	f.consumer, err = canal.NewConsumer(p.Cache, w.source(edit...),
		canal.NewFileCheckpoint(filepath.Join(w.TempDir(),
			"position")), p.Bindings(), &canal.Options{SaveEvery: 10 * time.Millisecond, OnAlert: func(a canal.Alert) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.alerts = append(f.alerts, a)
		}})
	w.Check(err)
	w.Cleanup(p.Close)
	w.Consume(f.consumer) // returns after the first batch: a setup error before that ends Run
	return f
}

// reads waits until both loaders find a number in the row 1.
func (f *following) reads(what, n string) {
	f.Helper()
	testenv.Eventually(f, what, func() bool {
		a, err1 := f.ByID[0].Get(f.Context(), 1)
		b, err2 := f.ByEmail[0].Get(f.Context(), "a@x")
		return err1 == nil && err2 == nil && a == "a@x "+n && b == "1 "+n
	})
}

// alerted waits for an alert with these statements in this order, and a Health that fails with
// them.
func (f *following) alerted(statements ...string) {
	f.Helper()
	testenv.Eventually(f, "an alert with "+strings.Join(statements, " and "), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, a := range f.alerts {
			if a.Err != nil && inOrder(a.Err.Error(), statements) {
				return true
			}
		}
		return false
	})
	testenv.Eventually(f, "Health fails", func() bool {
		err := f.consumer.Health(time.Minute)
		return err != nil && inOrder(err.Error(), statements)
	})
}

func inOrder(text string, parts []string) bool {
	for _, p := range parts {
		_, after, ok := strings.Cut(text, p)
		if !ok {
			return false
		}
		text = after
	}
	return true
}

// TestSlips: a mistake of an operator while a Consumer works does not end it. An alert has all
// statements of the repair, which the server accepts. After the repair, rows that changed before
// and after it are fresh.
func TestSlips(t *testing.T) {
	const table = "CREATE TABLE users (id INT PRIMARY KEY, email TEXT NOT NULL, n INT NOT NULL)"
	const parts = "CREATE TABLE users (id INT PRIMARY KEY, email TEXT NOT NULL, n INT NOT NULL) PARTITION BY RANGE " +
		"(id); CREATE TABLE users_1 PARTITION OF users FOR VALUES FROM (0) TO (10)"
	const full = "ALTER TABLE users REPLICA IDENTITY FULL"
	const ofUsers = "DROP PUBLICATION cacheaside; CREATE PUBLICATION cacheaside FOR TABLE users"
	for name, c := range map[string]struct {
		setup  []string
		slip   []string
		repair []string // in the alert; none: it repairs itself
		create bool     // Options.CreatePublication
		hidden bool     // changes arrive in spite of the slip
	}{
		"the publication is dropped":             {[]string{table, full, ofUsers}, []string{"DROP PUBLICATION cacheaside"}, []string{`CREATE PUBLICATION "cacheaside" FOR TABLE "public"."users"`}, false, true},
		"the publication is dropped, it creates": {[]string{table, full, ofUsers}, []string{"DROP PUBLICATION cacheaside"}, nil, true, true},
		"the publication and FULL are dropped":   {[]string{table, full, ofUsers}, []string{"DROP PUBLICATION cacheaside; ALTER TABLE users REPLICA IDENTITY DEFAULT"}, []string{`CREATE PUBLICATION "cacheaside" FOR TABLE "public"."users"`, `ALTER TABLE "public"."users" REPLICA IDENTITY FULL`}, false, true},
		"an operation is not published":          {[]string{table, full}, []string{"ALTER PUBLICATION cacheaside SET (publish = 'insert')"}, []string{`ALTER PUBLICATION "cacheaside" SET (publish = 'insert, update, delete, truncate')`}, false, true},
		"the table is removed":                   {[]string{table, full, ofUsers, "CREATE TABLE other (id INT)", "ALTER PUBLICATION cacheaside ADD TABLE other"}, []string{"ALTER PUBLICATION cacheaside DROP TABLE users"}, []string{`ALTER PUBLICATION "cacheaside" ADD TABLE "public"."users"`}, false, true},
		"a new partition of a FULL table":        {[]string{parts, full, "ALTER TABLE users_1 REPLICA IDENTITY FULL"}, []string{"CREATE TABLE users_2 PARTITION OF users FOR VALUES FROM (10) TO (20)"}, []string{`ALTER TABLE "public"."users_2" REPLICA IDENTITY FULL`}, false, false},
		"a changed identity":                     {[]string{table, full}, []string{"ALTER TABLE users REPLICA IDENTITY DEFAULT"}, []string{`ALTER TABLE "public"."users" REPLICA IDENTITY FULL`}, false, false},
		"a new column of the same name":          {[]string{table, full}, []string{`ALTER TABLE users ADD COLUMN "EMAIL" TEXT; ALTER TABLE users RENAME COLUMN email TO "Email"`, `ALTER TABLE users RENAME COLUMN "Email" TO email; ALTER TABLE users DROP COLUMN "EMAIL"`}, nil, false, false},
		"the table is dropped and created":       {[]string{table, full, ofUsers}, []string{"DROP TABLE users", table, "INSERT INTO users VALUES (1, 'a@x', 0)"}, []string{`ALTER PUBLICATION "cacheaside" ADD TABLE "public"."users"`, `ALTER TABLE "public"."users" REPLICA IDENTITY FULL`}, false, true},
		"the table is swapped":                   {[]string{table, full, ofUsers}, []string{"CREATE TABLE users_new (LIKE users INCLUDING ALL); INSERT INTO users_new SELECT * FROM users", "BEGIN; ALTER TABLE users RENAME TO users_old; ALTER TABLE users_new RENAME TO users; COMMIT"}, []string{`ALTER PUBLICATION "cacheaside" ADD TABLE "public"."users"`, `ALTER TABLE "public"."users" REPLICA IDENTITY FULL`}, false, true},
		"a temporary child":                      {[]string{table, full, ofUsers}, []string{"CREATE TEMP TABLE x () INHERITS (users)"}, nil, false, false},
		"a new child":                            {[]string{table, full, ofUsers}, []string{"CREATE TABLE staff () INHERITS (users)"}, []string{`ALTER PUBLICATION "cacheaside" ADD TABLE ONLY "public"."staff"`, `ALTER TABLE "public"."staff" REPLICA IDENTITY FULL`}, false, false},
		"a new child, it adds it":                {[]string{table, full, ofUsers}, []string{"CREATE TABLE staff () INHERITS (users)", "ALTER TABLE staff REPLICA IDENTITY FULL"}, nil, true, false},
		"an UNLOGGED child":                      {[]string{table, full, ofUsers}, []string{"CREATE UNLOGGED TABLE staff () INHERITS (users)", "ALTER TABLE staff REPLICA IDENTITY FULL"}, []string{`ALTER TABLE "public"."staff" SET LOGGED`, `ALTER PUBLICATION "cacheaside" ADD TABLE ONLY "public"."staff"`}, false, false},
		"an UNLOGGED child, dropped publication": {[]string{table, full, ofUsers}, []string{"DROP PUBLICATION cacheaside; CREATE UNLOGGED TABLE staff () INHERITS (users)"}, []string{`CREATE PUBLICATION "cacheaside" FOR TABLE ONLY "public"."users"`, `ALTER TABLE "public"."staff" SET LOGGED`, `ALTER PUBLICATION "cacheaside" ADD TABLE ONLY "public"."staff"`, `ALTER TABLE "public"."staff" REPLICA IDENTITY FULL`}, false, true},
		"an UNLOGGED partition":                  {[]string{parts, full, "ALTER TABLE users_1 REPLICA IDENTITY FULL", ofUsers}, []string{"CREATE UNLOGGED TABLE users_2 PARTITION OF users FOR VALUES FROM (10) TO (20); ALTER TABLE users_2 REPLICA IDENTITY FULL"}, []string{`ALTER TABLE "public"."users_2" SET LOGGED`}, false, false},
		"a foreign partition":                    {[]string{"CREATE EXTENSION file_fdw; CREATE SERVER far FOREIGN DATA WRAPPER file_fdw", "CREATE TABLE users (id INT, email TEXT NOT NULL, n INT NOT NULL) PARTITION BY RANGE (id)", "CREATE TABLE users_1 PARTITION OF users FOR VALUES FROM (0) TO (10)", "ALTER TABLE users_1 REPLICA IDENTITY FULL", ofUsers}, []string{"CREATE FOREIGN TABLE users_2 PARTITION OF users FOR VALUES FROM (10) TO (20) SERVER far OPTIONS (filename '/dev/null')"}, []string{`ALTER TABLE "public"."users" DETACH PARTITION "public"."users_2"`}, false, false},
		"a foreign child":                        {[]string{"CREATE EXTENSION file_fdw; CREATE SERVER far FOREIGN DATA WRAPPER file_fdw", table, full, ofUsers}, []string{"CREATE FOREIGN TABLE staff () INHERITS (users) SERVER far OPTIONS (filename '/dev/null')"}, []string{`ALTER FOREIGN TABLE "public"."staff" NO INHERIT "public"."users"`}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := shared(t)
			x.Do(c.setup...)
			update := "UPDATE ONLY users SET n = " // file_fdw refuses UPDATE
			if strings.Contains(strings.Join(c.setup, " "), "PARTITION BY") {
				update = "UPDATE users_1 SET n = "
			}
			f := x.follow(func(o *Options) { o.CreatePublication = c.create })
			f.reads("the row", "0")
			x.Do(c.slip...)
			if len(c.repair) > 0 {
				f.alerted(c.repair...)
			}
			x.Do(update + "7")
			if !c.hidden {
				f.reads("the change before the repair", "7")
			}
			x.Do(c.repair...)
			f.reads("the change before the repair", "7")
			testenv.Eventually(f, "Health returns nil", func() bool { return f.consumer.Health(time.Minute) == nil })
			x.Do(update + "8")
			f.reads("the change after the repair", "8")
		})
	}
}

// TestColumnIsRenamed: a column of a key is renamed. Its rows invalidate the whole loader until it
// has its name again, and the other loaders are not affected.
func TestColumnIsRenamed(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, email TEXT NOT NULL, n INT NOT NULL)",
		"ALTER TABLE users REPLICA IDENTITY FULL")
	f := x.follow()
	f.reads("the row", "0")
	x.Do("ALTER TABLE users RENAME COLUMN id TO ident")
	f.alerted("has no column id")
	x.Do("UPDATE users SET n = 7")
	x.Do("ALTER TABLE users RENAME COLUMN ident TO id")
	f.reads("the change before the repair", "7")
	testenv.Eventually(f, "Health returns nil", func() bool { return f.consumer.Health(time.Minute) == nil })
	x.Do("UPDATE users SET n = 8 WHERE id = 1")
	f.reads("the change after the repair", "8")
}

// TestSlotIsDropped: a Source creates a slot that was dropped while it was not connected.
func TestSlotIsDropped(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, email TEXT NOT NULL, n INT NOT NULL)",
		"ALTER TABLE users REPLICA IDENTITY FULL")
	f := x.follow()
	f.reads("the row", "0")
	testenv.Eventually(x, "the slot is dropped", func() bool {
		x.Do("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '" + x.name +
			"' AND active")
		_, err := x.DB.Exec("SELECT pg_drop_replication_slot('" + x.name + "')")
		return err == nil
	})
	x.Do("UPDATE users SET n = 7")
	f.reads("the change while there was no slot", "7")
	x.Do("UPDATE users SET n = 8")
	f.reads("the change after it", "8")
}

// TestRightsAreRevoked: the user may not replicate any more when the Source connects again.
func TestRightsAreRevoked(t *testing.T) {
	x := shared(t)
	role := x.name + "_user"
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, email TEXT NOT NULL, n INT NOT NULL)",
		"ALTER TABLE users REPLICA IDENTITY FULL", "CREATE ROLE "+role+" LOGIN REPLICATION")
	x.Cleanup(func() { x.Do("DROP ROLE " + role) })
	f := x.follow(func(o *Options) { o.ConnString = strings.Replace(o.ConnString, "postgres@", role+"@", 1) })
	f.reads("the row", "0")
	x.Do("ALTER ROLE "+role+" NOREPLICATION",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+role+"'")
	grant := `ALTER ROLE "` + role + `" REPLICATION`
	f.alerted(grant)
	x.Do("UPDATE users SET n = 7", grant)
	f.reads("the change before the repair", "7")
	x.Do("UPDATE users SET n = 8")
	f.reads("the change after the repair", "8")
}

// TestOldRowsOfPartitions: with publish_via_partition_root the server describes the identity of the
// partitioned table, and sends the old rows of the partition's. What it does not send is not known.
func TestOldRowsOfPartitions(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, email TEXT) PARTITION BY RANGE (id)",
		"CREATE TABLE users_1 PARTITION OF users FOR VALUES FROM (0) TO (10)",
		"ALTER TABLE users REPLICA IDENTITY FULL",
		"ALTER PUBLICATION cacheaside SET (publish_via_partition_root = true)", "INSERT INTO users VALUES (1, 'a')")
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}))
	x.Do("UPDATE users SET email = 'b'", "UPDATE users SET id = 2", "DELETE FROM users")
	l.Want("update users: 1 ? -> 1 b", "update users: 1 ? -> 2 b", "delete users: 2 ?")
	x.Do("ALTER TABLE users_1 REPLICA IDENTITY FULL")
	l.Until("the identity is seen", func() bool { return counts(l, "alter users") == 1 })
	x.Do("INSERT INTO users VALUES (3, NULL)", "UPDATE users SET email = 'c'", "DELETE FROM users")
	l.Want("update users: 1 ? -> 1 b", "update users: 1 ? -> 2 b", "delete users: 2 ?", "alter users",
		"insert users: 3 NULL", "update users: 3 NULL -> 3 c", "delete users: 3 c")
}

// TestBitStrings: the text of a bit string is not a number, even if it has only digits.
func TestBitStrings(t *testing.T) {
	x := shared(t)
	x.Do("CREATE DOMAIN bits AS BIT(4)", "CREATE TABLE flags (id INT PRIMARY KEY, a BIT(4), b BIT VARYING, c bits)")
	l := x.Listen(x.source(), x.Need([]string{"flags", "id"}))
	x.Do("INSERT INTO flags VALUES (1, B'1010', B'1010', B'1010')")
	for _, c := range l.Changes(1) {
		for _, name := range []string{"a", "b", "c"} {
			if _, err := c.After.Get(name).Int64(); err == nil || c.After.Get(name).Text() != "1010" {
				t.Errorf("%s: %q, %v", name, c.After.Get(name).Text(), err)
			}
			if _, _, err := canal.IntColumn[uint64](name).Key(c.After); err == nil {
				t.Errorf("%s: it is a key", name)
			}
		}
	}
}

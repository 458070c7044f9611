package pglogical

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The old row has the columns of the replica identity. A key that changes arrives with the old one.
func TestRows(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, email TEXT, n INT)", "CREATE TABLE whole (LIKE users INCLUDING ALL)",
		"ALTER TABLE whole REPLICA IDENTITY FULL")
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}, []string{"whole", "id"}))
	x.Do("INSERT INTO users VALUES (1, 'a', 1), (2, NULL, 2)", "UPDATE users SET email = 'b' WHERE id = 1",
		"UPDATE users SET id = 3 WHERE id = 1", "DELETE FROM users WHERE id = 2",
		"INSERT INTO whole VALUES (1, 'a', 1)", "UPDATE whole SET email = 'b' WHERE id = 1",
		"DELETE FROM whole WHERE id = 1")
	l.Want("insert users: 1 a 1", "insert users: 2 NULL 2", "update users: 1 ? ? -> 1 b 1",
		"update users: 1 ? ? -> 3 b 1", "delete users: 2 ? ?",
		"insert whole: 1 a 1", "update whole: 1 a 1 -> 1 b 1", "delete whole: 1 b 1")
}

// The columns of another unique index can be the replica identity.
func TestIdentityOfAnIndex(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, email TEXT NOT NULL UNIQUE)",
		"ALTER TABLE users REPLICA IDENTITY USING INDEX users_email_key")
	l := x.Listen(x.source(), x.Need([]string{"users", "email"}))
	x.Do("INSERT INTO users VALUES (1, 'a')", "UPDATE users SET email = 'b'", "DELETE FROM users")
	l.Want("insert users: 1 a", "update users: ? a -> 1 b", "delete users: ? b")
}

// Tables of several schemas have the same name.
func TestSchemas(t *testing.T) {
	x := shared(t)
	x.Do("CREATE SCHEMA sales", `CREATE SCHEMA "HR ""x"""`, "CREATE TABLE sales.users (id INT PRIMARY KEY)",
		`CREATE TABLE "HR ""x""".users (id INT PRIMARY KEY)`, "CREATE TABLE users (id INT PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"sales.users", "id"}, []string{`HR "x".users`, "id"}))
	x.Do("INSERT INTO users VALUES (1)", "INSERT INTO sales.users VALUES (2)",
		`INSERT INTO "HR ""x""".users VALUES (3)`)
	l.Want("insert sales.users: 2", `insert HR "x".users: 3`)
}

// A large value that has not changed is not sent. It is unknown, unless the old row has it.
func TestToast(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE docs (id INT PRIMARY KEY, doc TEXT, n INT)", "ALTER TABLE docs ALTER doc SET STORAGE EXTERNAL",
		"CREATE TABLE whole (LIKE docs INCLUDING ALL)", "ALTER TABLE whole REPLICA IDENTITY FULL",
		"CREATE TABLE long (doc TEXT PRIMARY KEY, n INT)", "ALTER TABLE long ALTER doc SET STORAGE EXTERNAL")
	l := x.Listen(x.source(), x.Need([]string{"docs", "id"}, []string{"whole", "doc"}, []string{"long", "doc"}))
	long := strings.Repeat("x", 2500)
	for _, table := range []string{"docs", "whole"} {
		x.Do("INSERT INTO "+table+" VALUES (1, '"+long+"', 1)", "UPDATE "+table+" SET n = 2",
			"UPDATE "+table+" SET doc = NULL")
	}
	x.Do("INSERT INTO long VALUES ('"+long+"', 1)", "UPDATE long SET n = 2")
	l.Want("insert docs: 1 "+long+" 1", "update docs: 1 ? ? -> 1 ? 2", "update docs: 1 ? ? -> 1 NULL 2",
		"insert whole: 1 "+long+" 1", "update whole: 1 "+long+" 1 -> 1 ? 2", "update whole: 1 "+long+" 2 -> 1 NULL 2",
		"insert long: "+long+" 1", "update long: "+long+" ? -> ? 2")
	all := l.Changes(8)
	for i, known := range map[int]bool{1: false, 4: true, 7: true} {
		if v := all[i].After.Over(all[i].Before).Get("doc"); v.Known() != known || known && v.Text() != long {
			t.Errorf("%d: %v", i, v)
		}
	}
}

// A table that is emptied by CASCADE is emptied. The catalog shows that it has another file, sooner
// or later: so it is also replaced.
func TestTruncate(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)",
		"CREATE TABLE orders (id INT PRIMARY KEY, buyer INT REFERENCES users)")
	l := x.Listen(x.source(), x.Need([]string{"orders", "id"}))
	x.Do("INSERT INTO orders VALUES (1, NULL)", "TRUNCATE users CASCADE")
	l.Until("it is emptied", func() bool { return counts(l, "truncate orders") == 1 })
	l.Until("it is replaced", func() bool { return counts(l, "replace orders") >= 1 })
}

// Changes of partitions are changes of the table that was bound, under any name.
func TestPartitions(t *testing.T) {
	for _, viaRoot := range []bool{false, true} {
		t.Run(fmt.Sprint(viaRoot), func(t *testing.T) { partitions(shared(t), viaRoot) })
	}
}

func partitions(x *world, viaRoot bool) {
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, n INT) PARTITION BY RANGE (id)",
		"CREATE TABLE users_1 PARTITION OF users FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)",
		"CREATE TABLE users_11 PARTITION OF users_1 FOR VALUES FROM (0) TO (5)",
		"CREATE TABLE users_2 PARTITION OF users FOR VALUES FROM (10) TO (20)",
		fmt.Sprintf("ALTER PUBLICATION cacheaside SET (publish_via_partition_root = %v)", viaRoot))
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}))
	x.Do("INSERT INTO users VALUES (1, 1), (11, 1)", "UPDATE users SET id = 12 WHERE id = 1")
	l.Want("insert users: 1 1", "insert users: 11 1", "delete users: 1 ?", "insert users: 12 1")
	x.Do("CREATE TABLE users_3 PARTITION OF users FOR VALUES FROM (20) TO (30)", "INSERT INTO users VALUES (21, 1)")
	l.Until("the new partition", func() bool { return counts(l, "insert users: 21 1") == 1 })
	replaced(l, "a partition was added", 1)
	x.Do("ALTER TABLE users DETACH PARTITION users_2")
	replaced(l, "a partition was removed", 2)
	x.Do("TRUNCATE users_3")
	replaced(l, "a partition was emptied", 3)
	x.Do("TRUNCATE users")
	want := "replace users"
	if viaRoot {
		want = "truncate users"
	}
	l.Until("all is emptied", func() bool { return counts(l, want) >= 1 })
}

// counts returns how many of the changes so far have this text.
func counts(l *sourcetest.Listener, what string) (n int) {
	for _, text := range l.Texts() {
		if text == what {
			n++
		}
	}
	return n
}

// A partition can be bound by its own name, also in addition to its table.
func TestPartitionIsBound(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY) PARTITION BY RANGE (id)",
		"CREATE TABLE users_1 PARTITION OF users FOR VALUES FROM (0) TO (10)",
		"CREATE TABLE users_2 PARTITION OF users FOR VALUES FROM (10) TO (20)")
	l := x.Listen(x.source(), x.Need([]string{"users_1", "id"}, []string{"users", "id"}))
	x.Do("INSERT INTO users VALUES (1), (11)")
	l.Changes(3)
	if counts(l, "insert users_1: 1") != 1 || counts(l, "insert users: 1") != 1 || counts(l, "insert users: 11") != 1 {
		t.Errorf("%q", l.Texts())
	}
}

// Changes of inherited tables are changes of the bound table. So are those of tables that are
// created later.
func TestInheritedTables(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE TABLE staff (role TEXT, PRIMARY KEY (id)) INHERITS (users)")
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}))
	x.Do("INSERT INTO users VALUES (1)", "INSERT INTO staff VALUES (2, 'x')", "UPDATE users SET id = id + 2",
		"DELETE FROM users WHERE id = 4")
	l.Want("insert users: 1", "insert users: 2 x", "update users: 1 -> 3", "update users: 2 ? -> 4 x",
		"delete users: 4 ?")
	x.Do("CREATE TABLE guests (PRIMARY KEY (id)) INHERITS (users)", "INSERT INTO guests VALUES (5)")
	l.Until("the new table", func() bool {
		return counts(l, "insert users: 5") == 1 && counts(l, "replace users") == 1
	})
}

// The rolled back parts of a transaction of any size do not arrive. A large transaction is
// delivered in parts, and only the last one has a position.
func TestLargeTransaction(t *testing.T) {
	x := own(t, "logical_decoding_work_mem=64kB")
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, name TEXT)", "CREATE TABLE other (id INT)")
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}))
	x.Do(`BEGIN; INSERT INTO users SELECT n, repeat('x', 100) FROM generate_series(1, 3000) n;
		SAVEPOINT a; INSERT INTO users SELECT n, 'no' FROM generate_series(3001, 6000) n; ROLLBACK TO a;
		INSERT INTO users SELECT n, 'yes' FROM generate_series(3001, 6000) n; SAVEPOINT b; DELETE FROM users; ROLLBACK TO b; COMMIT`,
		"BEGIN; INSERT INTO users SELECT n, 'no' FROM generate_series(6001, 9000) n; ROLLBACK",
		"INSERT INTO users VALUES (6001, 'last')")
	testenv.Eventually(x, "it was spilled", func() bool {
		return x.Ask("SELECT spill_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = $1", x.name) == "true"
	})
	all := l.Changes(6001)
	for i, c := range all {
		if c.Kind != event.Insert || c.After.Get("id").Text() != fmt.Sprint(i+1) || c.After.Get("name").Text() == "no" {
			t.Fatal(i, x.Text(c))
		}
	}
	read := 0
	for _, b := range l.Batches() {
		n := len(b.Changes)
		read += n
		if n > partChanges || b.Bytes > partBytes+1000 {
			t.Errorf("%d changes, %d bytes", n, b.Bytes)
		}
		if b.Position != "" && read != 0 && read != 6000 && read != 6001 {
			t.Errorf("%q after %d changes", b.Position, read)
		}
	}
}

// A prepared transaction is delivered when it is committed, and not if it is rolled back.
func TestTwoPhaseCommit(t *testing.T) {
	x := own(t, "max_prepared_transactions=10")
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}))
	x.Do("BEGIN; INSERT INTO users VALUES (1); PREPARE TRANSACTION 'a'",
		"BEGIN; INSERT INTO users VALUES (2); PREPARE TRANSACTION 'b'", "INSERT INTO users VALUES (3)")
	l.Want("insert users: 3")
	x.Do("ROLLBACK PREPARED 'b'", "COMMIT PREPARED 'a'")
	l.Want("insert users: 3", "insert users: 1")
	x.Do("BEGIN; INSERT INTO users VALUES (4); PREPARE TRANSACTION 'c'", "INSERT INTO users VALUES (5)")
	l.Changes(3)
	at := l.Positions()
	l.Stop()
	x.Do("COMMIT PREPARED 'c'")
	need := x.Need([]string{"users", "id"})
	need.From = at[len(at)-1]
	x.Listen(x.source(), need).Want("insert users: 4")
}

// The log has no DDL: the Source finds it in the catalog, also if it was executed while no Source
// read.
func TestDDL(t *testing.T) {
	x := shared(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY, n INT)", "CREATE TABLE orders (id INT PRIMARY KEY)")
	need := x.Need([]string{"users", "id"}, []string{"orders", "id"})
	l := x.Listen(x.source(), need)
	x.Do("ALTER TABLE users ADD COLUMN note TEXT DEFAULT 'x'")
	l.Want("alter users")
	x.Do("INSERT INTO users VALUES (1, 1, 'y')", "ANALYZE users", "VACUUM users", "CREATE INDEX ON users (n)")
	l.Want("alter users", "insert users: 1 1 y")
	x.Do("CREATE TABLE users_new (LIKE users INCLUDING ALL)",
		"BEGIN; ALTER TABLE users RENAME TO users_old; ALTER TABLE users_new RENAME TO users; COMMIT")
	l.Want("alter users", "insert users: 1 1 y", "replace users")
	x.Do("INSERT INTO users VALUES (2, 2, 'z')", "INSERT INTO users_old VALUES (3, 3, 'z')",
		"INSERT INTO users VALUES (4, 4, 'z')")
	l.Want("alter users", "insert users: 1 1 y", "replace users", "insert users: 2 2 z", "insert users: 4 4 z")
	l.Until("the position after it", func() bool { return l.Batches()[len(l.Batches())-1].Position != "" })
	at := l.Positions()
	l.Stop()
	need.From = at[len(at)-1]
	again := x.Listen(x.source(), need)
	x.Do("INSERT INTO users VALUES (5, 5, 'z')")
	again.Want("insert users: 5 5 z")
	again.Stop()
	x.Do("ALTER TABLE users DROP COLUMN note")
	late := x.Listen(x.source(), need)
	late.Want("replace orders", "replace users", "insert users: 5 5 z")
	late.Until("the position after it", func() bool { return late.Batches()[len(late.Batches())-1].Position != "" })
	// Until the tables are replaced, positions name no catalog: a Source that begins there replaces
	// them again.
	parts := strings.Split(string(need.From), ":")
	parts[4] = ""
	first := event.Position(strings.Join(parts, ":"))
	if all := late.Positions(); all[0] != first || all[len(all)-1] == first || all[len(all)-1] == need.From {
		t.Errorf("%q, want %q first", all, first)
	}
}

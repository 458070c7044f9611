package pglogical

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// newCache returns a Cache without Redis.
func newCache(t *testing.T) *cacheaside.Cache {
	t.Helper()
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// What would lose the items is an error that says so, at the start and in Health.
func TestOutboxHealth(t *testing.T) {
	const create = "SELECT pg_create_logical_replication_slot("
	for name, c := range map[string]struct {
		settings []string
		do       func(x *world) []string
		want     []string
	}{
		"no slot":   {nil, nil, []string{"does not exist", "SELECT pg_create_logical_replication_slot('"}},
		"wal_level": {[]string{"wal_level=replica"}, nil, []string{"wal_level is replica", "logical"}},
		"plugin":    {nil, func(x *world) []string { return []string{create + "'" + x.name + "', 'test_decoding')"} }, []string{"test_decoding", "OutboxOptions.Slot"}},
		"lost": {[]string{"max_slot_wal_keep_size=1MB", "max_wal_size=32MB", "min_wal_size=32MB"}, func(x *world) []string {
			statements := []string{create + "'" + x.name + "', 'pgoutput')"}
			for range 4 {
				statements = append(statements, "SELECT pg_switch_wal()", "CREATE TABLE IF NOT EXISTS filler (n INT)",
					"INSERT INTO filler VALUES (1)")
			}
			return append(statements, "CHECKPOINT")
		}, []string{"is invalid", "has removed its log", "max_slot_wal_keep_size"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := shared
			if c.settings != nil {
				x = func(t *testing.T) *world { return own(t, c.settings...) }
			}
			w := x(t)
			if c.do != nil {
				w.Do(c.do(w)...)
			}
			_, err := NewOutbox(t.Context(), sqlx.NewDb(w.DB, "pgx"), newCache(t), &OutboxOptions{Slot: w.name})
			for _, want := range append(c.want, "pglogical: outbox: health: ") {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
		})
	}
}

// What Health and the guide say about creating the slot works: the Consumer reads a log with
// changes, and standbys can copy the slot.
func TestOutboxSlotOfAMigration(t *testing.T) {
	x := shared(t)
	x.Do("DROP PUBLICATION cacheaside", "CREATE TABLE users (id INT PRIMARY KEY)")
	db, options := sqlx.NewDb(x.DB, "pgx"), &OutboxOptions{Slot: x.name}
	_, err := NewOutbox(t.Context(), db, newCache(t), options)
	if err == nil || !strings.Contains(err.Error(), "after CREATE PUBLICATION, SELECT ") {
		t.Fatal(err)
	}
	_, create, _ := strings.Cut(err.Error(), "CREATE PUBLICATION, ")
	x.Do("CREATE PUBLICATION cacheaside", create, "INSERT INTO users VALUES (1)")
	box, err := NewOutbox(t.Context(), db, newCache(t), options)
	x.Check(err)
	need := x.Need()
	need.Messages = []string{box.prefix}
	l := x.Listen(x.source(), need)
	x.Check(box.Put(t.Context(), consistency.Item{Key: cacheaside.Key{Loader: "user", Text: "1"}}))
	l.Until("the item", func() bool {
		return slices.ContainsFunc(l.Batches(), func(b event.Batch) bool { return len(b.Messages) == 1 })
	})
	if copied := x.Ask("SELECT coalesce(to_jsonb(s)->>'failover', 'none') FROM pg_replication_slots s WHERE "+
		"slot_name = $1", x.name); copied != "true" && x.server.Major(t) >= 17 {
		t.Errorf("failover is %s", copied)
	}
}

// The slot of another database reads another log.
func TestOutboxOfAnotherDatabase(t *testing.T) {
	x := shared(t)
	t.Run("other", func(t *testing.T) {
		y := shared(t)
		y.Do("SELECT pg_create_logical_replication_slot('" + y.name + "', 'pgoutput')")
		if _, err := NewOutbox(t.Context(), sqlx.NewDb(x.DB, "pgx"), newCache(t),
			&OutboxOptions{Slot: y.name}); err == nil || !strings.Contains(err.Error(), "belongs to the database") {
			t.Error(err)
		}
	})
}

// An item in another database of the server would be skipped. So it fails its write.
func TestOutboxOfWriterElsewhere(t *testing.T) {
	x := shared(t)
	x.Do("SELECT pg_create_logical_replication_slot('" + x.name + "', 'pgoutput')")
	cache, db := newCache(t), sqlx.NewDb(x.DB, "pgx")
	box, err := NewOutbox(t.Context(), db, cache, &OutboxOptions{Slot: x.name})
	x.Check(err)
	item := consistency.Item{Key: cacheaside.Key{Loader: "user", Text: "secret"}}
	x.Check(box.PutIn(t.Context(), db, item))
	t.Run("other", func(t *testing.T) {
		y := shared(t)
		y.Do("CREATE TABLE users (id INT)")
		w, err := consistency.NewWriter(sqlx.NewDb(y.DB, "pgx"), cache, &consistency.Options{Queue: box})
		y.Check(err)
		t.Cleanup(func() { _ = w.Close() })
		err = w.Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO users VALUES (1)")
			return err
		}, item.Key)
		if err == nil || !strings.Contains(err.Error(), "not in the database \""+x.name+"\"") ||
			strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
		if n := y.Ask("SELECT count(*) FROM users"); n != "0" {
			t.Error("the write was committed without its item")
		}
	})
}

// The text of the statement has no key, because servers and tracers show it. So it is the same for
// all keys.
func TestOutboxStatement(t *testing.T) {
	box := &Outbox{database: "shop", prefix: "cacheaside:shop"}
	one, arguments := box.statement([][]byte{[]byte("a")})
	if other, _ := box.statement([][]byte{[]byte("b")}); one != other || len(arguments) != 3 {
		t.Errorf("%q, %q, %v", one, other, arguments)
	}
}

func TestOutboxArguments(t *testing.T) {
	db, cache := sqlx.NewDb(shared(t).DB, "pgx"), newCache(t)
	other := sqlx.MustOpen("mysql", "user@/none")
	t.Cleanup(func() { other.Close() })
	for want, f := range map[string]func() (*Outbox, error){
		"db is nil":    func() (*Outbox, error) { return NewOutbox(t.Context(), nil, cache, nil) },
		"cache is nil": func() (*Outbox, error) { return NewOutbox(t.Context(), db, nil, nil) },
		"db is a":      func() (*Outbox, error) { return NewOutbox(t.Context(), other, cache, nil) },
		`Slot "a b"`: func() (*Outbox,
			error) {
			return NewOutbox(t.Context(), db, cache, &OutboxOptions{Slot: "a b"})
		},
		`Namespace "a'b"`: func() (*Outbox,
			error) {
			return NewOutbox(t.Context(), db, cache, &OutboxOptions{Namespace: "a'b"})
		},
		"the slot cacheaside d": func() (*Outbox, error) { return NewOutbox(t.Context(), db, cache, nil) },
	} {
		if _, err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// A user without any special right writes the items, in any session. To a Relay the outbox is
// empty.
func TestOutboxOfPlainUser(t *testing.T) {
	x := shared(t)
	x.Do("SELECT pg_create_logical_replication_slot('"+x.name+"', 'pgoutput')", "DROP ROLE IF EXISTS "+x.name,
		"CREATE ROLE "+x.name+" LOGIN")
	t.Cleanup(func() { _, _ = x.DB.Exec("DROP ROLE " + x.name) })
	need := x.Need()
	need.Messages = []string{"cacheaside:shop"}
	l := x.Listen(x.source(), need)
	for n, session := range []string{"", "&default_query_exec_mode=simple_protocol",
		"&default_query_exec_mode=exec&standard_conforming_strings=off", "&search_path=nowhere&bytea_output=escape",
		"&client_encoding=LATIN1", "&default_transaction_isolation=serializable"} {
		db, err := sqlx.Open("pgx", strings.Replace(x.server.DSN(t), x.server.User+"@", x.name+"@", 1)+session)
		x.Check(err)
		t.Cleanup(func() { db.Close() })
		box, err := NewOutbox(t.Context(), db, newCache(t), &OutboxOptions{Slot: x.name, Namespace: "shop"})
		x.Check(err)
		tx := db.MustBegin()
		x.Check(box.PutIn(t.Context(), tx, consistency.Item{Key: cacheaside.Key{Loader: "user", Text: "\x00'\\\xff"}}))
		x.Check(tx.Commit())
		x.Check(box.Put(t.Context(), consistency.Item{Key: cacheaside.Key{Loader: "user", All: true}, Inserting: true}))
		x.Check(box.PutIn(t.Context(), db))
		l.Until("two more messages", func() bool {
			count := 0
			for _, b := range l.Batches() {
				count += len(b.Messages)
			}
			return count == 2*(n+1)
		})
		items, err := box.Claim(t.Context(), 1, 0)
		depth, err2 := box.Depth(t.Context())
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		box.Wait(ended)
		if err != nil || err2 != nil || len(items) > 0 || depth != (consistency.Depth{}) ||
			box.Done(t.Context(), consistency.Item{}) != nil || box.Later(t.Context()) != nil ||
			box.Later(t.Context(), consistency.Item{}) == nil {
			t.Error(items, depth, err, err2)
		}
	}
}

// Only the users to whom the guide's statements permit it write messages.
func TestOutboxOfGrantedUser(t *testing.T) {
	x := shared(t)
	last := ""
	if x.server.Major(t) >= 17 {
		last = ", boolean"
	}
	writer, other := x.name+"_writer", x.name+"_other"
	x.Do("SELECT pg_create_logical_replication_slot('" + x.name + "', 'pgoutput')")
	for _, role := range []string{writer, other} {
		x.Do("DROP ROLE IF EXISTS "+role, "CREATE ROLE "+role+" LOGIN")
		t.Cleanup(func() { _, _ = x.DB.Exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	}
	for _, content := range []string{"text", "bytea"} {
		x.Do("REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, " + content + last + ") FROM PUBLIC")
	}
	x.Do("GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, bytea" + last + ") TO " + writer)
	for _, role := range []string{writer, other} {
		db, err := sqlx.Open("pgx", strings.Replace(x.server.DSN(t), x.server.User+"@", role+"@", 1))
		x.Check(err)
		t.Cleanup(func() { db.Close() })
		box, err := NewOutbox(t.Context(), db, newCache(t), &OutboxOptions{Slot: x.name})
		x.Check(err)
		err = box.Put(t.Context(), consistency.Item{Key: cacheaside.Key{Loader: "user", Text: "1"}})
		if permitted := role == writer; permitted != (err == nil) {
			t.Errorf("%s: %v", role, err)
		}
		if _, err := db.Exec("SELECT pg_logical_emit_message(true, 'a', 'b'::text)"); err == nil {
			t.Errorf("%s writes any message", role)
		}
	}
}

var (
	messageMessage = message(byte('M'), byte(1), uint64(1), "cacheaside:shop", []byte("content"))
	otherMessage   = message(byte('M'), byte(1), uint64(1), "cacheaside:shop2", []byte("other"))
)

// Only messages of the transaction with a needed prefix are delivered, and of any length only a
// part. A message that is cut is an error. A namespace that may be misspelt is logged, once.
func TestDecoderOfMessages(t *testing.T) {
	d := usersDecoder()
	d.prefixes = []string{"cacheaside:shop"}
	log := &testenv.Log{}
	d.log = slog.New(slog.NewTextHandler(log, nil))
	long := make([]byte, 1<<20)
	buffer := append([]byte(nil), messageMessage...)
	for _, m := range [][]byte{beginMessage, buffer,
		message(byte('M'), byte(0), uint64(1), "cacheaside:shop",
			[]byte("at once")), otherMessage, otherMessage, message(byte('M'), byte(1), uint64(1), "cacheaside:a b",
			[]byte("other")), message(byte('M'), byte(1), uint64(1), "", []byte{}), message(byte('M'), byte(1),
			uint64(1), "cacheaside:shop", long)} {
		if ended, err := d.decode(t.Context(), m); ended != 0 || err != nil {
			t.Fatal(ended, err)
		}
	}
	clear(buffer) // as the connection does
	if len(d.messages) != 2 || d.messages[0].Prefix != "cacheaside:shop" ||
		string(d.messages[0].Content) != "content" || len(d.messages[1].Content) != 256<<10 || d.bytes < 256<<10 ||
		d.count() != 2 {
		t.Errorf("%v, %d bytes", d.messages, d.bytes)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=INFO") ||
		!strings.Contains(got, "namespace=shop2") {
		t.Errorf("logged: %s", got)
	}
	for n := 1; n < len(messageMessage); n++ {
		whole := append([]byte(nil), messageMessage...)
		if _, err := d.decode(t.Context(), whole[:n]); err == nil {
			t.Errorf("%d of %d bytes are read", n, len(whole))
		}
	}
}

// Before the first message of its own, a Source warns of those of others: its namespace may be
// misspelt, and then all items are lost.
func TestDecoderWarnsOfAMisspeltNamespace(t *testing.T) {
	d := usersDecoder()
	d.prefixes = []string{"cacheaside:shop"}
	log := &testenv.Log{}
	d.log = slog.New(slog.NewTextHandler(log, nil))
	for _, m := range [][]byte{beginMessage, otherMessage, messageMessage} {
		if _, err := d.decode(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") ||
		!strings.Contains(got, "namespace=shop2") {
		t.Errorf("logged: %s", got)
	}
}

// A publication without tables suffices for an outbox.
func TestOutboxNeedsNoTable(t *testing.T) {
	x := shared(t)
	x.Do("DROP PUBLICATION cacheaside")
	need := x.Need()
	need.Messages = []string{"cacheaside:shop"}
	err := x.Start(x.source(), need).Ended()
	x.IsSetup(err, `CREATE PUBLICATION "cacheaside"`)
	if strings.Contains(err.Error(), "TABLE") {
		t.Error(err)
	}
	x.Do(`CREATE PUBLICATION "cacheaside"`)
	l := x.Listen(x.source(), need)
	x.Do("SELECT pg_logical_emit_message(true, 'cacheaside:shop', 'x')")
	l.Until("the message", func() bool {
		for _, b := range l.Batches() {
			if len(b.Messages) > 0 {
				return true
			}
		}
		return false
	})
}

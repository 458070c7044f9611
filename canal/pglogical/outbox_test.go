package pglogical

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/canal"
	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/sourcetest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// outboxWorld is a database whose log is an outbox, and three processes: one writes, one reads, and
// one has a Consumer of the outbox. The Consumer has no bound table.
type outboxWorld struct {
	*world
	redis                    *testenv.Redis
	writer, reader, consumer *sourcetest.Process
	box                      *Outbox
	*consistency.Writer
	*canal.Consumer
	checkpoint *canal.FileCheckpoint
	parked     *parking.File
	end        func()
}

// outboxOn returns an outboxWorld whose Writer writes nothing but the outbox: its level is Async.
func outboxOn(x *world) *outboxWorld {
	x.Helper()
	x.Do("CREATE TABLE users (id BIGINT PRIMARY KEY, email TEXT NOT NULL UNIQUE, n BIGINT)",
		"SELECT pg_create_logical_replication_slot('"+x.name+"', 'pgoutput')")
	o := &outboxWorld{world: x, redis: testenv.StartRedis(x.T),
		checkpoint: canal.NewFileCheckpoint(filepath.Join(x.TempDir(),
			"position")), parked: parking.NewFile(filepath.Join(x.TempDir(), "parked"))}
	for _, p := range []**sourcetest.Process{&o.writer, &o.reader, &o.consumer} {
		var err error
		*p, err = newProcess(x.server.DSN(x.T), o.redis.Addr)
		x.Check(err)
		x.Cleanup((*p).Close)
	}
	o.box = o.outbox()
	var err error
	o.Writer, err = consistency.NewWriter(o.writer.DB, o.writer.Cache,
		&consistency.Options{Queue: o.box, Level: consistency.Async})
	x.Check(err)
	x.Cleanup(func() { _ = o.Close() })
	return o
}

func (o *outboxWorld) outbox() *Outbox {
	o.Helper()
	box, err := NewOutbox(o.Context(), o.writer.DB, o.writer.Cache, &OutboxOptions{Slot: o.name})
	o.Check(err)
	return box
}

// consume runs a new Consumer of the outbox, and of further Bindings.
func (o *outboxWorld) consume(bindings ...canal.Binding) {
	o.Helper()
	o.free()
	var err error
	o.Consumer, err = canal.NewConsumer(o.consumer.Cache, o.source(), o.checkpoint,
		append(bindings, canal.BindOutbox("")), &canal.Options{SaveEvery: 10 * time.Millisecond, Parking: o.parked,
			Logger: slog.New(slog.DiscardHandler)})
	o.Check(err)
	o.run()
}

// run runs the Consumer until end is called, or the test ends.
func (o *outboxWorld) run() {
	o.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	c := o.Consumer
	go func() { done <- c.Run(ctx) }()
	ended := false
	o.end = func() {
		o.Helper()
		if stop(); !ended {
			ended = true
			o.Check(<-done)
		}
	}
	o.Cleanup(o.end)
	testenv.Eventually(o.T, "the Consumer has begun",
		func() bool { s := c.Stats(); return s.Position != "" && s.Lag >= 0 })
}

// row returns a row with id as the address, and n.
func row(id, n int64) string { return fmt.Sprint(sourcetest.Email(id), " ", n) }

// cache has all processes cache rows, whose n is 0.
func (o *outboxWorld) cache(ids ...int64) {
	o.Helper()
	for _, id := range ids {
		_, err := o.DB.Exec("INSERT INTO users VALUES ($1, $2, 0)", id, sourcetest.Email(id))
		o.Check(err)
	}
	for _, p := range []*sourcetest.Process{o.writer, o.reader} {
		for _, id := range ids {
			o.Check(p.ByID[0].Invalidate(o.Context(), id))
			o.serves(p, id, 0)
		}
	}
}

// statement returns a statement without parameters that writes an item.
func (o *outboxWorld) statement(key cacheaside.Key) string {
	o.Helper()
	messages, err := encode([]consistency.Item{{Key: key}})
	o.Check(err)
	return fmt.Sprintf("SELECT pg_logical_emit_message(true, '%s', '\\x%x'::bytea)", o.box.prefix, messages[0])
}

// serves fails unless a process serves the row with n.
func (o *outboxWorld) serves(p *sourcetest.Process, id, n int64) {
	o.Helper()
	if got, err := p.ByID[0].Get(o.Context(), id); got != row(id, n) || err != nil {
		o.Fatalf("%d is %q, %v; want n = %d", id, got, err, n)
	}
}

// becomes waits until all processes serve the row with n.
func (o *outboxWorld) becomes(id, n int64) {
	o.Helper()
	for _, p := range []*sourcetest.Process{o.writer, o.reader} {
		testenv.Eventually(o.T, fmt.Sprint(id, " is served with ", n), func() bool {
			got, err := p.ByID[0].Get(o.Context(), id)
			return got == row(id, n) && err == nil
		})
	}
}

// set returns the function of an Update.
func set(id, n int64) func(context.Context, *sqlx.Tx) error {
	return func(ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE users SET n = $1 WHERE id = $2", n, id)
		return err
	}
}

func (o *outboxWorld) key(id int64) cacheaside.Key { return o.writer.ByID[0].Key(id) }

// applied waits until all items that were committed so far are applied.
func (o *outboxWorld) applied() {
	o.Helper()
	o.Do("SELECT pg_logical_emit_message(true, 'other', '')") // a commit, so that the log is written
	end, err := parseLSN(o.Ask("SELECT pg_current_wal_flush_lsn()"))
	o.Check(err)
	testenv.Eventually(o.T, "all items are applied", func() bool {
		at, err := parse(o.Consumer.Stats().Position)
		return err == nil && at.lsn >= end
	})
}

// What a transaction writes into the log is applied if and only if it is committed.
func TestOutboxOfTransactions(t *testing.T) {
	o := outboxOn(own(t, "max_prepared_transactions=10"))
	o.consume()
	o.cache(1, 2, 3, 4, 5)
	ctx := o.Context()

	o.Check(o.Update(ctx, set(1, 1), o.key(1)))
	o.becomes(1, 1)
	before := o.Consumer.Stats()
	if before.Messages != 1 {
		t.Errorf("%+v", before)
	}

	failure := errors.New("no")
	if err := o.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		return errors.Join(o.Enqueue(ctx, tx, o.key(2)), failure)
	}); !errors.Is(err, failure) {
		t.Error(err)
	}
	tx := o.writer.DB.MustBegin()
	o.Check(o.Enqueue(ctx, tx, o.key(2)))
	o.Check(tx.Rollback())
	o.applied()
	if s := o.Consumer.Stats(); s.Messages != before.Messages {
		t.Errorf("rolled back: %+v", s)
	}

	o.Do("UPDATE users SET n = 7 WHERE id = 3") // which the outbox does not say
	o.Check(o.Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		tx.MustExec("SAVEPOINT a")
		o.Check(o.Enqueue(ctx, tx, o.key(3)))
		tx.MustExec("ROLLBACK TO a")
		tx.MustExec("SAVEPOINT b")
		o.Check(errors.Join(set(4, 2)(ctx, tx), o.Enqueue(ctx, tx, o.key(4))))
		tx.MustExec("RELEASE b")
		return set(2, 2)(ctx, tx)
	}, o.key(2)))
	o.becomes(2, 2)
	o.becomes(4, 2)
	o.serves(o.reader, 3, 0)

	statement := o.statement(o.key(5))
	o.Do("BEGIN; UPDATE users SET n = 3 WHERE id = 5; "+statement+"; PREPARE TRANSACTION 'a'",
		"BEGIN; "+statement+"; PREPARE TRANSACTION 'b'")
	o.Check(o.Update(ctx, set(1, 3), o.key(1)))
	o.becomes(1, 3)
	o.serves(o.reader, 5, 0)
	o.Do("ROLLBACK PREPARED 'b'", "COMMIT PREPARED 'a'")
	o.becomes(5, 3)
	if s := o.Consumer.Stats(); s.Messages != 5 || s.Misunderstood+s.Failures+s.PositionsLost != 0 {
		t.Errorf("%+v", s)
	}
}

// A transaction of any size is applied, in parts.
func TestOutboxOfLargeTransaction(t *testing.T) {
	o := outboxOn(own(t, "logical_decoding_work_mem=64kB"))
	o.consume()
	const n = 3000
	o.Do("CREATE TABLE filler (n INT, text TEXT)")
	o.cache(0, 1, n-1)
	keys := make([]cacheaside.Key, n)
	for i := range keys {
		keys[i] = o.key(int64(i))
		if i > 2 && i < n-1 {
			keys[i].Text += strings.Repeat("x", 1000) // 3 MB in all
		}
	}
	o.Check(o.Update(o.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
		for i := range int64(2000) { // messages between others, more than in a part
			o.Check(o.Enqueue(ctx, tx, o.key(i%7)))
		}
		tx.MustExec("INSERT INTO filler SELECT n, repeat('x', 100) FROM generate_series(1, 3000) n")
		return errors.Join(set(0, 1)(ctx, tx), set(1, 1)(ctx, tx), set(n-1, 1)(ctx, tx))
	}, keys...))
	for _, id := range []int64{0, 1, n - 1} {
		o.becomes(id, 1)
	}
	o.applied()
	if s := o.Consumer.Stats(); s.Batches < 5 || s.Messages < 2040 {
		t.Errorf("%+v", s)
	}
}

// Messages of others are not those of the outbox, and neither are those that do not wait for the
// commit. What has its prefix and cannot be read is parked, and may be about any key.
func TestOutboxOfOthers(t *testing.T) {
	o := outboxOn(shared(t))
	o.consume()
	o.cache(1)
	o.Do("UPDATE users SET n = 1")
	statement := o.statement(o.key(1))
	o.Do("SELECT pg_logical_emit_message(true, 'other', 'x')",
		strings.ReplaceAll(statement, o.box.prefix, o.box.prefix+"2"), strings.ReplaceAll(statement, "true",
			"false"), "BEGIN; "+strings.ReplaceAll(statement, "true", "false")+"; ROLLBACK")
	o.applied()
	o.serves(o.reader, 1, 0)
	if s := o.Consumer.Stats(); s.Messages != 0 {
		t.Errorf("%+v", s)
	}
	for n, garbage := range []string{"'secret'", "''", "repeat('secret', 200000)"} {
		o.Do("SELECT pg_logical_emit_message(true, '" + o.box.prefix + "', " + garbage + ")")
		o.becomes(1, 1)
		o.applied()
		o.Do("UPDATE users SET n = 0")
		o.Check(o.writer.ByID[0].Invalidate(o.Context(), 1))
		o.becomes(1, 0)
		o.Do("UPDATE users SET n = 1")
		if s := o.Consumer.Stats(); s.Parked != int64(n+1) || s.Misunderstood != s.Parked ||
			strings.Contains(s.LastError.Error(), "secret") {
			t.Errorf("%+v", s)
		}
	}
	for p, err := range o.parked.Read() {
		if err != nil || p.Binding != "outbox" || strings.Contains(p.Reason, "secret") {
			t.Error(p, err)
		}
	}
}

// The position is confirmed to the server, which then discards its log, after the items up to it
// are applied. A Consumer that starts again in the middle misses nothing.
func TestOutboxAfterRestart(t *testing.T) {
	o := outboxOn(shared(t))
	o.consume()
	o.cache(1, 2)
	confirmed := func() string {
		return o.Ask("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1", o.name)
	}
	o.redis.Pause()
	o.Do("UPDATE users SET n = 1 WHERE id = 1")
	statement := o.statement(o.key(1))
	o.Do(statement)
	end := o.Ask("SELECT pg_current_wal_flush_lsn()")
	for range 3 { // statuses
		last := o.Ask("SELECT reply_time FROM pg_stat_replication WHERE application_name = 'cacheaside' AND pid = "+
			"(SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1)", o.name)
		testenv.Eventually(t, "a status arrives", func() bool {
			return last != o.Ask("SELECT reply_time FROM pg_stat_replication WHERE application_name = 'cacheaside' "+
				"AND pid = (SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1)", o.name)
		})
	}
	if o.Ask("SELECT ($1::pg_lsn < $2::pg_lsn)::text", confirmed(), end) != "true" {
		t.Error("the position was confirmed before the item was applied")
	}
	o.end()
	o.redis.Resume()
	o.Check(o.Update(o.Context(), set(2, 1), o.key(2))) // while no Consumer runs
	o.consume()
	o.becomes(1, 1)
	o.becomes(2, 1)
	testenv.Eventually(t, "the position is confirmed", func() bool {
		return o.Ask("SELECT ($1::pg_lsn >= $2::pg_lsn)::text", confirmed(), end) == "true"
	})
	if s := o.Consumer.Stats(); s.PositionsLost != 0 || s.Messages != 2 {
		t.Errorf("%+v", s)
	}
}

// Items that were written while there was no slot are lost. The Consumer that creates another one
// invalidates everything, although it has no bound table.
func TestOutboxWithoutSlot(t *testing.T) {
	o := outboxOn(shared(t))
	o.consume()
	o.cache(1, 2)
	o.end()
	o.dropSlot()
	for id := range int64(3) {
		o.Check(o.Update(o.Context(), set(id, 1), o.key(id)))
	}
	if err := o.box.Health(o.Context()); err == nil ||
		!strings.Contains(err.Error(), "the slot "+o.name+" does not exist") {
		t.Error(err)
	}
	o.consume()
	o.becomes(1, 1)
	o.becomes(2, 1)
	if s := o.Consumer.Stats(); s.PositionsLost != 1 || s.Messages != 0 {
		t.Errorf("%+v", s)
	}
	o.Check(o.box.Health(o.Context()))
}

// A Consumer that did not need the messages before has skipped them: what they said is unknown.
func TestOutboxIsAdded(t *testing.T) {
	o := outboxOn(shared(t))
	need := o.Need([]string{"users", "id"})
	l := o.Listen(o.source(), need)
	o.Check(o.Update(o.Context(), set(1, 1), o.key(1)))
	o.Do("INSERT INTO users VALUES (7, 'x', 0)")
	l.Want("insert users: 7 x 0")
	l.Until("the position after it", func() bool { return l.Batches()[len(l.Batches())-1].Position != "" })
	all := l.Positions()
	need.From, need.Messages = all[len(all)-1], []string{o.box.prefix}
	l.Stop()
	l = o.Listen(o.source(), need)
	l.Until("all is replaced", func() bool { return len(l.All()) > 0 })
	if c := l.All()[0]; c.Kind != event.Replace || c.Schema+c.Table != "" || len(l.All()) > 1 {
		t.Errorf("%v", l.All())
	}
	l.Until("the position after it", func() bool {
		b := l.Batches()[len(l.Batches())-1]
		return b.Position != "" && len(b.Changes) == 0
	})
	all = l.Positions()
	need.From = all[len(all)-1]
	l.Stop()
	l = o.Listen(o.source(), need)
	asksAgain(l)
	if len(l.All()) > 0 {
		t.Errorf("again: %v", l.All())
	}
}

// Each level works, and a Writer with settings that the log cannot keep fails, and says so.
func TestOutboxAtEachLevel(t *testing.T) {
	o := outboxOn(shared(t))
	o.consume()
	o.cache(1)
	ctx := o.Context()
	for n, level := range []consistency.Level{consistency.Async, consistency.Outbox} {
		before := o.Consumer.Stats().Messages
		o.Check(o.At(level).Update(ctx, set(1, int64(n+1)), o.key(1)))
		if level != consistency.Async {
			o.serves(o.writer, 1, int64(n+1))
		}
		o.becomes(1, int64(n+1))
		o.applied()
		if s := o.Consumer.Stats(); s.Messages != before+1 {
			t.Errorf("%v: %d messages, want %d", level, s.Messages, before+1)
		}
	}
	const permits = "Inline: Options.Queue cannot delay items: it permits Async, Outbox and Strict"
	if err := o.At(consistency.Inline).Update(ctx, set(1, 100), o.key(1)); err == nil ||
		!strings.Contains(err.Error(), permits) {
		t.Error(err)
	}
	if _, err := consistency.NewWriter(o.writer.DB, o.writer.Cache, &consistency.Options{Queue: o.box,
		Level: consistency.Inline}); err == nil || !strings.Contains(err.Error(), "Options.Level: "+permits) {
		t.Error(err)
	}
	for want, options := range map[string]*consistency.Options{
		"DoubleDelete": {DoubleDelete: time.Second},
		"Reload":       {Reload: true, Level: consistency.Async},
	} {
		options.Queue = o.box
		w, err := consistency.NewWriter(o.writer.DB, o.writer.Cache, options)
		o.Check(err)
		if err := w.Update(ctx, set(1, 100), o.key(1)); err == nil || !strings.Contains(err.Error(), "Options."+want) ||
			strings.Contains(err.Error(), "100") {
			t.Errorf("%v does not name %s", err, want)
		}
		o.Check(w.Close())
	}
	if n := o.Ask("SELECT n FROM users"); n != "2" {
		t.Error("a write without its item was committed:", n)
	}
	if err := o.box.Put(ctx, consistency.Item{Key: o.key(1), After: time.Second}); err == nil ||
		!strings.Contains(err.Error(), "Item.After") {
		t.Error(err)
	}
	o.Do("UPDATE users SET n = 9")
	o.Check(o.box.Put(ctx, consistency.Item{Key: o.key(1)}))
	o.becomes(1, 9)
	if err := o.box.Put(ctx, consistency.Item{}); err == nil {
		t.Error("an item without a key was put")
	}
}

// Strict and WriteThrough work too. But the Consumer invalidates the key that WriteThrough has
// stored, or prevents that.
func TestOutboxStrict(t *testing.T) {
	o := outboxOn(shared(t))
	o.consume()
	o.cache(1)
	ctx := o.Context()
	p, err := sourcetest.Open("pgx", o.server.DSN(t), o.redis.Addr, &cacheaside.Options{RedisTimeout: testenv.Hang,
		ReadTimeout: testenv.Hang, MaxStaleness: time.Second, StrictWrites: true}, "public", "users")
	o.Check(err)
	t.Cleanup(p.Close)
	w, err := consistency.NewWriter(p.DB, p.Cache, &consistency.Options{Queue: o.box, Level: consistency.Strict})
	o.Check(err)
	t.Cleanup(func() { _ = w.Close() })
	o.Check(w.Update(ctx, set(1, 1), o.key(1)))
	o.serves(p, 1, 1)
	o.becomes(1, 1)
	o.Check(consistency.WriteThrough(ctx, w, p.ByID[0], 1, func(ctx context.Context, tx *sqlx.Tx) (string, error) {
		return row(1, 2), set(1, 2)(ctx, tx)
	}))
	o.applied()
	loads := func() int64 { return p.Loads.Load() + o.writer.Loads.Load() + o.reader.Loads.Load() }
	before := loads()
	o.serves(p, 1, 2)
	o.becomes(1, 2)
	if loads() == before {
		t.Error("the stored value was not removed: the guides say that it is")
	}
	if s := o.Consumer.Stats(); s.Messages != 2 || s.Misunderstood+s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}

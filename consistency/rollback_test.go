package consistency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/sqldb"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// committers set row 1 to "new" for good in a transaction that is rolled back then. After an error
// PostgreSQL refuses all further statements, and DDL commits nothing there.
var committers = []struct {
	name   string
	kind   sqldb.Kind
	commit func(x *world, ctx context.Context, tx *sqlx.Tx) error
}{
	{"a deadlock, and the statement tried again", sqldb.MySQL, afterDeadlock},
	{"DDL", sqldb.MySQL, func(_ *world, ctx context.Context, tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS ddl (id INT)")
		return errors.Join(set(1, "new")(ctx, tx), err, ddl(ctx, tx))
	}},
	{"a conflict that rolls back, and the statement tried again", sqldb.SQLite, func(_ *world, ctx context.Context, tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT OR ROLLBACK INTO item VALUES (2, 'twice')"); err == nil {
			return errors.New("inserted twice")
		}
		return set(1, "new")(ctx, tx)
	}},
	{"a COMMIT among the statements", sqldb.Postgres, commitByStatement},
}

// commitByStatement commits what was written before it, against the rules of Update.
func commitByStatement(_ *world, ctx context.Context, tx *sqlx.Tx) error {
	return errors.Join(set(1, "new")(ctx, tx), execOn(ctx, tx, "COMMIT"))
}

// ddl commits what was written before it.
func ddl(ctx context.Context, tx *sqlx.Tx) error {
	_, err := tx.ExecContext(ctx, "DROP TABLE ddl")
	return err
}

// afterDeadlock has InnoDB end the transaction for the sake of another, and tries its last
// statement again.
func afterDeadlock(x *world, ctx context.Context, tx *sqlx.Tx) error {
	other, err := x.admin.BeginTxx(ctx, nil)
	x.check(err)
	x.check(set(2, "other")(ctx, other))
	for id := range 50 { // the transaction that has written more is not the one that is ended
		_, err := other.ExecContext(ctx, "INSERT INTO item VALUES (?, 'other')", 1000+id)
		x.check(err)
	}
	x.check(set(1, "mine")(ctx, tx))
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(set(1, "other")(ctx, other), other.Rollback()) }()
	err = set(2, "mine")(ctx, tx) // both wait for each other, in either order
	x.check(testenv.Receive(x.t, "the end of the other one", ended))
	if answer, ok := errors.AsType[*mysql.MySQLError](err); !ok || answer.Number != 1213 {
		return fmt.Errorf("no deadlock: %w", err)
	}
	return set(1, "new")(ctx, tx)
}

// eachCommitter runs a test for each kind of database, and each way in which part of a rolled back
// transaction stays.
func eachCommitter(t *testing.T, s setup, test func(x *world, commit func(ctx context.Context, tx *sqlx.Tx) error)) {
	for e, kind := range map[testenv.Engine]sqldb.Kind{
		"": sqldb.SQLite, testenv.MariaDB: sqldb.MySQL, testenv.MySQL: sqldb.MySQL, testenv.PostgreSQL: sqldb.Postgres,
	} {
		if e == testenv.MySQL && !testenv.Accepting {
			continue // MariaDB fails for the same faults
		}
		t.Run(cmp.Or(string(e), "sqlite"), func(t *testing.T) {
			for _, c := range committers {
				if c.kind != kind {
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					s.engine = e
					x := start(t, s)
					test(x, func(ctx context.Context, tx *sqlx.Tx) error {
						x.check(c.commit(x, ctx, tx))
						return nil
					})
				})
			}
		})
	}
}

// ends are the ways in which a function makes its transaction roll back.
var ends = map[string]func() error{
	"error":  func() error { return errOwn },
	"panic":  func() error { panic(errOwn) },
	"goexit": func() error { runtime.Goexit(); return nil },
}

// apart runs f, which may panic, or end its goroutine.
func apart(f func() error) (thrown any, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { thrown = recover() }()
		err = f()
	}()
	<-done
	return thrown, err
}

// TestRolledBackInPart: a part of what is rolled back may have been committed all the same, and is
// not served any more as it was.
func TestRolledBackInPart(t *testing.T) {
	eachCommitter(t, setup{}, func(x *world, commit func(context.Context, *sqlx.Tx) error) {
		for name, end := range ends {
			for _, level := range levels {
				for _, touched := range []bool{false, true} {
					x.reset()
					thrown, err := apart(func() error {
						return x.At(level).Update(x.t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
							if touched {
								x.check(Touch(ctx, x.rows.Key(1)))
							}
							x.check(commit(ctx, tx))
							return end()
						}, x.rows.Key(map[bool]int{false: 1, true: 2}[touched]))
					})
					if name == "error" && !errors.Is(err, errOwn) || name == "panic" && thrown != errOwn ||
						errors.Is(err, ErrNotInvalidated) {
						x.t.Errorf("%s, %v: %v, %v", name, level, err, thrown)
					}
					x.has("new")
					x.reads("new")
					if x.isHeld() {
						x.t.Errorf("%s, %v: it is still on hold", name, level)
					}
					if got := x.counts(); got != (Stats{RolledBack: 1}) {
						x.t.Errorf("%s, %v: %+v", name, level, got)
					}
				}
			}
		}
		x.reset()
		thrown, _ := apart(func() error {
			return WriteThrough(x.t.Context(), x.Writer, x.rows, 1,
				func(ctx context.Context, tx *sqlx.Tx) (string, error) {
					return "mine", errors.Join(commit(ctx, tx), errOwn)
				})
		})
		if thrown != nil {
			x.t.Errorf("WriteThrough: %v", thrown)
		}
		x.has("new")
		x.reads("new")
	})
}

// TestRolledBackInsert: a row that stays is found, though a filter was sure that there was none.
func TestRolledBackInsert(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(t *testing.T, e testenv.Engine) {
		x := start(t, setup{engine: e, filter: items})
		for i, level := range levels {
			id := 10 + i
			if _, err := x.other.Get(t.Context(), id); !errors.Is(err, cacheaside.ErrNotFound) {
				t.Fatal(err)
			}
			is(t, x.At(level).Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
				if e == testenv.PostgreSQL {
					return errors.Join(insert(id, "new")(ctx, tx), execOn(ctx, tx, "COMMIT"), errOwn)
				}
				_, err := tx.ExecContext(ctx, "CREATE TABLE ddl (id INT)")
				return errors.Join(insert(id, "new")(ctx, tx), err, ddl(ctx, tx), errOwn)
			}, x.rows.Key(id)), errOwn)
			for _, l := range []*cacheaside.Loader[int, string]{x.rows, x.other} {
				if v, err := l.Get(t.Context(), id); v != "new" || err != nil {
					t.Errorf("%v: %q, %v", level, v, err)
				}
			}
		}
	})
}

// TestRolledBackWithoutRedis: invalidations that fail at once are queued, and only the first of
// many rollbacks waits for Redis.
func TestRolledBackWithoutRedis(t *testing.T) {
	eachCommitter(t, setup{cache: quick}, func(x *world, commit func(context.Context, *sqlx.Tx) error) {
		for _, level := range levels {
			x.reset()
			x.skipRedisFor = time.Hour
			back := func() {}
			roll := func() error {
				return x.At(level).Update(x.t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
					back = x.away("cut")
					return errors.Join(commit(ctx, tx), errOwn)
				}, x.rows.Key(1))
			}
			err := roll()
			is(x.t, err, errOwn)
			if errors.Is(err, ErrNotInvalidated) || x.intents() != 1 {
				x.t.Errorf("%v: %v; %d rows in the outbox", level, err, x.intents())
			}
			if got := x.counts(); got != (Stats{RolledBack: 1, Queued: 1}) {
				x.t.Errorf("%v: %+v", level, got)
			}
			if level != Strict { // which does not begin
				is(x.t, roll(), errOwn)
				if got := x.counts(); got != (Stats{RolledBack: 2, Queued: 2, Skipped: 1}) {
					x.t.Errorf("%v: %+v", level, got)
				}
			}
			back()
			x.has("new")
			x.invalidated()
			x.otherReads("new")
		}
	})
}

// TestRolledBackHeld: a Strict write that is rolled back does not skip Redis, which has just
// granted its hold, because another write could not reach it.
func TestRolledBackHeld(t *testing.T) {
	x := start(t, setup{cache: quick})
	x.skipRedisFor = time.Hour
	for _, level := range levels {
		x.reset()
		now := time.Now()
		x.redisDown.Store(&now)
		is(t, x.At(level).Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
			return errors.Join(set(1, "new")(ctx, tx), errOwn)
		}, x.rows.Key(1)), errOwn)
		want := Stats{RolledBack: 1, Queued: 1, Skipped: 1}
		if level == Strict {
			want = Stats{RolledBack: 1}
		}
		if got := x.counts(); got != want {
			t.Errorf("%v: %+v", level, got)
		}
	}
}

// A caller learns that the queue does not have the item either. The error does not say that the
// transaction was committed, as ErrNotQueued does: the caller may repeat the write.
func TestRolledBackAndNotQueued(t *testing.T) {
	x := start(t, setup{cache: quick, Options: Options{Queue: broken{NewMemoryQueue(0)}}})
	back := func() {}
	err := x.Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
		back = x.away("cut")
		return errOwn
	}, x.rows.Key(1))
	back()
	is(t, err, errOwn)
	is(t, err, ErrNotInvalidated)
	if errors.Is(err, ErrNotQueued) {
		t.Errorf("%v: it was not committed", err)
	}
	if !strings.HasPrefix(err.Error(), errOwn.Error()) {
		t.Errorf("%v", err)
	}
	if got := x.counts(); got != (Stats{RolledBack: 1, NotQueued: 1}) {
		t.Errorf("%+v", got)
	}
}

// TestNotCalled: a write whose function was not called has changed nothing.
func TestNotCalled(t *testing.T) {
	x := start(t, setup{})
	for _, level := range levels {
		for _, place := range []string{"held", "begun"} {
			x.reset()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			at(t, place, stop)
			called := false
			is(t, x.At(level).Update(ctx, func(context.Context, *sqlx.Tx) error { called = true; return errOwn },
				x.rows.Key(1)), map[string]error{"held": context.Canceled, "begun": errOwn}[place])
			if level != Strict && x.isStored("old") == called {
				t.Errorf("%v: called %v, cached %v", level, called, x.isStored("old"))
			}
		}
	}
}

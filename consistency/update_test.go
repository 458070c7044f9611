package consistency

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestUpdate: what was written is read, by all processes, as soon as Update has returned; at the
// level Async, as soon as a relay has worked.
func TestUpdate(t *testing.T) {
	for name, e := range map[string]testenv.Engine{"sqlite": "", "mariadb": testenv.MariaDB, "mysql": testenv.MySQL,
		"postgres": testenv.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			x := start(t, setup{engine: e})
			for _, level := range levels {
				x.reset()
				x.check(x.At(level).Update(t.Context(), set(1, "new"), x.rows.Key(1)))
				if level == Async {
					x.reads("old")
					x.invalidated()
				}
				x.reads("new")
				x.eventually("the outbox is empty", func() bool { return x.intents() == 0 })
				if got := x.counts(); got != (Stats{Updates: 1}) {
					t.Errorf("%v: %+v", level, got)
				}
				if x.isHeld() {
					t.Errorf("%v: it is still on hold", level)
				}
			}
		})
	}
}

var errOwn = errors.New("no")

// TestRollback: a write that ends before its COMMIT, for any reason, leaves no row, no intent, no
// hold and no lock.
func TestRollback(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testRollback) }

func testRollback(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e})
	for name, end := range map[string]func(stop context.CancelFunc) error{
		"error":  func(context.CancelFunc) error { return errOwn },
		"panic":  func(context.CancelFunc) error { panic(errOwn) },
		"goexit": func(context.CancelFunc) error { runtime.Goexit(); return nil },
		"ctx":    func(stop context.CancelFunc) error { stop(); return nil },
	} {
		for _, level := range levels {
			x.reset()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var err error
			var thrown any
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { thrown = recover() }()
				err = x.At(level).Update(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
					if err := set(1, "new")(ctx, tx); err != nil {
						return err
					}
					return end(stop)
				}, x.rows.Key(1))
			}()
			<-done
			want := map[string]error{"error": errOwn, "ctx": context.Canceled}[name]
			if is(t, err, want); name == "panic" && thrown != errOwn {
				t.Errorf("%v: panicked with %v", level, thrown)
			}
			x.nothing(level)
			if got := x.counts(); got != (Stats{RolledBack: 1}) {
				t.Errorf("%s, %v: %+v", name, level, got)
			}
			x.check(x.At(Inline).Update(t.Context(), set(1, "newer"), x.rows.Key(1))) // the row is not locked
			x.reads("newer")
		}
	}
}

// nothing fails unless a write of row 1 was not made, and has left nothing.
func (x *world) nothing(level Level) {
	x.t.Helper()
	x.has("old")
	x.reads("old")
	if n := x.intents(); n != 0 {
		x.t.Errorf("%v: %d rows in the outbox", level, n)
	}
	if x.isHeld() {
		x.t.Errorf("%v: it is still on hold", level)
	}
}

// TestEndedByWrite: a function that ends the transaction by itself, against the rules, leaves
// nothing stale.
func TestEndedByWrite(t *testing.T) {
	x := start(t, setup{})
	for name, end := range map[string]func(tx *sqlx.Tx) error{
		"committed":          func(tx *sqlx.Tx) error { return tx.Commit() },
		"committed, error":   func(tx *sqlx.Tx) error { return errors.Join(tx.Commit(), errOwn) },
		"committed, panic":   func(tx *sqlx.Tx) error { _ = tx.Commit(); panic(errOwn) },
		"rolled back":        func(tx *sqlx.Tx) error { return tx.Rollback() },
		"rolled back, error": func(tx *sqlx.Tx) error { return errors.Join(tx.Rollback(), errOwn) },
	} {
		for _, level := range levels {
			x.reset()
			func() {
				defer func() { _ = recover() }()
				is(t, x.At(level).Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
					return errors.Join(set(1, "new")(ctx, tx), end(tx))
				}, x.rows.Key(1)), ErrUnknown)
			}()
			v, err := x.load(t.Context(), 1)
			x.check(err)
			x.reads(v)
			if got := x.counts(); got != (Stats{Unknown: 1}) {
				t.Errorf("%s, %v: %+v", name, level, got)
			}
			if n := x.intents(); n != 1 {
				t.Errorf("%s, %v: to be invalidated once more: %d", name, level, n)
			}
		}
	}
}

// TestCancelled: a ctx that ends before the COMMIT stops the write; later it changes nothing.
func TestCancelled(t *testing.T) {
	x := start(t, setup{})
	for _, level := range levels {
		for _, place := range []string{"", "held", "begun", "written", "admitted", "outbox-written", "touched-held",
			"checked"} {
			x.reset()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if place == "" {
				stop()
			} else {
				at(t, place, stop)
			}
			is(t, x.At(level).Update(ctx, set(1, "new"), x.rows.Key(1)), context.Canceled)
			x.nothing(level)
		}
		x.reset()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		at(t, "committed", stop)
		x.check(x.At(level).Update(ctx, set(1, "new"), x.rows.Key(1)))
		if level == Async {
			x.invalidated()
		}
		x.reads("new")
	}
}

// TestKeys: what can be given as keys, and what cannot.
func TestKeys(t *testing.T) {
	x := start(t, setup{})
	lengths, err := cacheaside.NewLoader(x.cache, "length", func(ctx context.Context, id int) (int, error) {
		v, err := x.load(ctx, id)
		return len(v), err
	}, nil)
	x.check(err)
	bad := cacheaside.Key{Loader: "no name", Text: "1"}
	for _, level := range levels {
		w := x.At(level)
		settle := func() {
			if level == Async {
				x.invalidated()
			}
		}

		x.reset()
		x.check(w.Update(t.Context(), set(1, "new")))
		x.has("new")
		if n := x.intents(); n != 0 {
			t.Errorf("%v, without keys: %d rows in the outbox", level, n)
		}

		x.reset()
		at(t, "committed", func() {
			if n := x.intents(); n != 1 && level != Inline {
				t.Errorf("%v, the same three times: %d rows in the outbox", level, n)
			}
		})
		twice := x.rows.Key(1)
		twice.Version = ""
		x.check(w.Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
			return errors.Join(set(1, "new")(ctx, tx), Touch(ctx, x.rows.Key(1)))
		}, x.rows.Key(1), twice))
		settle()
		x.reads("new")

		x.reset()
		if _, err := lengths.Get(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		x.check(w.Update(t.Context(), set(1, "newest"), x.rows.Key(1), lengths.Key(1)))
		settle()
		x.reads("newest")
		if n, err := lengths.Get(t.Context(), 1); n != 6 || err != nil {
			t.Errorf("%v, of another loader: %d, %v", level, n, err)
		}

		x.reset()
		if err := w.Update(t.Context(), set(1, "new"), x.rows.AllKeys()); level == Strict {
			if err == nil {
				t.Error("a whole loader was put on hold")
			}
			x.nothing(level)
		} else {
			x.check(err)
			settle()
			if v, err := x.rows.Get(t.Context(), 1); v != "new" || err != nil {
				t.Errorf("%v, all keys: %q, %v", level, v, err)
			}
			x.eventually("other processes are invalidated", func() bool {
				v, err := x.other.Get(t.Context(), 1)
				return v == "new" && err == nil
			})
		}

		x.reset()
		ran := false
		if err := w.Update(t.Context(), func(context.Context, *sqlx.Tx) error { ran = true; return nil },
			bad); err == nil || ran {
			t.Errorf("%v, a bad key: %v, %v", level, err, ran)
		}
		if err := w.Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
			if Touch(ctx, bad) == nil {
				t.Errorf("%v: no error of Touch", level)
			}
			return set(1, "new")(ctx, tx) // which ignores it
		}); err == nil {
			t.Errorf("%v, a bad key touched: no error", level)
		}
		x.nothing(level)
	}
}

func TestTouch(t *testing.T) {
	x := start(t, setup{})
	for _, level := range levels {
		x.reset()
		var late context.Context
		x.check(x.At(level).Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
			late = ctx
			return errors.Join(set(1, "new")(ctx, tx), Touch(ctx, x.rows.Key(1)))
		}))
		if level == Async {
			x.invalidated()
		}
		x.reads("new")
		if x.isHeld() {
			t.Errorf("%v: it is still on hold", level)
		}
		if Touch(late, x.rows.Key(1)) == nil || Touch(t.Context(), x.rows.Key(1)) == nil {
			t.Errorf("%v: no error without an Update", level)
		}
	}
}

// A group is the same with any version.
func TestTouchedGroups(t *testing.T) {
	var u touched
	group := cacheaside.Key{Loader: "item", Text: "1", Group: true}
	versioned := group
	versioned.Version = "7"
	if err := u.add([]cacheaside.Key{group, versioned, {Loader: "item", Text: "1"}}); err != nil {
		t.Fatal(err)
	}
	if keys, err := u.close(); err != nil || len(keys) != 2 || keys[0] != group {
		t.Errorf("%#v, %v", keys, err)
	}
}

// TestStrictGroup: a Strict write holds its keys, but not its groups. Both have a row in the outbox
// when the transaction is committed.
func TestStrictGroup(t *testing.T) {
	x := start(t, setup{})
	w := x.At(Strict)
	group := cacheaside.Key{Loader: "page", Text: "category:books", Group: true}
	at(t, "committed", func() {
		if n := x.intents(); n != 2 || !x.isHeld() {
			t.Errorf("%d rows in the outbox, on hold: %v", n, x.isHeld())
		}
	})
	x.check(w.Update(t.Context(), set(1, "new"), group, x.rows.Key(1)))
	x.reads("new")
	if x.isHeld() {
		t.Error("still on hold")
	}

	x.reset()
	at(t, "committed", func() {
		if n := x.intents(); n != 1 {
			t.Errorf("only a group: %d rows in the outbox", n)
		}
	})
	x.check(w.Update(t.Context(), set(1, "new"), group))

	x.reset()
	failed := errors.New("no")
	is(t, w.Update(t.Context(), func(ctx context.Context, _ *sqlx.Tx) error {
		x.check(Touch(ctx, group))
		return failed
	}, group, x.rows.Key(1)), failed)
	if x.isHeld() {
		t.Error("after a rollback it is still on hold")
	}
}

package consistency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// lagging returns a function that has another process cache row 1 as a lagging replica shows it
// now. Tests call it after the invalidation.
func (x *world) lagging(c *cacheaside.Cache) (store func()) {
	x.t.Helper()
	old, err := x.load(x.t.Context(), 1)
	x.check(err)
	l, err := cacheaside.NewLoader(c, "item", func(context.Context, int) (string, error) { return old, nil }, nil)
	x.check(err)
	return func() {
		_, err := l.Get(x.t.Context(), 1)
		x.check(err)
	}
}

// once has a relay do the first of two invalidations and record that in the outbox.
func (x *world) once() {
	x.t.Helper()
	x.relays("the first time", func() bool {
		var again int
		x.check(x.admin.Get(&again, "SELECT again FROM cacheaside_outbox"))
		return again == 0
	})
}

// timeHasCome makes what is in the outbox due.
func (x *world) timeHasCome() {
	x.t.Helper()
	x.exec("UPDATE cacheaside_outbox SET due = 1")
}

// TestDoubleDelete: what a lagging reader has stored after the invalidation is gone after the
// second one.
func TestDoubleDelete(t *testing.T) {
	for _, inMemory := range []bool{false, true} {
		t.Run(fmt.Sprintf("memory=%v", inMemory), func(t *testing.T) {
			x := start(t, setup{inMemory: inMemory, Options: Options{DoubleDelete: time.Hour}})
			lagging := x.lagging(x.newCache(x.server.Client(t), cacheaside.Options{MemoryBytes: -1}))
			for _, level := range levels {
				if inMemory && (level == Async || level == Outbox) {
					continue
				}
				x.reset()
				x.options.DoubleDelete = 50 * time.Millisecond
				if level == Async {
					x.options.DoubleDelete = time.Hour // as the relay works in between
				}
				x.check(x.At(level).Update(t.Context(), set(1, "new"), x.rows.Key(1)))
				if level == Async { // the first time
					x.once()
				}
				lagging()
				x.otherReads("old")
				if level == Async {
					x.timeHasCome()
				}
				x.relays("invalidated once more",
					func() bool { d, err := x.options.Queue.Depth(t.Context()); return d.Items == 0 && err == nil })
				x.reads("new")
			}
		})
	}
}

// TestDoubleDeleteKilled: the second invalidation is done, though the process that has done the
// first was killed; and both are, if it was killed before it could say that the first was done.
func TestDoubleDeleteKilled(t *testing.T) { testenv.OneUnlessAccepting(t, testDoubleDeleteKilled) }

func testDoubleDeleteKilled(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e})
	lagging := x.lagging(x.newCache(x.server.Client(t), cacheaside.Options{MemoryBytes: -1}))
	for place, double := range map[string]time.Duration{"removed": 50 * time.Millisecond, "invalidated": time.Hour} {
		x.reset()
		x.dies(child{Level: Outbox, Place: place, DoubleDelete: double})
		x.has("new")
		lagging()
		x.otherReads("old")
		if place == "invalidated" {
			x.once()
			x.reads("new")
			x.check(x.other.Invalidate(t.Context(), 1))
			lagging()
			x.otherReads("old")
			x.timeHasCome()
		}
		x.invalidated()
		x.reads("new")
	}
}

// TestEnqueue: for transactions of the user's own nothing else is needed.
func TestEnqueue(t *testing.T) {
	x := start(t, setup{})
	for _, level := range []Level{DefaultLevel, Async} {
		for name, end := range map[string]func(*sql.Tx) error{"new": (*sql.Tx).Commit, "old": (*sql.Tx).Rollback} {
			x.reset()
			tx, err := x.admin.BeginTx(t.Context(), nil)
			x.check(err)
			_, err = tx.Exec("UPDATE item SET v = 'new' WHERE id = 1")
			x.check(err)
			x.check(x.At(level).Enqueue(t.Context(), tx, x.rows.Key(1), x.rows.Key(1)))
			x.check(x.At(level).Enqueue(t.Context(), tx))
			x.check(end(tx))
			x.has(name)
			if n := x.intents(); (n == 1) != (name == "new") {
				t.Errorf("%d rows in the outbox", n)
			}
			x.invalidated()
			x.reads(name)
		}
	}
	txx, err := x.admin.Beginx()
	x.check(err)
	defer txx.Rollback()
	x.check(x.Enqueue(t.Context(), txx, x.rows.Key(1)))
	if err := x.Enqueue(t.Context(), txx, cacheaside.Key{}); err == nil {
		t.Error("a key that is none was taken")
	}
	if err := x.Enqueue(t.Context(), nil, x.rows.Key(1)); err == nil {
		t.Error("no transaction was taken")
	}
}

func TestEnqueueNeedsAnOutbox(t *testing.T) {
	x := start(t, setup{inMemory: true})
	tx, err := x.admin.Begin()
	x.check(err)
	defer tx.Rollback()
	is(t, x.Enqueue(t.Context(), tx, x.rows.Key(1)), errNoOutbox)
	for _, level := range []Level{Async, Outbox} {
		is(t, x.At(level).Update(t.Context(), set(1, "new"), x.rows.Key(1)), errNoOutbox)
	}
	x.has("old")
}

// many yields the keys of rows 0 to n-1, and one invalid key.
func (x *world) many(n int) iter.Seq2[cacheaside.Key, error] {
	return func(yield func(cacheaside.Key, error) bool) {
		for id := range n {
			if !yield(x.rows.Key(id), nil) {
				return
			}
		}
		_ = yield(cacheaside.Key{}, nil) && yield(cacheaside.Key{}, errOwn)
	}
}

// TestInvalidateMany: all keys are invalidated, in batches; what cannot be is queued, and said.
func TestInvalidateMany(t *testing.T) {
	x := start(t, setup{cache: cacheaside.Options{MemoryBytes: -1}})
	const n = 2000
	x.exec("UPDATE item SET v = 'new'")
	got, bad := 0, 0
	err := x.InvalidateMany(t.Context(), x.many(n), 0, func(key cacheaside.Key, err error) {
		switch {
		case key == cacheaside.Key{}:
			bad++
			if err == nil {
				t.Error("no error for a key that is none")
			}
		case err != nil:
			t.Error(err)
		default:
			got++
		}
	})
	if err == nil || errors.Is(err, ErrQueued) || !strings.Contains(err.Error(), ": 2 of 2002 keys ") {
		t.Error(err)
	}
	if got != n || bad != 2 {
		t.Errorf("%d of %d, and %d that are none", got, n, bad)
	}
	x.reads("new")
}

func TestInvalidateManyPaced(t *testing.T) {
	x := start(t, setup{})
	began, got := time.Now(), 0
	_ = x.InvalidateMany(t.Context(), x.many(200), 400, func(cacheaside.Key, error) { got++ }) // in batches of 100
	if took := time.Since(began); took < 250*time.Millisecond || got != 202 {
		t.Errorf("%d in %v", got, took)
	}
}

func TestInvalidateManyRedisOut(t *testing.T) {
	x := start(t, setup{cache: quick})
	x.exec("UPDATE item SET v = 'new'")
	back := x.away("hung")
	keys := func(yield func(cacheaside.Key, error) bool) {
		for id := range 10 {
			_ = yield(x.rows.Key(id), nil)
		}
	}
	err := x.InvalidateMany(t.Context(), keys, 0, func(_ cacheaside.Key, err error) {
		is(t, err, ErrQueued)
		is(t, err, cacheaside.ErrRedis)
	})
	is(t, err, ErrQueued)
	is(t, err, cacheaside.ErrRedis)
	back()
	if got := x.counts(); got != (Stats{Queued: 10}) {
		t.Errorf("%+v", got)
	}
	x.invalidated()
	x.reads("new")
}

// TestInvalidateManyOfNoQueue: one key that is neither invalidated nor queued is not hidden behind
// others that are queued.
func TestInvalidateManyOfNoQueue(t *testing.T) {
	x := start(t, setup{cache: quick})
	back := x.away("hung")
	defer back()
	err := x.InvalidateMany(t.Context(), x.many(10), 0, nil)
	if err == nil || errors.Is(err, ErrQueued) || !strings.Contains(err.Error(), ": 12 of 12 keys ") {
		t.Error(err)
	}
}

// TestInvalidateManyIsACall: it works without a caller who asks for anything.
func TestInvalidateManyIsACall(t *testing.T) {
	x := start(t, setup{cache: cacheaside.Options{MemoryBytes: -1}})
	x.reads("old")
	x.exec("UPDATE item SET v = 'new'")
	_ = x.InvalidateMany(t.Context(), x.many(20), 0, nil)
	x.reads("new")
}

func TestInvalidateManyEnds(t *testing.T) {
	x := start(t, setup{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	n, ended := 0, 0
	is(t, x.InvalidateMany(ctx, x.many(5000), 0, func(_ cacheaside.Key, err error) {
		if n++; n == 100 {
			stop()
		}
		if errors.Is(err, context.Canceled) {
			ended++
		} else if err != nil {
			t.Error(err)
		}
	}), context.Canceled)
	if n != 2*bulkBatch || ended != bulkBatch {
		t.Errorf("%d, of which %d by the end of ctx", n, ended)
	}
	x.check(x.Close())
	is(t, x.InvalidateMany(t.Context(), x.many(1), 0, func(key cacheaside.Key, err error) {
		if key != (cacheaside.Key{}) {
			is(t, err, cacheaside.ErrClosed)
		}
	}), cacheaside.ErrClosed)
}

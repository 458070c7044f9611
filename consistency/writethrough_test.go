package consistency

import (
	"context"
	"errors"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// through is a write for WriteThrough.
func through(id int, v string) func(context.Context, *sqlx.Tx) (string, error) {
	return func(ctx context.Context, tx *sqlx.Tx) (string, error) { return v, set(id, v)(ctx, tx) }
}

// knows makes the writing process learn the generation of its entries, without which it stores
// nothing.
func (x *world) knows() {
	x.t.Helper()
	x.reset()
	x.eventually("written through", func() bool {
		x.check(WriteThrough(x.t.Context(), x.Writer, x.rows, 1, through(1, "old")))
		return x.isStored("old")
	})
	x.eventually("the outbox is empty", func() bool {
		x.exec("DELETE FROM cacheaside_outbox") // also what Redis was too slow for
		return x.isStored("old")
	})
	x.before = x.Stats()
	x.redisDown.Store(nil)
}

// TestWriteThrough: the new value is cached when WriteThrough returns, so no read has to load it.
func TestWriteThrough(t *testing.T) {
	x := start(t, setup{})
	for _, level := range levels { // which it does not heed
		x.knows()
		loads := x.other.Stats().Loads
		x.check(WriteThrough(t.Context(), x.At(level), x.rows, 1, through(1, "new"), x.rows.Key(2)))
		x.has("new")
		x.reads("new")
		if n := x.other.Stats().Loads - loads; n != 0 {
			t.Errorf("%v: %d loads", level, n)
		}
		if got := x.counts(); got != (Stats{Updates: 1}) {
			t.Errorf("%v: %+v", level, got)
		}
		x.nothingHeld()
		x.eventually("the outbox is empty", func() bool { return x.intents() == 0 })
	}
}

// TestWriteThroughAlso: the other keys are invalidated.
func TestWriteThroughAlso(t *testing.T) {
	x := start(t, setup{})
	x.knows()
	if v, err := x.other.Get(t.Context(), 2); v != "old" || err != nil {
		t.Fatal(v, err)
	}
	x.check(WriteThrough(t.Context(), x.Writer, x.rows, 1, func(ctx context.Context, tx *sqlx.Tx) (string, error) {
		return "new", errors.Join(set(1, "new")(ctx, tx), set(2, "new")(ctx, tx), Touch(ctx, x.rows.Key(2)))
	}))
	x.reads("new")
	if v, err := x.other.Get(t.Context(), 2); v != "new" || err != nil {
		t.Errorf("the touched one: %q, %v", v, err)
	}
}

// TestWriteThroughFails: what is not committed is not cached.
func TestWriteThroughFails(t *testing.T) {
	x := start(t, setup{})
	x.knows()
	is(t, WriteThrough(t.Context(), x.Writer, x.rows, 1, func(ctx context.Context, tx *sqlx.Tx) (string, error) {
		return "new", errors.Join(set(1, "new")(ctx, tx), errOwn)
	}), errOwn)
	x.nothing(Strict)
}

// TestWriteThroughRefused: what others do to the key between its hold and the exchange has it
// invalidated instead.
func TestWriteThroughRefused(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, testWriteThroughRefused)
}

func testWriteThroughRefused(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e})
	for name, meanwhile := range map[string]func(){
		"written by another": func() {
			x.check(WriteThrough(t.Context(), x.Writer, x.rows, 1, through(1, "newer")))
		},
		"updated by another": func() { x.check(x.At(Inline).Update(t.Context(), set(1, "newer"), x.rows.Key(1))) },
		"deleted by hand":    func() { x.check(x.server.Client(t).Del(t.Context(), redisKey).Err()) },
		"all invalidated":    func() { x.check(x.rows.InvalidateAll(t.Context())) },
	} {
		x.knows()
		at(t, "committed", meanwhile)
		x.check(WriteThrough(t.Context(), x.Writer, x.rows, 1, through(1, "new")))
		v, err := x.load(t.Context(), 1)
		x.check(err)
		x.reads(v)
		if got := x.counts(); got.NotStored == 0 && name != "all invalidated" { // there it is outdated
			t.Errorf("%s: %+v", name, got)
		}
		x.nothingHeld()
	}
}

// TestWriteThroughBehind: of two writers, the one who commits first comes last to the caches.
func TestWriteThroughBehind(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, testWriteThroughBehind)
}

func testWriteThroughBehind(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e})
	x.knows()
	at(t, "checked", func() { // the other has its hold when this one commits, and commits after it
		held := make(chan struct{})
		committed := make(chan struct{})
		done := make(chan error)
		go func() {
			done <- WriteThrough(t.Context(), x.Writer, x.rows, 1,
				func(ctx context.Context, tx *sqlx.Tx) (string, error) {
					close(held)
					<-committed
					return "newer", set(1, "newer")(ctx, tx)
				})
		}()
		<-held
		at(t, "committed", func() {
			hook.Store(nil)
			close(committed)
			x.check(<-done)
		})
	})
	x.check(WriteThrough(t.Context(), x.Writer, x.rows, 1, through(1, "new")))
	x.has("newer")
	x.reads("newer")
	x.nothingHeld()
}

// TestWriteThroughUnknown: a write that may or may not be committed stores nothing.
func TestWriteThroughUnknown(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, testWriteThroughUnknown)
}

func testWriteThroughUnknown(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e, proxied: true})
	x.knows()
	x.onCommit(-1, nil)
	is(t, WriteThrough(t.Context(), x.Writer, x.rows, 1, through(1, "new")), ErrUnknown)
	x.has("old")
	x.reads("old")
}

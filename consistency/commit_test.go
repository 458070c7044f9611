package consistency

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// cancelRequest is the beginning of PostgreSQL's CancelRequest. If a connection fails while a
// statement runs, pgx sends one on a new connection. It may come before the statement has ended.
var cancelRequest = []byte{0, 0, 0, 16, 4, 210, 22, 46}

// onCommit makes the action happen to the next COMMIT. No request to cancel it gets through.
func (x *world) onCommit(action testenv.Action, also func()) {
	var done atomic.Bool
	x.database.OnRequest(func(chunk []byte) testenv.Action {
		if bytes.HasPrefix(chunk, cancelRequest) {
			return testenv.Drop
		}
		// A transaction of the outbox begins with READ COMMITTED.
		upper := bytes.ReplaceAll(bytes.ToUpper(chunk), []byte("COMMITTED"), nil)
		if !bytes.Contains(upper, []byte("COMMIT")) || !done.CompareAndSwap(false, true) {
			return testenv.Pass
		}
		if also != nil {
			also()
		}
		return action
	})
}

// delayCommit has the connection end with the next COMMIT under way, which arrives when the proxy
// does not hang any more.
func (x *world) delayCommit() {
	x.onCommit(testenv.Pass, func() {
		x.database.Hang(true)
		x.dialed.close()
	})
}

// TestCancelledDuringCommit: a writer that has sent COMMIT returns only after the caches are
// invalidated.
func TestCancelledDuringCommit(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, testCancelledDuringCommit)
}

func testCancelledDuringCommit(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e, proxied: true})
	for _, level := range levels {
		x.reset()
		ctx, stop := context.WithCancel(t.Context())
		x.onCommit(testenv.Delay(100*time.Millisecond), stop)
		x.check(x.At(level).Update(ctx, set(1, "new"), x.rows.Key(1)))
		if level == Async {
			x.invalidated()
		}
		x.reads("new")
	}
}

// TestLostCommit: a connection that is lost during COMMIT. Whether that was carried out or not,
// nothing stale is left: and not for the moment only.
func TestLostCommit(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, lostCommit)
}

func lostCommit(t *testing.T, e testenv.Engine) {
	for name, inMemory := range map[string]bool{"outbox": false, "memory": true} {
		t.Run(name, func(t *testing.T) {
			x := start(t, setup{engine: e, proxied: true, inMemory: inMemory})
			for _, level := range levels {
				for action, now := range map[testenv.Action]string{testenv.Drop: "old", testenv.LoseReply: "new"} {
					if !inMemory || level == Inline || level == Strict {
						x.loseCommit(level, action, now)
					}
				}
			}
		})
	}
}

func (x *world) loseCommit(level Level, action testenv.Action, now string) {
	x.t.Helper()
	x.reset()
	x.onCommit(action, nil)
	is(x.t, x.At(level).Update(x.t.Context(), set(1, "new"), x.rows.Key(1)), ErrUnknown)
	if level == Strict && !x.isHeld() {
		x.t.Error("it is not on hold any more")
	}
	x.eventually("the database has decided", func() bool { v, _ := x.load(x.t.Context(), 1); return v == now })
	x.reads(now)
	want := 1 // for what was committed, and, without a row in the transaction, in any case
	if level != Inline && !x.queueInMemory() && now == "old" {
		want = 0
	}
	if d, err := x.options.Queue.Depth(x.t.Context()); d.Items != want || err != nil {
		x.t.Errorf("%v, %s: to be invalidated once more: %+v, %v; want %d", level, now, d, err, want)
	}
	if got := x.counts(); got != (Stats{Unknown: 1}) {
		x.t.Errorf("%v, %s: %+v", level, now, got)
	}
}

// TestIsKept: a row stays in the outbox as long as its key is not invalidated for sure: since that
// has failed, or was perhaps too early.
func TestIsKept(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, isKept)
}

func isKept(t *testing.T, e testenv.Engine) {
	for name, lose := range map[string]func(*world){
		"unknown": func(x *world) { x.onCommit(testenv.LoseReply, nil) },
		"failed":  func(x *world) { x.redis.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			x := start(t, setup{engine: e, proxied: true, cache: quick})
			lose(x)
			_ = x.Update(t.Context(), set(1, "new"), x.rows.Key(1))
			x.has("new")
			x.check(x.Close()) // which removes what it may
			if n := x.intents(); n != 1 {
				t.Errorf("%d rows in the outbox", n)
			}
		})
	}
}

// TestLateCommit: a COMMIT that is carried out when its sender has given it up, and others have
// cached what was before.
func TestLateCommit(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testLateCommit) }

func testLateCommit(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e, proxied: true})
	x.grace, x.repeatAfter = 0, 10*time.Millisecond // relays come when it has been carried out
	for _, level := range levels {
		x.reset()
		x.delayCommit()
		is(t, x.At(level).Update(t.Context(), set(1, "new"), x.rows.Key(1)), ErrUnknown)
		x.reads("old")
		x.database.Hang(false)
		x.eventually("committed", func() bool { v, _ := x.load(t.Context(), 1); return v == "new" })
		if level == Strict { // no read has cached the old value
			x.reads("new")
		}
		x.relays("invalidated once more", func() bool { return x.intents() == 0 })
		x.reads("new")
	}
}

// TestRefusedCommit: what PostgreSQL rolls back at the COMMIT is no unknown outcome.
func TestRefusedCommit(t *testing.T) {
	x := start(t, setup{engine: testenv.PostgreSQL})
	x.exec("CREATE TABLE child (id BIGINT REFERENCES item (id) DEFERRABLE INITIALLY DEFERRED)")
	x.exec("CREATE TABLE checked (id BIGINT)")
	x.exec("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused' USING ERRCODE = " +
		"'check_violation'; END $$")
	x.exec("CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON checked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW " +
		"EXECUTE FUNCTION refuse()")
	for name, write := range map[string]func(context.Context, *sqlx.Tx) error{
		"a deferred constraint": func(ctx context.Context, tx *sqlx.Tx) error {
			x.check(set(1, "new")(ctx, tx))
			return execOn(ctx, tx, "INSERT INTO child VALUES (99)")
		},
		"a trigger with a code": func(ctx context.Context, tx *sqlx.Tx) error {
			x.check(set(1, "new")(ctx, tx))
			return execOn(ctx, tx, "INSERT INTO checked VALUES (1)")
		},
		"an error that was ignored": func(ctx context.Context, tx *sqlx.Tx) error {
			x.check(set(1, "new")(ctx, tx))
			_ = execOn(ctx, tx, "INSERT INTO item VALUES (1, 'twice')")
			return nil
		},
	} {
		x.reset()
		err := x.At(Inline).Update(t.Context(), write, x.rows.Key(1))
		if err == nil || !strings.Contains(err.Error(), "rolled back") {
			t.Errorf("%s: %v", name, err)
		}
		if got := x.counts(); got != (Stats{RolledBack: 1}) {
			t.Errorf("%s: %+v", name, got)
		}
		x.has("old")
		x.reads("old")
	}
	for state, refused := range map[string]bool{"40001": true, "40P01": true, "23503": true, "P0001": false,
		"40003": false, "57P01": false, "08006": false} {
		if commitRefused(&pgconn.PgError{Code: state}) != refused {
			t.Errorf("%s: refused is not %v", state, refused)
		}
	}
}

// Who collects the context of an Update gets a token of the keys that it has invalidated, at each
// level that does so before it returns.
func TestUpdateIsCollected(t *testing.T) {
	x := start(t, setup{})
	for _, level := range levels {
		x.reset()
		ctx, written := cacheaside.Collect(x.t.Context())
		x.check(x.At(level).Update(ctx, set(1, "new"), x.rows.Key(1)))
		if got := written() != ""; got != (level != Async) {
			x.t.Errorf("%v: a token: %v", level, got)
		}
	}
}

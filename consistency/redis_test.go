package consistency

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// quick sets short time-outs: the process does not wait long for Redis, and if it cannot end a
// lease, others wait only briefly for it.
var quick = cacheaside.Options{RedisTimeout: 50 * time.Millisecond, ReadTimeout: 50 * time.Millisecond,
	LeaseTTL: 2 * time.Second, MemoryBytes: -1}

// away makes Redis unreachable until back is called. how says whether Redis hangs, and later does
// what it was sent; is dead, and loses its data; or is cut off from the writing process.
func (x *world) away(how string) (back func()) {
	switch how {
	case "hung":
		x.server.Pause()
		return x.server.Resume
	case "dead":
		x.server.Kill()
		return func() { x.server.Restart(x.t) }
	default:
		x.redis.Cut()
		return x.redis.Restore
	}
}

// TestRedisOut: what each level does while Redis does not reply, all before it is back, and that
// every missed invalidation is made up for.
func TestRedisOut(t *testing.T) {
	for _, c := range []struct {
		how      string
		inMemory bool
	}{{"hung", false}, {"dead", false}, {"cut", false}, {"cut", true}} {
		t.Run(fmt.Sprintf("%s/memory=%v", c.how, c.inMemory), func(t *testing.T) {
			var told []cacheaside.Key
			x := start(t, setup{cache: quick, inMemory: c.inMemory,
				Options: Options{OnQueued: func(_ context.Context, keys []cacheaside.Key, err error) {
					if err == nil {
						t.Error("OnQueued without an error")
					}
					told = append(told, keys...)
				}}})
			for _, level := range levels {
				if c.inMemory && (level == Async || level == Outbox) {
					continue
				}
				x.reset()
				told = nil
				back := x.away(c.how)
				began := time.Now()
				ran := false
				err := x.At(level).Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
					ran = true
					return set(1, "new")(ctx, tx)
				}, x.rows.Key(1))
				took := time.Since(began)
				t.Logf("%v: %v, %v", level, took, err)
				want := Stats{Updates: 1, Queued: 1}
				switch {
				case level == Strict:
					want = Stats{HoldsRefused: 1}
					if is(t, err, cacheaside.ErrRedis); ran {
						t.Error("Strict: written, and not on hold")
					}
					x.has("old")
				case level == Async:
					want = Stats{Updates: 1}
					is(t, err, nil)
				case c.inMemory:
					is(t, err, ErrQueued)
					is(t, err, cacheaside.ErrRedis)
				default:
					is(t, err, nil)
				}
				if got := x.counts(); got != want {
					t.Errorf("%v: %+v", level, got)
				}
				if int64(len(told)) != want.Queued {
					t.Errorf("%v: reported %v", level, told)
				}
				back()
				if level == Strict {
					continue
				}
				if c.how == "cut" {
					x.otherReads("old")
				}
				x.relays("the queue is empty",
					func() bool { d, err := x.options.Queue.Depth(t.Context()); return d.Items == 0 && err == nil })
				x.reads("new")
			}
		})
	}
}

// TestRedisSkipped: once Redis is known to be out of reach, writes with a row in the outbox do not
// wait for it, and the memory of the process forgets what they change; after a while one tries.
func TestRedisSkipped(t *testing.T) {
	q := quick
	q.MemoryBytes, q.MaxStaleness = 0, time.Minute
	x := start(t, setup{cache: q})
	x.eventually("row 2 is in memory", func() bool {
		before := x.rows.Stats().MemoryHits
		_, err := x.rows.Get(t.Context(), 2)
		return err == nil && x.rows.Stats().MemoryHits > before
	})
	back := x.away("hung")
	w := x.At(Outbox)
	x.skipRedisFor = time.Hour
	x.check(w.Update(t.Context(), set(1, "1"), x.rows.Key(1)))
	x.check(w.Update(t.Context(), set(2, "2"), x.rows.Key(2)))
	if s := x.counts(); s.Queued != 2 || s.Skipped != 1 {
		t.Errorf("%+v", s)
	}
	if v, err := x.rows.Get(t.Context(), 2); v != "2" || err != nil {
		t.Errorf("it reads %q, %v", v, err)
	}
	back()
	x.skipRedisFor = 10 * time.Millisecond
	x.eventually("it is tried again", func() bool {
		before := x.Stats().Queued
		x.check(w.Update(t.Context(), set(1, "3"), x.rows.Key(1)))
		return x.Stats().Queued == before
	})
	x.reads("3")
}

// TestRedisLost: Redis goes away in the middle of a Strict write.
func TestRedisLost(t *testing.T) {
	x := start(t, setup{cache: cacheaside.Options{RedisTimeout: 100 * time.Millisecond,
		ReadTimeout: 100 * time.Millisecond, LeaseTTL: 10 * time.Second, MemoryBytes: -1}})
	w := x.At(Strict)
	for _, place := range []string{"written", "committed"} {
		var err error
		for paused := false; !paused; { // a Redis that is slow for the moment is not what this is about
			x.reset()
			at(t, place, func() { x.server.Pause(); paused = true })
			err = w.Update(t.Context(), set(1, "new"), x.rows.Key(1))
			x.server.Resume()
		}
		switch place {
		case "written":
			is(t, err, cacheaside.ErrRedis)
			if got := x.counts(); got != (Stats{RolledBack: 1, HoldsLost: 1, Queued: 1}) {
				t.Errorf("%s: %+v", place, got)
			}
			x.has("old")
		default:
			is(t, err, nil)
			if got := x.counts(); got != (Stats{Updates: 1, Queued: 1}) {
				t.Errorf("%s: %+v", place, got)
			}
			x.invalidated()
			x.reads("new")
		}
	}
}

// TestHoldLost: a Strict write whose hold is gone, as an operator's FLUSHALL takes it, is refused
// its COMMIT; if that has been sent, nothing stale is left.
func TestHoldLost(t *testing.T) { testenv.OneUnlessAccepting(t, testHoldLost) }

func testHoldLost(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e})
	w := x.At(Strict)
	lose := func() { x.check(x.server.Client(t).Del(t.Context(), holdKey, redisKey).Err()) }
	x.reset()
	at(t, "written", lose)
	is(t, w.Update(t.Context(), set(1, "new"), x.rows.Key(1)), cacheaside.ErrHoldLost)
	if got := x.counts(); got != (Stats{RolledBack: 1, HoldsLost: 1}) {
		t.Errorf("%+v", got)
	}
	x.nothing(Strict)

	x.reset()
	at(t, "checked", func() { lose(); x.reads("old") })
	x.check(w.Update(t.Context(), set(1, "new"), x.rows.Key(1)))
	x.reads("new")
	x.nothingHeld()
}

func (x *world) nothingHeld() {
	x.t.Helper()
	if x.isHeld() {
		x.t.Error("it is still on hold")
	}
}

// TestTouchedHeld: what Touch has added is on hold before the COMMIT.
func TestTouchedHeld(t *testing.T) {
	x := start(t, setup{})
	at(t, "checked", func() {
		if !x.isHeld() {
			t.Error("it is not on hold")
		}
	})
	x.check(x.At(Strict).Update(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
		return errors.Join(set(1, "new")(ctx, tx), Touch(ctx, x.rows.Key(1)))
	}, x.rows.Key(2)))
	x.nothingHeld()
	x.reads("new")
}

// TestNoTable: without its table, no write goes by the outbox.
func TestNoTable(t *testing.T) {
	for _, e := range []testenv.Engine{"", testenv.MariaDB, testenv.MySQL, testenv.PostgreSQL} {
		t.Run(string(e), func(t *testing.T) {
			x := start(t, setup{engine: e})
			x.exec("DROP TABLE cacheaside_outbox")
			for _, level := range []Level{Async, Outbox, Strict} {
				if err := x.At(level).Update(t.Context(), set(1, "new"), x.rows.Key(1)); err == nil ||
					!strings.Contains(err.Error(), "cacheaside_outbox") {
					t.Errorf("%v: %v", level, err)
				}
				x.has("old")
			}
			x.nothingHeld()
			x.check(x.At(Inline).Update(t.Context(), set(1, "new"), x.rows.Key(1)))
			x.reads("new")
		})
	}
}

// broken is a queue that takes nothing.
type broken struct{ *MemoryQueue }

func (broken) Put(context.Context, ...Item) error { return errOwn }

func TestQueueBroken(t *testing.T) {
	x := start(t, setup{cache: quick, Options: Options{Queue: broken{NewMemoryQueue(0)}}})
	defer x.away("hung")()
	err := x.Update(t.Context(), set(1, "new"), x.rows.Key(1))
	is(t, err, ErrNotQueued)
	is(t, err, errOwn)
	is(t, err, cacheaside.ErrRedis)
	if got := x.counts(); got != (Stats{Updates: 1, NotQueued: 1}) {
		t.Errorf("%+v", got)
	}
}

// TestQueueFull: a queue in memory that is full becomes coarser, not forgetful.
func TestQueueFull(t *testing.T) {
	x := start(t, setup{cache: quick, Options: Options{Queue: NewMemoryQueue(2)}})
	back := x.away("hung")
	for id := range 3 {
		is(t, x.Update(t.Context(), set(1, "new"), x.rows.Key(id)), ErrQueued)
	}
	back()
	x.relays("the queue is empty",
		func() bool { d, err := x.options.Queue.Depth(t.Context()); return d.Items == 0 && err == nil })
	x.eventually("all know", func() bool { v, err := x.other.Get(t.Context(), 1); return v == "new" && err == nil })
}

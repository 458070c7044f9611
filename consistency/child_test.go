package consistency

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// child is a process that sets row 1 to "new" and is killed at a point: one of points, or
// "removed", after the write is done.
type child struct {
	Level        Level
	Through      bool // by WriteThrough
	Place        string
	DoubleDelete time.Duration

	DSN, Redis string
}

func init() {
	testenv.RegisterChild("writer", func() {
		var c child
		if err := json.Unmarshal([]byte(os.Getenv("WRITER")), &c); err != nil {
			panic(err)
		}
		c.run()
	})
}

// dies runs c until it is killed; not to get there is a failure.
func (x *world) dies(c child) {
	x.t.Helper()
	c.DSN, c.Redis = x.sql.DSN(x.t), x.server.Addr
	text, err := json.Marshal(c)
	x.check(err)
	if err := testenv.SpawnChild(x.t, "writer", "WRITER="+string(text)).Wait(); err == nil ||
		!strings.Contains(err.Error(), "signal: killed") {
		x.t.Fatalf("%v: it was not killed at %q: %v", c.Level, c.Place, err)
	}
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func (c child) run() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	db, err := testenv.OpenDSN(c.DSN)
	must(err)
	cache, err := cacheaside.New(redis.NewClient(&redis.Options{Addr: c.Redis}), &cacheaside.Options{MemoryBytes: -1,
		StrictWrites: true, LeaseTTL: long, RedisTimeout: testenv.Hang, ReadTimeout: testenv.Hang})
	must(err)
	rows, err := cacheaside.NewLoader(cache, "item",
		func(context.Context, int) (string, error) { panic("nobody reads here") }, nil)
	must(err)
	box, err := NewTestOutbox(db, "", "")
	must(err)
	w, err := NewWriter(db, cache, &Options{Level: c.Level, Queue: box, DoubleDelete: c.DoubleDelete,
		AsyncDelay: time.Millisecond, NoRelay: true})
	must(err)
	w.grace = 50 * time.Millisecond
	hook.Store(new(func(name string) {
		if name == c.Place {
			die()
		}
	}))
	if c.Through {
		must(WriteThrough(context.Background(), w, rows, 1, through(1, "new")))
	} else {
		must(w.Update(context.Background(), set(1, "new"), rows.Key(1)))
	}
	for c.Place == "removed" {
		if w.Stats().Removed > 0 {
			die()
		}
		time.Sleep(time.Millisecond)
	}
}

// expires ends the hold on row 1 that a killed process left behind. It fails if the hold would not
// expire by itself.
func (x *world) expires() {
	x.t.Helper()
	rdb := x.server.Client(x.t)
	left, err := rdb.PTTL(x.t.Context(), holdKey).Result()
	x.check(err)
	if x.isHeld() && (left <= 0 || left > long) {
		x.t.Errorf("it is on hold for %v", left)
	}
	x.check(rdb.PExpire(x.t.Context(), holdKey, time.Millisecond).Err())
	x.eventually("nothing is on hold", func() bool { return !x.isHeld() })
}

// TestKilled: wherever a writing process is killed, nothing stale is left for ever. At the level
// Inline that is not so: what was committed, and not invalidated, stays.
func TestKilled(t *testing.T) { testenv.TwoServersUnlessAccepting(t, testKilled) }

func testKilled(t *testing.T, e testenv.Engine) {
	x := start(t, setup{engine: e})
	stale := map[Level]int{}
	for _, level := range levels {
		for _, through := range []bool{false, true} {
			if through && level != Strict {
				continue
			}
			for _, place := range points {
				if !comesBy(level, through, place) {
					continue
				}
				x.reset()
				x.dies(child{Level: level, Through: through, Place: place})
				v, err := x.load(t.Context(), 1)
				x.check(err)
				if level == Inline {
					if got, err := x.other.Get(t.Context(), 1); err != nil || got != v {
						stale[level]++
					}
					continue
				}
				x.invalidated()
				if got, err := x.other.Get(t.Context(), 1); err != nil || got != v {
					stale[level]++
					t.Errorf("%v, killed at %s: it reads %q for ever, %v; the row is %q", level, place, got, err, v)
				}
				x.expires()
				if got, err := x.other.Get(t.Context(), 1); err != nil || got != v {
					t.Errorf("%v, killed at %s: it reads %q, %v; the row is %q", level, place, got, err, v)
				}
			}
		}
	}
	if stale[Inline] != 1 && testenv.Accepting { // killed at committed, which TestRaces shows, too
		t.Errorf("stale for ever: %v", stale)
	}
}

// comesBy reports whether a write passes the point. Points that differ from the one before only
// because nothing was done in between are left to the long run.
func comesBy(level Level, through bool, place string) bool {
	switch place {
	case "rolledback", "queued": // not when all goes well
		return false
	case "removing", "removed", "relaying", "relayed", "gone": // which are no places of a write
		return false
	case "stored":
		return through
	case "filters-committed":
		return level == Strict && (testenv.Accepting || through)
	case "released":
		return level == Strict && (testenv.Accepting || !through)
	case "invalidated":
		return level == Inline && testenv.Accepting || level == Outbox
	case "checked":
		return testenv.Accepting || level == Strict && !through
	}
	return testenv.Accepting
}

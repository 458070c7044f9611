package bloom

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestNothingIsRefusedUntilCompared: after an error, or an unknown script, the Redis may be another
// server: the filter trusts it again only after comparing the marks.
func TestNothingIsRefusedUntilCompared(t *testing.T) {
	r := testenv.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	rdb := r.Client(t)
	f, err := NewRedis(rdb, "users", 1000, 0.0001, &Options{Timeout: testenv.Hang / 2, watchInterval: time.Hour})
	must(t, err)
	t.Cleanup(func() { f.Close() })
	_, err = f.Rebuild(t.Context(), Keys("a"), none)
	must(t, err)
	mightContain(t, f, "absent")
	testenv.Eventually(t, "the first look",
		func() bool { return f.watch.lastWatermark().number > 0 && !f.watch.suspect() })
	if mightContain(t, f, "absent") || !mightContain(t, f, "a") {
		t.Fatal("the filter gives wrong results")
	}
	gone := make(chan struct{})
	release := sync.OnceFunc(func() { close(gone) })
	defer release()
	rdb.AddHook(&tap{before: func(cmds []redis.Cmder) error {
		if cmds[0].Name() == "info" {
			<-gone
		}
		return nil
	}})
	restart(t, r, rdb)
	for range 3 {
		if !mightContain(t, f, "absent") {
			t.Fatal("it refuses a key though another server replies")
		}
	}
	release()
	testenv.Eventually(t, "that it is taken away", func() bool {
		s, err := f.State(t.Context())
		return err == nil && !s.Built
	})
}

// TestMarks: the consequences of each reply.
func TestMarks(t *testing.T) {
	for _, c := range []struct {
		name      string
		now       watermark
		first     bool
		suspended bool
		want      outcome
		left      watermark
	}{
		{"the next", watermark{number: 8}, false, false, outcomeSame, watermark{8, 100}},
		{"later ones came before", watermark{number: 20}, false, false, outcomeSame, watermark{20, 100}},
		{"the same again", watermark{number: 7}, false, false, outcomeRolledBack, watermark{7, 100}},
		{"less", watermark{number: 3}, false, false, outcomeRolledBack, watermark{7, 100}},
		{"gone", watermark{1_000, 100}, true, false, outcomeRolledBack, watermark{7, 100}},
		{"gone with the epoch", watermark{1_000, 0}, true, false, outcomeRolledBack, watermark{7, 100}},
		{"forgotten", watermark{1, 100}, true, true, outcomeSame, watermark{1, 100}},
		{"an earlier epoch", watermark{1, 99}, true, true, outcomeRolledBack, watermark{7, 100}},
		{"seen to by another", watermark{1, 101}, true, false, outcomeHandled, watermark{1, 101}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWatch(time.Hour)
			w.last, w.lastAt = watermark{7, 100}, time.Now().Round(0)
			if c.suspended {
				w.lastAt = w.lastAt.Add(-watermarkTTL * time.Second)
			}
			if got := w.compare(watermark{7, 100}, c.now, c.first); got != c.want || w.last != c.left {
				t.Errorf("%v, %+v", got, w.last)
			}
		})
	}
	w := newWatch(time.Hour)
	w.last = watermark{1, 101}
	if got := w.compare(watermark{50, 100}, watermark{number: 2}, false); got != outcomeSame ||
		w.last != (watermark{1, 101}) {
		t.Errorf("a reply to a request from before the epoch: %v, %+v", got, w.last)
	}
}

// TestWatermarkIsUnique writes a number that another reply has brought: one of the two was written
// in a copy of the database.
func TestWatermarkIsUnique(t *testing.T) {
	w := newWatch(time.Hour)
	w.last = watermark{8, 100} // an Add has brought it after the watch had sent its own
	if got := w.compare(watermark{7, 100}, watermark{number: 8}, false); got != outcomeRolledBack {
		t.Error(got)
	}
}

// TestDatabasesAreSwapped swaps the database of a filter for an empty one, and back when the filter
// was rebuilt there. Both have watermarks of the process, and those of the first have grown more.
// The key that was added between the swaps must not be hidden.
func TestDatabasesAreSwapped(t *testing.T) {
	rdb := testenv.StartRedis(t).Client(t)
	f, err := NewRedis(rdb, "users", 1000, 0.0001, &Options{watchInterval: 20 * time.Millisecond})
	must(t, err)
	t.Cleanup(func() { f.Close() })
	swap := func() { must(t, rdb.Do(t.Context(), "swapdb", 0, 1).Err()) }
	built := func() bool { s, err := f.State(t.Context()); return err == nil && s.Built }
	_, err = f.Rebuild(t.Context(), Keys("a"), none)
	must(t, err)
	must(t, f.Add(t.Context(), "a"))
	first := f.watch.lastWatermark().number
	testenv.Eventually(t, "some watermarks", func() bool { return f.watch.lastWatermark().number > first+20 })
	swap()
	testenv.Eventually(t, "that the loss is noticed", func() bool { return f.Stats().RolledBack > 0 })
	if built() {
		t.Fatal("the filter is built in an empty database")
	}
	_, err = f.Rebuild(t.Context(), Keys("a"), none)
	must(t, err)
	must(t, f.Add(t.Context(), "new"))
	swap()
	testenv.Eventually(t, "the new key", func() bool { return mightContain(t, f, "new") })
}

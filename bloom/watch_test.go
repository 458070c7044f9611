package bloom

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestNothingIsRefusedUntilCompared: a Redis that has answered with an error, or does not know a
// script any more, may be another, and is believed when it was compared.
func TestNothingIsRefusedUntilCompared(t *testing.T) {
	r := testenv.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	rdb := r.Client(t)
	f, err := NewRedis(rdb, "users", 1000, 0.0001, &Options{Timeout: testenv.Hang / 2, watch: time.Hour})
	must(t, err)
	t.Cleanup(func() { f.Close() })
	_, err = f.Rebuild(t.Context(), Keys("a"), none)
	must(t, err)
	mightContain(t, f, "absent")
	testenv.Eventually(t, "the first look", func() bool { return f.watch.sent().number > 0 && !f.watch.unsure() })
	if mightContain(t, f, "absent") || !mightContain(t, f, "a") {
		t.Fatal("it does not answer")
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
			t.Fatal("it refuses a key though another server answers")
		}
	}
	release()
	testenv.Eventually(t, "that it is taken away", func() bool {
		s, err := f.State(t.Context())
		return err == nil && !s.Built
	})
}

// TestMarks is what follows from an answer.
func TestMarks(t *testing.T) {
	for _, c := range []struct {
		name      string
		now       stamp
		first     bool
		suspended bool
		want      outcome
		left      stamp
	}{
		{"the next", stamp{number: 8}, false, false, same, stamp{8, 100}},
		{"later ones came before", stamp{number: 20}, false, false, same, stamp{20, 100}},
		{"the same again", stamp{number: 7}, false, false, wentBack, stamp{7, 100}},
		{"less", stamp{number: 3}, false, false, wentBack, stamp{7, 100}},
		{"gone", stamp{1, 100}, true, false, wentBack, stamp{7, 100}},
		{"gone with the epoch", stamp{1, 0}, true, false, wentBack, stamp{7, 100}},
		{"forgotten", stamp{1, 100}, true, true, same, stamp{1, 100}},
		{"an earlier epoch", stamp{1, 99}, true, true, wentBack, stamp{7, 100}},
		{"seen to by another", stamp{1, 101}, true, false, seenTo, stamp{1, 101}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWatch(time.Hour)
			w.left, w.at = stamp{7, 100}, time.Now().Round(0)
			if c.suspended {
				w.at = w.at.Add(-forgetAfter * time.Second)
			}
			if got := w.answered(stamp{7, 100}, c.now, c.first); got != c.want || w.left != c.left {
				t.Errorf("%v, %+v", got, w.left)
			}
		})
	}
	w := newWatch(time.Hour)
	w.left = stamp{1, 101}
	if got := w.answered(stamp{50, 100}, stamp{number: 2}, false); got != same || w.left != (stamp{1, 101}) {
		t.Errorf("an answer that was sent for before the epoch: %v, %+v", got, w.left)
	}
}

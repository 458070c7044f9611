package invalidation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func schedules() uint64 {
	if testenv.Accepting {
		return 200_000
	}
	if underRace { // there is one goroutine
		return 1_000
	}
	return 10_000
}

// With lost, late and reordered messages, each served value was current at most the bound ago.
func TestTrackBoundsStaleness(t *testing.T) {
	hits, gaps, dead, served := 0, int64(0), 0, 0
	for seed := range schedules() {
		w := newWorld(seed, someFaults, 4*time.Second)
		w.run()
		if len(w.violations) > 0 {
			again := newWorld(seed, someFaults, 4*time.Second)
			var lines []string
			again.log = func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
			again.run()
			t.Log(strings.Join(lines[max(len(lines)-60, 0):], "\n"))
			t.Fatalf("seed %d, %+v: %s", seed, w.faults, w.violations[0])
		}
		if w.trust > w.now {
			served++
		}
		hits, gaps, dead = hits+w.hits, gaps+w.t.gaps, dead+w.dead
	}
	n := int(schedules())
	t.Logf("%d schedules, %d looks at what would be served, %d gaps, %d dead subscriptions, %d served in the end", n,
		hits, gaps, dead, served)
	if hits < 10*n || gaps < int64(n) || dead < n/10 {
		t.Error("the schedules do not fit")
	}
	if served < n*99/100 { // a subscription may have been found dead just now
		t.Errorf("%d of %d serve nothing after three bounds without faults", n-served, n)
	}
}

// Where nothing is lost or very late nothing is thrown away.
func TestTrackKeepsWhatIsTrue(t *testing.T) {
	none := func(*rand.Rand) faults { return faults{} }
	for seed := range schedules() / 10 {
		w := newWorld(seed, none, 8*time.Second)
		w.run()
		if w.t.gaps+w.t.lapses > 0 || w.dead > 0 || w.epoch != 1 || w.trust < w.now+worldBound/4 ||
			len(w.violations) > 0 {
			t.Fatalf("seed %d: %d gaps, %d lapses, %d dead, %d clears, trusted until %d at %d, %v", seed, w.t.gaps,
				w.t.lapses, w.dead, w.epoch, w.trust, w.now, w.violations)
		}
	}
}

// Nor where subscriptions end and polls fail, but no message is lost: then each subscription is one
// clear.
func TestTrackClearsOnceASession(t *testing.T) {
	some := func(r *rand.Rand) faults { return faults{leave: r.IntN(30), pollLost: r.IntN(30)} }
	for seed := range schedules() / 10 {
		w := newWorld(seed, some, 8*time.Second)
		w.run()
		if w.t.gaps > 0 || w.dead > 0 || w.epoch > w.sessions || len(w.violations) > 0 {
			t.Fatalf("seed %d: %d gaps, %d dead, %d clears in %d sessions, %v", seed, w.t.gaps, w.dead, w.epoch,
				w.sessions, w.violations)
		}
	}
}

package invalidation

import "testing"

// A missing message, and a number that moved without being received, void entries, since something
// was announced. A lost connection without announcements in between does not.
func TestGapsAreKnown(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(*follower)
		voids int64
	}{
		"nothing":                       {func(f *follower) { f.poll(50, 10) }, 0},
		"one is missing":                {func(f *follower) { f.received(1, position{11, 12}) }, 1},
		"a number that is not received": {func(f *follower) { f.poll(20, 30); f.poll(40, 30) }, 1},
		"a number that is lost":         {func(f *follower) { f.poll(20, 5) }, 1},
		"connected again":               {func(f *follower) { f.subscribed(2); f.poll(50, 10) }, 0},
		"connected again, too late":     {func(f *follower) { f.subscribed(2); f.poll(50, 11) }, 1},
	} {
		f := synced()
		before := f.voids.Load()
		c.do(f)
		if got := f.voids.Load() - before; got != c.voids {
			t.Errorf("%s: %d voids", name, got)
		}
	}
}

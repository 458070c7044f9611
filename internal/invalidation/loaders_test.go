package invalidation

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// A poll that was sent before an announcement of our own, and is answered after it, tells of the
// generation before: that is not taken again, though by the clock both were in the same instant.
// What a later poll tells is so, also if it is less.
func TestGenerationsInOneInstant(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		var now [conn.Ranges]uint64
		l := &loaders{known: map[string]*known{"a": {onChange: func(rng int, generation uint64) { now[rng] = generation }}}}
		sent := time.Now()
		l.polled("a", 3, 7, sent)
		l.received("a", 3, 8)
		l.polled("a", 3, 7, sent)
		if now[3] != 8 {
			t.Errorf("of generation %d after 8 was announced", now[3])
		}
		time.Sleep(time.Nanosecond)
		l.polled("a", 3, 2, time.Now())
		if now[3] != 2 {
			t.Errorf("of generation %d, though Redis says 2", now[3])
		}
	})
}

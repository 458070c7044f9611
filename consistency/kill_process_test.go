package consistency

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// killedProcess is a child of TestNothingIsForgotten.
type killedProcess struct {
	*testenv.Child
	killWorld
	role   string
	scope  *killScope
	since  time.Time     // when it was spawned
	ready  atomic.Int64  // how long after the spawn it began its work
	after  time.Duration // how long it lives from then on; 0: without limit
	killed bool          // from outside
	lines  chan string   // what it says
}

// killScope is a test that ends early, for the child that belongs to it: there are thousands.
type killScope struct {
	testing.TB
	cleanups []func()
}

func (k *killScope) Cleanup(f func()) { k.cleanups = append(k.cleanups, f) }

func (k *killPlay) spawn(role string, w killWorld) *killedProcess {
	w.Redis, w.DSN, w.Seed = k.Redis, k.DSN, k.Seed
	k.spawned++
	w.Who = k.spawned
	ended := k.ended
	if role == "kill-reader" {
		ended = nil
	}
	return spawnKilled(k.t, role, w, ended)
}

// spawnKilled sends the process to ended when it has exited, unless ended is nil.
func spawnKilled(t *testing.T, role string, w killWorld, ended chan<- *killedProcess) *killedProcess {
	c := &killedProcess{killWorld: w, role: role, scope: &killScope{TB: t}, since: time.Now(),
		lines: make(chan string, 1000)}
	c.Child = testenv.SpawnChild(c.scope, role, w.env())
	go func() {
		defer close(c.lines)
		for {
			line, err := c.ReadLine(time.Hour)
			if err != nil {
				if ended != nil {
					ended <- c
				}
				return
			}
			if line == "ready" {
				c.ready.Store(int64(time.Since(c.since)))
			} else {
				c.lines <- line
			}
		}
	}()
	return c
}

// due reports whether the process has lived long enough.
func (k *killedProcess) due() bool {
	lived, ready := time.Since(k.since), time.Duration(k.ready.Load())
	return !k.killed && (k.after > 0 && ready > 0 && lived > ready+k.after || ready == 0 && lived > 30*time.Second)
}

// end leaves nothing of it.
func (k *killedProcess) end() {
	for _, f := range slices.Backward(k.scope.cleanups) {
		f()
	}
	k.scope.cleanups = nil
}

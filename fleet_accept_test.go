//go:build accept

package cacheaside

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The process that loads is killed: the others load once more, when its lease has run out, which
// takes no longer than the lease's life. How long exactly TestBreakdownHolderDies shows.
func TestBreakdownHolderKilled(t *testing.T) {
	const life = 2 * time.Second // the default of Options.LeaseTTL
	f := newFleet(t, "LEASE="+life.String())
	f.send(order{Key: 1, Callers: fleetCallers, Load: time.Second, Tell: true})
	holder := f.holder()
	began := time.Now()
	f.children[holder].Kill()
	rest := slices.Delete(slices.Clone(f.children), holder, holder+1)
	all := f.collect(rest)
	took := time.Since(began)
	t.Logf("the holder killed: %d more load, the rest served %v after (lease %v, load 1 s)", all.Loads, took, life)
	if all.Loads != 1 || len(all.Errors) != 0 {
		t.Errorf("%d more loads, errors %v", all.Loads, all.Errors)
	}
	if took > life+time.Second+300*time.Millisecond*slack {
		t.Errorf("the rest was served %v after the kill", took)
	}
}

// holder waits until one of the processes says that it loads.
func (f *fleet) holder() int {
	f.t.Helper()
	for deadline := time.Now().Add(testenv.Hang); time.Now().Before(deadline); {
		for i, c := range f.children {
			if line, err := c.ReadLine(20 * time.Millisecond); err == nil && strings.Contains(line, `"Began":true`) {
				return i
			}
		}
	}
	f.t.Fatal("nobody loads")
	return 0
}

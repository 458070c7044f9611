package source

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errBroken = errors.New("broken")

// TestFailuresAreBounded: the newest are kept, for their time.
func TestFailuresAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailures(time.Second)
		key := func(n int) string { return fmt.Sprint("key ", n) }
		for n := range 25_000 {
			f.Add(key(n), 0, errBroken, true)
			if n := len(f.current) + len(f.previous); n > maxFailures {
				t.Fatalf("%d failures", n)
			}
		}
		if !f.Local(key(24_999)) || !f.Local(key(20_000)) || f.Local(key(1)) {
			t.Error("not the newest are kept")
		}
		time.Sleep(3 * time.Second)
		f.Add(key(1), 0, errBroken, true)
		time.Sleep(3 * time.Second)
		f.Add(key(2), 0, errBroken, true)
		if n := len(f.current) + len(f.previous); n != 2 {
			t.Errorf("%d failures, of which 2 are not long over", n)
		}
		if f.Local(key(1)) || !f.Local(key(2)) {
			t.Error("a failure that is over counts, or one that is not does not")
		}
		if time.Sleep(time.Second); f.Local(key(2)) {
			t.Error("a failure counts after its time")
		}
	})
}

// TestFailuresEnd: in any interleaving, an earlier failure does not mark a key whose failure ended
// later.
func TestFailuresEnd(t *testing.T) {
	for range 200 {
		f := newFailures(time.Hour)
		var wg sync.WaitGroup
		for n := range 4 {
			key := fmt.Sprint(n)
			ends := f.Epoch(key)
			wg.Go(func() { f.Add(key, ends, errBroken, true) })
			wg.Go(func() { f.End(key) })
			wg.Go(func() { f.Local(key) })
		}
		wg.Wait()
		for n := range 4 {
			if f.Local(fmt.Sprint(n)) {
				t.Fatal("a failure has outlived its end")
			}
		}
	}
}

package memory

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHolds(time.Second)
		want := func(stable uint64, held bool) {
			t.Helper()
			if h.Held(stable) != held {
				t.Errorf("%d is on hold: %v", stable, !held)
			}
		}
		want(1, false)
		h.Set([]uint64{1, stripes + 2})
		want(1, true)
		want(2, true) // it shares a stripe
		want(3, false)
		time.Sleep(time.Second - time.Nanosecond)
		want(1, true)
		h.Set([]uint64{2})
		time.Sleep(time.Nanosecond)
		want(1, false)
		want(2, true)
		(*Holds)(nil).Set([]uint64{1})
	})
}

// Of holds that are set at the same time the longest counts.
func TestHoldsAreNotShortened(t *testing.T) {
	h := NewHolds(time.Hour)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				before := h.until[1].Load()
				h.Set([]uint64{1})
				if h.until[1].Load() < before {
					t.Error("it has been shortened")
				}
			}
		})
	}
	wg.Wait()
}

//go:build accept

package main

import (
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Ten segments sell at least five times as fast as one, and lose nothing.
func TestSegmentsAreFaster(t *testing.T) {
	address := testenv.SharedRedis(t).Addr
	var ratio float64
	for range 5 { // the machine may be busy
		var got [2]speed
		for i, n := range []int{1, manySegments} {
			var err error
			if got[i], err = measure(t.Context(), address,
				measurement{Segments: n, Buyers: 20, Work: 2 * time.Millisecond, For: time.Second}); err != nil {
				t.Fatal(err)
			}
			if got[i].lost != 0 || got[i].perSec == 0 {
				t.Fatalf("%+v", got[i])
			}
		}
		ratio = got[1].perSec / got[0].perSec
		t.Logf("%.0f and %.0f purchases a second: %.1f times", got[0].perSec, got[1].perSec, ratio)
		if ratio >= 5 {
			return
		}
	}
	t.Errorf("ten segments are %.1f times as fast as one, want 5", ratio)
}

package bitmap

import (
	"math"
	"testing"

	"github.com/bits-and-blooms/bloom/v3"
)

// TestSizing: by the formula, no rate exceeds the requested one, and there are few more bits than
// the best k would need.
func TestSizing(t *testing.T) {
	for rate := minRate; rate <= maxRate; rate *= 1.01 {
		const n = 1_000_000
		s, err := ShapeFor(n, rate)
		if err != nil {
			t.Fatal(err)
		}
		k, m := float64(s.K), float64(s.Total())
		if got := math.Pow(-math.Expm1(-k*n/m), k); got > rate*1.0001 {
			t.Errorf("rate %v: %v, k = %v", rate, got, k)
		}
		best, _ := bloom.EstimateParameters(n, rate)
		if m > 1.08*float64(best)+64*float64(s.Segments) {
			t.Errorf("rate %v: %v bits instead of %d", rate, m, best)
		}
	}
}

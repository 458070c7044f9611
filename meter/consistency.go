package meter

import (
	"fmt"
	"math"
	"time"
)

// Consistency is how consistent copies were, some time after the write.
type Consistency struct {
	After     time.Duration // the write
	Samples   int64         // writes whose copies are all known
	Different int64         // of them, those of which a copy was different from the database
	Undecided int64         // writes of which that is not known; they are not counted in Samples

	// Share is Different of Samples; Low and High are the ends of the interval in which the share
	// among all writes that could have been taken lies with a confidence of 95 %, by Clopper and
	// Pearson. Without samples they are 0, 0 and 1.
	Share, Low, High float64
}

// Nines is -log10 of Share: 3 for one in a thousand. It is +Inf where nothing was different; see
// NinesAtLeast.
func (c Consistency) Nines() float64 { return nines(c.Share, c.Samples) }

// NinesAtLeast is -log10 of High: so many nines are certain, but for one time in forty. It grows
// with the number of samples: nothing different in 3,700 are three nines.
func (c Consistency) NinesAtLeast() float64 { return nines(c.High, c.Samples) }

func nines(share float64, samples int64) float64 {
	if samples == 0 {
		return 0
	}
	return -math.Log10(share) + 0 // no -0
}

// String is for a log.
func (c Consistency) String() string {
	return fmt.Sprintf("within %v: %d of %d different, so %.2g (%.2g to %.2g, 95 %%): %.1f nines, at least %.1f; %d undecided",
		c.After, c.Different, c.Samples, c.Share, c.Low, c.High, c.Nines(), c.NinesAtLeast(), c.Undecided)
}

// interval is that of Clopper and Pearson (Biometrika 26, 1934): of all shares, those under which
// what was seen is not among the rarest 2.5 % on either side. Wilson's is narrower, but for shares
// near none, which are those that matter here, its lower end is above the true share more often
// than it says: one difference in n samples is seen with a true share of 0.18/n in one case of six,
// and Wilson's interval then begins at 0.18/n.
func interval(different, samples int64) (low, high float64) {
	if samples <= 0 {
		return 0, 1
	}
	const tail = 0.025
	k, n := float64(different), float64(samples)
	high = 1
	if different > 0 { // the share at which k or more are seen in 2.5 % of the cases
		low = root(func(p float64) bool { return betaCDF(p, k, n-k+1) >= tail })
	}
	if different < samples {
		high = root(func(p float64) bool { return 1-betaCDF(p, k+1, n-k) <= tail })
	}
	return low, high
}

// root is where reached becomes true, between 0 and 1: to 12 digits, also of very small ones.
func root(reached func(p float64) bool) float64 {
	low, high := math.Log(1e-18), 0.0
	for range 100 {
		if mid := (low + high) / 2; reached(math.Exp(mid)) {
			high = mid
		} else {
			low = mid
		}
	}
	return math.Exp(high)
}

// betaCDF is the regularized incomplete beta function I_x(a, b), by its continued fraction (Lentz;
// Press et al., Numerical Recipes, 6.4).
func betaCDF(x, a, b float64) float64 {
	if x <= 0 {
		return 0
	}
	if x >= 1 {
		return 1
	}
	if x > (a+1)/(a+b+2) { // where it converges fast
		return 1 - betaCDF(1-x, b, a)
	}
	ab, _ := math.Lgamma(a + b)
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	front := math.Exp(ab - la - lb + a*math.Log(x) + b*math.Log1p(-x))
	return front * fraction(x, a, b) / a
}

func fraction(x, a, b float64) float64 {
	const tiny, most = 1e-300, 100_000
	away := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	c, d := 1.0, 1/away(1-(a+b)*x/(a+1))
	h := d
	for m := 1.0; m < most; m++ {
		even := m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		d = 1 / away(1+even*d)
		c = away(1 + even/c)
		h *= d * c
		odd := -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		d = 1 / away(1+odd*d)
		c = away(1 + odd/c)
		h *= d * c
		if math.Abs(d*c-1) < 1e-14 {
			break
		}
	}
	return h
}

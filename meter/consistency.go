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
		low = root(1e-18, k/n, func(p float64) bool { return atLeast(k, n, p) >= tail })
	}
	if different < samples { // the share at which k or fewer are, so that n-k or more are the same
		high = root(max(k/n, 1e-12), 1, func(p float64) bool { return atLeast(n-k, n, 1-p) <= tail })
	}
	return low, high
}

// root returns where reached becomes true between low and high, which are above 0.
func root(low, high float64, reached func(p float64) bool) float64 {
	low, high = math.Log(low), math.Log(high)
	for range 100 {
		if mid := (low + high) / 2; reached(math.Exp(mid)) {
			high = mid
		} else {
			low = mid
		}
	}
	return math.Exp(high)
}

// atLeast returns the probability of k or more hits in n trials, each of which hits with the
// probability p. p is at most k/n: then each number of hits is less probable than the one before.
func atLeast(k, n, p float64) float64 {
	all, _ := math.Lgamma(n + 1)
	hits, _ := math.Lgamma(k + 1)
	others, _ := math.Lgamma(n - k + 1)
	term := math.Exp(all - hits - others + k*math.Log(p) + (n-k)*math.Log1p(-p))
	sum := term
	for ; k < n && term > sum*1e-15; k++ {
		term *= (n - k) / (k + 1) * p / (1 - p)
		sum += term
	}
	return sum
}

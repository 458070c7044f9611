package meter

import (
	"fmt"
	"math"
	"time"
)

// Consistency is the result of a Meter for one time after the writes.
type Consistency struct {
	After     time.Duration // the time between the write and the check
	Samples   int64         // writes for which the state of all copies is known, or a copy was different
	Different int64         // writes in Samples of which a copy was different from the database
	Undecided int64         // writes for which this is unknown; not counted in Samples

	// Share is Different divided by Samples. Low and High are the limits of its 95 % confidence
	// interval, by Clopper and Pearson, for all writes that could have been sampled. Without
	// samples they are 0, 0 and 1.
	Share, Low, High float64

	// Replied is the share of the processes that have replied. In a fleet of more than 100
	// processes about 100 reply to each question, at random. If Replied is less than 1, a
	// difference in a single process is found with this probability. So Share can be too small, and
	// High is the limit of the interval, divided by Replied. Replied is 0 without samples.
	Replied float64
}

// Nines returns -log10 of Share: 3 for one in a thousand. It is 0 without samples, and +Inf if no
// copy was different; see NinesAtLeast.
func (c Consistency) Nines() float64 { return nines(c.Share, c.Samples) }

// NinesAtLeast returns -log10 of High, which the true value exceeds except in one case of forty.
// It grows with the number of samples: no difference in 3,700 samples means three nines.
func (c Consistency) NinesAtLeast() float64 { return nines(c.High, c.Samples) }

func nines(share float64, samples int64) float64 {
	if samples == 0 {
		return 0
	}
	return -math.Log10(share) + 0 // avoid -0
}

// String formats c for a log. It rounds NinesAtLeast down.
func (c Consistency) String() string {
	text := fmt.Sprintf("within %v: %d of %d different, so %.2g (%.2g to %.2g, 95 %%): %.1f nines, at least %.1f; %d "+
		"undecided",
		c.After, c.Different, c.Samples, c.Share, c.Low, c.High, c.Nines(), math.Floor(c.NinesAtLeast()*10)/10,
		c.Undecided)
	if c.Replied > 0 && c.Replied < 1 {
		text += fmt.Sprintf("; %.2g %% of the processes have replied", 100*c.Replied)
	}
	return text
}

// interval returns the confidence interval of Clopper and Pearson (Biometrika 26, 1934): all
// shares for which the observed number is not among the rarest 2.5 % on either side.
//
// Wilson's interval is narrower, but its lower end exceeds the true share more often than it
// promises for shares near 0, which matter here. One difference in n samples is observed with a
// true share of 0.18/n in one case of six, and Wilson's interval then begins at 0.18/n.
func interval(different, samples int64) (low, high float64) {
	if samples <= 0 {
		return 0, 1
	}
	const tail = 0.025
	k, n := float64(different), float64(samples)
	high = 1
	if different > 0 { // the share at which k or more are observed in 2.5 % of the cases
		low = root(1e-18, k/n, func(p float64) bool { return atLeast(k, n, p) >= tail })
	}
	if different < samples { // the share at which k or fewer are observed, so n-k or more are the same
		high = root(max(k/n, 1e-12), 1, func(p float64) bool { return atLeast(n-k, n, 1-p) <= tail })
	}
	return low, high
}

// root returns the value between low and high at which reached becomes true. Both are above 0.
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

// atLeast returns the probability of k or more hits in n trials with the hit probability p. p is
// at most k/n, so each further hit is less probable than the one before.
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

package meter

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Options are the settings of a Meter. The zero value and nil are good defaults.
type Options struct {
	// Share is the fraction of the writes that are sampled, each independently at random. Each
	// sample loads a row at each time of After at which Redis has an entry. Default: 0.01. At
	// most 1. Raise it if there are few writes, to get a precise result sooner.
	Share float64

	// After lists the times between a write and the checks of its copies, in rising order.
	// Default: 1 s, 10 s, 1 minute. At most 8; each from 100 ms to 1 hour.
	After []time.Duration

	// LoadRate is the maximum number of rows loaded per second to compare entries of Redis with
	// them. Entries beyond that rate have an unknown state. Options.MaxLoads of the Cache also
	// applies. Each process separately limits the loads for copies in its memory to 20 rows per
	// second. Default: 50.
	LoadRate float64

	// Patience is how long the Meter waits for the replies of processes. A difference is only
	// reported after two loads that are half a second apart, so Patience must be longer than
	// that. Copies whose check takes longer have an unknown state. Default: 2 s. From 600 ms to
	// 10 s.
	Patience time.Duration

	// MaxSamples is the maximum number of samples that wait for the times of After. Further
	// samples are dropped. Default: 20,000, about 4 MB. From 1 to 10 million.
	MaxSamples int
}

func (o *Options) withDefaults() Options {
	var d Options
	if o != nil {
		d = *o
	}
	d.Share = cmp.Or(d.Share, 0.01)
	if len(d.After) == 0 {
		d.After = []time.Duration{time.Second, 10 * time.Second, time.Minute}
	}
	d.After = slices.Clone(d.After)
	d.LoadRate = cmp.Or(d.LoadRate, 50)
	d.Patience = cmp.Or(d.Patience, 2*time.Second)
	d.MaxSamples = cmp.Or(d.MaxSamples, 20_000)
	return d
}

const (
	maxAfter    = 8
	minAfter    = 100 * time.Millisecond
	minPatience = 600 * time.Millisecond
)

func (o Options) check() error {
	switch {
	case !(o.Share > 0 && o.Share <= 1): // also NaN
		return fmt.Errorf("Options.Share %v: more than 0, and at most 1", o.Share)
	case len(o.After) > maxAfter:
		return fmt.Errorf("Options.After: %d times, at most %d", len(o.After), maxAfter)
	case !(o.LoadRate > 0 && o.LoadRate <= 1e6):
		return fmt.Errorf("Options.LoadRate %v: more than 0, and at most a million", o.LoadRate)
	case o.Patience < minPatience || o.Patience > 10*time.Second:
		return fmt.Errorf("Options.Patience %v: from %v to 10s", o.Patience, minPatience)
	case o.MaxSamples < 1 || o.MaxSamples > 10_000_000:
		return fmt.Errorf("Options.MaxSamples %d: from 1 to 10 million", o.MaxSamples)
	}
	for i, d := range o.After {
		if d < minAfter || d > time.Hour {
			return fmt.Errorf("Options.After %v: from %v to an hour", d, minAfter)
		}
		if i > 0 && d <= o.After[i-1] {
			return fmt.Errorf("Options.After %v after %v: they must rise", d, o.After[i-1])
		}
	}
	return nil
}

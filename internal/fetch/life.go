package fetch

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/cacheaside/cacheaside/internal/source"
)

// A value has two lives: while the first lasts, its TTL, it is fresh; after that, for StaleFor, it
// is stale: there to be served until it has been loaded again.

// maxTTL is cacheaside.MaxTTL.
const maxTTL = 10 * 365 * 24 * time.Hour

// staleFor is how long a value, or an absence, outlasts its TTL. Absences are of keys that anybody
// can think of, so they do not stay for long.
func (f *Fetcher) staleFor(null bool) time.Duration {
	d := max(f.StaleFor, 0)
	if null {
		d = min(d, f.NullTTL)
	}
	return d
}

// hardLife is both lives together.
func (f *Fetcher) hardLife(ttl time.Duration, null bool) time.Duration {
	return ttl + min(f.staleFor(null), maxTTL-ttl)
}

// ttl is how long a loaded value is fresh: its time to live, shortened by the jitter.
func (f *Fetcher) ttl(row source.Row) time.Duration {
	ttl := cmp.Or(row.TTL, f.TTL)
	if row.Null {
		ttl = cmp.Or(row.TTL, f.NullTTL)
	}
	return max(ttl-time.Duration(max(f.Jitter, 0)*rand.Float64()*float64(ttl)), time.Millisecond)
}

// due tells whether a value with so much left of its TTL is to be loaded again: XFetch's now -
// delta*beta*ln(u) >= expiry. The negative logarithm of a uniform variable is an exponential one.
func (f *Fetcher) drawEarlyRefresh(left, delta time.Duration) bool {
	return delta > 0 && float64(left) <= float64(delta)*f.Die()
}

// delta is XFetch's beta times delta, for a load that has cost so much; where that is not known, as
// much as loads do.
func (f *Fetcher) delta(cost time.Duration) time.Duration {
	if cost == 0 {
		cost = f.Source.Pace.Mean()
	}
	return time.Duration(max(f.EarlyRefresh, 0) * float64(cost))
}

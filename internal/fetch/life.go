package fetch

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/cacheaside/cacheaside/internal/source"
)

// A value has two lives. During the first, its TTL, it is fresh. During the second, StaleFor, it
// is stale: it may be served until it has been loaded again.

// maxTTL is cacheaside.MaxTTL.
const maxTTL = 10 * 365 * 24 * time.Hour

// now returns the time on the clock by which the TTLs of entries in a range of slots end. That is
// the clock of Redis, because the clocks of two processes may differ by hours. Without Redis, and
// until Redis was polled, it is the clock of this process.
func (f *Fetcher) now(slotRange uint8) time.Time {
	if f.cache.Bus == nil {
		return time.Now()
	}
	return f.cache.Bus.Clock(slotRange)
}

// memoryLife returns how long memory keeps a copy of a value whose TTL ends after ttl. The copies
// of a process end earlier than the TTL by a random part of up to Jitter. Otherwise the processes
// of a fleet would all read a hot key again at the same time.
func (f *Fetcher) memoryLife(ttl time.Duration) time.Duration {
	life := min(ttl, f.MemoryTTL)
	if f.cache.Store == nil { // then no entry in Redis replaces the copy
		return life
	}
	return life - time.Duration(max(f.Jitter, 0)*rand.Float64()*float64(life))
}

// staleFor returns how long a value, or an absence, may be served after its TTL. Anyone can
// request keys that do not exist, so absences are kept for a shorter time.
func (f *Fetcher) staleFor(null bool) time.Duration {
	d := max(f.StaleFor, 0)
	if null {
		d = min(d, f.NullTTL)
	}
	return d
}

// hardLife returns the sum of both lives.
func (f *Fetcher) hardLife(ttl time.Duration, null bool) time.Duration {
	return ttl + min(f.staleFor(null), maxTTL-ttl)
}

// MaxLife returns the maximum life of an entry, from the beginning of its load. The load function
// may set a longer TTL for a row.
func (f *Fetcher) MaxLife() time.Duration {
	return f.hardLife(max(f.TTL, f.NullTTL), false) + f.LoadTimeout
}

// ttl returns the TTL of a loaded value, shortened by the jitter.
func (f *Fetcher) ttl(row source.Row) time.Duration {
	ttl := cmp.Or(row.TTL, f.TTL)
	if row.Null {
		ttl = cmp.Or(row.TTL, f.NullTTL)
	}
	return max(ttl-time.Duration(max(f.Jitter, 0)*rand.Float64()*float64(ttl)), time.Millisecond)
}

// drawEarlyRefresh reports, at random, whether a value must be refreshed now. left is the rest of
// its TTL; delta is computed by the method of that name. This is XFetch's test: now -
// delta*beta*ln(u) >= expiry. The negative logarithm of a uniform variable is exponentially
// distributed.
func (f *Fetcher) drawEarlyRefresh(left, delta time.Duration) bool {
	return delta > 0 && float64(left) <= float64(delta)*f.ExpRand()
}

// delta returns XFetch's beta times delta for a load that took cost. If cost is unknown, it uses
// the mean of the loader's loads.
func (f *Fetcher) delta(cost time.Duration) time.Duration {
	if cost == 0 {
		cost = f.Source.Pace.Mean()
	}
	return time.Duration(max(f.EarlyRefresh, 0) * float64(cost))
}

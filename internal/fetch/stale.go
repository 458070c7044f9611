package fetch

import (
	"time"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// A value has two lives: while the first lasts, its TTL, it is fresh; after that, for StaleFor, it
// is stale: there to be served until it has been loaded again.

// maxTTL is cacheaside.MaxTTL.
const maxTTL = 10 * 365 * 24 * time.Hour

// skew is how far the clocks of processes may be apart before that costs a load.
const skew = 5 * time.Second

// age tells in which of its lives an entry is. One may be older than this loader's options allow,
// if another process with others has stored it.
func (l *Fetcher) age(e *lease.Entry, now time.Time) seen {
	left, hard := e.Expiry.Sub(now), l.staleFor(e.Null)
	taken := e.Taken(now)
	switch expired := e.Expiry.UnixMilli() == 0 && hard > 0; { // by Expire: its hard end is Redis's to know
	case -left-skew > hard && !taken && !expired:
		return seenOutlived
	case left > 0 || hard == 0: // without a stale life it is about to go by itself
		return seenFresh
	case taken && e.Failed():
		return seenFailing
	default:
		return seenStale
	}
}

// noteRefresh notes whether an entry of that age is to be loaded anew in the background.
func (l *Fetcher) noteRefresh(r *Round, e *lease.Entry, what seen, now time.Time) {
	left := e.Expiry.Sub(now)
	fresh := what == seenFresh
	if !e.Taken(now) && (!fresh || left > 0 && l.due(left, l.Delta(e.Cost))) {
		r.stamp, r.known, r.renew, r.early = e.Stamp, true, true, fresh
	}
}

func (l *Fetcher) countHit(r *Round) {
	if r.step == over {
		r.Hit = true
		l.Counters.RedisHits.Add(1)
		if r.Null {
			l.Counters.NullHits.Add(1)
		}
	}
}

// due tells whether a value with so much left of its TTL is to be loaded again: XFetch's now -
// delta*beta*ln(u) >= expiry. The negative logarithm of a uniform variable is an exponential one.
func (l *Fetcher) due(left, delta time.Duration) bool {
	return delta > 0 && float64(left) <= float64(delta)*l.Die()
}

// Delta is XFetch's beta times delta, for a load that has cost so much; where that is not known, as
// much as loads do.
func (l *Fetcher) Delta(cost time.Duration) time.Duration {
	if cost == 0 {
		cost = l.Source.Pace.Mean()
	}
	return time.Duration(max(l.EarlyRefresh, 0) * float64(cost))
}

// giveStale gives out a stale value.
func (l *Fetcher) giveStale(r *Round) {
	l.Counters.Stale.Add(1)
	r.step = over
}

// waitsForFresh tells whether the callers of a round that has found a stale value wait for a fresh
// one: until SoftTimeout has passed since they asked.
func (l *Fetcher) waitsForFresh(r *Round) bool {
	wait := l.SoftTimeout
	if wait <= 0 {
		return false
	}
	now := max(time.Since(l.start), 1)
	if r.softDeadline == 0 {
		r.softDeadline = now + wait
		if asked := r.Owner.Asked(); !asked.IsZero() { // its callers have waited for the round before
			r.softDeadline = max(asked.Sub(l.start)+wait, 1)
		}
	}
	return now < r.softDeadline
}

// staleFor is how long a value, or an absence, outlasts its TTL. Absences are of keys that anybody
// can think of, so they do not stay for long.
func (l *Fetcher) staleFor(null bool) time.Duration {
	d := max(l.StaleFor, 0)
	if null {
		d = min(d, l.NullTTL)
	}
	return d
}

// hardLife is both lives together.
func (l *Fetcher) hardLife(ttl time.Duration, null bool) time.Duration {
	return ttl + min(l.staleFor(null), maxTTL-ttl)
}

// lookInside looks at the memory tier of a cache that has no Redis: what has become stale there is
// served while it is loaded again.
func (l *Fetcher) lookInside(rounds []*Round) {
	if l.Memory == nil || l.cache.Store != nil {
		return
	}
	for _, r := range rounds {
		if r.step != toLoad && r.step != toLook || r.bypass || r.how == Fresh {
			continue
		}
		r.step = toLoad
		item, ago, ok := l.Past(r)
		r.needsPrimary = r.needsPrimary || item.Expired
		if !ok {
			continue
		}
		r.Value, r.Null = item.Value, item.Null
		if ago < 0 { // it has been loaded meanwhile
			r.Hit, r.step = true, over
			continue
		}
		r.renew = true
		if decide(seenStale, l.standing(r, seenStale)) == waitForFresh {
			r.forFresh, r.step = true, toWait
			continue
		}
		l.giveStale(r)
		r.Hit = true
	}
	l.refreshDue(rounds)
}

// Past is what memory holds of a key within its hard life, trusted or not, and how long ago its TTL
// has ended.
func (l *Fetcher) Past(r *Round) (item Item, ago time.Duration, ok bool) {
	if l.Memory == nil {
		return Item{}, 0, false
	}
	item, ago, ok = l.Items.Past(r)
	return item, ago, ok && (ago < l.staleFor(item.Null))
}

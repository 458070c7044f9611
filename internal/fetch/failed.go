package fetch

import (
	"cmp"
	"context"

	"github.com/cacheaside/cacheaside/internal/lease"
)

// mayLoad ends those rounds that would load without a lease a key that failed to load a moment ago,
// or that another has loaded meanwhile. All have entered the source; it answers those that are
// still in. A refresh is asked for in spite of a failure, and ends it; a reload in the background
// is not.
func (b *batch) mayLoad(rounds []*Round) []*Round {
	failures := b.l.Source.Failures
	var ended []string
	for _, r := range rounds {
		r.failuresEnded = failures.Ends(r.text)
		switch {
		case b.refresh && !b.background:
			failures.Forget(r.text)
		case r.withoutLease && !r.bypass && failures.Here(r.text):
			b.l.Counters.FailedByMark.Add(1)
			r.Err, r.step = failures.Err(r.text), over
			ended = append(ended, r.text)
		case r.withoutLease && !b.refresh && b.l.kept(r):
			r.step = over
			ended = append(ended, r.text)
		}
	}
	if len(ended) == 0 {
		return rounds
	}
	b.l.Source.Leave(ended)
	return at(rounds, toLoad)
}

// failAll ends rounds with their errors, or with err. The fleet is told not to try their keys again
// at once, unless the database was not asked.
func (b *batch) failAll(rounds []*Round, err error) {
	var leased, spared []*lease.Attempt
	for _, r := range rounds {
		r.Value, r.Null, r.step = nil, false, over
		r.Err = cmp.Or(err, r.Err)
		switch {
		case r.notAttempted:
			if !r.withoutLease {
				spared = append(spared, r.attempt)
			}
		case r.withoutLease:
			b.l.failed(r, r.Err, true)
		case !b.asks(r):
			b.l.failed(r, r.Err, true)
		default:
			b.l.failed(r, r.Err, false)
			leased = append(leased, r.attempt)
		}
	}
	b.release(spared)
	if len(leased) > 0 {
		b.l.cache.Store.Fail(context.WithoutCancel(b.ctx), leased, b.l.ErrorTTL)
		b.l.countWrites(leased)
		b.notMarked(rounds)
	}
}

// failed notes that the load of a key has failed; here: Redis is not told.
func (l *Fetcher) failed(r *Round, cause error, here bool) {
	if !r.bypass {
		l.Source.Failures.Add(r.text, r.failuresEnded, cause, here)
	}
}

// notMarked notes here the failures that Redis could not be told of.
func (b *batch) notMarked(rounds []*Round) {
	for _, r := range rounds {
		if !r.withoutLease && r.attempt.Err != nil {
			b.l.failed(r, r.Err, true)
		}
	}
}

// succeeded forgets the failure of a key that could be loaded.
func (l *Fetcher) succeeded(r *Round, err error) {
	if err == nil && !r.bypass {
		l.Source.Failures.Forget(r.text)
	}
}

// asks tells whether what a round leaves in Redis is to be sent there. If it is not, that is
// counted: it was to be stored, or given up.
func (b *batch) asks(r *Round) bool {
	err := b.l.cache.Conn.Down(int(r.slotRange))
	if b.refresh || err == nil {
		return true
	}
	b.l.CountWrite(err)
	return false
}

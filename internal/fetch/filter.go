package fetch

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrFilterLength is the error of a filter that answers for too few keys, or for too many.
var ErrFilterLength = errors.New("the filter did not answer for each key")

// HasFreshFilter tells whether the filter has answers of its own for reads that are Fresh.
func (f *Fetcher) HasFreshFilter() bool { return f.filter.mayContainFresh != nil }

// checkFilter ends those rounds whose keys the filter refuses, before anything else is done for
// them. It is called when their callers are fixed: a caller that comes later, perhaps after the row
// was inserted, gets an answer of a later round. A key that has passed is not asked for again. With
// Bypass the filter is passed by, as the caches are.
//
// Nobody but reads asks the filter. Refresh is for a caller that knows of a change; Warm for one
// that knows which rows there are, and has means to fill the caches where the filter lacks them;
// and what is reloaded in the background was there before.
func (f *Fetcher) checkFilter(ctx context.Context, rounds []*Round) {
	checking := f.toCheck(rounds)
	switch {
	case len(checking) == 0:
	case len(checking) == 1 && !f.usesFreshFilter(checking[0]):
		may, err := f.checkOne(ctx, checking[0].text)
		f.applyFilter(ctx, checking[0], may, err)
	default:
		may, err := f.checkMany(ctx, checking)
		for i, r := range checking {
			f.applyFilter(ctx, r, len(may) == len(checking) && may[i], err)
		}
	}
}

// checkFilterNow is checkFilter on the caller's own goroutine, which must not wait but for what
// ends with the caller's context. It returns false if some are still to be asked for, in a flight.
func (f *Fetcher) checkFilterInline(rounds []*Round) (all bool) {
	all = true
	for _, r := range f.toCheck(rounds) {
		if f.filter.mayContainNow == nil || f.usesFreshFilter(r) {
			return false
		}
		var may, known bool
		err := f.cache.Guard(func() error {
			may, known = f.filter.mayContainNow(r.text)
			return nil
		})
		if known || err != nil {
			f.applyFilter(context.Background(), r, may, err)
		} else {
			all = false
		}
	}
	return all
}

// toAsk returns those of rounds for which the filter is to be asked. It leaves them as they are:
// the filter may not be asked any more when the flight begins that they go on in.
func (f *Fetcher) toCheck(rounds []*Round) (some []*Round) {
	if f.filter.suspect.Load() {
		return nil
	}
	n := 0
	for _, r := range rounds {
		if f.needsCheck(r) {
			n++
		}
	}
	if n == len(rounds) {
		return rounds
	}
	for _, r := range rounds {
		if n > 0 && f.needsCheck(r) {
			some = append(some, r)
		}
	}
	return some
}

func (f *Fetcher) needsCheck(r *Round) bool {
	if r.step != toBegin || r.verdict != filterNotAsked || r.how == Warming {
		return false
	}
	r.bypass = f.Bypassed()
	return !r.bypass
}

func (f *Fetcher) usesFreshFilter(r *Round) bool {
	return r.how == Fresh && f.filter.mayContainFresh != nil
}

// askOne is askMany of one key, without its allocations.
func (f *Fetcher) checkOne(ctx context.Context, text string) (may bool, err error) {
	err = f.cache.Guard(func() (err error) {
		may, err = f.filter.MightContain(ctx, text)
		return err
	})
	return may, err
}

func (f *Fetcher) checkMany(ctx context.Context, rounds []*Round) (may []bool, err error) {
	texts, mayContain := Texts(rounds), f.filter.MightContainMany
	if f.usesFreshFilter(rounds[0]) { // all are of one group of flights
		mayContain = f.filter.mayContainFresh
	}
	err = f.cache.Guard(func() (err error) {
		may, err = mayContain(ctx, texts)
		return err
	})
	if err == nil && len(may) != len(texts) {
		err = ErrFilterLength
	}
	return may, err
}

// filterSays notes the filter's answer for a round.
func (f *Fetcher) applyFilter(ctx context.Context, r *Round, may bool, err error) {
	r.step = toBegin
	switch {
	case err != nil:
		r.verdict = filterFailed
		if ctx.Err() == nil { // else the callers have left: that is why
			f.Counters.FilterErrors.Add(1)
		}
	case may:
		r.verdict = filterPassed
	case f.auditDue():
		r.verdict, r.bypass = filterAudited, true // the caches may hold what is older than the row
	default:
		f.Counters.Filtered.Add(1)
		r.verdict, r.Null, r.step = filterRefused, true, ended
	}
}

// countFilter counts those rounds that have passed the filter and are at their end now, without a
// row, and tells the filter. Reads that memory answers have not asked the filter, and are not
// counted. Refusals that were checked are ended.
func (f *Fetcher) countFilter(finished []*Round) {
	n := 0
	for _, r := range finished {
		switch {
		case r.verdict == filterAudited:
			f.finishAudit(r)
		case r.verdict == filterPassed && r.Null && r.Err == nil:
			n++
		}
	}
	if n == 0 {
		return
	}
	f.Counters.FalsePositives.Add(int64(n))
	if f.cache.Guard(func() error { f.filter.NotFound(n); return nil }) != nil {
		f.Counters.FilterErrors.Add(1)
	}
}

// recheck is how long after a hidden row was found the filter is asked for its key once more,
// before anybody is told: the row may have been inserted a moment ago, by a process that this one's
// filter has not heard of yet.
const recheckAfter = time.Second

// auditDue tells whether this refusal is to be checked. It takes nothing from other reads: it is
// not due while the breaker is open, or loads wait for their turn, or the database is to be spared.
func (f *Fetcher) auditDue() bool {
	if f.AuditEvery < 0 {
		return false
	}
	now, next := int64(time.Since(f.start)), f.filter.nextAudit.Load()
	if now < next || !f.mayAudit() || !f.filter.nextAudit.CompareAndSwap(next, now+int64(f.AuditEvery)) {
		return false
	}
	f.Counters.FilterAudits.Add(1)
	return true
}

func (f *Fetcher) mayAudit() bool {
	if f.RedisDown != LoadWhenDown && f.cache.Conn != nil && f.cache.Conn.Out() > 0 {
		return false
	}
	return f.Source.Idle()
}

// audited ends a round whose refusal was checked. Where the database could not be asked, the
// refusal stands.
func (f *Fetcher) finishAudit(r *Round) {
	switch {
	case r.Err != nil && f.Life.Err() != nil:
	case r.Err != nil:
		r.Value, r.Null, r.Err = nil, true, nil
		f.Counters.Filtered.Add(1)
	case r.Null:
		f.Counters.Filtered.Add(1)
	default:
		f.Counters.FilterHidden.Add(1)
		f.suspectFilter(r.text)
	}
}

// doubtFilter reports the key to the filter, unless the filter knows it a moment later. Until the
// filter was told, this loader does not ask it. A filter that goes on refusing the key after a
// report has found that its source does not list such keys: it is believed again, also while
// further keys are reported, or anyone who knows one could switch it off.
func (f *Fetcher) suspectFilter(text string) {
	if f.filter.reporting.Swap(true) {
		return
	}
	f.filter.suspect.Store(!f.filter.upheld.Load())
	f.background.Go(func() {
		defer f.filter.reporting.Store(false)
		defer f.filter.suspect.Store(false)
		f.reportHidden(text)
	})
}

func (f *Fetcher) reportHidden(text string) {
	reporter, _ := f.filter.Filter.(hiddenReporter)
	warned, reported := false, false
	for Pause(f.Life, recheckAfter); f.Life.Err() == nil; Pause(f.Life, recheckAfter) {
		may, err := f.checkOne(f.Life, text)
		if err == nil && may {
			if warned {
				f.filter.upheld.Store(false)
			}
			return
		}
		if err == nil && warned && reported {
			f.filter.upheld.Store(true)
			f.cache.Warn("the filter still refuses a key whose row exists: its source does not list the key; the database may compare text with numbers or by a collation, or the insert has not reached the filter yet", f.Name, f.keyError(text))
			return
		}
		if !warned && !f.filter.upheld.Load() {
			f.cache.Warn("the filter has refused a key whose row exists: its refusals are ignored until it is rebuilt", f.Name, f.keyError(text))
		}
		warned = true
		if reporter != nil {
			err := f.cache.Guard(func() error { return reporter.Hidden(f.Life, text) })
			if reported = err == nil; !reported {
				f.Counters.FilterErrors.Add(1)
			}
		}
	}
}

func (f *Fetcher) keyError(text string) error { return fmt.Errorf("key %016x", f.Keys.Hash(text)) }

// hider is a Filter that wants to know what it has hidden.
type hiddenReporter interface {
	Hidden(ctx context.Context, key string) error
}

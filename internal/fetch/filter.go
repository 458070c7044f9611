package fetch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/internal/retry"
)

// ErrFilterLength is the error of a filter that returns a wrong number of results.
var ErrFilterLength = errors.New("the filter did not return one result per key")

// HasFreshFilter reports whether the filter has separate results for reads that are Fresh.
func (f *Fetcher) HasFreshFilter() bool { return f.filter.mayContainFresh != nil }

// checkFilter ends those rounds whose keys the filter refuses. It is called when the callers of
// the rounds are fixed, before any other step. A caller that comes later, perhaps after the row
// was inserted, gets the result of a later round. A key that has passed is not checked again.
// Bypass also bypasses the filter.
//
// Only reads ask the filter. The caller of Refresh knows of a change. The caller of Warm knows
// which rows exist, and Warm can fill the caches for keys that the filter lacks. The key of a
// background refresh was read before.
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

// checkFilterInline is checkFilter on the caller's goroutine. It blocks only on calls that end
// with the caller's context. It returns false if some keys must still be checked, in a flight.
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

// toCheck returns those rounds whose keys must be checked by the filter. It does not change the
// rounds: when their flight begins, the filter may no longer be in use.
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
	if r.step != toBegin || r.verdict != filterNotAsked || r.mode == Warming {
		return false
	}
	r.bypass = f.Bypassed()
	return !r.bypass
}

func (f *Fetcher) usesFreshFilter(r *Round) bool {
	return r.mode == Fresh && f.filter.mayContainFresh != nil
}

// checkOne is checkMany for one key, without its allocations.
func (f *Fetcher) checkOne(ctx context.Context, text string) (may bool, err error) {
	err = f.cache.Guard(func() (err error) {
		may, err = f.filter.MightContain(ctx, text)
		return err
	})
	return may, err
}

func (f *Fetcher) checkMany(ctx context.Context, rounds []*Round) (may []bool, err error) {
	texts, mayContain := Texts(rounds), f.filter.MightContainMany
	if f.usesFreshFilter(rounds[0]) { // either all rounds are Fresh, or none is
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

// applyFilter applies the result of the filter to a round.
func (f *Fetcher) applyFilter(ctx context.Context, r *Round, may bool, err error) {
	r.step = toBegin
	switch {
	case err != nil:
		r.verdict = filterFailed
		if ctx.Err() == nil { // otherwise the error is that the callers have left
			f.Counters.FilterErrors.Add(1)
		}
	case may:
		r.verdict = filterPassed
	case f.auditDue():
		r.verdict, r.bypass = filterAudited, true // what the caches hold may be older than the row
	default:
		f.Counters.Filtered.Add(1)
		r.verdict, r.Null, r.step = filterRefused, true, ended
	}
}

// countFilter counts those rounds that have passed the filter and have ended without a row, and
// reports them to the filter. Reads that memory serves do not ask the filter, so they are not
// counted. countFilter also ends audited refusals.
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

// recheckAfter is the pause before the filter is asked again for a key that it has refused
// although the row exists. Another program may have inserted the row a moment ago, and the key may
// be on its way to the filter. The loader does not ask the filter during the pause.
const recheckAfter = 5 * time.Second

// auditDue reports whether this refusal must be audited. An audit must not delay other reads. So
// none is due while the breaker is open or loads wait in a queue. None is due either if Redis is
// down and RedisDown forbids loads.
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

// finishAudit ends a round whose refusal was audited. If the database could not be asked, the
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

// suspectFilter reports the key to the filter, unless the filter contains it a moment later. Until
// the filter passes the key, the loader does not ask the filter.
func (f *Fetcher) suspectFilter(text string) {
	if f.filter.suspect.Swap(true) {
		return // another key is being reported
	}
	f.background.Go(func() {
		defer f.filter.suspect.Store(false)
		f.reportHidden(text)
	})
}

// reportHidden returns when the filter passes the key, or the loader is closed.
func (f *Fetcher) reportHidden(text string) {
	reporter, _ := f.filter.Filter.(FilterHidden)
	warned := false
	for delay := recheckAfter; retry.Sleep(f.Life, delay) == nil; delay = time.Second {
		if may, err := f.checkOne(f.Life, text); err == nil && may {
			return
		}
		if !warned {
			f.cache.Warn("the filter has refused a key whose row exists: its refusals are ignored until it is rebuilt",
				f.Name, f.keyError(text))
			warned = true
		}
		if reporter != nil && f.cache.Guard(func() error { return reporter.Hidden(f.Life, text) }) != nil {
			f.Counters.FilterErrors.Add(1)
		}
	}
}

func (f *Fetcher) keyError(text string) error { return fmt.Errorf("key %016x", f.Keys.Hash(text)) }

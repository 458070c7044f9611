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
func (l *Fetcher) HasFreshFilter() bool { return l.filter.fresh != nil }

// checkFilter ends those rounds whose keys the filter refuses, before anything else is done for
// them. It is called when their callers are fixed: a caller that comes later, perhaps after the row
// was inserted, gets an answer of a later round. A key that has passed is not asked for again. With
// Bypass the filter is passed by, as the caches are.
//
// Nobody but reads asks the filter. Refresh is for a caller that knows of a change; Warm for one
// that knows which rows there are, and has means to fill the caches where the filter lacks them;
// and what is reloaded in the background was there before.
func (l *Fetcher) checkFilter(ctx context.Context, rounds []*Round) {
	asked := l.toAsk(rounds)
	switch {
	case len(asked) == 0:
	case len(asked) == 1 && !l.asksFresh(asked[0]):
		may, err := l.askOne(ctx, asked[0].text)
		l.filterSays(ctx, asked[0], may, err)
	default:
		may, err := l.askMany(ctx, asked)
		for i, r := range asked {
			l.filterSays(ctx, r, len(may) == len(asked) && may[i], err)
		}
	}
}

// checkFilterNow is checkFilter on the caller's own goroutine, which must not wait but for what
// ends with the caller's context. It returns false if some are still to be asked for, in a flight.
func (l *Fetcher) checkFilterNow(rounds []*Round) (all bool) {
	all = true
	for _, r := range l.toAsk(rounds) {
		if l.filter.now == nil || l.asksFresh(r) {
			return false
		}
		var may, known bool
		err := l.cache.Guard(func() error {
			may, known = l.filter.now(r.text)
			return nil
		})
		if known || err != nil {
			l.filterSays(context.Background(), r, may, err)
		} else {
			all = false
		}
	}
	return all
}

// toAsk returns those of rounds for which the filter is to be asked. It leaves them as they are:
// the filter may not be asked any more when the flight begins that they go on in.
func (l *Fetcher) toAsk(rounds []*Round) (some []*Round) {
	if l.filter.doubted.Load() {
		return nil
	}
	n := 0
	for _, r := range rounds {
		if l.isToAsk(r) {
			n++
		}
	}
	if n == len(rounds) {
		return rounds
	}
	for _, r := range rounds {
		if n > 0 && l.isToAsk(r) {
			some = append(some, r)
		}
	}
	return some
}

func (l *Fetcher) isToAsk(r *Round) bool {
	if r.step != toBegin || r.verdict != notAsked || r.how == Warming {
		return false
	}
	r.bypass = l.Bypassed()
	return !r.bypass
}

func (l *Fetcher) asksFresh(r *Round) bool { return r.how == Fresh && l.filter.fresh != nil }

// askOne is askMany of one key, without its allocations.
func (l *Fetcher) askOne(ctx context.Context, text string) (may bool, err error) {
	err = l.cache.Guard(func() (err error) {
		may, err = l.filter.MightContain(ctx, text)
		return err
	})
	return may, err
}

func (l *Fetcher) askMany(ctx context.Context, rounds []*Round) (may []bool, err error) {
	texts, ask := Texts(rounds), l.filter.MightContainMany
	if l.asksFresh(rounds[0]) { // all are of one group of flights
		ask = l.filter.fresh
	}
	err = l.cache.Guard(func() (err error) {
		may, err = ask(ctx, texts)
		return err
	})
	if err == nil && len(may) != len(texts) {
		err = ErrFilterLength
	}
	return may, err
}

// filterSays notes the filter's answer for a round.
func (l *Fetcher) filterSays(ctx context.Context, r *Round, may bool, err error) {
	r.step = toBegin
	switch {
	case err != nil:
		r.verdict = unanswered
		if ctx.Err() == nil { // else the callers have left: that is why
			l.Counters.FilterErrors.Add(1)
		}
	case may:
		r.verdict = passed
	case l.auditDue():
		r.verdict, r.bypass = checked, true // the caches may hold what is older than the row
	default:
		l.Counters.Filtered.Add(1)
		r.verdict, r.Null, r.step = refused, true, over
	}
}

// countFilter counts those rounds that have passed the filter and are at their end now, without a
// row, and tells the filter. Reads that memory answers have not asked the filter, and are not
// counted. Refusals that were checked are ended.
func (l *Fetcher) countFilter(done []*Round) {
	n := 0
	for _, r := range done {
		switch {
		case r.verdict == checked:
			l.audited(r)
		case r.verdict == passed && r.Null && r.Err == nil:
			n++
		}
	}
	if n == 0 {
		return
	}
	l.Counters.FalsePositives.Add(int64(n))
	if l.cache.Guard(func() error { l.filter.NotFound(n); return nil }) != nil {
		l.Counters.FilterErrors.Add(1)
	}
}

// recheck is how long after a hidden row was found the filter is asked for its key once more,
// before anybody is told: the row may have been inserted a moment ago, by a process that this one's
// filter has not heard of yet.
const recheck = time.Second

// auditDue tells whether this refusal is to be checked. It takes nothing from other reads: it is
// not due while the breaker is open, or loads wait for their turn, or the database is to be spared.
func (l *Fetcher) auditDue() bool {
	if l.AuditEvery < 0 {
		return false
	}
	now, next := int64(time.Since(l.start)), l.filter.next.Load()
	if now < next || !l.mayAudit() || !l.filter.next.CompareAndSwap(next, now+int64(l.AuditEvery)) {
		return false
	}
	l.Counters.FilterAudits.Add(1)
	return true
}

func (l *Fetcher) mayAudit() bool {
	if l.RedisDown != LoadWhenDown && l.cache.Conn != nil && l.cache.Conn.Out() > 0 {
		return false
	}
	return l.Source.Idle()
}

// audited ends a round whose refusal was checked. Where the database could not be asked, the
// refusal stands.
func (l *Fetcher) audited(r *Round) {
	switch {
	case r.Err != nil && l.Life.Err() != nil:
	case r.Err != nil:
		r.Value, r.Null, r.Err = nil, true, nil
		l.Counters.Filtered.Add(1)
	case r.Null:
		l.Counters.Filtered.Add(1)
	default:
		l.Counters.FilterHidden.Add(1)
		l.doubtFilter(r.text)
	}
}

// doubtFilter reports the key to the filter, unless the filter knows it a moment later. Until the
// filter was told, this loader does not ask it. A filter that goes on refusing the key after a
// report has found that its source does not list such keys: it is believed again, also while
// further keys are reported, or anyone who knows one could switch it off.
func (l *Fetcher) doubtFilter(text string) {
	if l.filter.telling.Swap(true) {
		return
	}
	l.filter.doubted.Store(!l.filter.stands.Load())
	l.background.Go(func() {
		defer l.filter.telling.Store(false)
		defer l.filter.doubted.Store(false)
		l.report(text)
	})
}

func (l *Fetcher) report(text string) {
	tells, _ := l.filter.Filter.(hider)
	warned, told := false, false
	for Pause(l.Life, recheck); l.Life.Err() == nil; Pause(l.Life, recheck) {
		may, err := l.askOne(l.Life, text)
		if err == nil && may {
			if warned {
				l.filter.stands.Store(false)
			}
			return
		}
		if err == nil && warned && told {
			l.filter.stands.Store(true)
			l.cache.Warn("the filter still refuses a key whose row exists: its source does not list the key; the database may compare text with numbers or by a collation, or the insert has not reached the filter yet", l.Name, l.keyError(text))
			return
		}
		if !warned && !l.filter.stands.Load() {
			l.cache.Warn("the filter has refused a key whose row exists: its refusals are ignored until it is rebuilt", l.Name, l.keyError(text))
		}
		warned = true
		if tells != nil {
			err := l.cache.Guard(func() error { return tells.Hidden(l.Life, text) })
			if told = err == nil; !told {
				l.Counters.FilterErrors.Add(1)
			}
		}
	}
}

func (l *Fetcher) keyError(text string) error { return fmt.Errorf("key %016x", l.Keys.Hash(text)) }

// hider is a Filter that wants to know what it has hidden.
type hider interface {
	Hidden(ctx context.Context, key string) error
}

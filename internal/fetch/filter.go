package fetch

import (
	"context"
	"errors"
	"sync/atomic"
)

// Filter is cacheaside.Filter, as far as reads need it.
type Filter interface {
	MightContain(ctx context.Context, key string) (bool, error)
	MightContainMany(ctx context.Context, keys []string) ([]bool, error)
	NotFound(keys int)
}

// filter is a loader's filter, and whether it is believed. One of a nil Filter refuses nothing.
//
// A filter that was built from the wrong table, or that has lost keys, refuses rows that exist, and
// nothing else would ever tell: so one refusal in a while is not given out at once, but the
// database is asked for the row.
type filter struct {
	Filter
	now   func(key string) (may, known bool)                       // what it has for callers' own goroutines, or nil
	fresh func(ctx context.Context, keys []string) ([]bool, error) // what it has for Fresh, or nil

	next    atomic.Int64 // when a refusal is due to be checked, on the loader's clock
	doubted atomic.Bool  // the filter has refused a row that exists, and is not asked
	telling atomic.Bool  // a refused row is being reported
	stands  atomic.Bool  // the filter has not changed after such a report: it is asked while the next is made
}

func (f *filter) set(of Filter) {
	f.Filter = of
	if now, ok := of.(interface {
		MightContainNow(key string) (may, known bool)
	}); ok {
		f.now = now.MightContainNow
	}
	if fresh, ok := of.(interface {
		MightContainFresh(ctx context.Context, keys []string) ([]bool, error)
	}); ok {
		f.fresh = fresh.MightContainFresh
	}
}

// ErrFilterLength is the error of a filter that answers for too few keys, or for too many.
var ErrFilterLength = errors.New("the filter did not answer for each key")

// verdict is what a loader's filter has said of a round's key.
type verdict uint8

const (
	notAsked verdict = iota
	unanswered
	passed
	refused
	checked // refused, and the database is asked all the same
)

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
		may, known, err := l.askNow(r.text)
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
	return r.step == toBegin && r.verdict == notAsked && r.how != Unfiltered && l.identify(r) && !r.bypass
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

func (l *Fetcher) asksFresh(r *Round) bool { return r.how == Fresh && l.filter.fresh != nil }

func (l *Fetcher) askNow(text string) (may, known bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = l.cache.Caught(p)
		}
	}()
	may, known = l.filter.now(text)
	return may, known, nil
}

// askOne is askMany of one key, without its allocations.
func (l *Fetcher) askOne(ctx context.Context, text string) (may bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = l.cache.Caught(p)
		}
	}()
	return l.filter.MightContain(ctx, text)
}

func (l *Fetcher) askMany(ctx context.Context, rounds []*Round) (may []bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = l.cache.Caught(p)
		}
	}()
	texts := make([]string, len(rounds))
	for i, r := range rounds {
		texts[i] = r.text
	}
	if l.asksFresh(rounds[0]) { // all are of one group of flights
		may, err = l.filter.fresh(ctx, texts)
	} else {
		may, err = l.filter.MightContainMany(ctx, texts)
	}
	if err == nil && len(may) != len(texts) {
		err = ErrFilterLength
	}
	return may, err
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
	defer func() {
		if p := recover(); p != nil {
			l.Counters.FilterErrors.Add(1)
		}
	}()
	l.filter.NotFound(n)
}

// HasFreshFilter tells whether the filter has answers of its own for reads that are Fresh.
func (l *Fetcher) HasFreshFilter() bool { return l.filter.fresh != nil }

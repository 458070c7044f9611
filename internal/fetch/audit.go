package fetch

import (
	"context"
	"fmt"
	"time"
)

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
			told = l.tellHidden(tells, text)
		}
	}
}

func (l *Fetcher) keyError(text string) error { return fmt.Errorf("key %016x", l.Keys.Hash(text)) }

// hider is a Filter that wants to know what it has hidden.
type hider interface {
	Hidden(ctx context.Context, key string) error
}

// tellHidden tells the filter, and reports whether that has succeeded.
func (l *Fetcher) tellHidden(filter hider, text string) bool {
	err := guarded(l.Life, l.cache.Caught, func(ctx context.Context) error { return filter.Hidden(ctx, text) })
	if err != nil {
		l.Counters.FilterErrors.Add(1)
	}
	return err == nil
}

func guarded(ctx context.Context, caught func(recovered any) error, f func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = caught(p)
		}
	}()
	return f(ctx)
}

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

// doubtFilter has the filter not be asked any more, for it has hidden the row of this key, until it
// knows the key, or answers "maybe" by itself.
func (l *Fetcher) doubtFilter(text string) {
	if l.filter.doubted.Swap(true) {
		return
	}
	l.background.Go(func() {
		told := false
		for Pause(l.Life, recheck); l.Life.Err() == nil; Pause(l.Life, recheck) {
			may, err := l.askOne(l.Life, text)
			if err == nil && may {
				l.filter.doubted.Store(false)
				return
			}
			if !told {
				l.cache.Warn("the filter has refused a key whose row exists: its refusals are ignored until it is rebuilt", l.Name, fmt.Errorf("key %016x", l.Keys.Hash(text)))
			}
			told = l.tellHidden(text) || told
		}
	})
}

// tellHidden tells the filter, if it wants to know.
func (l *Fetcher) tellHidden(text string) (told bool) {
	tells, ok := l.filter.Filter.(interface {
		Hidden(ctx context.Context, key string) error
	})
	if !ok {
		return true
	}
	err := guarded(l.Life, l.cache.Caught, func(ctx context.Context) error { return tells.Hidden(ctx, text) })
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

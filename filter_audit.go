package cacheaside

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// filterAudit checks what a loader's filter refuses. A filter that was built from the wrong table,
// or that has lost keys, refuses rows that exist, and nothing else would ever tell: so one refusal
// in a while is not given out at once, but the database is asked for the row.
type filterAudit struct {
	next    atomic.Int64 // when a refusal is due to be checked, on the loader's clock
	doubted atomic.Bool  // the filter has refused a row that exists, and is not asked
}

// recheck is how long after a hidden row was found the filter is asked for its key once more,
// before anybody is told: the row may have been inserted a moment ago, by a process that this one's
// filter has not heard of yet.
const recheck = time.Second

// auditDue tells whether this refusal is to be checked. It takes nothing from other reads: it is
// not due while the breaker is open, or loads wait for their turn, or the database is to be spared.
func (l *Loader[K, V]) auditDue() bool {
	if l.options.AuditEvery < 0 {
		return false
	}
	now, next := int64(time.Since(l.start)), l.audit.next.Load()
	if now < next || !l.mayAudit() || !l.audit.next.CompareAndSwap(next, now+int64(l.options.AuditEvery)) {
		return false
	}
	l.counters.filterAudits.Add(1)
	return true
}

func (l *Loader[K, V]) mayAudit() bool {
	if l.options.RedisDown != LoadWhenDown && l.cache.conn != nil && l.cache.conn.Out() > 0 {
		return false
	}
	return l.source.Idle()
}

// audited ends a round whose refusal was checked. Where the database could not be asked, the
// refusal stands.
func (l *Loader[K, V]) audited(r *round[K, V]) {
	s := &r.Result
	switch {
	case r.Err != nil && l.life.Err() != nil:
	case r.Err != nil:
		var none V
		s.value, s.null, r.Err = none, true, nil
		l.counters.filtered.Add(1)
	case s.null:
		l.counters.filtered.Add(1)
	default:
		l.counters.filterHidden.Add(1)
		l.doubtFilter(s.text)
	}
}

// doubtFilter has the filter not be asked any more, for it has hidden the row of this key, until it
// knows the key, or answers "maybe" by itself.
func (l *Loader[K, V]) doubtFilter(text string) {
	if l.audit.doubted.Swap(true) {
		return
	}
	l.background.Go(func() {
		told := false
		for pause(l.life, recheck); l.life.Err() == nil; pause(l.life, recheck) {
			may, err := l.askOne(l.life, text)
			if err == nil && may {
				l.audit.doubted.Store(false)
				return
			}
			if !told {
				l.cache.journal.warn("the filter has refused a key whose row exists: it is not believed until it was built again", l.name, fmt.Errorf("key %016x", l.keys.Hash(text)))
			}
			told = l.tellHidden(text) || told
		}
	})
}

// tellHidden tells the filter, if it wants to know.
func (l *Loader[K, V]) tellHidden(text string) (told bool) {
	tells, ok := l.filter.(interface {
		Hidden(ctx context.Context, key string) error
	})
	if !ok {
		return true
	}
	err := guarded(l.life, func(ctx context.Context) error { return tells.Hidden(ctx, text) })
	if err != nil {
		l.counters.filterErrors.Add(1)
	}
	return err == nil
}

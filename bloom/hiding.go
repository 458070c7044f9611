package bloom

import (
	"context"
	"time"
)

// hiding is when a filter was found to have refused a key whose row exists, and how often in a row.
// The rebuild that follows would not help where its source is wrong, or where the database finds
// rows under other keys than their own: so the first follows at once, and further ones later and
// later.
type hiding struct {
	At    time.Time `json:"at"` // by the clock of the process that was told
	Times int       `json:"times"`
}

const (
	firstRest   = time.Minute // between the second time and the rebuild
	longestRest = 24 * time.Hour
)

// again is the hiding that follows.
func (h *hiding) again(now time.Time) *hiding {
	next := &hiding{At: now, Times: 1}
	if h != nil && now.Sub(h.At) < longestRest {
		next.Times = min(h.Times, 30) + 1
	}
	return next
}

// rests tells whether the filter is not to be built again by itself yet.
func (h *hiding) rests(now time.Time) bool {
	if h == nil || h.Times < 2 {
		return false
	}
	since := now.Sub(h.At)
	return since >= 0 && since < min(firstRest<<min(h.Times, 11), longestRest)
}

// Hidden tells the filter that it has refused a key whose row exists, as a cacheaside.Loader has
// found out (LoaderOptions.AuditEvery). If the filter still refuses the key, it answers "maybe"
// from then on, in all processes, until it has been built again. Maintain does so, the first time
// at its next check, and if it happens again within a day each time after a longer rest, up to a
// day: no rebuild repairs a key that the source does not have. If Hidden returns an error, try
// again.
func (f *Redis) Hidden(ctx context.Context, key string) error {
	f.recheckCopy() // it may lack what Redis has
	d, err := f.fetch(ctx, f.allTries())
	if err != nil || d.Active == nil {
		return f.failed(err)
	}
	if maybe, err := f.lookup(ctx, []hash{hashOf(key)}); err != nil || maybe[0] {
		return err
	}
	f.counts.hidden.Add(1)
	f.warn("it has refused a key whose row exists: it answers \"maybe\" until it was built again")
	now := time.Now().UTC().Truncate(time.Millisecond)
	return f.failed(f.dropActive(ctx, d.Active, func(to *descriptor) { to.Hiding = to.Hiding.again(now) }))
}

// Hidden tells the filter that it has refused a key whose row exists: see Redis.Hidden. It concerns
// this process only. The error is always nil.
func (l *Local) Hidden(_ context.Context, key string) error {
	if l.has(key) {
		return nil
	}
	l.counts.hidden.Add(1)
	l.hiding.Store(l.hiding.Load().again(time.Now()))
	l.change(func(h *holding) bool {
		h.active = nil
		return true
	})
	l.wake()
	return nil
}

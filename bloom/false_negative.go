package bloom

import (
	"context"
	"fmt"
	"time"

	"github.com/cacheaside/cacheaside/bloom/internal/bitmap"
)

// falseNegative records that a filter was dropped because it had refused a key whose row exists.
// A rebuild does not repair a source that lacks rows: the next audit drops the filter again. So
// Maintain delays the rebuilds, for longer each time.
type falseNegative struct {
	ReportedAt time.Time `json:"at"`    // by the clock of the process that reported it
	Drops      int       `json:"times"` // number of consecutive drops
}

const (
	// The delay of a rebuild after n consecutive drops is firstDelay << n, from the second drop
	// on, and at most maxDelay.
	firstDelay = time.Minute
	maxDelay   = 24 * time.Hour

	// minMemory is the minimum time for which a drop is remembered. A later drop has another
	// cause, and is not a consecutive one.
	minMemory = time.Hour
)

// next returns the falseNegative of the next drop.
func (f *falseNegative) next(now time.Time) *falseNegative {
	next := &falseNegative{ReportedAt: now, Drops: 1}
	if f != nil && now.Sub(f.ReportedAt) < max(minMemory, 2*f.delay()) {
		next.Drops = min(f.Drops, 30) + 1
	}
	return next
}

// delay returns the time from the last drop until Maintain rebuilds the filter.
func (f *falseNegative) delay() time.Duration {
	if f == nil || f.Drops < 2 {
		return 0
	}
	return min(firstDelay<<min(f.Drops, 11), maxDelay)
}

// delaysRebuild reports whether Maintain must wait before it rebuilds the filter.
func (f *falseNegative) delaysRebuild(now time.Time) bool {
	if f == nil {
		return false
	}
	since := now.Sub(f.ReportedAt)
	return since >= 0 && since < f.delay()
}

// message returns the log line about the drop.
func (f *falseNegative) message() string {
	if f.Drops < 2 {
		return `the filter has refused a key whose row exists: it returns "maybe" until it is rebuilt`
	}
	return fmt.Sprintf(`the rebuilt filter has refused a key whose row exists, too: its source lacks rows, `+
		`or the database finds a row under several keys. It returns "maybe" until it is rebuilt, in %v`, f.delay())
}

// Hidden reports a key that the filter has refused although its row exists. A cacheaside.Loader
// calls it for such rows that it finds (LoaderOptions.AuditEvery). If the filter still refuses
// the key, it is dropped: all lookups return "maybe", in all processes, until the next Rebuild has
// succeeded. The report is counted (Stats.Hidden) and logged. Maintain rebuilds the filter at its
// next check. If the rebuilt filter is dropped again within an hour, Maintain waits before the next
// rebuild: 4 minutes, then twice as long each time, up to a day. Only the source can be wrong then,
// or the key: a database that converts text to numbers, or compares by a collation, finds rows by
// keys other than their own, which no source yields.
//
// Hidden also applies to Replicas. If it returns an error, the caller should retry.
func (r *Redis) Hidden(ctx context.Context, key string) error {
	d, err := r.fetchDescriptor(ctx, r.longTimeout())
	if err != nil || d.Active == nil {
		r.recheckReplica() // its copy may still refuse keys
		return r.wrapError(err)
	}
	if maybe, err := r.lookup(ctx, []bitmap.Hash{bitmap.HashOf(key)}); err != nil || maybe[0] {
		r.recheckReplica() // its copy may lack keys that Redis has
		return err
	}
	r.counts.hidden.Add(1)
	now := time.Now().UTC().Truncate(time.Millisecond)
	var last *falseNegative
	err = r.dropActive(ctx, d.Active, func(changed *descriptor) {
		last = changed.FalseNegative.next(now)
		changed.FalseNegative = last
	})
	r.recheckReplica()
	if last != nil {
		r.warn(last.message())
	}
	return r.wrapError(err)
}

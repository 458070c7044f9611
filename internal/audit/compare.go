// Package audit compares the copies of rows in memory and in Redis with the database, for package
// meter and for LoaderOptions.Shadow.
package audit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// ConfirmAfter is how long a copy must differ from its row, while the row does not change, before
// the difference counts. A row that was just written differs from its copies until its
// invalidation has arrived.
const ConfirmAfter = 500 * time.Millisecond

// Undecided means that the copy must still be compared.
const Undecided = measure.Verdicts

// A Copy is the value of a key that a tier would serve.
type Copy struct {
	Value any  // a pointer to a value of the loader's type
	Null  bool // the copy says that the row does not exist
	There bool // false if there is no copy, or if that is unknown
}

// A Key is a key whose copies are compared.
type Key struct {
	Row   func(ctx context.Context) (row Copy, ok bool) // loads the row; it may refuse to
	Again func() Copy                                   // returns the copy that would be served now
	Same  func(a, b Copy) bool
}

// Compare compares a copy with the row in the database.
func (k Key) Compare(ctx context.Context, first Copy) measure.Verdict {
	row, ok := k.Row(ctx)
	if !ok {
		return measure.Unknown
	}
	return k.CompareWith(ctx, first, row)
}

// CompareWith is Compare with a row that was just loaded. After a difference it compares again,
// ConfirmAfter later. The difference counts if the row has not changed in between, and the copy
// still differs from it.
func (k Key) CompareWith(ctx context.Context, first, row Copy) measure.Verdict {
	if k.Same(first, row) {
		return measure.Same
	}
	if retry.Sleep(ctx, ConfirmAfter) != nil {
		return measure.Unknown
	}
	second := k.Again()
	if !second.There {
		return measure.Unknown
	}
	now, ok := k.Row(ctx)
	switch {
	case !ok:
		return measure.Unknown
	case k.Same(second, now):
		return measure.Same
	case !k.Same(row, now):
		return measure.Unknown
	default:
		return measure.Different
	}
}

// A Shadow selects, limits and counts the comparisons of a loader whose reads return the row from
// the database: see LoaderOptions.Shadow. Methods of a nil Shadow do nothing.
type Shadow struct {
	Reads, Misses, Compared, Stale, Undecided atomic.Int64

	share     float64      // the share of keys that are compared, and of reads that may load for a comparison
	refreshes func() int64 // counts background refreshes, which comparisons may begin
	extra     atomic.Int64 // loads that comparisons have made, or may still make

	mu      sync.Mutex
	n       int // comparisons in progress
	closed  bool
	running sync.WaitGroup
}

const (
	// ShadowsAtOnce is the maximum number of concurrent comparisons of a loader.
	ShadowsAtOnce = 64

	// ShadowBurst is how many loads are allowed beyond the share.
	ShadowBurst = 16
)

// NewShadow returns a Shadow for a share of the keys. refreshes returns the number of background
// refreshes of the loader.
func NewShadow(share float64, refreshes func() int64) *Shadow {
	return &Shadow{share: share, refreshes: refreshes}
}

// Chosen reports whether the key with this stable hash is compared. All processes choose the same
// keys. Otherwise no process would find a copy that another has cached.
func (s *Shadow) Chosen(stable uint64) bool {
	const whole = 1 << 32
	mixed := stable * 0x9e3779b97f4a7c15 >> 32 // the lower bits of the hash choose the stripes of the memory tier
	return float64(mixed) < s.share*whole
}

// Begin reports whether one more comparison may begin. If so, the caller must call End after it.
func (s *Shadow) Begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.n >= ShadowsAtOnce {
		return false
	}
	s.n++
	s.running.Add(1)
	return true
}

// End ends a comparison.
func (s *Shadow) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n--
	s.running.Done()
}

// UnderWay returns the number of comparisons in progress.
func (s *Shadow) UnderWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// Close prevents new comparisons.
func (s *Shadow) Close() {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed = true
	}
}

// Wait waits for the comparisons in progress. It must be called after Close.
func (s *Shadow) Wait() {
	if s != nil {
		s.running.Wait()
	}
}

// MayLoad reports whether one more load may be made for a comparison, and counts it. Together
// with the background refreshes, these loads are limited to the share of all reads.
func (s *Shadow) MayLoad() bool {
	n := s.extra.Add(1) + s.refreshes()
	if float64(n) > s.share*float64(s.Reads.Load())+ShadowBurst {
		s.extra.Add(-1)
		return false
	}
	return true
}

// NotLoaded reverts a call of MayLoad whose load was not made.
func (s *Shadow) NotLoaded() { s.extra.Add(-1) }

// Count counts the result of a comparison.
func (s *Shadow) Count(v measure.Verdict) {
	switch v {
	case measure.Same:
		s.Compared.Add(1)
	case measure.Different:
		s.Compared.Add(1)
		s.Stale.Add(1)
	default:
		s.Undecided.Add(1)
	}
}

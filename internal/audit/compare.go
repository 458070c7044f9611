// Package audit compares the copies of rows that memory and Redis have with the database: for
// package meter, and for LoaderOptions.Shadow.
package audit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/measure"
	"github.com/cacheaside/cacheaside/internal/retry"
)

// ConfirmAfter is how long a copy must go on differing from its row, which must not change
// meanwhile, before the difference counts. A row that was just written differs from its copies
// until its invalidation has arrived.
const ConfirmAfter = 500 * time.Millisecond

// Undecided is no verdict yet: the copy is to be compared.
const Undecided = measure.Verdicts

// Copy is what a tier would serve of a key.
type Copy struct {
	Value any  // a pointer to one of the loader's type
	Null  bool // the copy says that there is no such row
	There bool // else there is no copy, or nobody knows
}

// Key is a key whose copies are compared.
type Key struct {
	Row   func(ctx context.Context) (row Copy, ok bool) // loads the row; it may refuse to
	Again func() Copy                                   // the copy that would be served now
	Same  func(a, b Copy) bool
}

// Compare compares a copy with the database.
func (k Key) Compare(ctx context.Context, first Copy) measure.Verdict {
	row, ok := k.Row(ctx)
	if !ok {
		return measure.Unknown
	}
	return k.CompareWith(ctx, first, row)
}

// CompareWith is Compare with a row that was loaded just before. After a difference it looks once
// more, ConfirmAfter later. The difference counts if the row has not changed meanwhile, and the
// copy still differs from it.
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

// Shadow chooses, bounds and counts the comparisons of a loader that answers from the database: see
// LoaderOptions.Shadow. Methods of a nil Shadow do nothing.
type Shadow struct {
	Reads, Misses, Compared, Stale, Undecided atomic.Int64

	share     float64      // of the keys that are compared, and of the reads that may load for it
	refreshes func() int64 // background refreshes, which comparisons begin, too
	extra     atomic.Int64 // loads that were made for comparisons, or may be by those under way

	mu     sync.Mutex
	n      int // comparisons under way
	closed bool
	under  sync.WaitGroup
}

const (
	// ShadowsAtOnce is how many comparisons of a loader may be under way.
	ShadowsAtOnce = 64

	// ShadowBurst is how many loads are allowed beyond the share.
	ShadowBurst = 16
)

// NewShadow makes a Shadow for a share of the keys. refreshes counts the background refreshes of
// the loader.
func NewShadow(share float64, refreshes func() int64) *Shadow {
	return &Shadow{share: share, refreshes: refreshes}
}

// Chosen reports whether the key with this stable hash is compared. All processes choose the same
// keys: else none of them would find a copy that another has cached.
func (s *Shadow) Chosen(stable uint64) bool {
	const whole = 1 << 32
	mixed := stable * 0x9e3779b97f4a7c15 >> 32 // the lower bits of the hash choose the stripes of the memory tier
	return float64(mixed) < s.share*whole
}

// Begin reports whether one more comparison may begin. Then End must be called.
func (s *Shadow) Begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.n >= ShadowsAtOnce {
		return false
	}
	s.n++
	s.under.Add(1)
	return true
}

// End ends a comparison.
func (s *Shadow) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n--
	s.under.Done()
}

// UnderWay is the number of comparisons under way.
func (s *Shadow) UnderWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// Close lets no comparison begin any more.
func (s *Shadow) Close() {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed = true
	}
}

// Wait waits for the comparisons under way. Call it after Close.
func (s *Shadow) Wait() {
	if s != nil {
		s.under.Wait()
	}
}

// MayLoad reports whether one more load may be made for a comparison, and notes it. Together with
// the background refreshes that comparisons have begun, these loads are no more than the share of
// all reads.
func (s *Shadow) MayLoad() bool {
	n := s.extra.Add(1) + s.refreshes()
	if float64(n) > s.share*float64(s.Reads.Load())+ShadowBurst {
		s.extra.Add(-1)
		return false
	}
	return true
}

// NotLoaded takes back a load that MayLoad has noted.
func (s *Shadow) NotLoaded() { s.extra.Add(-1) }

// Count counts a comparison.
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

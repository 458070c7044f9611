// Package audit compares the copies of rows that memory and Redis have with the database: for
// package meter, and for LoaderOptions.Shadow.
package audit

import (
	"context"
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

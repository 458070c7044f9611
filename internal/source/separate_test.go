package source

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
)

// batchOptions are the options of a batch loader.
func batchOptions(t *testing.T) Options {
	return Options{
		Batch: true, LoadTimeout: time.Second, Life: t.Context(),
		Observe:  func(ctx context.Context, _ int) (context.Context, func(error)) { return ctx, func(error) {} },
		Warn:     func(string, error) {},
		Caught:   func(any) error { return errors.New("a panic") },
		Panicked: func(error) bool { return false },
	}
}

// refusing is a query that fails if it is called with one of the bad keys, after took.
func refusing(took time.Duration, calls *[][2]int, bad ...int) Query {
	return func(_ context.Context, first, end int) Returned {
		*calls = append(*calls, [2]int{first, end})
		time.Sleep(took)
		var r Returned
		for i := first; i < end; i++ {
			if slices.Contains(bad, i) {
				r.Err = fault.BadKey
			}
			r.Replies = append(r.Replies, Reply{Value: &i, Found: true})
		}
		if r.Err != nil {
			r.Replies = nil
		}
		return r
	}
}

// Bad keys fail alone. Callers join the rows of the first call only, because what a later one of
// them returns may have been read before they came.
func TestBadKeysFailAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(batchOptions(t))
		texts := make([]string, 100)
		var calls [][2]int
		begins := 0
		rows := s.Load(t.Context(), texts, refusing(0, &calls, 3, 77), Call{Begins: func() { begins++ }})
		for i, r := range rows {
			if bad := i == 3 || i == 77; bad != errors.Is(r.Err, fault.BadKey) || !bad && *r.Value.(*int) != i {
				t.Errorf("%d: %+v", i, r)
			}
		}
		if begins != 1 || len(calls) > 30 || s.LoadErrors.Load() != 2 {
			t.Errorf("%d begins, %d calls, %d errors", begins, len(calls), s.LoadErrors.Load())
		}
	})
}

// After LoadTimeout a part of a batch is not divided further, nor after the callers have left.
func TestSeparateCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := batchOptions(t)
		s := New(o)
		texts := make([]string, 100)
		var calls [][2]int
		rows := s.Load(t.Context(), texts, refusing(o.LoadTimeout*2/5, &calls, 0, 99), Call{})
		if len(calls) != 5 || rows[30].Err != nil || rows[50].Err == nil || s.LoadErrors.Load() != 75 {
			t.Errorf("%d calls, %v, %d errors", len(calls), rows[50].Err, s.LoadErrors.Load())
		}
		calls = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		s.Load(ctx, texts, refusing(2*time.Millisecond, &calls, 0), Call{})
		if len(calls) != 1 {
			t.Errorf("%d calls without a caller", len(calls))
		}
	})
}

package source

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/fault"
	"github.com/cacheaside/cacheaside/internal/limit"
)

// TestTimeoutIsNamed: a load that ends as its context does has timed out, for each of its keys; but
// a key that has failed by itself has its own error.
func TestTimeoutIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keyErr := errors.New("its own")
		s := New(Options{
			Batch: true, LoadTimeout: time.Second, Life: t.Context(),
			Admission: limit.Admission{Breaker: limit.NewBreaker(-1, time.Second, func(bool) {})},
			Observe: func(ctx context.Context, _ int) (context.Context, func(error)) {
				time.Sleep(time.Millisecond) // so that the load returns before it is left
				return ctx, func(error) {}
			},
			Warn:     func(string, error) {},
			Caught:   func(any) error { return errors.New("a panic") },
			Panicked: func(error) bool { return false },
		})
		rows := s.Load(t.Context(), []string{"a", "b", "c"}, func(ctx context.Context, _, _ int) Returned {
			<-ctx.Done()
			err := ctx.Err()
			return Returned{Replies: []Reply{{Err: err}, {Err: keyErr, OfKey: true}, {Value: "row", Found: true}},
				Err: err}
		}, Call{})
		if !errors.Is(rows[0].Err, fault.LoadTimeout) || !errors.Is(rows[0].Err, context.DeadlineExceeded) {
			t.Errorf("a key that has failed with the call: %v", rows[0].Err)
		}
		if rows[1].Err != keyErr {
			t.Errorf("a key with an error of its own: %v", rows[1].Err)
		}
		if rows[2].Err != nil || rows[2].Value != "row" {
			t.Errorf("a key that was found: %+v", rows[2])
		}
		if s.LoadsLeft.Load() != 0 {
			t.Error("the load was left")
		}
	})
}

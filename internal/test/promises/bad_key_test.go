package promises

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// A refused is PostgreSQL's error for a value that it refuses.
type refused struct{}

func (refused) Error() string    { return "ERROR: OFFSET must not be negative (SQLSTATE 2201X)" }
func (refused) SQLState() string { return "2201X" }

var errOwnRefusal = errors.New("the gateway refuses the id")

// refusals are errors caused by a key.
var refusals = map[string]error{
	"SQLSTATE": refused{},
	"MySQL":    errors.New("Error 1210 (HY000): Incorrect arguments to EXECUTE"),
	"sentinel": fmt.Errorf("page %d: %w", -1, cacheaside.ErrBadKey),
	"option":   fmt.Errorf("loading: %w", errOwnRefusal),
}

func refusesOwn(err error) bool { return errors.Is(err, errOwnRefusal) }

// Callers with keys that the database refuses neither open the circuit breaker for the others nor
// keep it open.
func TestBadKeysDoNotOpenTheBreaker(t *testing.T) {
	for name, refusal := range refusals {
		inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
			var down bool
			p := startLoad(t, rdb, func(_ context.Context, key int) (string, error) {
				switch {
				case down:
					return "", errBroken
				case key < 0:
					return "", refusal
				}
				return fmt.Sprint(key), nil
			}, cacheaside.Options{}, &cacheaside.LoaderOptions{BadKey: refusesOwn})
			defer p.cache.Close()
			for key := range 100 {
				p.want(t, -1-key, "", refusal)
			}
			p.want(t, 1, "1", nil)
			if s := p.Stats(); s.BreakersOpen != 0 || s.LoadErrors != 100 {
				t.Errorf("%s: %+v", name, s)
			}
			down = true
			for key := range 200 { // the database fails, regardless of the other callers
				p.Get(t.Context(), 100+key)
			}
			if _, err := p.Get(t.Context(), 999); !errors.Is(err, cacheaside.ErrUnavailable) {
				t.Error(name, err)
			}
			down = false
			time.Sleep(time.Second + time.Millisecond)
			for key := range 10 { // probes without a result
				p.want(t, -1000-key, "", refusal)
			}
			p.want(t, 1001, "1001", nil)
			p.want(t, 1002, "1002", nil)
		})
	}
}

// A bad key of a batch fails alone: the other keys are loaded, and the batch does not count as a
// failure of the database.
func TestBadKeyOfABatchFailsAlone(t *testing.T) {
	for name, refusal := range refusals {
		inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
			d := newShelf(1000)
			d.answer = func(keys []int, rows map[int]string) (map[int]string, error) {
				if slices.ContainsFunc(keys, func(key int) bool { return key < 0 }) {
					return nil, refusal
				}
				return rows, nil
			}
			p := startMany(t, rdb, d, cacheaside.Options{MemoryBytes: -1},
				&cacheaside.LoaderOptions{BadKey: refusesOwn})
			defer p.cache.Close()
			for i := range 30 {
				keys := []int{-1 - i}
				for key := range 19 {
					keys = append(keys, 19*i+key)
				}
				m, err := p.GetMany(t.Context(), keys)
				failed, ok := errors.AsType[*cacheaside.BatchError[int]](err)
				if len(m) != 19 || !ok || len(failed.Errs) != 1 || !errors.Is(failed.Errs[-1-i], refusal) {
					t.Fatal(name, m, err)
				}
			}
			if s := p.Stats(); s.BreakersOpen != 0 || s.LoadErrors != 30 || s.LoadCalls > 30*11 {
				t.Errorf("%s: %+v", name, s)
			}
		})
	}
}

// A loader that reads through another one passes its bad keys on, also as remembered failures.
func TestBadKeysOfNestedLoads(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		inner := startLoad(t, rdb, func(_ context.Context, key int) (string, error) { return "", refused{} },
			cacheaside.Options{}, nil)
		defer inner.cache.Close()
		outer, err := cacheaside.NewLoader(inner.cache, "outer", func(ctx context.Context, key int) (string, error) {
			if key < 0 {
				return "fine", nil
			}
			return inner.Get(ctx, key/20)
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		other := startLoad(t, rdb, func(_ context.Context, key int) (string, error) { return "", refused{} },
			cacheaside.Options{}, nil)
		defer other.cache.Close()
		for key := range 100 {
			if key%20 == 0 {
				// So that this process only learns that a load has failed.
				other.Get(t.Context(), key/20)
			}
			if _, err := outer.Get(t.Context(), key); err == nil {
				t.Fatal("no error")
			}
		}
		if v, err := outer.Get(t.Context(), -1); err != nil {
			t.Error(v, err)
		}
	})
}

package promises

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// TestNotFound: an error that LoaderOptions.NotFound accepts means a missing row. It is cached and
// does not open the breaker.
func TestNotFound(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		errNoRecord := errors.New("record not found")
		options := &cacheaside.LoaderOptions{NotFound: func(err error) bool { return errors.Is(err, errNoRecord) }}
		loads := 0
		one := func(_ context.Context, id int) (string, error) {
			if loads++; id == 0 {
				return "a", nil
			}
			return "", fmt.Errorf("select: %w", errNoRecord)
		}
		many := func(ctx context.Context, ids []int) (map[int]string, error) {
			found, failed := map[int]string{}, map[int]error{}
			for _, id := range ids {
				if v, err := one(ctx, id); err == nil {
					found[id] = v
				} else {
					failed[id] = err
				}
			}
			if len(failed) == 0 {
				return found, nil
			}
			return found, &cacheaside.BatchError[int]{Errs: failed}
		}
		c, err := newCache(rdb, &patient)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		single, err1 := cacheaside.NewLoader(c, "single", one, options)
		batch, err2 := cacheaside.NewBatchLoader(c, "batch", many, options)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		for _, l := range []*cacheaside.Loader[int, string]{single, batch} {
			loads = 0
			for range 2 {
				for id := range 25 {
					if _, err := l.Get(t.Context(), id+1); !errors.Is(err, cacheaside.ErrNotFound) {
						t.Fatalf("row %d: %v", id+1, err)
					}
				}
			}
			if v, err := l.Get(t.Context(), 0); v != "a" || err != nil {
				t.Errorf("an existing row: %q, %v", v, err)
			}
			if s := l.Stats(); loads != 26 || s.LoadErrors != 0 || s.BreakersOpen != 0 {
				t.Errorf("%d loads, %+v", loads, s)
			}
		}
	})
}

// TestRecentFailureReturnsCause: reads of a key whose load has just failed get the cause, but only
// in the process of the load.
func TestRecentFailureReturnsCause(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		errConn := errors.New("a connection to db-secret-7 was lost")
		loads := 0
		load := func(context.Context, int) (string, error) {
			if loads++; loads == 1 {
				return "", errConn
			}
			return "a", nil
		}
		process := func() *cacheaside.Loader[int, string] {
			c, err := newCache(rdb, &patient)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			l, err := cacheaside.NewLoader(c, "row", load, nil)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		p := process()
		if _, err := p.Get(t.Context(), 1); !errors.Is(err, errConn) || errors.Is(err, cacheaside.ErrLoadFailed) {
			t.Errorf("the load's own caller gets %v", err)
		}
		if _, err := p.Get(t.Context(), 1); !errors.Is(err, errConn) || !errors.Is(err, cacheaside.ErrLoadFailed) {
			t.Errorf("the next caller gets %v", err)
		}
		if rdb != nil {
			if _, err := process().Get(t.Context(), 1); !errors.Is(err, cacheaside.ErrLoadFailed) ||
				errors.Is(err, errConn) {
				t.Errorf("a caller in another process gets %v", err)
			}
			for _, key := range rdb.Keys(t.Context(), "*").Val() {
				if strings.Contains(rdb.Get(t.Context(), key).Val(), "db-secret") {
					t.Errorf("Redis contains the cause, under %s", key)
				}
			}
		}
		time.Sleep(200 * time.Millisecond)
		if v, err := p.Get(t.Context(), 1); v != "a" || err != nil || loads != 2 {
			t.Errorf("200 ms after the failure: %q, %v after %d loads", v, err, loads)
		}
	})
}

// TestOpenBreakerReportsLastFailure: the error of an open breaker contains the last failure.
func TestOpenBreakerReportsLastFailure(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		p, _ := startBrittle(t, rdb)
		defer p.cache.Close()
		for key := range 20 {
			p.want(t, key, "", errBroken)
		}
		_, err := p.Get(t.Context(), 100)
		if want := "the last load that failed: " + errBroken.Error(); !errors.Is(err, cacheaside.ErrUnavailable) ||
			errors.Is(err, errBroken) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	})
}

// Every call that takes several keys returns a *BatchError, also for one key. It has an *Error for
// each failed key, in the caller's spelling, and errors.Is and errors.As find the causes.
func TestErrorOfSeveralKeys(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, m *miniredis.Miniredis, b backend) {
		s := newSieve("1")
		c := stranger(t, b, steady)
		l, err := cacheaside.NewLoader(c, "row",
			func(_ context.Context, key string) (string, error) { return key, nil },
			&cacheaside.LoaderOptions{Filter: s, Normalize: cacheaside.NormalizeOf(strings.ToLower)})
		if err != nil {
			t.Fatal(err)
		}
		failed := func(err error, op string, causes ...error) {
			t.Helper()
			batch, ok := err.(*cacheaside.BatchError[string])
			if !ok || batch.Errs["A"] == nil || !errors.Is(err, causes[0]) {
				t.Fatalf("%s: %#v", op, err)
			}
			if e, ok := errors.AsType[*cacheaside.Error](err); !ok || e.Op != op {
				t.Errorf("%s: %#v", op, e)
			}
			for key, err := range batch.Errs {
				e, ok := err.(*cacheaside.Error)
				if !ok || e.Op != op || e.Loader != "row" || e.Key != strings.ToLower(key) ||
					e.Hash != l.Key(key).Hash() {
					t.Errorf("%s %s: %#v", op, key, err)
				}
				for _, cause := range causes {
					if !errors.Is(err, cause) {
						t.Errorf("%s %s: %v", op, key, err)
					}
				}
			}
		}
		m.SetError("ERR out of order")
		for _, keys := range [][]string{{"A"}, {"A", "b", "b"}} {
			failed(l.Invalidate(t.Context(), keys...), "invalidate", cacheaside.ErrRedis)
			failed(l.Expire(t.Context(), keys...), "expire", cacheaside.ErrRedis)
			_, err := l.GetMany(canceled(t), keys, cacheaside.Fresh)
			failed(err, "get", context.Canceled)
			s.admitErr, s.commitErr = errBroken, errBroken
			_, err = l.Inserting(t.Context(), keys...)
			failed(err, "inserting", errBroken)
			s.admitErr = nil
			committed, err := l.Inserting(t.Context(), keys...)
			if err != nil {
				t.Fatal(err)
			}
			failed(committed(t.Context()), "inserting", errBroken, cacheaside.ErrRedis)
			s.commitErr = nil
			failed(committed(t.Context()), "inserting", cacheaside.ErrRedis)
		}
		if s := l.Stats(); s.InvalidateErrors != 16 || s.Invalidated != 0 {
			t.Errorf("%d errors, %d invalidated", s.InvalidateErrors, s.Invalidated)
		}
		if err := errors.Join(l.Invalidate(t.Context()), l.Expire(t.Context())); err != nil {
			t.Error("no keys:", err)
		}
		c.Close()
		failed(l.Invalidate(t.Context(), "A", "b"), "invalidate", cacheaside.ErrClosed)
		failed(l.Expire(t.Context(), "A"), "expire", cacheaside.ErrClosed)
		_, err = l.Inserting(t.Context(), "A", "b")
		failed(err, "inserting", cacheaside.ErrClosed)
	})
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

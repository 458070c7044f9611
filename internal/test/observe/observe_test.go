// Package observe_test tests Observers that do what they must not.
package observe_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// faulty is an Observer that panics, or returns nil.
type faulty struct{ begin, end, none bool }

func (f faulty) Begin(ctx context.Context, op, loader string, keys int) (context.Context, func(error)) {
	switch {
	case f.begin:
		panic("secret")
	case f.none:
		return nil, nil
	}
	return ctx, func(error) {
		if f.end {
			panic(errors.New("secret"))
		}
	}
}

// An Observer that panics disturbs neither reads nor refreshes nor invalidations, in the background
// or elsewhere. The panic is counted, and logged once.
func TestObserverPanics(t *testing.T) {
	for name, f := range map[string]faulty{"begin": {begin: true}, "end": {end: true}, "none": {none: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, rdb := testenv.Mini(t)
				var log testenv.Log
				c, err := cacheaside.New(rdb, &cacheaside.Options{Observer: f, MemoryBytes: -1,
					RedisTimeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				n := 0
				l, err := cacheaside.NewLoader(c, "row", func(context.Context, int) (int, error) { n++; return n, nil },
					&cacheaside.LoaderOptions{TTL: time.Minute, StaleFor: time.Minute, Jitter: -1, EarlyRefresh: -1})
				if err != nil {
					t.Fatal(err)
				}
				want := func(want int) {
					t.Helper()
					if got, err := l.Get(t.Context(), 1); got != want || err != nil {
						t.Errorf("%d, %v; want %d", got, err, want)
					}
				}
				want(1)
				time.Sleep(61 * time.Second)
				want(1) // stale; it is reloaded in the background
				synctest.Wait()
				want(2)
				if got, err := l.Refresh(t.Context(), 1); got != 3 || err != nil {
					t.Error(got, err)
				}
				if got, err := l.GetMany(t.Context(), []int{1, 2}); len(got) != 2 || err != nil {
					t.Error(got, err)
				}
				if err := l.Invalidate(t.Context(), 1); err != nil {
					t.Error(err)
				}
				want(5)
				if s := c.Stats(); s.ObserverPanics < 10 || s.LoadErrors != 0 {
					t.Errorf("%+v", s)
				}
				synctest.Wait()
				if s := log.String(); strings.Count(s, "the Observer has panicked") == 0 ||
					strings.Count(s, "\n") > 4 || strings.Count(s, "secret") > strings.Count(s, "panic=secret") {
					t.Error(s)
				}
			})
		})
	}
}

// leaving is an Observer that calls runtime.Goexit when the first load begins.
type leaving struct{ left bool }

func (l *leaving) Begin(ctx context.Context, op, _ string, _ int) (context.Context, func(error)) {
	if op == cacheaside.OpLoad && !l.left {
		l.left = true
		runtime.Goexit()
	}
	return ctx, func(error) {}
}

// An Observer that calls runtime.Goexit ends that one load, and the load's place is free again.
func TestObserverLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		c, err := cacheaside.New(rdb, &cacheaside.Options{Observer: &leaving{}, MaxLoads: 1, MemoryBytes: -1,
			RedisTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		l, err := cacheaside.NewLoader(c, "row", func(context.Context, int) (int, error) { return 1, nil }, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Get(t.Context(), 1)
		if p, ok := errors.AsType[*cacheaside.PanicError](err); !ok || !p.Goexit {
			t.Error(err)
		}
		if got, err := l.Get(t.Context(), 2); got != 1 || err != nil {
			t.Error(got, err)
		}
	})
}

package bloom

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestHiding: drops follow each other at growing distances, and are forgotten after a day.
func TestHiding(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	var none *falseNegative
	key := hashOf("row")
	if none.recent(now) || none.delaysRebuild(now) || none.id() != "" {
		t.Error("a filter that was never dropped")
	}
	h := none.next(now, key)
	if h.Key != key || h.Drops != 1 || !h.recent(now.Add(23*time.Hour)) || h.recent(now.Add(24*time.Hour)) || h.delaysRebuild(now) {
		t.Errorf("%+v", h)
	}
	if next := h.next(now.Add(25*time.Hour), key); next.Drops != 1 {
		t.Errorf("a day later: %+v", next)
	}
	renewed := h.renewed(now.Add(20 * time.Hour))
	if renewed.id() != h.id() || !renewed.recent(now.Add(40*time.Hour)) || renewed.Drops != 1 {
		t.Errorf("renewed: %+v", renewed)
	}
	for times, rest := range map[int]time.Duration{2: 4 * time.Minute, 3: 8 * time.Minute, 9: 512 * time.Minute, 12: 24 * time.Hour, 40: 24 * time.Hour} {
		h := none
		for range times {
			h = h.next(now, key)
		}
		if !h.delaysRebuild(now.Add(rest-time.Second)) || h.delaysRebuild(now.Add(rest)) || h.delaysRebuild(now.Add(-time.Second)) {
			t.Errorf("%d drops: %+v", times, h)
		}
	}
}

// TestListedKeys: the checks get some keys of the source, at the rebuild and while the filter
// serves: as they are, though they are no text, and short ones.
func TestListedKeys(t *testing.T) {
	var keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprint("\xff\xfe\"", i))
	}
	long := append(slices.Clone(keys), string(make([]byte, 1000)))
	_, rdb := testenv.Mini(t)
	f := newFilter(t, rdb, 1000)
	calls := 0
	f.CheckRebuilt(func(_ context.Context, listed []string, before time.Time, holds Holds) (int, error) {
		calls++
		has, err := holds(t.Context(), listed)
		if err != nil || slices.Contains(has, false) || len(listed) != sampleSize || before.IsZero() != (calls < 3) {
			t.Errorf("call %d: %q, %v, %v, %v", calls, listed, before, has, err)
		}
		for _, key := range listed {
			if !slices.Contains(keys, key) {
				t.Errorf("call %d: %q is none of them", calls, key)
			}
		}
		return 0, nil
	})
	must(t, errorOf(f.Rebuild(t.Context(), Keys(long...), none)))
	must(t, f.Hidden(t.Context(), "nobody"))
	if mightBe, err := f.MightContain(t.Context(), "nobody"); err != nil || !mightBe {
		t.Fatal("it still refuses the key", err)
	}
	must(t, errorOf(f.Rebuild(t.Context(), Keys(long...), none)))
	for range 3 { // one a minute is judged
		must(t, f.Hidden(t.Context(), "nobody"))
	}
	if may, err := f.MightContain(t.Context(), "nobody"); err != nil || may || calls != 3 || f.Stats().Hidden != 4 {
		t.Errorf("%v, %v, %d calls, %+v", may, err, calls, f.Stats())
	}
}

// reportable is a filter that loaders check and report to.
type reportable interface {
	rebuildable
	CheckRebuilt(Check) func()
	Hidden(ctx context.Context, key string) error
}

// dropped builds a filter without "row", reports that key, and builds it without "row" again. A
// further report of the key checks the source.
func dropped(t *testing.T, f reportable) {
	t.Helper()
	for range 2 {
		must(t, errorOf(f.Rebuild(t.Context(), Keys(numbered(10)...), none)))
		if mightContain(t, f, "row") {
			t.Fatal("the filter contains the key")
		}
		if f.(interface{ Stats() Stats }).Stats().Hidden == 0 {
			must(t, f.Hidden(t.Context(), "row"))
		}
	}
}

// TestFailedSourceCheck: a check of the source that fails says nothing about the source. A report
// that comes a moment later fails, too, and loads nothing. After a pause, a report checks the
// source again, and drops the filter if its source is wrong.
func TestFailedSourceCheck(t *testing.T) {
	failed := errors.New("the check's own")
	eachRebuilt(t, func(t *testing.T, filter rebuildable) {
		f := filter.(reportable)
		dropped(t, f)
		calls := 0
		f.CheckRebuilt(func(context.Context, []string, time.Time, Holds) (int, error) {
			if calls++; calls == 1 {
				return 0, failed
			}
			return 1, errors.New("a row that the source lacks")
		})
		if err := f.Hidden(t.Context(), "row"); !errors.Is(err, failed) || mightContain(t, f, "row") {
			t.Fatalf("the failed check: %v", err)
		}
		if err := f.Hidden(t.Context(), "row"); !errors.Is(err, errCheckFailed) || calls != 1 || mightContain(t, f, "row") {
			t.Fatalf("a moment later: %v, after %d checks", err, calls)
		}
		endPause(f)
		must(t, f.Hidden(t.Context(), "row"))
		if calls != 2 || !mightContain(t, f, "row") {
			t.Errorf("the filter of a wrong source still serves after %d checks", calls)
		}
	})
}

// endPause ends the pause after a check of the source that failed.
func endPause(f reportable) {
	var s *sourceCheck
	switch f := f.(type) {
	case *Redis:
		s = &f.sourceCheck
	case *Local:
		s = &f.sourceCheck
	}
	s.repeat(s.generation, 0)
}

// TestPausesOfSourceChecks: the source is checked again a minute after a check that found it
// right, 10 seconds after one that failed, and at once if it is wrong or the check panicked.
func TestPausesOfSourceChecks(t *testing.T) {
	wrong, failed := errors.New("a row that the source lacks"), errors.New("the check's own")
	var now func() (int, error)
	var c checkers
	c.add(func(context.Context, []string, time.Time, Holds) (int, error) { return now() })
	run := func(s *sourceCheck, generation string) (checked bool, why, err error) {
		before := now
		now = func() (int, error) { checked = true; return before() }
		defer func() { now = before }()
		why, err = s.run(context.Background(), generation, time.Now(), &c, nil, nil)
		return checked, why, err
	}
	for name, of := range map[string]struct {
		check func() (int, error)
		pause time.Duration
		err   error // during the pause
	}{
		"right":  {func() (int, error) { return 0, nil }, time.Minute, nil},
		"failed": {func() (int, error) { return 0, failed }, 10 * time.Second, errCheckFailed},
		"wrong":  {func() (int, error) { return 1, wrong }, 0, nil},
		"panics": {func() (int, error) { panic("the check's own") }, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s sourceCheck
				now = of.check
				func() {
					defer func() { _ = recover() }()
					if checked, _, _ := run(&s, "a"); !checked {
						t.Error("the first check is not due")
					}
				}()
				now = func() (int, error) { return 0, nil }
				if of.pause > 0 {
					time.Sleep(of.pause - 1)
					if checked, why, err := run(&s, "a"); why != nil || !errors.Is(err, of.err) || checked {
						t.Errorf("before the pause ends: %v, %v, checked %v", why, err, checked)
					}
					time.Sleep(time.Nanosecond)
				}
				if checked, why, err := run(&s, "a"); why != nil || err != nil || !checked {
					t.Errorf("after the pause: %v, %v, checked %v", why, err, checked)
				}
			})
		})
	}
}

// TestCheckOfAnOldGeneration: a check that ends after another generation was checked does not
// make that one due again.
func TestCheckOfAnOldGeneration(t *testing.T) {
	var s sourceCheck
	var c checkers
	calls := 0
	check := func(generation string) (why, err error) {
		return s.run(t.Context(), generation, time.Now(), &c, nil, nil)
	}
	c.add(func(context.Context, []string, time.Time, Holds) (int, error) {
		if calls++; calls == 1 {
			if _, err := check("new"); err != nil {
				t.Error(err)
			}
			return 1, errors.New("a row that the source lacks")
		}
		return 0, nil
	})
	if why, _ := check("old"); why == nil {
		t.Fatal("the old source is wrong")
	}
	if why, err := check("new"); why != nil || err != nil || calls != 2 {
		t.Errorf("%v, %v after %d checks", why, err, calls)
	}
}

// TestWrongSourceIsNotForgotten: if the filter of a wrong source could not be dropped, the next
// report drops it.
func TestWrongSourceIsNotForgotten(t *testing.T) {
	refused := errors.New("refused")
	_, rdb := testenv.Mini(t)
	f := newFilter(t, rdb, 1000)
	dropped(t, f)
	f.CheckRebuilt(func(context.Context, []string, time.Time, Holds) (int, error) {
		return 1, errors.New("a row that the source lacks")
	})
	var fail atomic.Bool
	fail.Store(true)
	hook(rdb, &tap{before: func(cmds []redis.Cmder) error {
		if args := cmds[0].Args(); len(args) > 1 && args[1] == swapScript && fail.Load() {
			return refused
		}
		return nil
	}})
	if err := f.Hidden(t.Context(), "row"); !errors.Is(err, refused) || mightContain(t, f, "row") {
		t.Fatalf("the filter was dropped: %v", err)
	}
	fail.Store(false)
	must(t, f.Hidden(t.Context(), "row"))
	if !mightContain(t, f, "row") {
		t.Error("the filter of a wrong source still serves")
	}
}

// TestLocalDropsOnce: a report drops only the filter that it is about. While it checks the source,
// the filter may be dropped because of another report, or rebuilt.
func TestLocalDropsOnce(t *testing.T) {
	for name, meanwhile := range map[string]func(*testing.T, *Local){
		"another report": func(t *testing.T, l *Local) { must(t, l.Hidden(t.Context(), "row")) },
		"a rebuild":      func(t *testing.T, l *Local) { complete(t, l, append(numbered(10), "row")...) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocal(t, 1000, 0.01)
			dropped(t, l)
			calls := 0
			l.CheckRebuilt(func(context.Context, []string, time.Time, Holds) (int, error) {
				if calls++; calls == 1 {
					l.sourceCheck.repeat(l.current.Load().active.id, 0) // as if the check had taken more than a minute
					meanwhile(t, l)
				}
				return 1, errors.New("a row that the source lacks")
			})
			must(t, l.Hidden(t.Context(), "row"))
			h := l.current.Load()
			if name == "another report" && (h.active != nil || h.falseNegative.Drops != 2 || calls != 2) {
				t.Errorf("%d drops after %d checks", h.falseNegative.Drops, calls)
			}
			if name == "a rebuild" && (h.active == nil || h.falseNegative.Drops != 1 || mightContain(t, l, "nobody")) {
				t.Errorf("the rebuilt filter does not serve: %d drops", h.falseNegative.Drops)
			}
		})
	}
}

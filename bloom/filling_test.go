package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/bloom/internal/fill"
)

// fake is a target in memory.
type fake struct {
	keys    map[string]bool
	adds    []int // their sizes
	failAdd int   // how many adds fail
	done    bool
}

func (f *fake) build(context.Context, uint64) (fill.Generation, uint64, error) { return f, 77, nil }
func (f *fake) Finish(context.Context) error                                   { f.done = true; return nil }
func (f *fake) Check(context.Context, bool) error                              { return nil }
func (f *fake) Drop(context.Context) error                                     { return nil }

func (f *fake) Add(_ context.Context, keys []string) error {
	if f.failAdd > 0 {
		f.failAdd--
		return errors.New("not added")
	}
	if f.keys == nil {
		f.keys = make(map[string]bool)
	}
	f.adds = append(f.adds, len(keys))
	for _, key := range keys {
		f.keys[key] = true
	}
	return nil
}

func (f *fake) holds(t *testing.T, n int) {
	t.Helper()
	if len(f.keys) != n || !f.done {
		t.Fatalf("%d keys of %d, done: %v", len(f.keys), n, f.done)
	}
}

// numbered are n keys.
func numbered(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("key%09d", i)
	}
	return keys
}

// failing is a source of these keys that fails, by f, behind each step keys.
func failing(keys []string, step int, f func() error) Source {
	return func(ctx context.Context, after string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			n := 0
			for key, err := range Keys(keys...)(ctx, after) {
				if n == step {
					yield("", f())
					return
				}
				if !yield(key, err) {
					return
				}
				n++
			}
		}
	}
}

var none = &RebuildOptions{Settle: -1}

// fewer is none for what has fewer rows than before, or none at all.
var fewer = &RebuildOptions{Settle: -1, AllowFewer: true}

// TestFilling: all keys are added, in batches, after the time to settle.
func TestFilling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var told []Progress
		began := time.Now()
		n, batch, o := 300_000, fill.MaxBatch, &RebuildOptions{Progress: func(p Progress) { told = append(told, p) }}
		if underRace {
			n, batch, o.batchSize = 30_000, 20_000, 20_000
		}
		report, err := rebuild(t.Context(), f, Keys(numbered(n)...), o)
		must(t, err)
		f.holds(t, n)
		if !slices.Equal(f.adds, []int{batch, n - batch}) || time.Since(began) != 10*time.Second ||
			report.Took != 10*time.Second || report.Keys != uint64(n) || report.Resumed {
			t.Errorf("%v in %v, %+v", f.adds, time.Since(began), report)
		}
		if len(told) != 1 || told[0] != (Progress{Keys: uint64(n), About: 77, Elapsed: 10 * time.Second}) {
			t.Errorf("%+v", told)
		}
	})
}

// TestFillingAtARate: no more than is allowed, in any second.
func TestFillingAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		told := 0
		report, err := rebuild(t.Context(), f, Keys(numbered(1000)...),
			&RebuildOptions{Settle: -1, Rate: 100, Progress: func(Progress) { told++ }})
		must(t, err)
		f.holds(t, 1000)
		if report.Took < 9500*time.Millisecond || report.Took > 10*time.Second || slices.Max(f.adds) > 112 ||
			told < 9 || told > 11 {
			t.Errorf("%v, %v, reported %d times", report.Took, f.adds, told)
		}
	})
}

// TestSlowSource: what a source has yielded is not kept for long.
func TestSlowSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		slow := func(ctx context.Context, after string) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for key := range Keys(numbered(100)...)(ctx, after) {
					time.Sleep(50 * time.Millisecond)
					if !yield(key, nil) {
						return
					}
				}
			}
		}
		_, err := rebuild(t.Context(), f, slow, none)
		must(t, err)
		f.holds(t, 100)
		if slices.Max(f.adds) > 21 {
			t.Errorf("%v", f.adds)
		}
	})
}

// TestSourceFails: it is asked again behind the last key that was added, and given up when that
// brings nothing.
func TestSourceFails(t *testing.T) {
	private := errors.New("the source's own")
	for name, fail := range map[string]func() error{
		"error": func() error { return private },
		"panic": func() error { panic("key000000001") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{failAdd: 3}
				// it has some more each time
				_, err := rebuild(t.Context(), f, failing(numbered(20), 6, fail), &RebuildOptions{Settle: -1, Rate: 2})
				must(t, err)
				f.holds(t, 20)
			})
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				asked := 0
				source := func(ctx context.Context, after string) iter.Seq2[string, error] {
					asked++
					return failing(numbered(10), 5, fail)(ctx, after)
				}
				report, err := rebuild(t.Context(), f, source, none)
				if err == nil || f.done || asked != 1+fill.MaxFailures || name == "error" && !errors.Is(err, private) ||
					strings.Contains(err.Error(), "key") && !strings.Contains(err.Error(), "0 keys") {
					t.Errorf("%v after %d", err, asked)
				}
				if report.Took < 3*time.Second || report.Took > 12*time.Second {
					t.Errorf("given up after %v", report.Took)
				}
			})
		})
	}
}

// TestFillingEnds: Filling ends with its context, during any wait, and returns the cause.
func TestFillingEnds(t *testing.T) {
	cause := errors.New("the cause")
	for name, options := range map[string]*RebuildOptions{"settle": nil, "rate": {Settle: -1, Rate: 1},
		"backoff": none} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
			if _, err := rebuild(ctx, &fake{}, failing(numbered(3), 2, func() error { return errors.New("failed") }),
				options); !errors.Is(err, cause) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// TestSourceStopsWithItsContext: and says nothing of it. What it has yielded is not taken for all.
func TestSourceStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{}
	source := func(ctx context.Context, _ string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, key := range numbered(10) {
				if ctx.Err() != nil || !yield(key, nil) {
					return
				}
				cancel()
			}
		}
	}
	if _, err := rebuild(ctx, f, source, none); !errors.Is(err, context.Canceled) || f.done {
		t.Errorf("%v, done: %v, with %d keys", err, f.done, len(f.keys))
	}
}

// TestFillingIsBounded: by the size of keys, too.
func TestFillingIsBounded(t *testing.T) {
	f := &fake{}
	var keys []string
	for i := range 20 {
		keys = append(keys, fmt.Sprint(i+10, strings.Repeat("x", 1<<20)))
	}
	_, err := rebuild(t.Context(), f, Keys(keys...), none)
	must(t, err)
	f.holds(t, 20)
	if slices.Max(f.adds) > 8 {
		t.Errorf("%v", f.adds)
	}
}

func TestRebuildOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]*RebuildOptions{
		"RebuildOptions.Capacity": {Capacity: 1 << 60}, "RebuildOptions.Settle": {Settle: 48 * time.Hour}, "RebuildOptions.Rate": {Rate: -1},
	} {
		if _, err := rebuild(t.Context(), &fake{}, Keys(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := rebuild(t.Context(), &fake{}, nil, nil); err == nil {
		t.Error("a nil source")
	}
	for want, o := range map[string]*MaintainOptions{
		"MaintainOptions.Every": {Every: 1}, "MaintainOptions.Check": {Check: 1}, "RebuildOptions.Rate": {Rebuild: &RebuildOptions{Rate: -1}},
	} {
		if err := maintain(t.Context(), nil, nil, Keys(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

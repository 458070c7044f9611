package nested_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// wantCycle fails unless err says at once that a load would wait for itself, by asking for a key of
// the loader.
func wantCycle(t *testing.T, err error, loader string, began time.Time) {
	t.Helper()
	if !errors.Is(err, cacheaside.ErrLoadCycle) || !strings.Contains(err.Error(), " "+loader+" key#") {
		t.Errorf("%v, want that a load would wait for itself by asking for a key of %s", err, loader)
	}
	if took := time.Since(began); took > 10*query {
		t.Error("it took", took)
	}
}

// A load that asks for its own key gets an error at once, from each call. Its other requests
// succeed.
func TestLoadAsksForItsOwnKey(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, l *loader, key int) (string, error){
		"Get": func(ctx context.Context, l *loader, key int) (string, error) { return l.Get(ctx, key) },
		"Fresh": func(ctx context.Context, l *loader, key int) (string, error) {
			return l.Get(ctx, key, cacheaside.Fresh)
		},
		"Refresh": func(ctx context.Context, l *loader, key int) (string, error) { return l.Refresh(ctx, key) },
		"GetMany": func(ctx context.Context, l *loader, key int) (string, error) {
			got, err := l.GetMany(ctx, []int{key + 1000, key, key + 2000, key})
			if len(got) != 2 {
				return "", fmt.Errorf("%d of the other keys: %v", len(got), err)
			}
			return got[key], err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
				c := newCache(t, rdb(), cacheaside.Options{})
				defer c.Close()
				var l *loader
				l = newLoader(t, c, "row", func(ctx context.Context, key int) (string, error) {
					if key >= 1000 {
						return "leaf", nil
					}
					return ask(ctx, l, key)
				}, nil)
				for key := range 30 { // more than a circuit breaker takes
					began := time.Now()
					_, err := l.Get(t.Context(), key%3)
					wantCycle(t, err, "row", began)
				}
				if s := c.Stats(); s.BreakersOpen != 0 || s.FailedByMark != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// So is one whose key is asked for by what it asks for, through loaders and caches.
func TestLoadAsksForItselfByOthers(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		client := rdb()
		first, second := newCache(t, client, cacheaside.Options{}), newCache(t, client, cacheaside.Options{})
		defer first.Close()
		defer second.Close()
		var a *loader
		b := newLoader(t, second, "b",
			func(ctx context.Context, key int) (string, error) { return a.Get(ctx, key/2) }, nil)
		c := newLoader(t, first, "c",
			func(ctx context.Context, key int) (string, error) { return b.Get(ctx, key+1) }, nil)
		a = newLoader(t, first, "a", func(ctx context.Context, key int) (string, error) {
			if key == 0 {
				return "root", nil
			}
			return c.Get(ctx, key)
		}, nil)
		began := time.Now()
		_, err := a.Get(t.Context(), 1) // asks for c 1, for b 2, for a 1
		wantCycle(t, err, "a", began)
		if got, err := c.Get(t.Context(), 0); got != "root" || err != nil {
			t.Error(got, err)
		}
	})
}

// So are two loads that were begun by different callers, and that wait for each other.
func TestTwoLoadsAskForEachOther(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		c := newCache(t, rdb(), cacheaside.Options{})
		defer c.Close()
		var a, b *loader
		var begun atomic.Int64
		both := make(chan struct{})
		asking := func(l **loader) func(context.Context, int) (string, error) {
			return func(ctx context.Context, key int) (string, error) {
				if begun.Add(1) == 2 {
					close(both)
				}
				<-both
				return (*l).Get(ctx, key)
			}
		}
		a, b = newLoader(t, c, "a", asking(&b), nil), newLoader(t, c, "b", asking(&a), nil)
		began := time.Now()
		var wg sync.WaitGroup
		for _, l := range []*loader{a, b} {
			wg.Go(func() {
				_, err := l.Get(t.Context(), 1)
				wantCycle(t, err, map[*loader]string{a: "b", b: "a"}[l], began)
			})
		}
		wg.Wait()
	})
}

// A load in the background may read what it is about to replace.
func TestReloadReadsTheStaleValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		c := newCache(t, rdb, cacheaside.Options{})
		defer c.Close()
		var l *loader
		n := 0
		l = newLoader(t, c, "row", func(ctx context.Context, key int) (string, error) {
			if n++; n == 1 {
				return "first", nil
			}
			before, err := l.Get(ctx, key)
			return "after " + before, err
		}, &cacheaside.LoaderOptions{TTL: time.Minute, StaleFor: time.Minute, Jitter: -1, EarlyRefresh: -1})
		for _, want := range []string{"first", "first", "after first"} {
			if got, err := l.Get(t.Context(), 1); got != want || err != nil {
				t.Errorf("%q, %v; want %q", got, err, want)
			}
			synctest.Wait()
			if want == "first" && n == 1 {
				time.Sleep(61 * time.Second)
			}
		}
	})
}

// It may also while others read the key.
func TestReloadReadsTheStaleValueNextToOthers(t *testing.T) {
	for name, read := range map[string]func(context.Context, *loader) (string, error){
		"Get": func(ctx context.Context, l *loader) (string, error) { return l.Get(ctx, 1) },
		"GetMany": func(ctx context.Context, l *loader) (string, error) {
			rows, err := l.GetMany(ctx, []int{1})
			return rows[1], err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, rdb := testenv.Mini(t)
				rdb.AddHook(slowHook{})
				c := newCache(t, rdb, cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second})
				defer c.Close()
				var l *loader
				var others sync.WaitGroup
				n := 0
				l = newLoader(t, c, "row", func(ctx context.Context, key int) (string, error) {
					if n++; n == 1 {
						return "first", nil
					}
					others.Go(func() {
						if got, err := l.Get(context.WithValue(t.Context(), slow{}, true), key); got != "after first" ||
							err != nil {
							t.Errorf("another reader: %q, %v", got, err)
						}
					})
					time.Sleep(time.Second) // it waits for Redis
					before, err := read(ctx, l)
					return "after " + before, err
				}, &cacheaside.LoaderOptions{TTL: time.Minute, StaleFor: time.Minute, Jitter: -1, EarlyRefresh: -1})
				want := func(want string) {
					t.Helper()
					if got, err := l.Get(t.Context(), 1); got != want || err != nil {
						t.Errorf("%q, %v; want %q", got, err, want)
					}
				}
				want("first")
				time.Sleep(61 * time.Second)
				want("first")
				time.Sleep(5 * time.Second)
				others.Wait()
				want("after first")
			})
		})
	}
}

// slow marks the context of a reader whose commands take two seconds.
type slow struct{}

type slowHook struct{}

func (slowHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (slowHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if ctx.Value(slow{}) != nil {
			time.Sleep(2 * time.Second)
		}
		return next(ctx, cmd)
	}
}

func (slowHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if ctx.Value(slow{}) != nil {
			time.Sleep(2 * time.Second)
		}
		return next(ctx, cmds)
	}
}

// The context of a load that has returned is one like any other.
func TestContextOfAnEndedLoad(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		c := newCache(t, rdb(), cacheaside.Options{MaxLoads: 1})
		defer c.Close()
		var kept context.Context
		l := newLoader(t, c, "row", func(ctx context.Context, key int) (string, error) {
			if kept == nil {
				kept = context.WithoutCancel(ctx)
			}
			return "v", nil
		}, nil)
		for range 2 {
			if got, err := l.Get(t.Context(), 1); got != "v" || err != nil {
				t.Error(got, err)
			}
		}
		for key := range 3 {
			if got, err := l.Get(kept, key); got != "v" || err != nil {
				t.Error(got, err)
			}
		}
	})
}

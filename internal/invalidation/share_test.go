package invalidation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// blocking is a hook that lets pipelines wait.
type blocking struct {
	entered chan struct{}
	resume  chan struct{} // closed: they do not wait any more
	err     error         // what the pipelines return after they have waited; nil: they are sent
}

func (h *blocking) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *blocking) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *blocking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.entered <- struct{}{}
		<-h.resume
		if h.err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(h.err)
			}
			return h.err
		}
		return next(ctx, cmds)
	}
}

// Deletes that are called while others are in progress share a trip and an announcement, and each
// returns the errors of its own keys.
func TestDeletesShareTrips(t *testing.T) {
	for name, refused := range map[string]error{"deleted": nil, "refused": redis.ErrPoolExhausted} {
		t.Run(name, func(t *testing.T) {
			rdb := testenv.SharedRedis(t).Client(t)
			b := newBackend(t, rdb)
			h := &blocking{entered: make(chan struct{}, 100), resume: make(chan struct{}), err: refused}
			c := open(t, rdb, timeout, bound, nil)
			b.delete(c, 99) // the script is known now
			announced := c.Stats().Announced
			rdb.AddHook(h)
			const calls = maxDeletes + maxShared + 3
			for i := range calls {
				b.check(rdb.Set(t.Context(), fmt.Sprint("key:", i), "v", 0).Err())
			}
			var all sync.WaitGroup
			for i := range calls {
				all.Go(func() {
					errs := c.Delete(t.Context(), []string{fmt.Sprint("key:", i)}, []uint64{uint64(i)})
					if len(errs) != 1 || (errs[0] != nil) != (refused != nil) {
						t.Errorf("call %d: %v", i, errs)
					}
				})
			}
			for range maxDeletes {
				<-h.entered
			}
			testenv.Eventually(t, "the others wait", func() bool {
				c.deletes.mu.Lock()
				defer c.deletes.mu.Unlock()
				return len(c.deletes.waiting) == calls-maxDeletes
			})
			close(h.resume)
			all.Wait()
			if refused != nil {
				return
			}
			if n := c.Stats().Announced - announced; n != maxDeletes+2 {
				t.Errorf("%d announcements, expected %d", n, maxDeletes+2)
			}
			for i := range calls {
				if rdb.Exists(t.Context(), fmt.Sprint("key:", i)).Val() != 0 {
					t.Errorf("key %d exists", i)
				}
			}
		})
	}
}

// A Delete that waits for a trip ends with its context. Its keys may still be deleted.
func TestWaitingDeleteEndsWithItsContext(t *testing.T) {
	rdb := testenv.SharedRedis(t).Client(t)
	h := &blocking{entered: make(chan struct{}, 100), resume: make(chan struct{})}
	c := open(t, rdb, time.Minute, bound, nil)
	rdb.AddHook(h)
	var all sync.WaitGroup
	for i := range maxDeletes {
		all.Go(func() { c.Delete(t.Context(), []string{fmt.Sprint("key:", i)}, []uint64{1}) })
	}
	for range maxDeletes {
		<-h.entered
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if errs := c.Delete(ctx, []string{"key:9", "key:10"}, []uint64{9, 10}); len(errs) != 2 ||
		!errors.Is(errs[0], context.Canceled) || !errors.Is(errs[1], context.Canceled) {
		t.Errorf("%v", errs)
	}
	close(h.resume)
	all.Wait()
	testenv.Eventually(t, "no trip is in progress", func() bool {
		c.deletes.mu.Lock()
		defer c.deletes.mu.Unlock()
		return c.deletes.inProgress == 0
	})
}

// BenchmarkInvalidate deletes and announces one key, by 64 goroutines and by one, next to a
// pipeline of DEL and PUBLISH.
func BenchmarkInvalidate(b *testing.B) {
	rdb := testenv.SharedRedis(b).Client(b)
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprintf("%d/by hand", goroutines), func(b *testing.B) {
			invalidateBy(b, goroutines, func(ctx context.Context, name string) error {
				_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
					p.Del(ctx, name)
					p.Publish(ctx, "channel", name)
					return nil
				})
				return err
			})
		})
		b.Run(fmt.Sprintf("%d/Delete", goroutines), func(b *testing.B) {
			c := open(b, rdb, timeout, bound, nil)
			invalidateBy(b, goroutines, func(ctx context.Context, name string) error {
				return c.Delete(ctx, []string{name}, []uint64{1})[0]
			})
		})
	}
}

func invalidateBy(b *testing.B, goroutines int, invalidate func(ctx context.Context, name string) error) {
	b.ResetTimer()
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := g; i < b.N; i += goroutines {
				if err := invalidate(b.Context(), fmt.Sprint("key:", i%1000)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

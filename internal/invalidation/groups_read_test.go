package invalidation

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// gate counts the reads of sets, and stops each until it receives from pass.
type gate struct {
	reads atomic.Int64
	pass  chan func()
}

func (*gate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "zrange" {
			g.reads.Add(1)
			if do := <-g.pass; do != nil {
				do()
			}
		}
		return next(ctx, cmd)
	}
}

func (*gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// callers starts n reads of groups, and returns when they wait.
func (b *backend) callers(ctx context.Context, c *Bus, n int) (results chan error) {
	results = make(chan error, n)
	for range n {
		go func() { results <- c.ReadGroups(ctx, 0, "users") }()
	}
	synctest.Wait()
	return results
}

func (b *backend) noErrors(results chan error) {
	b.t.Helper()
	for range cap(results) {
		b.check(<-results)
	}
}

// Callers that begin while a read is in progress share the next one, which contains everything that
// was invalidated before they began. A caller that leaves takes no result from the others.
func TestReadsOfGroupsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		b := newBackend(t, rdb)
		p, log := b.grouped()
		b.readGroups(p, 0)
		q, _ := b.grouped()
		g := &gate{pass: make(chan func(), 10)}
		defer close(g.pass)
		rdb.AddHook(g)

		first := b.callers(t.Context(), p, 1)
		known := log.Last(0)
		b.deleteGroup(q, 7, 0)
		ctx, cancel := context.WithCancel(t.Context())
		leaves := b.callers(ctx, p, 1)
		second := b.callers(t.Context(), p, 100)
		cancel()
		if err := <-leaves; !errors.Is(err, context.Canceled) {
			t.Errorf("the caller that left: %v", err)
		}
		if n := g.reads.Load(); n != 1 {
			t.Fatalf("%d reads while the first is in progress", n)
		}
		g.pass <- nil
		b.noErrors(first)
		synctest.Wait() // for the second read
		third := b.callers(t.Context(), p, 1)
		g.pass <- nil
		b.noErrors(second)
		if log.Last(0) == known || log.Current(0, known, groups.SetOf(7)) {
			t.Error("the second read does not contain the invalidation")
		}
		if len(third) != 0 {
			t.Error("a caller has joined a read that was in progress")
		}
		g.pass <- nil
		b.noErrors(third)
		synctest.Wait()
		if n := g.reads.Load(); n != 3 {
			t.Errorf("%d reads", n)
		}
	})
}

// A read that a hook of the client ends is an error for its callers, and the next one begins.
func TestSharedReadThatAHookEnds(t *testing.T) {
	for name, do := range map[string]func(){"panic": func() { panic("hook") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, rdb := testenv.Mini(t)
				b := newBackend(t, rdb)
				p, _ := b.grouped()
				b.readGroups(p, 0)
				g := &gate{pass: make(chan func())}
				rdb.AddHook(g)
				first := b.callers(t.Context(), p, 1)
				second := b.callers(t.Context(), p, 2)
				g.pass <- do
				if err := <-first; err == nil {
					t.Error("a read that the hook has ended is no error")
				}
				g.pass <- nil
				b.noErrors(second)
			})
		})
	}
}

// After Close, a read returns an error.
func TestReadOfGroupsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		b := newBackend(t, rdb)
		p, _ := b.grouped()
		p.Close()
		p.conn.Close()
		if err := p.ReadGroups(t.Context(), 0, "users"); err == nil {
			t.Error("the read is no error")
		}
	})
}

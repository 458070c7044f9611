package recycled_test

import (
	"cmp"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

type loader = cacheaside.Loader[int, string]

// rig is a loader whose load function reads the tenant of its context twice: at its beginning, and
// after the test lets it continue. It continues after its context has ended.
type rig struct {
	*loader
	cache *cacheaside.Cache
	began chan string
	goOn  chan struct{}
	later chan string
}

func newRig(t *testing.T, o cacheaside.Options, lo *cacheaside.LoaderOptions, batch bool) *rig {
	t.Helper()
	_, rdb := testenv.Mini(t)
	o.RedisTimeout = cmp.Or(o.RedisTimeout, testenv.Hang) // a busy machine is no outage
	o.ReadTimeout = cmp.Or(o.ReadTimeout, o.RedisTimeout)
	c, err := cacheaside.New(rdb, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r := &rig{cache: c, began: make(chan string, 10), goOn: make(chan struct{}), later: make(chan string, 10)}
	load := func(ctx context.Context) string {
		r.began <- tenant(ctx)
		<-r.goOn
		r.later <- tenant(ctx)
		return "of " + tenant(ctx)
	}
	if batch {
		r.loader, err = cacheaside.NewBatchLoader(c, "row",
			func(ctx context.Context, keys []int) (map[int]string, error) {
				rows, got := make(map[int]string), load(ctx)
				for _, key := range keys {
					rows[key] = got
				}
				return rows, nil
			}, lo)
	} else {
		r.loader, err = cacheaside.NewLoader(c, "row",
			func(ctx context.Context, _ int) (string, error) { return load(ctx), nil }, lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A load whose first caller has left does not read the values of that caller's context any more,
// since another request may use that context by then. This holds for each kind of call.
func TestLoadOutlivesItsCaller(t *testing.T) {
	for name, c := range map[string]struct {
		ask     func(ctx context.Context, l *loader)
		options cacheaside.LoaderOptions
		batch   bool
	}{
		"Get":     {ask: func(ctx context.Context, l *loader) { l.Get(ctx, 1) }},
		"Fresh":   {ask: func(ctx context.Context, l *loader) { l.Get(ctx, 1, cacheaside.Fresh) }},
		"GetMany": {ask: func(ctx context.Context, l *loader) { l.GetMany(ctx, []int{1, 2}) }, batch: true},
		"Refresh": {ask: func(ctx context.Context, l *loader) { l.Refresh(ctx, 1) }},
		"Warm":    {ask: func(ctx context.Context, l *loader) { l.Warm(ctx, func(yield func(int) bool) { yield(1) }, 0, nil) }},
		"Shadow":  {ask: func(ctx context.Context, l *loader) { l.Get(ctx, 1) }, options: cacheaside.LoaderOptions{Shadow: 0.5}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, cacheaside.Options{}, &c.options, c.batch)
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() { handle(func(ctx context.Context) { c.ask(ctx, r.loader) }, cancel, ctx) })
			if got := testenv.Receive(t, "the load", r.began); got != "own" {
				t.Errorf("the load has begun with the tenant %q", got)
			}
			cancel()
			all.Wait()
			close(r.goOn)
			if got := testenv.Receive(t, "the load's end", r.later); got != "" {
				t.Errorf("the load has gone on with the tenant %q", got)
			}
			if got, err := r.Get(t.Context(), 1); got != "of " || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// A load that runs on after its result was given out, as one that ends in the background does,
// reads nothing any more either.
func TestLoadLeavesAGoroutineBehind(t *testing.T) {
	r := newRig(t, cacheaside.Options{}, nil, false)
	left := make(chan context.Context, 1)
	l, err := cacheaside.NewLoader(r.cache, "leaves", func(ctx context.Context, _ int) (string, error) {
		left <- ctx
		return "row of " + tenant(ctx), nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	handle(func(ctx context.Context) {
		if got, err := l.Get(ctx, 1); got != "row of own" || err != nil {
			t.Error(got, err)
		}
	}, cancel, ctx)
	if got := tenant(<-left); got != "" {
		t.Errorf("%q", got)
	}
}

// Commands that are under way when their caller leaves, since Redis hangs, show the hooks of the
// client nothing of the next request.
func TestCommandOutlivesItsCaller(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, r *rig, locker *lock.Locker){
		"Get":           func(ctx context.Context, r *rig, _ *lock.Locker) { r.Get(ctx, 1) },
		"GetMany":       func(ctx context.Context, r *rig, _ *lock.Locker) { r.GetMany(ctx, []int{1, 2}) },
		"Peek":          func(ctx context.Context, r *rig, _ *lock.Locker) { r.Peek(ctx, 1) },
		"Invalidate":    func(ctx context.Context, r *rig, _ *lock.Locker) { r.Invalidate(ctx, 1) },
		"InvalidateAll": func(ctx context.Context, r *rig, _ *lock.Locker) { r.InvalidateAll(ctx) },
		"Expire":        func(ctx context.Context, r *rig, _ *lock.Locker) { r.Expire(ctx, 1) },
		"Refresh":       func(ctx context.Context, r *rig, _ *lock.Locker) { r.Refresh(ctx, 1) },
		"Acquire":       func(ctx context.Context, _ *rig, locker *lock.Locker) { locker.Acquire(ctx, "a", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			_, rdb := testenv.Mini(t)
			// On a busy machine a poll can take longer than the default: the read then sends no
			// command.
			c, err := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: testenv.Hang, ReadTimeout: testenv.Hang})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			r := &rig{cache: c}
			if r.loader, err = cacheaside.NewLoader(c, "row",
				func(context.Context, int) (string, error) { return "row", nil }, nil); err != nil {
				t.Fatal(err)
			}
			locker, err := lock.NewRedis(rdb, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer locker.Close()
			began, goOn, later := make(chan struct{}, 100), make(chan struct{}), make(chan string, 100)
			rdb.AddHook(hook(func(ctx context.Context, _ string) {
				if tenant(ctx) != "own" {
					return
				}
				began <- struct{}{}
				<-goOn
				later <- tenant(ctx)
			}))
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() { handle(func(ctx context.Context) { ask(ctx, r, locker) }, cancel, ctx) })
			testenv.Receive(t, "a command", began)
			cancel()
			all.Wait()
			close(goOn)
			if got := testenv.Receive(t, "the command's end", later); got != "" {
				t.Errorf("the tenant %q", got)
			}
		})
	}
}

// A lock outlives the call that has acquired it: its renewals and its release have no values of the
// caller's.
func TestLockOutlivesItsCaller(t *testing.T) {
	_, rdb := testenv.Mini(t)
	locker, err := lock.NewRedis(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	seen := make(chan string, 1000)
	rdb.AddHook(hook(func(ctx context.Context, _ string) { seen <- tenant(ctx) }))
	var lease *lock.Lease
	handle(func(ctx context.Context) {
		if lease, err = locker.Acquire(ctx, "a", &lock.AcquireOptions{TTL: 300 * time.Millisecond}); err != nil {
			t.Error(err)
		}
	}, func() {}, t.Context())
	for n := len(seen); n > 0; n-- {
		<-seen
	}
	if got := testenv.Receive(t, "a renewal", seen); got != "" {
		t.Errorf("a renewal of the tenant %q", got)
	}
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
	for n := len(seen); n > 0; n-- {
		if got := <-seen; got != "" {
			t.Errorf("a release of the tenant %q", got)
		}
	}
}

// A Value method that hangs keeps a caller who leaves for a moment only, and what it returns in the
// end is not used.
func TestValueHangs(t *testing.T) {
	r := newRig(t, cacheaside.Options{}, nil, false)
	close(r.goOn)
	ctx, cancel := context.WithCancel(t.Context())
	goOn, begun := make(chan struct{}), make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Get(slowValue{ctx, begun, goOn}, 1)
	}()
	testenv.Receive(t, "the lookup", begun)
	cancel()
	testenv.Receive(t, "the caller's departure", done)
	close(goOn)
	if got := testenv.Receive(t, "the load", r.began); got != "" {
		t.Errorf("%q", got)
	}
}

// slowValue is a context whose Value hangs for the tenant.
type slowValue struct {
	context.Context
	begun, goOn chan struct{}
}

func (s slowValue) Value(key any) any {
	if key == (tenantKey{}) {
		close(s.begun) // once
		<-s.goOn
		return "late"
	}
	return s.Context.Value(key)
}

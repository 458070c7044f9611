package channel

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// generations are what a loader has learned.
type generations struct {
	mu    sync.Mutex
	now   [conn.Ranges]uint64
	calls int
	fell  bool
}

func (g *generations) raised(rng int, generation uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fell = g.fell || generation <= g.now[rng]
	g.now[rng] = generation
	g.calls++
}

func (g *generations) of(rng int) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now[rng]
}

func register(c *Channel, name string) *generations {
	g := &generations{}
	c.Register(name, g.raised)
	return g
}

func (b *backend) confirm(c *Channel) {
	b.t.Helper()
	for r := range c.conn.InUse() {
		b.check(c.Confirm(b.ctx, uint8(r)))
		if !c.Confirmed(uint8(r)) {
			b.t.Fatalf("range %d is not confirmed", r)
		}
	}
}

func TestGenerationsAreLearnedAndHeard(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		listener, _ := b.open(time.Minute)
		learned := register(listener, "users")
		others := register(listener, "orders")
		if listener.Confirmed(0) {
			t.Error("confirmed before it asks")
		}
		b.confirm(listener)
		listener.Listen()
		b.trusted(listener)
		writer := b.writer()
		own := register(writer, "users")
		b.confirm(writer)
		before := learned.now
		for r := range listener.conn.InUse() {
			if g := learned.of(r); g == 0 || g != b.number(listener, r, "users") || others.of(r) != b.number(listener, r, "orders") {
				t.Fatalf("range %d: generation %d, in Redis %d", r, g, b.number(listener, r, "users"))
			}
		}
		if learned.calls != listener.conn.InUse() {
			t.Errorf("it was told %d times", learned.calls)
		}
		b.check(writer.DeleteLoader(b.ctx, "users"))
		for r := range listener.conn.InUse() { // the writer knows when it returns
			if g := own.of(r); g != b.number(writer, r, "users") || g <= before[r] {
				t.Errorf("range %d: generation %d, in Redis %d", r, g, b.number(writer, r, "users"))
			}
			b.until("heard", func() bool { return learned.of(r) == own.of(r) })
		}
		if others.calls != listener.conn.InUse() || learned.fell || others.fell {
			t.Error("another loader's generation has changed, or one was told twice")
		}
		if s := listener.Stats(); s.Gaps != 0 || s.Trusted != s.Ranges {
			t.Errorf("%+v", s)
		}
	})
}

// Without a memory there is no subscription: generations come by polls, within the bound, or when they are asked for.
func TestGenerationsAreLearnedByPolls(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend, n *network) {
		c := open(t, b.rdb, timeout, quiet, nil)
		g := register(c, "users")
		b.confirm(c)
		first := g.of(0)
		other := open(t, b.rdb, timeout, quiet, nil)
		b.check(other.DeleteLoader(b.ctx, "users"))
		raised := time.Now()
		b.until("learned", func() bool { return g.of(0) > first })
		if took := time.Since(raised); took > quiet/pollsInBound {
			t.Errorf("it took %v", took)
		}
		for range 5 {
			time.Sleep(time.Microsecond)
			first = g.of(0)
			b.check(other.DeleteLoader(b.ctx, "users"))
			b.confirm(c)
			if g.of(0) <= first {
				t.Error("a fresh answer is of before")
			}
		}
		before := n.pollsRun.Load()
		for range 5 {
			b.confirm(c)
		}
		if polls := n.pollsRun.Load() - before; polls > 6 {
			t.Errorf("%d polls", polls)
		}
		register(c, "late") // after the polls began
		b.check(c.Confirm(b.ctx, 0))
		if b.number(c, 0, "late") == 0 {
			t.Error("it has got no generation")
		}
		n.failing.Store(true)
		if err := c.Confirm(b.ctx, 0); err != errFailing {
			t.Error(err)
		}
		n.failing.Store(false)
		b.flush()
		b.check(c.Confirm(b.ctx, 0))
		if g.of(0) <= first || g.of(0) != b.number(c, 0, "users") {
			t.Errorf("after a loss: %d, before %d", g.of(0), first)
		}
		c.Close()
		if err := c.Confirm(b.ctx, 0); err != conn.ErrClosed {
			t.Error(err)
		}
	})
}

// Many who wait share a poll; each gets one that began after it asked.
func TestConfirmIsShared(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend, n *network) {
		c := open(t, b.rdb, timeout, time.Hour, nil)
		register(c, "users")
		b.confirm(c)
		before := n.pollsRun.Load()
		held := make(chan struct{})
		n.held.Store(&held)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := c.Confirm(b.ctx, 0); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if polls := n.pollsRun.Load() - before; polls != 1 {
			t.Errorf("%d polls are under way", polls)
		}
		close(held)
		all.Wait()
		if polls := n.pollsRun.Load() - before; polls < 1 || polls > 3 { // others for those that came when one had begun
			t.Errorf("%d polls for 100 callers", polls)
		}
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		if err := c.Confirm(ctx, 0); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// An answer that was on its way for long tells what was, not what is.
func TestLateAnswersDoNotLowerAGeneration(t *testing.T) {
	var l loaders
	g := &generations{}
	l.known = map[string]*known{"users": {raised: g.raised}}
	begin := time.Now()
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	for i, c := range []struct {
		sent       time.Duration
		generation uint64
		want       uint64
	}{
		{10, 100, 100}, {20, 100, 100}, {15, 90, 100}, {15, 110, 110}, {5, 105, 110}, {14, 100, 110}, {15, 100, 100}, {30, 50, 50}, {29, 40, 50}, {30, 40, 40},
	} {
		if l.answered("users", 0, c.generation, at(c.sent)); g.of(0) != c.want {
			t.Errorf("step %d: %d, want %d", i, g.of(0), c.want)
		}
	}
	l.heard("users", 0, 200)
	l.heard("users", 0, 150)
	l.heard("nobody", 0, 300)
	l.answered("nobody", 0, 300, begin)
	l.answered("users", 0, 150, begin) // sent before it was heard
	if g.of(0) != 200 || g.of(1) != 0 {
		t.Errorf("%v", g.now)
	}
	calls := g.calls
	if l.heard("users", 0, 200); g.calls != calls {
		t.Error("told of no change")
	}
}

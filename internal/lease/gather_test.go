package lease

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A gate is a hook that delays reads until it opens, and records the reads of each trip.
type gate struct {
	open chan struct{}

	mu     sync.Mutex
	trips  [][]redis.Cmder
	inline int // trips with the timeout of an inline read
}

func newGate(rdb redis.UniversalClient) *gate {
	g := &gate{open: make(chan struct{})}
	rdb.AddHook(g)
	return g
}

func (*gate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		g.pass(ctx, []redis.Cmder{cmd})
		return next(ctx, cmd)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		g.pass(ctx, cmds)
		return next(ctx, cmds)
	}
}

func (g *gate) pass(ctx context.Context, cmds []redis.Cmder) {
	if cmds[0].Name() == "getrange" {
		end, _ := ctx.Deadline()
		g.mu.Lock()
		if time.Until(end) <= inlineTimeout {
			g.inline++
		}
		g.trips = append(g.trips, cmds)
		g.mu.Unlock()
		<-g.open
	}
}

// sent returns the trips so far, and the number of their reads.
func (g *gate) sent() (trips [][]redis.Cmder, reads int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, cmds := range g.trips {
		reads += len(cmds)
	}
	return g.trips, reads
}

// waiting returns the number of reads that wait for a trip.
func (s *Store) waiting() (n int) {
	count := func(b *batcher) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.next != nil {
			n += len(b.next.cmds)
		}
	}
	count(&s.reads.one)
	s.reads.byNode.Range(func(_, b any) bool {
		count(b.(*batcher))
		return true
	})
	return n
}

// Readers that come while all trips to their server are in progress share the next one: on a
// cluster those of each node.
func TestReadsShareTrips(t *testing.T) {
	single := testenv.SharedRedis(t).Client(t)
	for name, c := range map[string]struct {
		rdb   redis.UniversalClient
		nodes int
	}{"single": {single, 1}, "cluster": {testenv.SharedCluster(t).Client(t), 3}} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, c.rdb)
			// now the client knows the nodes
			b.store.Read(b.ctx, new(Sizes), []string{"k"}, func(int, *State, error) {})
			g := newGate(c.rdb)
			var readers sync.WaitGroup
			const n = 90
			for i := range n {
				readers.Go(func() {
					b.store.Read(b.ctx, new(Sizes), []string{fmt.Sprint("k", i)}, func(_ int, held *State, err error) {
						if err != nil || held.Kind != Absent {
							t.Error(held.Kind, err)
						}
					})
				})
				testenv.Eventually(t, "a read that is sent or waits",
					func() bool { _, sent := g.sent(); return sent+b.store.waiting() > i })
			}
			trips, sent := g.sent()
			if len(trips) > c.nodes*maxTrips {
				t.Errorf("%d trips are in progress", len(trips))
			}
			if waiting := b.store.waiting(); waiting != n-sent {
				t.Errorf("%d reads wait, %d are sent", waiting, sent)
			}
			close(g.open)
			readers.Wait()
			trips, _ = g.sent()
			if len(trips) > c.nodes*(maxTrips+1) {
				t.Errorf("%d trips for %d reads", len(trips), n)
			}
			if c.nodes == 1 {
				return
			}
			for _, cmds := range trips {
				if b.store.conn.ServerOf(cmds) == nil {
					t.Errorf("a trip of %d reads goes to several nodes", len(cmds))
				}
			}
		})
	}
}

// The first readers of a cluster read inline, even from one node, and the next ones share a trip.
// On a single server only the first one reads inline.
func TestFirstReadersReadInline(t *testing.T) {
	one, many := testenv.SharedRedis(t).Options(), testenv.SharedCluster(t).Options()
	one.ContextTimeoutEnabled, many.ContextTimeoutEnabled = true, true
	for name, c := range map[string]struct {
		rdb    redis.UniversalClient
		inline int
	}{"single": {redis.NewClient(one), 1}, "cluster": {redis.NewClusterClient(many), maxTrips}} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { c.rdb.Close() })
			b := newBackend(t, c.rdb)
			// now the client knows the nodes
			b.store.Read(b.ctx, new(Sizes), []string{"{k}"}, func(int, *State, error) {})
			g := newGate(c.rdb)
			var readers sync.WaitGroup
			for i := range maxTrips + 2 {
				readers.Go(func() {
					b.store.First(b.ctx, new(Sizes), []string{fmt.Sprint("{k}", i)},
						func(_ int, held *State, err error) {
							if err != nil || held.Kind != Absent {
								t.Error(held.Kind, err)
							}
						})
				})
				testenv.Eventually(t, "a read that is sent or waits",
					func() bool { _, sent := g.sent(); return sent+b.store.waiting() > i })
			}
			g.mu.Lock()
			inline := g.inline
			g.mu.Unlock()
			if inline != c.inline {
				t.Errorf("%d readers read inline, want %d", inline, c.inline)
			}
			close(g.open)
			readers.Wait()
		})
	}
}

// A trip contains the reads of goroutines that are ready to run when it begins.
func TestReadsOfReadyGoroutinesShareATrip(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	_, rdb := testenv.Mini(t)
	s := newBackend(t, rdb).store
	b := &s.reads.one
	const attempts, n = 20, 5
	for range attempts { // the scheduler may let them run in another order
		first := &trip{ctx: t.Context(), cmds: readCommands(t.Context(), []string{"k"}), done: make(chan struct{})}
		b.running, b.next = 1, first
		var readers sync.WaitGroup
		for range n {
			readers.Go(func() {
				cmds := readCommands(t.Context(), []string{"k"})
				if err := b.join(t.Context(), 0, cmds...).Err(0); err != nil {
					t.Error(err)
				}
			})
		}
		b.run(false)
		readers.Wait()
		if len(first.cmds) == 1+n {
			return
		}
	}
	t.Error("readers that were ready have waited for another trip")
}

// The batcher of a node that has left the cluster is dropped when a new node is found.
func TestBatchersOfNodesThatHaveLeft(t *testing.T) {
	b := newBackend(t, testenv.SharedCluster(t).Client(t))
	known := func() (n int) {
		b.store.reads.byNode.Range(func(any, any) bool { n++; return true })
		return n
	}
	s := &b.store.reads
	busy := s.add("busy")
	busy.running = 1
	s.add("idle")
	s.add("new")
	if n := known(); n != 2 {
		t.Errorf("%d batchers", n)
	}
	if again := s.add("busy"); again != busy {
		t.Error("a batcher in use was replaced")
	}
}

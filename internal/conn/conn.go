// Package conn sends commands to Redis for the packages above it. It checks which clients are
// suitable, enforces timeouts regardless of the clients' settings, sends pipelines and scripts,
// opens a breaker when a server is down, and knows the slot of each key.
package conn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/lent"
)

// A Conn sends commands through a client that its user owns. It is safe for concurrent use.
type Conn struct {
	rdb     redis.UniversalClient
	cluster *redis.ClusterClient // rdb, if it is one
	oneSlot bool                 // all keys are in one slot: see NewHome
	timeout time.Duration
	bounded bool   // the client respects the deadline of a context
	prefix  string // of the keys of probes

	mu         sync.Mutex
	life       context.Context // ends at Close
	stop       context.CancelFunc
	background sync.WaitGroup // goroutines and calls that Close waits for; Add under mu, and not after life has ended

	health  health
	server  server
	reached atomic.Bool // a node of the cluster has replied, so the client knows the nodes
}

// New returns a Conn that sends commands through rdb. Each command ends within timeout, or when the
// caller's context ends; by default go-redis ignores the deadline of a context while it reads. New
// returns an error for a client with which the protocol would not be safe. It sends nothing to
// Redis. For the client of a cluster it calls ClusterOptions.NewClient with one address after the
// other until it gets a client, and closes that client unused. That client may open connections, if
// NewClient sets MinIdleConns.
func New(rdb redis.UniversalClient, timeout time.Duration) (*Conn, error) {
	known := &Conn{rdb: rdb, timeout: timeout}
	switch c := rdb.(type) {
	case *redis.Client:
		if c == nil {
			return nil, errors.New("the Redis client is a nil *redis.Client; pass an untyped nil for a cache without " +
				"Redis")
		}
		if err := noCache(c.Options()); err != nil {
			return nil, err
		}
		known.bounded = c.Options().ContextTimeoutEnabled
		known.server.dials = dialsOf(c)
		known.server.dials.mastersOnly.Store(true)
	case *redis.ClusterClient:
		if c == nil {
			return nil, errors.New("the Redis client is a nil *redis.ClusterClient; pass an untyped nil for a cache " +
				"without Redis")
		}
		o := c.Options()
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, errors.New("the Redis client reads from replicas (ReadOnly, RouteByLatency or " +
				"RouteRandomly), and a replica still serves a value after its delete was acknowledged")
		}
		if err := cmp.Or(noCache(o), noCacheOfNodes(o)); err != nil {
			return nil, err
		}
		watchNodes(c)
		known.cluster, known.bounded = c, o.ContextTimeoutEnabled
	default: // including *redis.Ring: naming the type would link all of its code
		return nil, fmt.Errorf("a Redis client of type %T may break the protocol (a Ring moves keys between servers "+
			"when one is unreachable, and then a deleted value comes back); use a *redis.Client or a "+
			"*redis.ClusterClient", rdb)
	}
	known.life, known.stop = context.WithCancel(context.Background())
	return known, nil
}

// NewHome returns a Conn like New for keys that are all in one slot: they are one range, even on
// a cluster.
func NewHome(rdb redis.UniversalClient, timeout time.Duration) (*Conn, error) {
	c, err := New(rdb, timeout)
	if err == nil {
		c.oneSlot = true
	}
	return c, err
}

// Timeout returns the timeout of a command.
func (c *Conn) Timeout() time.Duration { return c.timeout }

// Bounded reports whether the client respects the deadline of a context, so that a command may
// run on the goroutine of its caller.
func (c *Conn) Bounded() bool { return c.bounded }

// DB returns the number of the database on the server. Keys belong to one database, messages do
// not.
func (c *Conn) DB() int {
	if client, ok := c.rdb.(*redis.Client); ok {
		return client.Options().DB
	}
	return 0
}

// Cluster reports whether the server is a Redis Cluster.
func (c *Conn) Cluster() bool { return c.cluster != nil }

// Apart runs f on a separate goroutine, for which Close waits. After Close it returns false, and
// does not run f.
func (c *Conn) Apart(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return false
	}
	c.background.Go(f)
	return true
}

// Close ends probes, and waits for commands that were left behind at their timeouts. It does not
// close the client.
func (c *Conn) Close() {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.background.Wait()
}

// Await runs f on a separate goroutine. It returns nil when f has returned, or the error of ctx
// when ctx ends. After Close it returns ErrClosed, and does not run f. The context of f has the
// values of ctx until Await returns: the client's hooks may still run after the caller has left.
func (c *Conn) Await(ctx context.Context, f func(ctx context.Context)) error {
	done := make(chan struct{})
	whole, loan := lent.Whole(ctx)
	defer loan.End()
	if !c.Apart(func() { defer close(done); f(whole) }) {
		return ErrClosed
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Finish runs f like Await, for an f that takes no longer than its commands. It runs f on the
// caller's goroutine if the client respects the deadline of ctx and only that deadline can end
// ctx. The switch to another goroutine and back costs half a trip on a machine that is not busy.
// This does not apply to the client of a cluster, which may first ask a node for the slots.
func (c *Conn) Finish(ctx context.Context, f func(ctx context.Context)) error {
	if !c.bounded || c.cluster != nil || cancellable(ctx) {
		return c.Await(ctx, f)
	}
	c.mu.Lock()
	if c.life.Err() != nil {
		c.mu.Unlock()
		return ErrClosed
	}
	c.background.Add(1)
	c.mu.Unlock()
	defer c.background.Done()
	f(ctx)
	return nil
}

// A timed context ends only at its deadline.
type timed struct{ context.Context }

// WithTimeout returns a context like context.WithTimeout. If only its deadline can end ctx, the
// new context is marked accordingly, for Finish; its cancel function must not be called before
// all work is done. Contexts that others derive from the new one do not have the mark.
func WithTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	if cancellable(ctx) {
		return limited, cancel
	}
	return timed{limited}, cancel
}

// cancellable reports whether something other than a deadline may end ctx.
func cancellable(ctx context.Context) bool {
	_, isTimed := ctx.(timed)
	return ctx.Done() != nil && !isTimed
}

// Range returns the range of slots that key belongs to. A single server has only range 0.
func (c *Conn) Range(key string) int {
	if !c.Cluster() || c.oneSlot {
		return 0
	}
	return slot(key) / (slots / Ranges)
}

// InUse returns the number of ranges.
func (c *Conn) InUse() int {
	if c.Cluster() && !c.oneSlot {
		return Ranges
	}
	return 1
}

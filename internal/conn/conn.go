// Package conn is the way to Redis that the packages above it share: which clients will do,
// time-outs that hold whatever the client's own settings, pipelines, scripts, and where a key
// lives.
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

// Conn sends commands by a client of the caller's. It is safe for concurrent use.
type Conn struct {
	rdb     redis.UniversalClient
	cluster *redis.ClusterClient // rdb, if it is one
	home    bool                 // its keys are all in one slot
	timeout time.Duration
	bounded bool
	prefix  string // of the keys of probes

	mu    sync.Mutex
	life  context.Context // until Close
	stop  context.CancelFunc
	apart sync.WaitGroup // commands on goroutines of their own; Add under mu, and not after life

	health health
	server server
	met    atomic.Bool // a cluster's client has learned its nodes: one of them has replied
}

// New wraps rdb. Commands that are sent by it end within timeout, or the caller's own time: by
// default go-redis ignores a context's deadline while it reads. New refuses clients that cannot
// keep the protocol; it does no I/O.
func New(rdb redis.UniversalClient, timeout time.Duration) (*Conn, error) {
	known := &Conn{rdb: rdb, timeout: timeout}
	switch c := rdb.(type) {
	case *redis.Client:
		if c == nil {
			return nil, errors.New("the Redis client is a nil *redis.Client; pass an untyped nil for a cache without Redis")
		}
		if err := noCache(c.Options()); err != nil {
			return nil, err
		}
		known.bounded = c.Options().ContextTimeoutEnabled
		known.server.dials = dialsOf(c)
		known.server.dials.mastersOnly.Store(true)
	case *redis.ClusterClient:
		if c == nil {
			return nil, errors.New("the Redis client is a nil *redis.ClusterClient; pass an untyped nil for a cache without Redis")
		}
		o := c.Options()
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, errors.New("the Redis client reads from replicas (ReadOnly, RouteByLatency or RouteRandomly), and a replica still serves a value after its delete was acknowledged")
		}
		if err := cmp.Or(noCache(o), noCacheOfNodes(o)); err != nil {
			return nil, err
		}
		watchNodes(c)
		known.cluster, known.bounded = c, o.ContextTimeoutEnabled
	default: // also a Ring, which is not named, or a program would link all of it
		return nil, fmt.Errorf("a Redis client of type %T may break the protocol (a Ring moves keys between servers when one is unreachable, and then a deleted value comes back); use a *redis.Client or a *redis.ClusterClient", rdb)
	}
	known.life, known.stop = context.WithCancel(context.Background())
	return known, nil
}

// NewHome is New for what is kept in one slot: it is one range, also on a cluster.
func NewHome(rdb redis.UniversalClient, timeout time.Duration) (*Conn, error) {
	c, err := New(rdb, timeout)
	if err == nil {
		c.home = true
	}
	return c, err
}

// Timeout bounds a command.
func (c *Conn) Timeout() time.Duration { return c.timeout }

// Bounded tells whether the client keeps a context's deadline by itself, so that a command may run
// on the goroutine that asks for it.
func (c *Conn) Bounded() bool { return c.bounded }

// DB is the number of the database on its server: keys are of one, messages are not.
func (c *Conn) DB() int {
	if client, ok := c.rdb.(*redis.Client); ok {
		return client.Options().DB
	}
	return 0
}

// Cluster tells whether keys live on different servers.
func (c *Conn) Cluster() bool { return c.cluster != nil }

// Apart runs f on a goroutine that Close waits for. After Close it returns false, and does not run
// f.
func (c *Conn) Apart(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return false
	}
	c.apart.Go(f)
	return true
}

// Close ends probes, and waits for commands that were left behind at their time-outs. The client
// stays open.
func (c *Conn) Close() {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.apart.Wait()
}

// Await runs f on a goroutine of its own and returns when f has returned, or with ctx's error when
// ctx ends. f is called with ctx, whose values it can read until Await returns: the client's hooks
// may still run after the caller has left.
func (c *Conn) Await(ctx context.Context, f func(ctx context.Context)) error {
	done := make(chan struct{})
	own, loan := lent.Whole(ctx)
	defer loan.End()
	if !c.Apart(func() { defer close(done); f(own) }) {
		return ErrClosed
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Finish is Await for an f that takes no longer than its commands do: on the caller's goroutine,
// where the client keeps ctx by itself and nothing but its deadline can end it. The hand-over to
// another goroutine and back costs half a trip on a machine that is not busy. A cluster's client
// keeps no context while it asks where keys are.
func (c *Conn) Finish(ctx context.Context, f func(ctx context.Context)) error {
	if !c.bounded || c.cluster != nil || cancellable(ctx) {
		return c.Await(ctx, f)
	}
	c.mu.Lock()
	if c.life.Err() != nil {
		c.mu.Unlock()
		return ErrClosed
	}
	c.apart.Add(1)
	c.mu.Unlock()
	defer c.apart.Done()
	f(ctx)
	return nil
}

// timed is a context that only its deadline ends.
type timed struct{ context.Context }

// WithTimeout is context.WithTimeout. If nothing but its deadline can end ctx, that is known of the
// new one, too, which is to be cancelled when all is over, and not before. It is known of ctx
// itself, not of contexts made of it by others.
func WithTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	own, cancel := context.WithTimeout(ctx, timeout)
	if cancellable(ctx) {
		return own, cancel
	}
	return timed{own}, cancel
}

func cancellable(ctx context.Context) bool {
	_, isTimed := ctx.(timed)
	return ctx.Done() != nil && !isTimed
}

// Range is the part that key belongs to. On a single server all keys are in one.
func (c *Conn) Range(key string) int {
	if !c.Cluster() || c.home {
		return 0
	}
	return slot(key) / (slots / Ranges)
}

// InUse is how many ranges there are.
func (c *Conn) InUse() int {
	if c.Cluster() && !c.home {
		return Ranges
	}
	return 1
}

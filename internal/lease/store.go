package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/mutant"
)

// Store runs the protocol on one Redis. It is safe for concurrent use.
type Store struct {
	rdb     redis.UniversalClient
	timeout time.Duration
	bounded bool // rdb keeps timeout by itself, so a command may run on the goroutine that asks for it

	mu     sync.Mutex
	closed bool
	apart  sync.WaitGroup // commands on goroutines of their own
}

// ErrClosed is the error of a Delete after Close.
var ErrClosed = errors.New("the store is closed")

// goApart runs f on a goroutine that Close waits for. It answers false, and does not run it, after Close.
func (s *Store) goApart(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.apart.Go(f)
	}
	return !s.closed
}

// Close waits for commands that were left behind at their time-outs. The client stays open.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.apart.Wait()
}

// NewStore wraps rdb. Each command ends within timeout, whatever rdb's own settings: by default go-redis ignores a context's
// deadline while it reads. It refuses clients that cannot keep the protocol; it does no I/O.
func NewStore(rdb redis.UniversalClient, timeout time.Duration) (*Store, error) {
	switch c := rdb.(type) {
	case *redis.Client:
		if c == nil {
			return nil, errors.New("the Redis client is a nil *redis.Client; pass an untyped nil for a cache without Redis")
		}
		if o := c.Options(); o.ClientSideCache != nil || o.ClientSideCacheConfig != nil {
			return nil, errors.New("the Redis client keeps values in a cache of its own (ClientSideCache), which still shows one after its delete has been acknowledged")
		}
		// A shallow copy on the same connections, with options of its own: its time-outs, and that it keeps a context's deadline.
		c = c.WithTimeout(timeout)
		c.Options().ContextTimeoutEnabled = true
		return &Store{rdb: c, timeout: timeout, bounded: true}, nil
	case *redis.ClusterClient:
		if c == nil {
			return nil, errors.New("the Redis client is a nil *redis.ClusterClient; pass an untyped nil for a cache without Redis")
		}
		o := c.Options()
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, errors.New("the Redis client reads from replicas (ReadOnly, RouteByLatency or RouteRandomly), and a replica still shows a value after its delete has been acknowledged")
		}
		return &Store{rdb: c, timeout: timeout, bounded: o.ContextTimeoutEnabled}, nil
	case *redis.Ring:
		return nil, errors.New("a *redis.Ring moves keys between servers when one of them is out of reach, and then a deleted value comes back; use a *redis.Client or a *redis.ClusterClient")
	default:
		return nil, fmt.Errorf("a Redis client of type %T is not known to keep the protocol; use a *redis.Client or a *redis.ClusterClient", rdb)
	}
}

// do runs cmd and returns its error within the store's time-out and, unless the client keeps that by itself, within ctx.
// After an error cmd may still be in use and must not be read.
func (s *Store) do(ctx context.Context, cmd redis.Cmder) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if s.bounded {
		return s.rdb.Process(ctx, cmd)
	}
	done := make(chan error, 1)
	if !s.goApart(func() { done <- s.rdb.Process(ctx, cmd) }) {
		return ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// get reads a key.
func (s *Store) get(ctx context.Context, key string) (State, error) {
	cmd := redis.NewStringCmd(ctx, "get", key)
	switch err := s.do(ctx, cmd); {
	case err == nil:
		b, _ := cmd.Bytes()
		return decode(b), nil
	case errors.Is(err, redis.Nil):
		return State{Kind: Absent}, nil
	default:
		return State{}, err
	}
}

// eval runs a script on key, and loads it first where Redis does not have it. The client may repeat it when a reply is lost, unless once is set.
func (s *Store) eval(ctx context.Context, sc script, once bool, key string, args ...any) (any, error) {
	run := func(name, body string) (any, error) {
		cmd := redis.NewCmd(ctx, append([]any{name, body, 1, key}, args...)...)
		var c redis.Cmder = cmd
		if once && mutant.Active != mutant.LeaseRetried {
			c = sentOnce{cmd}
		}
		if err := s.do(ctx, c); err != nil {
			return nil, err
		}
		return cmd.Val(), nil
	}
	v, err := run("evalsha", sc.hash)
	if redis.HasErrorPrefix(err, "NOSCRIPT") { // a reply, so nothing was done: not a second send
		v, err = run("eval", sc.source)
	}
	return v, err
}

// sentOnce is a command that the client library does not repeat. A lease must not be: its delayed first send could arrive after
// an invalidation, revive the voided token, and let a stale value in.
type sentOnce struct{ *redis.Cmd }

func (sentOnce) NoRetry() bool { return true }

// Delete deletes keys, and so voids every lease and claim on them. It returns an error for each key, nil where Redis has
// acknowledged the delete. It ends with ctx, and has a time-out of a few tries if ctx has none.
func (s *Store) Delete(ctx context.Context, keys []string) []error {
	ctx, cancel := context.WithTimeout(ctx, 4*s.timeout)
	defer cancel()
	errs := make([]error, len(keys))
	cmds := make([]*redis.IntCmd, len(keys))
	done := make(chan struct{})
	ran := s.goApart(func() { // the caller's context may end before the client's time-outs do
		if len(keys) == 1 {
			cmds[0] = s.rdb.Del(ctx, keys[0])
		} else {
			pipe := s.rdb.Pipeline()
			for i, key := range keys {
				cmds[i] = pipe.Del(ctx, key)
			}
			pipe.Exec(ctx) //nolint:errcheck // each command carries its own
		}
		close(done)
	})
	if !ran {
		for i := range errs {
			errs[i] = ErrClosed
		}
		return errs
	}
	select {
	case <-done:
		for i := range keys {
			errs[i] = cmds[i].Err()
		}
	case <-ctx.Done():
		for i := range keys {
			errs[i] = ctx.Err()
		}
	}
	return errs
}

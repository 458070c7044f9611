package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/mutant"
)

// Store runs the protocol on one Redis. It is safe for concurrent use.
type Store struct {
	rdb     redis.UniversalClient
	timeout time.Duration
	bounded bool // rdb keeps a context's deadline by itself, so a command may run on the goroutine that asks for it
	cluster bool
	reads   gather

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
		return newStore(c, timeout, c.Options().ContextTimeoutEnabled), nil
	case *redis.ClusterClient:
		if c == nil {
			return nil, errors.New("the Redis client is a nil *redis.ClusterClient; pass an untyped nil for a cache without Redis")
		}
		o := c.Options()
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, errors.New("the Redis client reads from replicas (ReadOnly, RouteByLatency or RouteRandomly), and a replica still shows a value after its delete has been acknowledged")
		}
		return newStore(c, timeout, o.ContextTimeoutEnabled), nil
	case *redis.Ring:
		return nil, errors.New("a *redis.Ring moves keys between servers when one of them is out of reach, and then a deleted value comes back; use a *redis.Client or a *redis.ClusterClient")
	default:
		return nil, fmt.Errorf("a Redis client of type %T is not known to keep the protocol; use a *redis.Client or a *redis.ClusterClient", rdb)
	}
}

func newStore(rdb redis.UniversalClient, timeout time.Duration, bounded bool) *Store {
	s := &Store{rdb: rdb, timeout: timeout, bounded: bounded}
	_, cluster := rdb.(*redis.ClusterClient)
	s.cluster = cluster && mutant.Active != mutant.ClusterShares
	s.reads.store = s
	return s
}

// send sends cmds in pipelines, one after the other if there are very many, and returns when each has its reply or error, or, unless the
// client keeps ctx by itself, when ctx ends. If it returns an error, cmds may still be in use and must not be read.
func (s *Store) send(ctx context.Context, cmds []redis.Cmder) error {
	if s.bounded {
		s.process(ctx, cmds)
		return nil
	}
	done := make(chan struct{})
	if !s.goApart(func() { defer close(done); s.process(ctx, cmds) }) {
		return ErrClosed
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// maxPipeline is how many commands go into one pipeline, so that one does not keep a connection, or the server, for long.
const maxPipeline = 1000

// process leaves each command with its reply or its error.
func (s *Store) process(ctx context.Context, cmds []redis.Cmder) {
	returned := false
	defer func() {
		if !returned {
			fail(cmds, notReturned(recover()))
		}
	}()
	if len(cmds) == 1 {
		s.rdb.Process(ctx, cmds[0]) //nolint:errcheck // the command has it
	} else {
		for part := range slices.Chunk(cmds, maxPipeline) {
			s.pipeline(ctx, part)
		}
	}
	returned = true
}

func (s *Store) pipeline(ctx context.Context, cmds []redis.Cmder) {
	pipe := s.rdb.Pipeline()
	if err := pipe.BatchProcess(ctx, cmds...); err != nil {
		fail(cmds, err)
		return
	}
	_, err := pipe.Exec(ctx)
	if err != nil && !slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Err() != nil }) {
		fail(cmds, err) // a hook's: no command has it
	}
}

// notReturned is the error of a client one of whose hooks has panicked with p, or has called runtime.Goexit.
func notReturned(p any) error {
	if p == nil {
		return errors.New("the Redis client called runtime.Goexit")
	}
	return fmt.Errorf("the Redis client panicked with a %T", p)
}

func fail(cmds []redis.Cmder, err error) {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// First reads keys for a caller who may want to leave, on his own goroutine: it returns when ctx ends, and not much later. It calls found for each.
func (s *Store) First(ctx context.Context, keys []string, found func(i int, held *State, err error)) {
	cmds, failed := s.reads.first(ctx, keys)
	tell(cmds, failed, found)
}

// Read reads keys, and calls found for each.
func (s *Store) Read(ctx context.Context, keys []string, found func(i int, held *State, err error)) {
	cmds, failed := s.reads.again(ctx, keys)
	tell(cmds, failed, found)
}

func tell(cmds []redis.Cmder, failed error, found func(i int, held *State, err error)) {
	var held State
	for i, cmd := range cmds {
		err := failed
		if held = (State{}); err == nil { // else it must not be read
			err = state(cmd.(*redis.StringCmd), &held)
		}
		found(i, &held, err)
	}
}

// state puts into held what the reply to a GET shows.
func state(cmd *redis.StringCmd, held *State) error {
	switch err := cmd.Err(); {
	case err == nil:
		b, _ := cmd.Bytes()
		decodeInto(held, b)
		return nil
	case errors.Is(err, redis.Nil):
		return nil
	default:
		return err
	}
}

// evalAll runs a script on the key of each attempt, in one trip, and loads it first where Redis does not have it. The client may repeat it
// when a reply is lost, unless once is set. reply is called for each attempt, with the script's answer or an error.
func (s *Store) evalAll(ctx context.Context, as []*Attempt, sc script, once bool, args func(*Attempt) []any, reply func(a *Attempt, v any, err error)) {
	unknown := s.evalBy(ctx, as, "evalsha", sc.hash, once, args, reply)
	if len(unknown) > 0 { // replies, so nothing was done: not a second send
		s.evalBy(ctx, unknown, "eval", sc.source, once, args, reply)
	}
}

// evalBy returns those whose server does not know the script.
func (s *Store) evalBy(ctx context.Context, as []*Attempt, name, body string, once bool, args func(*Attempt) []any, reply func(a *Attempt, v any, err error)) (unknown []*Attempt) {
	cmds := make([]redis.Cmder, len(as))
	for i, a := range as {
		cmd := redis.NewCmd(ctx, append([]any{name, body, 1, a.key}, args(a)...)...)
		cmds[i] = cmd
		if once && mutant.Active != mutant.LeaseRetried {
			cmds[i] = sentOnce{cmd}
		}
	}
	bound, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.send(bound, cmds); err != nil {
		for _, a := range as {
			reply(a, nil, err)
		}
		return nil
	}
	for i, a := range as {
		err := cmds[i].Err()
		if redis.HasErrorPrefix(err, "NOSCRIPT") && name == "evalsha" {
			unknown = append(unknown, a)
			continue
		}
		var v any
		if err == nil {
			v = value(cmds[i])
		}
		reply(a, v, err)
	}
	return unknown
}

// value is a script's reply.
func value(cmd redis.Cmder) any {
	if once, ok := cmd.(sentOnce); ok {
		return once.Val()
	}
	return cmd.(*redis.Cmd).Val()
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
	cmds := make([]redis.Cmder, len(keys))
	for i, key := range keys {
		cmds[i] = redis.NewIntCmd(ctx, "del", key)
	}
	done := make(chan struct{})
	ran := s.goApart(func() { // the caller's context may end before the client's time-outs do
		defer close(done)
		s.process(ctx, cmds)
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

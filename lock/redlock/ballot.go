package redlock

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
)

// ballot is one node in one round, and the client with which redsync's pool sends to that node.
//
// The requests of redsync itself are not safe enough. Its SET NX has no bound: if the network
// delays it, it acquires a lock that no caller releases. Its release does not wake contenders.
// redsync forgets a request when it stops waiting for it, even if the request acquires the lock,
// and go-redis may send the request twice. So ballot overrides SetNX, EvalSha and Eval. Its
// requests have a bound and a timeout, are sent once, and continue when redsync has stopped
// waiting. ballot records their outcome, and cleanUp removes what they leave.
type ballot struct {
	redis.UniversalClient
	r *round
	n *node

	done  chan struct{} // closed when the request for the lock has ended, after reply and err are written
	reply redislock.Reply
	err   error

	requested    atomic.Bool  // a request was sent, or is about to be
	freed        atomic.Bool  // the node has nothing of the round, and the request can no longer be carried out
	pendingFrees atomic.Int32 // requests to free the lock that are in progress, or whose outcome is unknown
	cleaningUp   atomic.Bool
}

var (
	errLate       = errors.New("the clock of the server jumps, or requests take too long to arrive")
	errSameServer = errors.New("another client reaches the same server")
	errUnknown    = errors.New("no reply to the request for the lock")
)

// SetNX requests the vote of the node.
func (b *ballot) SetNX(ctx context.Context, _ string, _ any, _ time.Duration) *redis.BoolCmd {
	cmd := redis.NewBoolCmd(ctx)
	yes, err := b.vote(ctx)
	cmd.SetVal(yes)
	cmd.SetErr(err)
	return cmd
}

// EvalSha releases the lock on the node.
func (b *ballot) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	return scriptReply(b.release(ctx))
}

// extending is a ballot that sends redsync's extension script unchanged.
type extending struct{ *ballot }

func (e extending) EvalSha(ctx context.Context, hash string, keys []string, args ...any) *redis.Cmd {
	return scriptReply(e.runScript(ctx,
		func(ctx context.Context) (*redis.Cmd, error) { return e.n.send(ctx, "evalsha", hash, keys, args) }))
}

func (e extending) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	return scriptReply(e.runScript(ctx,
		func(ctx context.Context) (*redis.Cmd, error) { return e.n.send(ctx, "eval", source, keys, args) }))
}

// storing is a ballot that replaces an extension by storing the token.
type storing struct {
	*ballot
	token int64
}

func (s storing) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	return scriptReply(s.runScript(ctx, func(ctx context.Context) (*redis.Cmd, error) {
		return redislock.Eval(ctx, s.n.process, tokenScript, true, s.r.keys, s.r.id, s.token)
	}))
}

// scriptReply returns a command with the reply that redsync expects from a script.
func scriptReply(yes bool, err error) *redis.Cmd {
	cmd := redis.NewCmd(context.Background())
	cmd.SetVal(int64(0))
	if yes {
		cmd.SetVal(int64(1))
	}
	cmd.SetErr(err)
	return cmd
}

// request runs f for at most the timeout. f continues if the caller's context ends earlier.
func (b *ballot) request(ctx context.Context, asked string, f func(ctx context.Context) error) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, b.r.timeout)
	defer cancel()
	var result error
	err := b.n.conn.Await(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.r.timeout)
		defer cancel()
		result = f(ctx)
	})
	switch {
	case err == nil:
		err = result
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	// The Locker decides whether the caller's own deadline has passed.
	return b.n.conn.Explain(context.Background(), err, asked, "", began)
}

// vote requests the lock from the node.
func (b *ballot) vote(ctx context.Context) (bool, error) {
	b.requested.Store(true)
	if ctx.Err() != nil { // the round has ended, and cleanUp may have read requested
		b.requested.Store(false)
		return false, context.Cause(ctx)
	}
	err := b.request(ctx, "a request for the lock", func(ctx context.Context) error {
		defer close(b.done)
		b.reply, b.err = b.requestLock(ctx)
		return b.err
	})
	if errors.Is(err, conn.ErrClosed) {
		b.requested.Store(false)
	}
	return err == nil && b.granted(), err
}

func (b *ballot) requestLock(ctx context.Context) (redislock.Reply, error) {
	bound, err := b.n.clock.Bound(b.r.timeout,
		func() (redislock.Reply, error) { return redislock.Run(ctx, b.n.conn, redislock.Time, nil) })
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return redislock.Reply{}, err
	}
	sent := time.Now()
	keys := append(slices.Clone(b.r.keys), redislock.Void(b.r.keys[0], b.r.id))
	reply, err := redislock.Run(ctx, b.n.conn, acquireScript, keys,
		slices.Concat([]any{b.r.id, b.r.ttl.Milliseconds(), bound}, b.r.earlier)...)
	if err != nil {
		return reply, err
	}
	b.n.clock.Learn(b.r.timeout, sent, reply.Now)
	switch reply.Status {
	case isTwice:
		err = errSameServer
	case redislock.IsLate:
		err = errLate
	}
	return reply, err
}

// send sends one command without retries.
func (n *node) send(ctx context.Context, name, body string, keys []string, args []any) (*redis.Cmd, error) {
	cmd := redislock.Command(ctx, name, body, keys, args)
	n.conn.Process(ctx, []redis.Cmder{conn.Once(cmd)})
	return cmd, cmd.Err()
}

func (n *node) process(ctx context.Context, cmds []redis.Cmder) error {
	n.conn.Process(ctx, cmds)
	return nil
}

// finished reports whether the request for the lock has ended.
func (b *ballot) finished() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// granted reports whether the node is known to have granted the lock.
func (b *ballot) granted() bool {
	return b.finished() && b.err == nil && b.reply.Status == redislock.IsGranted
}

// empty reports whether the node certainly has nothing of the round, and will not get anything:
// it has refused, or no request was sent to it.
func (b *ballot) empty() bool {
	switch {
	case b.freed.Load(), !b.requested.Load():
		return true
	case !b.finished() || b.granted():
		return false
	}
	return b.err == nil || conn.IsReply(b.err) || unsent(b.err) || errors.Is(b.err, errSameServer) ||
		errors.Is(b.err, errLate)
}

// unsent reports whether err means that there was no connection to send the request on.
func unsent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// runScript sends a script about the lock to a node that may have voted for it. It reports
// whether the node has the lock.
func (b *ballot) runScript(
	ctx context.Context, send func(ctx context.Context) (*redis.Cmd, error),
) (yes bool, err error) {
	if b.empty() {
		return false, nil
	}
	var reply int
	err = b.request(ctx, "a request about the lock", func(ctx context.Context) (err error) {
		for range conn.MaxStale { // retry if a closed connection has lost the request
			var cmd *redis.Cmd
			if cmd, err = send(ctx); err == nil {
				reply, err = cmd.Int()
			}
			if !conn.Stale(err) || ctx.Err() != nil {
				break
			}
		}
		return err
	})
	return err == nil && reply == 1, err
}

// release frees the lock on the node, and reports whether the node had it.
func (b *ballot) release(ctx context.Context) (bool, error) {
	switch {
	case b.freed.Load():
		return true, nil
	case b.empty():
		return false, nil
	case !b.granted(): // the release could arrive before the request for the lock
		b.cleanUp()
		return false, errUnknown
	}
	var had bool
	err := b.request(ctx, "a release", func(ctx context.Context) (err error) {
		had, err = b.free(ctx)
		return err
	})
	return err == nil && had, err
}

// free sends one request that frees the lock on the node and prevents a delayed request from
// acquiring it. It reports whether the node had the lock.
func (b *ballot) free(ctx context.Context) (had bool, err error) {
	granted := b.granted()
	void := redislock.VoidFor(b.r.timeout).Milliseconds() // the request for the lock may arrive after this one
	if granted {
		void = 0
	}
	mayBeFreed := b.pendingFrees.Add(1) > 1
	reply, err := redislock.Run(ctx, b.n.conn, releaseScript,
		[]string{b.r.keys[0], redislock.Void(b.r.keys[0], b.r.id)}, b.r.id, void)
	if err != nil {
		return false, err
	}
	b.pendingFrees.Add(-1)
	// If the lock is missing, an earlier request whose reply was lost may have freed it.
	had = reply.Status == redislock.IsGranted || mayBeFreed && granted
	if had || !granted {
		b.freed.Store(true)
	}
	return had, nil
}

// cleanUp makes sure, in the background, that the node keeps nothing of the round.
func (b *ballot) cleanUp() {
	if !b.empty() && b.cleaningUp.CompareAndSwap(false, true) {
		b.n.wakes.Retry(b.r.ttl+b.r.timeout, b.r.timeout, func(ctx context.Context) error {
			if b.empty() {
				return nil
			}
			_, err := b.free(ctx)
			return err
		})
	}
}

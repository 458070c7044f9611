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

// ballot is one node in one round, and the client by which redsync's pool sends to that node.
//
// redsync's own requests would break promises of a lock. Its SET NX has no bound: one that is
// delayed in the network takes the lock when nobody is there to release it. Its release wakes no
// contender. A request that it stops waiting for is forgotten, whatever it may have got, and
// go-redis may send it twice. So SetNX, EvalSha and Eval are replaced here: they send requests that
// have a bound and a time-out, are sent once, and go on when redsync has left. ballot notes what
// has become of them, and settle removes what may be left.
type ballot struct {
	redis.UniversalClient
	r *round
	n *node

	known  chan struct{} // closed when the request for the lock is over; answer and err are written before
	answer redislock.Reply
	err    error

	asked    atomic.Bool  // there was, or is going to be, a request
	freed    atomic.Bool  // nothing of it is left, and nothing will come
	freeing  atomic.Int32 // requests to free it that are under way, or whose outcome is not known
	settling atomic.Bool
}

var (
	errLate       = errors.New("the clock of the server jumps, or requests take too long to arrive")
	errSameServer = errors.New("another of the clients leads to the same server")
	errUnknown    = errors.New("it has not replied to the request for the lock")
)

// SetNX asks the node for its vote.
func (b *ballot) SetNX(ctx context.Context, _ string, _ any, _ time.Duration) *redis.BoolCmd {
	cmd := redis.NewBoolCmd(ctx)
	yes, err := b.vote(ctx)
	cmd.SetVal(yes)
	cmd.SetErr(err)
	return cmd
}

// EvalSha releases the lock at the node.
func (b *ballot) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	return result(b.release(ctx))
}

// extending is a ballot whose scripts are sent to the node as they are: redsync's extension.
type extending struct{ *ballot }

func (e extending) EvalSha(ctx context.Context, hash string, keys []string, args ...any) *redis.Cmd {
	return result(e.touch(ctx, func(ctx context.Context) (*redis.Cmd, error) { return e.n.send(ctx, "evalsha", hash, keys, args) }))
}

func (e extending) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	return result(e.touch(ctx, func(ctx context.Context) (*redis.Cmd, error) { return e.n.send(ctx, "eval", source, keys, args) }))
}

// storing is a ballot by which an extension stores the token instead.
type storing struct {
	*ballot
	token int64
}

func (s storing) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	return result(s.touch(ctx, func(ctx context.Context) (*redis.Cmd, error) {
		return redislock.Eval(ctx, s.n.process, tokenScript, true, s.r.keys, s.r.id, s.token)
	}))
}

// result returns a command with the reply that redsync expects of a script.
func result(yes bool, err error) *redis.Cmd {
	cmd := redis.NewCmd(context.Background())
	cmd.SetVal(int64(0))
	if yes {
		cmd.SetVal(int64(1))
	}
	cmd.SetErr(err)
	return cmd
}

// request runs f for the time-out at most. f goes on when the caller leaves earlier.
func (b *ballot) request(ctx context.Context, asked string, f func(ctx context.Context) error) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, b.r.timeout)
	defer cancel()
	var done error
	err := b.n.conn.Await(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.r.timeout)
		defer cancel()
		done = f(ctx)
	})
	switch {
	case err == nil:
		err = done
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	// Whether the caller's own time is over is decided by the Locker.
	return b.n.conn.Explain(context.Background(), err, asked, "", began)
}

// vote asks the node for the lock.
func (b *ballot) vote(ctx context.Context) (bool, error) {
	b.asked.Store(true)
	if ctx.Err() != nil { // the round is over, and may have been settled, which reads asked after the end of ctx
		b.asked.Store(false)
		return false, context.Cause(ctx)
	}
	err := b.request(ctx, "a request for the lock", func(ctx context.Context) error {
		defer close(b.known)
		b.answer, b.err = b.ask(ctx)
		return b.err
	})
	if errors.Is(err, conn.ErrClosed) {
		b.asked.Store(false)
	}
	return err == nil && b.granted(), err
}

func (b *ballot) ask(ctx context.Context) (redislock.Reply, error) {
	bound, err := b.n.clock.Bound(b.r.timeout, func() (redislock.Reply, error) { return redislock.Run(ctx, b.n.conn, redislock.Time, nil) })
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return redislock.Reply{}, err
	}
	sent := time.Now()
	keys := append(slices.Clone(b.r.keys), redislock.Void(b.r.keys[0], b.r.id))
	reply, err := redislock.Run(ctx, b.n.conn, acquireScript, keys, slices.Concat([]any{b.r.id, b.r.ttl.Milliseconds(), bound}, b.r.olds)...)
	if err != nil {
		return reply, err
	}
	b.n.clock.Learn(sent, reply.Now)
	switch reply.Status {
	case isTwice:
		err = errSameServer
	case redislock.IsLate:
		err = errLate
	}
	return reply, err
}

// send sends one command, once.
func (n *node) send(ctx context.Context, name, body string, keys []string, args []any) (*redis.Cmd, error) {
	cmd := redislock.Command(ctx, name, body, keys, args)
	n.conn.Process(ctx, []redis.Cmder{conn.Once(cmd)})
	return cmd, cmd.Err()
}

func (n *node) process(ctx context.Context, cmds []redis.Cmder) error {
	n.conn.Process(ctx, cmds)
	return nil
}

// over reports whether the request for the lock is over.
func (b *ballot) over() bool {
	select {
	case <-b.known:
		return true
	default:
		return false
	}
}

// granted reports whether the node is known to have granted the lock.
func (b *ballot) granted() bool {
	return b.over() && b.err == nil && b.answer.Status == redislock.IsGranted
}

// nothing reports whether it is known that the node has nothing of the round, and will not have: it
// has refused, or was not asked.
func (b *ballot) nothing() bool {
	switch {
	case b.freed.Load(), !b.asked.Load():
		return true
	case !b.over() || b.granted():
		return false
	}
	return b.err == nil || conn.IsReply(b.err) || unsent(b.err) || errors.Is(b.err, errSameServer) || errors.Is(b.err, errLate)
}

// unsent reports whether there was no connection to send a request by.
func unsent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// touch sends a script for the lock to a node that may have voted for it. It reports whether the
// node has it.
func (b *ballot) touch(ctx context.Context, send func(ctx context.Context) (*redis.Cmd, error)) (yes bool, err error) {
	if b.nothing() {
		return false, nil
	}
	var reply int
	err = b.request(ctx, "a request about the lock", func(ctx context.Context) (err error) {
		for range conn.MaxStale { // again where a closed connection has lost the request
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

// release frees the lock at the node, and reports whether the node had it.
func (b *ballot) release(ctx context.Context) (bool, error) {
	switch {
	case b.freed.Load():
		return true, nil
	case b.nothing():
		return false, nil
	case !b.granted(): // the release could overtake the request for the lock
		b.settle()
		return false, errUnknown
	}
	var had bool
	err := b.request(ctx, "a release", func(ctx context.Context) (err error) {
		had, err = b.free(ctx)
		return err
	})
	return err == nil && had, err
}

// free sends one request to free the lock at the node, which then has nothing of it, and will not
// have. It reports whether the node had it.
func (b *ballot) free(ctx context.Context) (had bool, err error) {
	granted := b.granted()
	void := redislock.VoidFor(b.r.timeout) // the request for the lock may come later than this one
	if granted {
		void = 0
	}
	doubt := b.freeing.Add(1) > 1
	reply, err := redislock.Run(ctx, b.n.conn, releaseScript, []string{b.r.keys[0], redislock.Void(b.r.keys[0], b.r.id)}, b.r.id, void)
	if err != nil {
		return false, err
	}
	b.freeing.Add(-1)
	// If it is gone, and the reply to an earlier request to free it was lost, that request did it.
	had = reply.Status == redislock.IsGranted || doubt && granted
	if had || !granted {
		b.freed.Store(true)
	}
	return had, nil
}

// settle makes sure, in the background, that nothing is left of the round at the node.
func (b *ballot) settle() {
	if !b.nothing() && b.settling.CompareAndSwap(false, true) {
		b.n.wakes.Retry(b.r.ttl+b.r.timeout, b.r.timeout, func(ctx context.Context) error {
			if b.nothing() {
				return nil
			}
			_, err := b.free(ctx)
			return err
		})
	}
}

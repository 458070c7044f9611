package lock

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// redlockNode is one of the servers.
type redlockNode struct {
	conn  *conn.Conn
	clock atomic.Pointer[reading] // nil: never asked
	wakes wakes
}

// eval runs a script, on this goroutine: it may take longer than ctx, where the client does not
// keep that. Nothing is sent twice by the client, so that each reply that is lost is known to be.
func (n *redlockNode) eval(ctx context.Context, s conn.Script, keys []string, args ...any) (answer, error) {
	cmd := n.evalBy(ctx, "evalsha", s.Hash, keys, args)
	if conn.Unknown(cmd) {
		cmd = n.evalBy(ctx, "eval", s.Source, keys, args)
	}
	return answerOf(cmd)
}

func (n *redlockNode) evalBy(ctx context.Context, name, body string, keys []string, args []any) *redis.Cmd {
	all := []any{name, body, len(keys)}
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, slices.Concat(all, args)...)
	n.conn.Process(ctx, []redis.Cmder{conn.Once(cmd)})
	return cmd
}

// bound is until when, by the clock of the node, a request that is sent now is to be carried out.
func (n *redlockNode) bound(ctx context.Context, timeout time.Duration) (int64, error) {
	c := n.clock.Load()
	if c == nil {
		sent := time.Now()
		reply, err := n.eval(ctx, timeScript, nil)
		if err != nil {
			return 0, err
		}
		c = &reading{sent, reply.now}
		n.clock.Store(c)
	}
	return c.now + (time.Since(c.sent) + timeout).Microseconds(), nil
}

var (
	errJumps      = errors.New("the clock of the server jumps, or requests take too long to arrive")
	errSameServer = errors.New("another of the clients leads to the same server")
)

// detached is the context of a request that goes on when its caller has left.
func detached(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// explain says that it is this server that has not answered. Whether the caller's own time is over
// is told by the Locker.
func (n *redlockNode) explain(err error, asked string, began time.Time) error {
	return n.conn.Explain(context.Background(), err, asked, "", began)
}

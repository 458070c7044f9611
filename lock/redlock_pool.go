package lock

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
)

// redsync sends to all nodes, counts what they answer, and judges whether a lock is valid. The
// requests are ours: a node answers yes, no, or with an error. The caller of vote may leave at its
// time-out or at the end of ctx, which redsync ends when it has heard enough.
type vote func(ctx context.Context, node int) (bool, error)

// mutex is a redsync.Mutex for one operation. (The work in the background after an operation reads
// its fields.)
func (d *redlockDriver) mutex(life time.Duration, lock, touch vote) *redsync.Mutex {
	pools := make([]redsyncredis.Pool, len(d.nodes))
	for i := range pools {
		pools[i] = redlockPool{node: i, lock: lock, touch: touch}
	}
	return redsync.New(pools...).NewMutex("", // it would be in no error, but need not be there
		redsync.WithExpiry(life),
		redsync.WithDriftFactor(float64(drift(life))/float64(life)),
		redsync.WithTimeoutFactor(1), // vote has its own
		redsync.WithFailFast(true),
		redsync.WithGenValueFunc(func() (string, error) { return "", nil }),
	)
}

// redlockPool is a node as redsync sees it.
type redlockPool struct {
	node  int
	lock  vote // of TryLockContext
	touch vote // of ExtendContext and UnlockContext; nil: there is none
}

func (p redlockPool) Get(ctx context.Context) (redsyncredis.Conn, error) {
	return &redlockConn{redlockPool: p, ctx: ctx}, nil
}

type redlockConn struct {
	redlockPool
	ctx context.Context
}

func (c *redlockConn) SetNX(string, string, time.Duration) (bool, error) {
	return c.lock(c.ctx, c.node)
}

// Eval is called by TryLockContext, too, where it has not got the lock: without a vote, since
// redsync would wait for it, with a context that may have ended. See settle.
func (c *redlockConn) Eval(*redsyncredis.Script, ...any) (any, error) {
	if c.touch == nil {
		return int64(0), nil
	}
	yes, err := c.touch(c.ctx, c.node)
	if yes {
		return int64(1), err
	}
	return int64(0), err
}

func (c *redlockConn) Close() error { return nil }

var errUnused = errors.New("not used by redsync's Mutex")

func (c *redlockConn) Get(string) (string, error)            { return "", errUnused }
func (c *redlockConn) Set(string, string) (bool, error)      { return false, errUnused }
func (c *redlockConn) PTTL(string) (time.Duration, error)    { return 0, errUnused }
func (c *redlockConn) ScriptLoad(*redsyncredis.Script) error { return errUnused }

package redislock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Defaults of lock.LockerOptions.
const (
	DefaultPrefix  = "lock:"
	DefaultTimeout = 500 * time.Millisecond
)

// The statuses of a Reply to a request for a lock.
const (
	IsHeld    = 0 // Value: for how many ms more
	IsGranted = 1 // Value: the token
	IsLate    = 3 // the request was not carried out: it came after its bound, or was voided before
)

// Void returns the key that voids a request for the lock with this key. As long as it exists, the
// server does not carry out the request with this id.
func Void(key, id string) string { return key + ":" + id }

// VoidFor returns for how many milliseconds a Void has to exist: longer than a request with this
// time-out can still be carried out. It is sent within its time-out, and its bound is one time-out
// after that.
func VoidFor(timeout time.Duration) int64 { return (2*timeout + time.Second).Milliseconds() }

// Reply is the reply of a script about a lock.
type Reply struct {
	Status int64
	Value  int64
	Now    int64 // the time of the server, in microseconds
	Holder string
}

var errUnexpected = errors.New("unexpected reply from Redis")

// ReplyOf reads the reply to cmd: three numbers, and maybe a holder.
func ReplyOf(cmd *redis.Cmd) (r Reply, err error) {
	if err := cmd.Err(); err != nil {
		return r, err
	}
	reply, _ := cmd.Val().([]any)
	if len(reply) < 3 || len(reply) > 4 {
		return r, errUnexpected
	}
	for i, to := range []*int64{&r.Status, &r.Value, &r.Now} {
		n, ok := reply[i].(int64)
		if !ok {
			return Reply{}, errUnexpected
		}
		*to = n
	}
	if len(reply) == 4 {
		r.Holder, _ = reply[3].(string)
	}
	return r, nil
}

// Command returns an EVAL or EVALSHA.
func Command(ctx context.Context, name, body string, keys []string, args []any) *redis.Cmd {
	all := append(make([]any, 0, 3+len(keys)+len(args)), name, body, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	return redis.NewCmd(ctx, append(all, args...)...)
}

// Eval runs a script by send. With once, the client does not repeat the command. If send returns an
// error, the command may still be in use, and Eval returns that error; else it returns the
// command's own.
func Eval(ctx context.Context, send func(context.Context, []redis.Cmder) error, s conn.Script, once bool, keys []string, args ...any) (*redis.Cmd, error) {
	by := func(name, body string) (*redis.Cmd, error) {
		cmd := Command(ctx, name, body, keys, args)
		if once {
			return cmd, send(ctx, []redis.Cmder{conn.Once(cmd)})
		}
		return cmd, send(ctx, []redis.Cmder{cmd})
	}
	cmd, err := by("evalsha", s.Hash)
	if err == nil && conn.Unknown(cmd) {
		cmd, err = by("eval", s.Source)
	}
	if err != nil {
		return nil, err
	}
	return cmd, cmd.Err()
}

// Ask runs a script on this goroutine, also after c was closed. It may take longer than ctx, where
// the client does not heed that. The client sends nothing twice, so that each reply that is lost is
// known to be.
func Run(ctx context.Context, c *conn.Conn, s conn.Script, keys []string, args ...any) (Reply, error) {
	cmd, err := Eval(ctx, func(ctx context.Context, cmds []redis.Cmder) error { c.Process(ctx, cmds); return nil }, s, true, keys, args...)
	if err != nil {
		return Reply{}, err
	}
	return ReplyOf(cmd)
}

// Time is a script that replies with the time of the server.
var Time = conn.NewScript(`
local t = redis.call('TIME')
return {0, 0, t[1] * 1000000 + t[2]}`)

// Clock is what is known of the clock of one server. With it, a request for a lock can carry a
// bound: the time after which the server must not carry it out. A request that was delayed for
// longer, by the network or by a server that hangs, would take a lock that no caller releases. The
// zero Clock is unknown. It is safe for concurrent use.
type Clock struct{ last atomic.Pointer[reading] }

type reading struct {
	sent time.Time // before the clock was read
	now  int64     // what it showed, in microseconds
}

// Learn notes what the clock showed in the reply to a request that was sent then.
func (c *Clock) Learn(sent time.Time, now int64) { c.last.Store(&reading{sent, now}) }

// Bound returns the bound of a request that is sent now and may take for timeout. read asks the
// server for its time, where that is not known.
func (c *Clock) Bound(timeout time.Duration, read func() (Reply, error)) (int64, error) {
	r := c.last.Load()
	if r == nil {
		sent := time.Now()
		reply, err := read()
		if err != nil {
			return 0, err
		}
		r = &reading{sent, reply.Now}
		c.last.Store(r)
	}
	return r.now + (time.Since(r.sent) + timeout).Microseconds(), nil
}

package redislock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Defaults of lock.Options.
const (
	DefaultPrefix  = "lock:"
	DefaultTimeout = 500 * time.Millisecond
)

// Statuses of a Reply to a request for a lock.
const (
	IsHeld    = 0 // another holder has the lock; Value is the remaining time in ms
	IsGranted = 1 // Value is the token
	IsLate    = 3 // not carried out: the request arrived after its bound or was voided before
)

// Void returns the key that voids the request with this id for the lock with this key. While it
// exists, the server does not carry out the request.
func Void(key, id string) string { return key + ":" + id }

// VoidFor returns how long a Void must exist so that its request cannot be carried out later. It is
// three timeouts and a second. The request computes its bound within one timeout. The bound is one
// timeout later than the Clock's time, and the Clock is ahead of the server by at most one timeout.
// The second is a margin for clocks that run at different rates.
func VoidFor(timeout time.Duration) time.Duration { return 3*timeout + time.Second }

// Reply is the reply of a lock script.
type Reply struct {
	Status int64
	Value  int64
	Now    int64 // server time in microseconds
	Holder string
}

var errUnexpected = errors.New("unexpected reply from Redis")

// ReplyOf parses the reply to cmd: three numbers and an optional holder.
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

// Command returns an EVAL or EVALSHA command.
func Command(ctx context.Context, name, body string, keys []string, args []any) *redis.Cmd {
	all := append(make([]any, 0, 3+len(keys)+len(args)), name, body, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	return redis.NewCmd(ctx, append(all, args...)...)
}

// Eval runs a script with send. If once is set, the client does not repeat the command. If send
// returns an error, Eval returns it, and the command may still be in use. Otherwise Eval returns
// the command's own error.
func Eval(
	ctx context.Context, send func(context.Context, []redis.Cmder) error, s conn.Script, once bool, keys []string,
	args ...any,
) (*redis.Cmd, error) {
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

// Run runs a script on this goroutine, even after c was closed. It may take longer than ctx if
// the client ignores contexts. The client never repeats the command, so every lost reply is an
// error.
func Run(ctx context.Context, c *conn.Conn, s conn.Script, keys []string, args ...any) (Reply, error) {
	cmd, err := Eval(ctx, func(ctx context.Context, cmds []redis.Cmder) error { c.Process(ctx, cmds); return nil }, s,
		true, keys, args...)
	if err != nil {
		return Reply{}, err
	}
	return ReplyOf(cmd)
}

// Time is a script that replies with the time of the server.
var Time = conn.NewScript(`
local t = redis.call('TIME')
return {0, 0, t[1] * 1000000 + t[2]}`)

// Clock is a reading of one server's clock. With it, a request for a lock can carry a bound: the
// time after which the server must not carry it out. Otherwise a request that the network or a
// hanging server has delayed could acquire a lock that no caller releases. The zero Clock has no
// reading. A Clock is safe for concurrent use.
type Clock struct{ last atomic.Pointer[reading] }

type reading struct {
	sent time.Time // before the clock was read
	now  int64     // reading in microseconds
}

// Learn records the server time in a reply to a request with the given timeout. sent is when the
// request was sent. Learn reports false, and records nothing, if the timeout has passed since: the
// Clock would be ahead of the server by up to the time that the request has taken.
func (c *Clock) Learn(timeout time.Duration, sent time.Time, now int64) bool {
	inTime := time.Since(sent) <= timeout
	if inTime {
		c.last.Store(&reading{sent, now})
	}
	return inTime
}

// Bound returns the bound of a request with the given timeout that is sent now. It calls read to
// get the server time if the Clock has no reading, and fails if that takes longer than the timeout.
func (c *Clock) Bound(timeout time.Duration, read func() (Reply, error)) (int64, error) {
	r := c.last.Load()
	if r == nil {
		sent := time.Now()
		reply, err := read()
		if err != nil {
			return 0, err
		}
		if !c.Learn(timeout, sent, reply.Now) {
			return 0, context.DeadlineExceeded
		}
		r = &reading{sent, reply.Now}
	}
	return r.now + (time.Since(r.sent) + timeout).Microseconds(), nil
}

package lock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
)

// remembered is for how long after it is in the past a token is: a clock that is set back by less
// does no harm.
const remembered = time.Minute

// answer is what a script answers: a status, a number, the server's time in microseconds, and a
// holder.
type answer struct {
	status int64
	value  int64
	now    int64
	holder string
}

const (
	isHeld    = 0 // value: for how many ms more
	isGranted = 1 // value: the token
	isAdopted = 2 // likewise, of a request before, which is the holder
	isLate    = 3
)

// read is the beginning of scripts: the time, and what the key holds. redislock says what that is.
const read = redislock.Read

var (
	// ARGV: id, life in ms, not to be carried out after (µs), whether to be told of the release,
	// ids that may have got it before.
	acquireScript = conn.NewScript(read + `
if now > tonumber(ARGV[3]) then return {3, 0, now} end
local life = tonumber(ARGV[2])
local token = now
if value then
  if till * 1000 > now then
    for i = 5, #ARGV do
      if holder == ARGV[i] then
        redis.call('SET', KEYS[1], string.format('L1 %s %s %.0f %s', holder, last, now / 1000 + life, waited), 'PX', math.max(life, 60000 + math.ceil(math.max(last - now, 0) / 1000)))
        return {2, tonumber(last), now, holder}
      end
    end
    if ARGV[4] == '1' and waited == '0' then
      redis.call('SET', KEYS[1], string.sub(value, 1, -2) .. '1', 'KEEPTTL')
    end
    return {0, math.ceil(till - now / 1000), now}
  end
  token = math.max(last + 1, now)
end
redis.call('SET', KEYS[1], string.format('L1 %s %.0f %.0f 0', ARGV[1], token, now / 1000 + life), 'PX', math.max(life, 60000 + math.ceil((token - now) / 1000)))
return {1, token, now}`)

	// ARGV: id, life in ms.
	extendScript = conn.NewScript(read + `
if holder ~= ARGV[1] or till * 1000 <= now then return 0 end
local life = tonumber(ARGV[2])
redis.call('SET', KEYS[1], string.format('L1 %s %s %.0f %s', holder, last, now / 1000 + life, waited), 'PX', math.max(life, 60000 + math.ceil(math.max(last - now, 0) / 1000)))
return 1`)

	// ARGV: how the value begins, up to the token; what it is to be, and for how long.
	releaseScript = conn.NewScript(`
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
if string.sub(value, -1) == '1' then redis.call('PUBLISH', KEYS[1], '') end
return 1`)

	// ARGV: ids, one of which may have it.
	settleScript = conn.NewScript(read + `
for i = 1, #ARGV do
  if holder == ARGV[i] then
    redis.call('SET', KEYS[1], 'L1 - ' .. last .. ' 0 0', 'PX', 60000 + math.ceil(math.max(last - now, 0) / 1000))
    if waited == '1' then redis.call('PUBLISH', KEYS[1], '') end
  end
end
return {0, 0, now}`)

	timeScript = conn.NewScript(`
local t = redis.call('TIME')
return {0, 0, t[1] * 1000000 + t[2]}`)
)

// eval runs a script; once: the client must not repeat it. A timeout of 0: ctx has one.
func (d *redisDriver) eval(ctx context.Context, s conn.Script, once bool, key string, timeout time.Duration, args ...any) (*redis.Cmd, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	cmd, err := d.evalBy(ctx, "evalsha", s.Hash, once, key, args)
	if err == nil && conn.Unknown(cmd) {
		cmd, err = d.evalBy(ctx, "eval", s.Source, once, key, args)
	}
	if err != nil {
		return nil, err
	}
	return cmd, cmd.Err()
}

// ask runs a script that answers at length.
func (d *redisDriver) ask(ctx context.Context, s conn.Script, once bool, key string, timeout time.Duration, args ...any) (answer, error) {
	cmd, err := d.eval(ctx, s, once, key, timeout, args...)
	if err != nil {
		return answer{}, err
	}
	return answerOf(cmd)
}

// yes runs a script that answers whether it was so.
func (d *redisDriver) yes(ctx context.Context, s conn.Script, once bool, key string, timeout time.Duration, args ...any) (bool, error) {
	cmd, err := d.eval(ctx, s, once, key, timeout, args...)
	if err != nil {
		return false, err
	}
	n, err := cmd.Int()
	return n == 1, err
}

var errUnexpected = errors.New("an unexpected answer from Redis")

func answerOf(cmd *redis.Cmd) (a answer, err error) {
	if err := cmd.Err(); err != nil {
		return a, err
	}
	reply, _ := cmd.Val().([]any)
	if len(reply) < 3 || len(reply) > 4 {
		return a, errUnexpected
	}
	for i, to := range []*int64{&a.status, &a.value, &a.now} {
		n, ok := reply[i].(int64)
		if !ok {
			return answer{}, errUnexpected
		}
		*to = n
	}
	if len(reply) == 4 {
		a.holder, _ = reply[3].(string)
	}
	return a, nil
}

func (d *redisDriver) evalBy(ctx context.Context, name, body string, once bool, key string, args []any) (*redis.Cmd, error) {
	all := append(append(make([]any, 0, 4+len(args)), name, body, 1, key), args...)
	cmd := redis.NewCmd(ctx, all...)
	var sent redis.Cmder = cmd
	if once {
		sent = conn.Once(cmd)
	}
	return cmd, d.conn.Send(ctx, []redis.Cmder{sent})
}

// clocks is what is known of the clocks of the servers: so a request for a lock can say until when
// it is to be carried out. A request that has been delayed for longer, in a network or by a server
// that hangs, is not: nobody would release the lock.
type clocks struct {
	ranges [conn.Ranges]atomic.Pointer[reading]
}

type reading struct {
	sent time.Time // before the clock was read
	now  int64     // what it showed, in microseconds
}

func (c *clocks) learn(r int, sent time.Time, now int64) { c.ranges[r].Store(&reading{sent, now}) }

// bound is until when a request sent now is to be carried out.
func (d *redisDriver) bound(ctx context.Context, key string, timeout time.Duration) (int64, error) {
	r := d.conn.Range(key)
	c := d.clocks.ranges[r].Load()
	if c == nil {
		sent := time.Now()
		reply, err := d.ask(ctx, timeScript, false, key, timeout)
		if err != nil {
			return 0, err
		}
		c = &reading{sent, reply.now}
		d.clocks.ranges[r].Store(c)
	}
	return c.now + (time.Since(c.sent) + timeout).Microseconds(), nil
}

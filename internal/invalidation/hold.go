package invalidation

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// A key is on hold while there is a second one beside it (keys.Hold): a sorted set of those who
// hold it, each with the end of its hold, Unix milliseconds by Redis' clock, and itself with the
// last of them as its end of life. So readers need only ask whether it is there, and no hold is
// ended by another's end. Package lease gives no lease of the key meanwhile.
//
// Each script touches the set alone, by its own name, so that it can be carried out while a cluster
// moves the slot, which may be half done: the key here, the hold there. A hold need not be one with
// the change of the key, if that comes behind it: a lease from before the hold is voided by the
// change, and after the hold none is given.
//
// A writer that has not left, though its hold is over, stays in the set until the next writer
// comes, or the set ends: it may have been killed when it had written, and another that held the
// key at the same time must not take itself for the only one.

// lagHolder holds what was invalidated until replicas of the database have heard of it.
const lagHolder = "lag"

// holdScript puts a key on hold. It may be repeated: a hold is never made shorter. A full Redis
// refuses ZADD, but not in a script that has already written, as ZREM does, whatever there is; and
// where the name holds something else, that fails before anything has changed. No script empties
// the set but with its last command: while a cluster moves the slot, a server refuses whatever a
// script does with a key that is not there any more. ARGV: the holder, for how long, in ms.
var holdScript = conn.NewScript(clockMS + `
redis.call('ZREM', KEYS[1], '')
local ends = math.max(now + ARGV[2], tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0))
redis.call('ZADD', KEYS[1], string.format('%.0f', ends), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1] == 'lag' and 0 or now)
redis.call('PEXPIRE', KEYS[1], math.max(last() - now, 1))
return 1`)

// renewScript holds a key for longer, if it has been held all the time. A hold that was lost is not
// taken again: something may have been stored since. The set is made to live longer first, which
// also lets a full Redis take the rest. ARGV as above. Answers 0 if it was lost.
var renewScript = conn.NewScript(clockMS + `
local held = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0)
if held <= now then return 0 end
redis.call('PEXPIRE', KEYS[1], math.max(last() - now, ARGV[2]))
redis.call('ZADD', KEYS[1], string.format('%.0f', math.max(now + ARGV[2], held)), ARGV[1])
return 1`)

// leaveScript ends one's hold of a key. ARGV: the holder.
var leaveScript = conn.NewScript(clockMS + `
local others = #redis.call('ZRANGE', KEYS[1], 0, 1) > 1
redis.call('ZREM', KEYS[1], ARGV[1])
if others then redis.call('PEXPIRE', KEYS[1], last() - now) end
return 1`)

// clockMS gives the scripts Redis' time in milliseconds, and when the last hold of the set ends.
const clockMS = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function last() return tonumber(redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2] or 0) end`

// Lag has each delete put its key on hold for so long: whole milliseconds. It is called before all
// else, if at all.
func (c *Bus) Lag(lag time.Duration) { c.lag = lag }

// Hold puts keys on hold under a token that is used for nothing else, for life; then it changes
// them by mark, which voids what is under way, and announces them as Delete does. It returns an
// error for each key, nil where Redis has acknowledged all. It is sent once: what was not answered
// may come about later, and its token must not be used again.
func (c *Bus) Hold(ctx context.Context, names []string, hashes []uint64, token string, life time.Duration, mark Change) []error {
	errs, _ := c.do(ctx, names, hashes, job{holder: token, hold: life, change: mark, once: true})
	return errs
}

// Release is Delete, after which the holds of keys under these tokens end: before, another holder
// might take itself for the only one, and store an older value. It also returns whose hold has
// ended.
func (c *Bus) Release(ctx context.Context, names []string, hashes []uint64, tokens []string) (errs []error, left []bool) {
	errs, parts := c.do(ctx, names, hashes, job{holder: lagHolder, hold: c.lag, change: del, leaves: tokens})
	left = make([]bool, len(names))
	for _, p := range parts {
		for i, cmd := range p.left {
			left[p.at[i]] = cmd.Err() == nil
		}
	}
	return errs, left
}

// prepareHolds prepares the holds of a part's keys, and their ends.
func (p *part) prepareHolds(ctx context.Context) {
	p.holds, p.left = nil, nil
	for i, name := range p.names {
		if p.hold > 0 {
			hold := script(ctx, "evalsha", holdScript.Hash, keys.Hold(name), []any{p.holder, p.hold.Milliseconds()})
			if p.holds = append(p.holds, hold); p.once {
				p.holds[i] = conn.Once(hold)
			}
		}
		if p.leaves != nil {
			p.left = append(p.left, script(ctx, "evalsha", leaveScript.Hash, keys.Hold(name), []any{p.leaves[i]}))
			p.left[i].SetErr(errNotLeft) // until it is
		}
	}
}

var errNotLeft = errors.New("not left yet")

// unanswered tells whether something that must not be sent again may yet be carried out.
func (p *part) unanswered() bool {
	return p.once && slices.ContainsFunc(slices.Concat(p.holds, p.dels), func(cmd redis.Cmder) bool {
		return cmd.Err() != nil && !conn.IsReply(cmd.Err())
	})
}

// leave ends the holds that are to be ended, of keys that have been changed.
func (c *Bus) leave(ctx context.Context, p *part) {
	var unsent []redis.Cmder
	for i, cmd := range p.left {
		if p.failed(i) == nil && errors.Is(cmd.Err(), errNotLeft) {
			unsent = append(unsent, cmd)
		}
	}
	if len(unsent) > 0 {
		c.conn.Process(ctx, unsent)
	}
	c.inFull(ctx, p.left, leaveScript)
}

// inFull sends those scripts once more that the server does not know.
func (c *Bus) inFull(ctx context.Context, cmds []redis.Cmder, s conn.Script) {
	var unknown []redis.Cmder
	for i, cmd := range cmds {
		if conn.Unknown(cmd) {
			cmds[i] = full(ctx, cmd, s)
			unknown = append(unknown, cmds[i])
		}
	}
	if len(unknown) > 0 {
		c.conn.Process(ctx, unknown)
	}
}

// full is the command that sends a script in full.
func full(ctx context.Context, cmd redis.Cmder, s conn.Script) redis.Cmder {
	whole := redis.NewCmd(ctx, append([]any{"eval", s.Source}, cmd.Args()[2:]...)...)
	if cmd.NoRetry() {
		return conn.Once(whole)
	}
	return whole
}

// Renew keeps keys on hold under these tokens for another life, and their marks by keep; in one
// trip. It returns for each key whether it has been on hold all the time, or an error.
func (c *Bus) Renew(ctx context.Context, names, tokens []string, life time.Duration, keep func(ctx context.Context, name, token string) redis.Cmder) (held []bool, errs []error) {
	n := len(names)
	cmds := make([]redis.Cmder, 2*n)
	for i, name := range names {
		cmds[i] = script(ctx, "evalsha", renewScript.Hash, keys.Hold(name), []any{tokens[i], life.Milliseconds()})
		cmds[n+i] = keep(ctx, name, tokens[i])
	}
	errs = c.askAll(ctx, cmds, renewScript)
	held = make([]bool, n)
	for i := range names {
		if errs[i] = cmp.Or(errs[i], errs[n+i]); errs[i] == nil {
			held[i] = cmds[i].(*redis.Cmd).Val() == int64(1)
		}
	}
	return held, errs[:n]
}

// askAll returns the error of each command; one that has failed may not be read.
func (c *Bus) askAll(ctx context.Context, cmds []redis.Cmder, s conn.Script) []error {
	bound, cancel := context.WithTimeout(ctx, c.conn.Timeout())
	defer cancel()
	sent := c.conn.Ask(ctx, bound, cmds)
	errs := make([]error, len(cmds))
	var unknown []redis.Cmder
	var at []int
	for i, cmd := range cmds {
		if errs[i] = sent.Err(i); errs[i] != nil {
			continue
		}
		errs[i] = cmd.Err()
		if conn.Unknown(cmd) {
			cmds[i] = full(ctx, cmd, s)
			unknown, at = append(unknown, cmds[i]), append(at, i)
		}
	}
	if len(unknown) > 0 {
		for j, err := range c.askAll(ctx, unknown, s) {
			errs[at[j]] = err
		}
	}
	return errs
}

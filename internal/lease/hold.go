package lease

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// A key is on hold while it must not be cached: while a load of it may see what a replica of the
// database has not heard of yet, for a time after its delete, or after its loader's generation was
// raised; and while its row is being written, from before the commit until after the delete. There
// is a second key then, a set of those who hold it (see package invalidation), and no lease is
// given of it, and no claim. A fill need not look: a process with a lease took it before the hold,
// and the change of the key that came with the hold has voided it; or the process took it after the
// hold, and so has loaded after the hold.
//
// A writer's hold puts a mark in the place of what the key holds: the writer's token. The mark
// shows readers in their first look that the key is on hold; and it lets the writer tell whether
// anybody has invalidated or held the key since, for any delete removes it.

// Hold has the store ask whether keys are on hold, and tells for how long they are after an
// invalidation: whole milliseconds. It is called before all else, if at all.
func (s *Store) Hold(lag time.Duration) { s.holds, s.lag = true, lag }

// NewToken draws the token of a hold.
func NewToken() string {
	t := newToken()
	return string(t[:])
}

// Mark is the change that voids what a key's load under way may do, and marks the key as held under
// token, for life. It is not repeated: a mark that comes late would stand for an invalidation that
// has not been.
func Mark(token string, life time.Duration) func(ctx context.Context, key string) redis.Cmder {
	return func(ctx context.Context, key string) redis.Cmder {
		return conn.Once(redis.NewCmd(ctx, "eval", markScript.Source, 1, key, appendMark(nil, token), life.Milliseconds()))
	}
}

// KeepMark is the command that lets a mark live for another life, if it is still there.
func KeepMark(ctx context.Context, key, token string, life time.Duration) redis.Cmder {
	return redis.NewCmd(ctx, "eval", keepMarkScript.Source, 1, key, appendMark(nil, token), life.Milliseconds())
}

// markScript works in a full Redis, too, since it has written something when it comes to SET, which
// takes a key of any type; DEL would do for that, but not while a cluster moves the slot, when a
// server refuses what a script does with a key that is not there any more. ARGV: mark, its life in
// ms.
var markScript = conn.NewScript(`
redis.call('PERSIST', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`)

// keepMarkScript: ARGV as above.
var keepMarkScript = conn.NewScript(`
if redis.call('GETRANGE', KEYS[1], 0, 13) == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1`)

// exchangeScript ends a hold by storing what its holder has written: if the key still has the
// holder's mark, so that nobody has invalidated or held the key since, and nobody else is in the
// set: another writer may be about to write, or have written and not told of it yet; also where
// that writer's hold is over, for it may have been killed then. A hold of the key for replicas that
// lag writes nothing; where they are read, it goes on holding it, for what is loaded when the entry
// has gone may still be from before. A full Redis refuses it. KEYS: key, its hold. ARGV: mark,
// entry, its life in ms, the lag in ms. Answers 1 if it is stored.
var exchangeScript = conn.NewScript(`
if redis.call('GETRANGE', KEYS[1], 0, 13) ~= ARGV[1] then return 0 end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local token, mine = string.sub(ARGV[1], 3), false
local holders = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #holders, 2 do
  if holders[i] == token then
    mine = tonumber(holders[i + 1]) > now
  elseif holders[i] ~= 'lag' then
    return 0
  end
end
if not mine then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
if tonumber(ARGV[4]) > 0 then
  local ends = math.max(now + ARGV[4], tonumber(redis.call('ZSCORE', KEYS[2], 'lag') or 0))
  redis.call('ZADD', KEYS[2], string.format('%.0f', ends), 'lag')
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', ends - now))
end
redis.call('ZREM', KEYS[2], token)
return 1`)

// keys returns the keys of a script on key. One that asks for a lease is also given the hold.
func (s *Store) keys(key string, asks bool) []any {
	if !asks || !s.holds {
		return []any{key}
	}
	return []any{key, keys.Hold(key)}
}

// holdArgs returns what else a script that asks for a lease must know. For young see Attempt.
func (s *Store) holdArgs(young uint64) []any {
	switch {
	case !s.holds:
		return nil
	case young == 0:
		return []any{s.lag.Milliseconds(), ""}
	default:
		return []any{s.lag.Milliseconds(), strconv.FormatUint(young, 10)}
	}
}

package lease

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// A key on hold must not be cached. There are two reasons for a hold:
//
//   - A load may read from a replica of the database that lags behind. Therefore a key is on hold
//     for some time after its delete, and all keys of a loader after its generation was raised.
//   - The row is being written. Therefore its key is on hold from before the commit until after
//     the delete.
//
// While a key is on hold there is a second key, the set of its holders (see package invalidation),
// and no lease or claim is granted. A fill need not check for holds. If its lease was granted
// before the hold began, the delete or the mark that came with the hold has removed the lease. If
// its lease was granted after the hold had ended, its load began after that, too.
//
// The hold of a writer replaces the content of the key with a mark, which contains the writer's
// token. The mark shows readers in their first read that the key is on hold. It also shows the
// writer whether the key was invalidated or held since, because any delete removes it.

// Hold makes the store check whether keys are on hold. lag is how long a key stays on hold after an
// invalidation; it must be whole milliseconds. Hold must be called before any other method.
func (s *Store) Hold(lag time.Duration) { s.holds, s.lag = true, lag }

// NewToken returns a new token for a hold.
func NewToken() string {
	t := newToken()
	return string(t[:])
}

// Mark returns the command that voids any load in progress of a key and marks the key as held under
// token for life. The command is sent only once. If it were repeated, a late one could restore a
// mark that an invalidation has removed since.
func Mark(token string, life time.Duration) func(ctx context.Context, key string) redis.Cmder {
	return func(ctx context.Context, key string) redis.Cmder {
		return conn.Once(redis.NewCmd(ctx, "eval", markScript.Source, 1, key, appendMark(nil, token),
			life.Milliseconds()))
	}
}

// KeepMark returns the command that extends a mark by another life, if it is still there.
func KeepMark(ctx context.Context, key, token string, life time.Duration) redis.Cmder {
	return redis.NewCmd(ctx, "eval", keepMarkScript.Source, 1, key, appendMark(nil, token), life.Milliseconds())
}

// markScript sets a mark on a key of any type. It begins with PERSIST, because a full Redis
// refuses commands that use memory unless the script has already written something. It does not
// begin with DEL: while a cluster moves the slot, a server refuses the commands of a script on a
// key that no longer exists. ARGV: mark, its life in ms.
var markScript = conn.NewScript(`
redis.call('PERSIST', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`)

// keepMarkScript extends the life of a mark. ARGV: mark, life in ms.
var keepMarkScript = conn.NewScript(`
if redis.call('GETRANGE', KEYS[1], 0, 13) == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1`)

// exchangeScript ends a hold and stores what its holder has written. It requires that
//
//   - the key has the holder's mark, so that it was not invalidated or held since;
//   - no other writer is in the set of holders, not even one whose hold has expired. Such a
//     writer may be about to write, or was killed between its commit and its invalidation.
//
// The holder "lag", for replicas that lag behind, is not a writer, and does not prevent the
// exchange. If ARGV[4] is not 0, the key stays on hold for that time after the exchange. A load
// that begins when the entry is gone could otherwise read an older row from a replica. A full
// Redis refuses the script. KEYS: key, its hold; for a long entry also a temporary key that holds
// it. ARGV: mark, entry, its life in ms, the lag in ms.
// Returns 1 if the entry is stored.
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
if KEYS[3] then
  if redis.call('EXISTS', KEYS[3]) == 0 then return 0 end
  redis.call('RENAME', KEYS[3], KEYS[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
if tonumber(ARGV[4]) > 0 then
  local ends = math.max(now + ARGV[4], tonumber(redis.call('ZSCORE', KEYS[2], 'lag') or 0))
  redis.call('ZADD', KEYS[2], string.format('%.0f', ends), 'lag')
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', ends - now))
end
redis.call('ZREM', KEYS[2], token)
return 1`)

// keys returns the keys of a script on key. If forLease is true, the script requests a lease, and
// needs the set of holders as well.
func (s *Store) keys(key string, forLease bool) []any {
	if !forLease || !s.holds {
		return []any{key}
	}
	return []any{key, keys.Hold(key)}
}

// holdArgs returns the arguments of onHold. young is Attempt.Young.
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

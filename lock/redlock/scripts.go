package redlock

import (
	"github.com/cacheaside/cacheaside/internal/conn"
)

// On each node a lock is a string, the id of its round, which expires with the lock. A second key
// has the last fencing token that was stored there. It expires a minute after the token is in the
// past by the clock of the node.
const scriptHead = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local holder = redis.call('GET', KEYS[1])
local function token()
  local value = redis.call('GET', KEYS[2]) or '0'
  if #value > 16 or not string.match(value, '^%d+$') then return nil end
  return tonumber(value)
end
`

// isTwice is a status of a reply in addition to redislock.IsHeld (Value: for how many ms more;
// Holder: whose), IsGranted (Value: the last token) and IsLate: the server has been asked in the
// same round already.
const isTwice = 4

var (
	// KEYS: the lock, its token, and redislock.Void of the id. ARGV: id, life in ms, not to be
	// carried out after (µs), ids of rounds before of the same contender, which it has given up.
	acquireScript = conn.NewScript(scriptHead + `
if now > tonumber(ARGV[3]) or redis.call('GET', KEYS[3]) then return {3, 0, now, ''} end
if holder == ARGV[1] then return {4, 0, now, ''} end
local free = not holder
for i = 4, #ARGV do free = free or holder == ARGV[i] end
if not free then
  local ms = redis.call('PTTL', KEYS[1])
  if ms < 0 then ms = 1000 end
  return {0, ms, now, holder}
end
local last = token()
if not last then return redis.error_reply('ERR the key of the token holds something else') end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, last, now, ''}`)

	// ARGV: id, token. It is stored only where the lock is held, so that of two tokens on one node
	// the later lock's is the greater. Replies with 1 if it was stored.
	tokenScript = conn.NewScript(scriptHead + `
if holder ~= ARGV[1] then return 0 end
local last = token()
if not last or last >= tonumber(ARGV[2]) then return 0 end
local ms = math.ceil(ARGV[2] / 1000) + 60000 - math.floor(now / 1000)
redis.call('SET', KEYS[2], ARGV[2], 'PX', string.format('%.0f', math.max(ms, 60000)))
return 1`)

	// KEYS: the lock, and redislock.Void of the id. ARGV: id, and for how many ms its request for
	// the lock is to be void; 0 if it has come already. The contenders that wait are notified, also
	// when a round that has failed gives its vote back: two contenders that have each other's votes
	// would both sleep.
	releaseScript = conn.NewScript(scriptHead + `
if ARGV[2] ~= '0' then redis.call('SET', KEYS[2], '', 'PX', ARGV[2]) end
if holder ~= ARGV[1] then return {0, 0, now, ''} end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[1], '')
return {1, 0, now, ''}`)
)

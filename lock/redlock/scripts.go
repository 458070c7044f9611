package redlock

import (
	"github.com/cacheaside/cacheaside/internal/conn"
)

// On each node a lock is a string, the id of its round, which expires with the lock. A second key
// holds the last fencing token that was stored on the node. It expires a minute after the time
// that the token encodes, by the clock of the node.
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

// isTwice is an additional status of a reply: another client of the same round has already
// requested the lock from this server. The other statuses are redislock.IsHeld (Value: remaining
// time in ms; Holder: id of the holder), IsGranted (Value: last token) and IsLate.
const isTwice = 4

var (
	// KEYS: the lock, its token, and redislock.Void of the id. ARGV: id, TTL in ms, time after
	// which the request must not be carried out (µs), ids of earlier rounds of the same
	// contender.
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
if not last then return redis.error_reply('ERR the key of the token holds another value') end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, last, now, ''}`)

	// ARGV: id, token. The script stores the token only if the round holds the lock and the
	// stored token is smaller, so a later lock has a greater token. It returns 1 if it has stored
	// the token.
	tokenScript = conn.NewScript(scriptHead + `
if holder ~= ARGV[1] then return 0 end
local last = token()
if not last or last >= tonumber(ARGV[2]) then return 0 end
local ms = math.ceil(ARGV[2] / 1000) + 60000 - math.floor(now / 1000)
redis.call('SET', KEYS[2], ARGV[2], 'PX', string.format('%.0f', math.max(ms, 60000)))
return 1`)

	// KEYS: the lock, and redislock.Void of the id. ARGV: id, and how long its request for the
	// lock is void in ms (0 if the request is known to have arrived). The script also notifies
	// waiting contenders when a failed round frees its vote. Otherwise two contenders that have
	// each other's votes would both sleep. The vote is freed first, because a full Redis refuses a
	// SET unless the script has already written.
	releaseScript = conn.NewScript(scriptHead + `
local had = 0
if holder == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', KEYS[1], '')
  had = 1
end
if ARGV[2] ~= '0' then redis.call('SET', KEYS[2], '', 'PX', ARGV[2]) end
return {had, 0, now, ''}`)
)

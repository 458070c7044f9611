package lock

import (
	"github.com/cacheaside/cacheaside/internal/conn"
)

// On each node a lock is a string, the id of its round, with the life of the lock; and beside it
// another, the last fencing token that was stored there, which lives until a minute after it is in
// the past by the clock of the node.
const redlockHead = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local holder = redis.call('GET', KEYS[1])
local function token()
  local value = redis.call('GET', KEYS[2]) or '0'
  if #value > 16 or not string.match(value, '^%d+$') then return nil end
  return tonumber(value)
end
`

// Answers of the script beside isHeld (value: for how many ms more; holder: whose), isGranted
// (value: the last token) and isLate.
const (
	isTwice  = 4 // this server has been asked in the same round
	isPassed = 5 // a token as great, or greater, has been stored
	isGone   = 6 // the lock is not there, or another's
)

var (
	// ARGV: id, life in ms, not to be carried out after (µs), ids of rounds before of the same
	// contender, which it has given up.
	redlockAcquire = conn.NewScript(redlockHead + `
if now > tonumber(ARGV[3]) then return {3, 0, now, ''} end
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
	// the later lock's is the greater.
	redlockToken = conn.NewScript(redlockHead + `
if holder ~= ARGV[1] then return {6, 0, now, ''} end
local last = token()
if not last or last >= tonumber(ARGV[2]) then return {5, 0, now, ''} end
local ms = math.ceil(ARGV[2] / 1000) + 60000 - math.floor(now / 1000)
redis.call('SET', KEYS[2], ARGV[2], 'PX', string.format('%.0f', math.max(ms, 60000)))
return {1, 0, now, ''}`)

	// ARGV: id, life in ms.
	redlockExtend = conn.NewScript(redlockHead + `
if holder ~= ARGV[1] then return {6, 0, now, ''} end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, 0, now, ''}`)

	// ARGV: id. Those who wait are told, also when it is the vote of a round that has failed: two
	// who have each others' votes would both sleep.
	redlockRelease = conn.NewScript(redlockHead + `
if holder ~= ARGV[1] then return {6, 0, now, ''} end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[1], '')
return {1, 0, now, ''}`)
)

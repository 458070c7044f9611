package lock

import (
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
)

// tokenMargin is how long a token is remembered after the time that it encodes has passed. Tokens
// keep increasing if the clock is set back by less than this.
const tokenMargin = time.Minute

// read is the beginning of a script: it reads the time and the key. See package redislock for the
// format.
const read = redislock.Read

// redisScripts are the scripts of one kind of lock.
type redisScripts struct{ acquire, extend, release, cleanUp conn.Script }

var exclusiveScripts = redisScripts{acquireScript, extendScript, releaseScript, cleanUpScript}

var (
	// KEYS: the lock, and redislock.Void of the id, except while the slot is moved. ARGV: id, TTL
	// in ms, time after which the request must not be carried out (µs), whether to announce the
	// release (1 or 0), ids of earlier requests that may hold the lock.
	acquireScript = conn.NewScript(read + `
if now > tonumber(ARGV[3]) or KEYS[2] and redis.call('GET', KEYS[2]) then return {3, 0, now} end
local life, token, mark = tonumber(ARGV[2]), now, '0'
if value then
  if till * 1000 > now then
    local mine = false
    for i = 5, #ARGV do mine = mine or holder == ARGV[i] end
    if not mine then
      if ARGV[4] == '1' and waited == '0' then
        redis.call('SET', KEYS[1], string.sub(value, 1, -2) .. '1', 'KEEPTTL')
      end
      return {0, math.ceil(till - now / 1000), now}
    end
    mark = waited
  end
  token = math.max(last + 1, now)
end
redis.call('SET', KEYS[1], string.format('L1 %s %.0f %.0f %s', ARGV[1], token, now / 1000 + life, mark), 'PX',
  math.max(life, 60000 + math.ceil((token - now) / 1000)))
return {1, token, now}`)

	// ARGV: id, TTL in ms.
	extendScript = conn.NewScript(read + `
if holder ~= ARGV[1] or till * 1000 <= now then return {0, 0, now} end
local life = tonumber(ARGV[2])
redis.call('SET', KEYS[1], string.format('L1 %s %s %.0f %s', holder, last, now / 1000 + life, waited), 'PX',
  math.max(life, 60000 + math.ceil(math.max(last - now, 0) / 1000)))
return {1, 0, now}`)

	// ARGV: the beginning of the expected value, up to the token; the new value; its TTL in ms.
	releaseScript = conn.NewScript(`
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, #ARGV[1]) ~= ARGV[1] then return {0, 0, 0} end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
if string.sub(value, -1) == '1' then redis.call('PUBLISH', KEYS[1], '') end
return {1, 0, 0}`)

	// KEYS: the lock, and redislock.Void of each id, except while the slot is moved. ARGV: how
	// long the requests are void, in ms; the ids, one of which may hold the lock.
	cleanUpScript = conn.NewScript(read + `
for i = 2, #ARGV do
  if KEYS[i] then redis.call('SET', KEYS[i], '', 'PX', ARGV[1]) end
  if holder == ARGV[i] then
    redis.call('SET', KEYS[1], 'L1 - ' .. last .. ' 0 0', 'PX', 60000 + math.ceil(math.max(last - now, 0) / 1000))
    if waited == '1' then redis.call('PUBLISH', KEYS[1], '') end
  end
end
return {1, 0, now}`)
)

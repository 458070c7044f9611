package invalidation

import (
	"github.com/cacheaside/cacheaside/internal/conn"
)

// For each range there is one hash in Redis: in the field '' the number of the last announcement,
// and for each loader the generation of its entries. Both are microseconds by Redis' clock, or a
// little more than what was there, if that is later: so they only grow, also where the hash was
// lost, and are a time as well. It has no end of life, for its loss would end all that is cached;
// there is one for each range, not for each key.

// announceScript numbers a message and publishes it, both or neither. With a loader's name it also
// makes the number the loader's generation, if it has one: else no process has asked for it, and a
// process that does will get one that is greater, so that names from outside, of loaders that
// nobody has, leave nothing behind. ARGV: channel, what stands before the numbers, what stands
// behind, loader or "", and a step, at random, for where the clock is behind the number before: two
// servers that go on from the same number, after failovers, do not give the same ones. Answers the
// number.
var announceScript = conn.NewScript(clock + `
local prev = count('')
local generation, known = 0, false
if ARGV[4] ~= '' then generation, known = count(ARGV[4]) end
local n = math.max(prev, generation)
if now > n then n = now else n = n + ARGV[5] end
n = string.format('%.0f', n)
set('', n)
if known then set(ARGV[4], n) end
redis.call('PUBLISH', ARGV[1], ARGV[2] .. string.format('%.0f', prev) .. ' ' .. n .. ' ' .. ARGV[3])
return n`)

// pollScript answers Redis' time, the number of the last announcement, and the generation of each
// loader in ARGV. A loader that has none gets one of now: if it was lost, with all entries or
// alone, nothing from before counts. So does the number, for 0 would be the same after each loss: a
// process that has heard of none would believe that there was none, when there was one and Redis
// has lost its data since. First it asks for a write that changes nothing: a server that refuses
// writes, as a replica does, must not confirm what memory holds.
var pollScript = conn.NewScript(clock + `
redis.call('PERSIST', KEYS[1])
local number = count('')
if number == 0 then
  number = now - 1
  set('', string.format('%.0f', number))
end
local reply = {string.format('%.0f', now), string.format('%.0f', number)}
for i = 1, #ARGV do
  local g = count(ARGV[i])
  if g == 0 then
    g = math.max(number + 1, now)
    set(ARGV[i], string.format('%.0f', g))
  end
  reply[i + 2] = string.format('%.0f', g)
end
return reply`)

// clock gives the scripts Redis' time in microseconds, and what a field counts: 0 if it is not
// there, or holds what no script has put there; and whether it is there. Where the name holds
// another thing than a hash, that is deleted: it is as if the hash had been lost. A full Redis
// refuses HSET, and with it every invalidation, which would free memory; but not in a script that
// has already written, as PERSIST does.
const clock = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local function count(field)
  local v = redis.pcall('HGET', KEYS[1], field)
  if type(v) == 'table' then
    if string.find(v.err, 'WRONGTYPE', 1, true) then redis.call('DEL', KEYS[1]) end
    v = redis.call('HGET', KEYS[1], field)
  end
  local n = tonumber(v or 0) or 0
  if n >= 1 and n <= 4503599627370496 then return math.floor(n), true end
  return 0, v ~= false
end
local function set(field, n)
  redis.call('PERSIST', KEYS[1])
  redis.call('HSET', KEYS[1], field, n)
end`

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

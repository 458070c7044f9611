package invalidation

import "github.com/cacheaside/cacheaside/internal/conn"

// Redis has one hash per range. Its field '' holds the number of the last announcement, and a
// field for each loader holds the generation of its entries. The field LOADER:groups exists if a
// program uses or invalidates groups of the loader. Numbers and generations are microseconds of
// Redis' clock, or slightly more than the previous value if the clock is behind it. So they only
// grow, even if the hash is lost, and each is approximately the time of its announcement. The hash
// does not expire, because its loss would outdate everything that is cached. The number of hashes
// does not depend on the number of keys.

// A fleet of many processes could not receive a message for each of its writes. So invalidations of
// keys and groups are gathered in the field ':pending', if the last message was published less than
// 100 µs ago for each of its receivers, at most 15 ms. They are numbered as all others, and are
// delivered together in one message: by the process whose announcement was the first of them, or by
// another announcement after that time, which the field ':due' holds. If that process is killed and
// no announcement follows, it is as if a message were lost: polls find that numbers are missing.
//
// gather defines the functions deliver, which publishes what is pending, and announce, which
// publishes an announcement, or gathers it if may_wait is true. Their callers have written before.
// last, prev and n are decimal numbers: the last one, that before the announcement, and its own.
// announce returns n. If the announcement is the first that is gathered, it also returns the
// microseconds after which the caller delivers. At most 8 KB are gathered; the announcement that
// exceeds them delivers them. With fewer than ten receivers nothing is gathered. A time that is too
// far ahead is ignored, because Redis' clock may have been set back.
var gather = `
local function published(receivers)
  local gap = math.min(receivers * 100, 15000)
  if gap >= 1000 then redis.call('HSET', KEYS[1], ':due', string.format('%.0f', now + gap)) end
end
local function deliver(channel, head, pending, last)
  redis.call('HSET', KEYS[1], ':pending', '')
  published(redis.call('PUBLISH', channel, string.sub(head, 1, 2) .. string.rep(string.char(0), 8) ..
    string.match(pending, '^%d+') .. ' ' .. last .. ' n' .. pending))
end
local function gathered()
  local due = redis.call('HGET', KEYS[1], ':due')
  if not due then return '', 0 end -- nothing was gathered yet
  local wait = (tonumber(due) or 0) - now
  if wait > 1000000 then wait = 0 end
  return redis.call('HGET', KEYS[1], ':pending') or '', wait
end
local function announce(channel, head, prev, n, part, may_wait)
  local pending, wait = gathered()
  if may_wait and (pending ~= '' or wait > 0) then
    local all = pending .. prev .. ' ' .. n .. ' ' .. #part .. ' ' .. string.sub(head, 3) .. part
    if wait > 0 and #all <= 8192 then
      redis.call('HSET', KEYS[1], ':pending', all)
      return pending == '' and n .. ' ' .. string.format('%.0f', wait) or n
    end
    deliver(channel, head, all, n)
    return n
  end
  if pending ~= '' then deliver(channel, head, pending, prev) end
  published(redis.call('PUBLISH', channel, head .. prev .. ' ' .. n .. ' ' .. part))
  return n
end`

// deliverScript delivers what is pending, if its time has come or ARGV[3] is 1. ARGV: channel, the
// part of a message before the numbers.
var deliverScript = conn.NewScript(clock + gather + `
local pending, wait = gathered()
if pending == '' or wait > 0 and ARGV[3] ~= '1' then return 0 end
redis.call('PERSIST', KEYS[1])
deliver(ARGV[1], ARGV[2], pending, string.format('%.0f', count('')))
return 1`)

// announceScript numbers a message and publishes or gathers it, both or neither. Given a loader's
// name, it also sets the loader's generation to the number, if the loader has one. If it has none,
// no process has polled for this loader, and the first process that does gets a greater generation.
// So unknown names from outside leave nothing in Redis. ARGV: channel, the part before the numbers,
// the part after them, loader or "", and a random step, used if the clock is behind the previous
// number: two servers that continue from the same number after a failover do not issue the same
// numbers. The script returns what announce returns.
var announceScript = conn.NewScript(clock + gather + `
local prev = count('')
local generation, known = 0, false
if ARGV[4] ~= '' then generation, known = count(ARGV[4]) end
local n = math.max(prev, generation)
if now > n then n = now else n = n + ARGV[5] end
n, prev = string.format('%.0f', n), string.format('%.0f', prev)
set('', n)
if known then set(ARGV[4], n) end
return announce(ARGV[1], ARGV[2], prev, n, ARGV[3], string.sub(ARGV[3], 1, 1) == 'k')`)

// pollScript returns Redis' time, the number of the last announcement, and for each loader its
// generation, and 1 if a program uses or invalidates groups of it, otherwise 0. ARGV has two values
// for each loader: its name, and 1 if the caller uses groups of it, otherwise 0. A loader without a
// generation gets one from the clock: if Redis has lost the generation, all entries from before are
// outdated. A missing number is created in the same way. 0 would be the same after each loss, and
// would hide an announcement between two losses. The script first executes a write that changes
// nothing: a server that refuses writes, such as a replica, must not confirm what memory holds.
var pollScript = conn.NewScript(clock + `
redis.call('PERSIST', KEYS[1])
local number = count('')
if number == 0 then
  number = now - 1
  set('', string.format('%.0f', number))
end
local reply = {string.format('%.0f', now), string.format('%.0f', number)}
for i = 1, #ARGV, 2 do
  local g = count(ARGV[i])
  if g == 0 then
    g = math.max(number + 1, now)
    set(ARGV[i], string.format('%.0f', g))
  end
  local grouped = redis.call('HGET', KEYS[1], ARGV[i] .. ':groups')
  if ARGV[i + 1] == '1' and not grouped then set(ARGV[i] .. ':groups', 1) end
  reply[i + 2], reply[i + 3] = string.format('%.0f', g), grouped and '1' or ARGV[i + 1]
end
return reply`)

// clock defines the variable now, which is Redis' time in microseconds, and the function count,
// which returns the number in a field and whether the field exists. The number is 0 if the field is
// missing or was not written by a script. If the key is not a hash, count deletes it, which has the
// effect of a lost hash. A full Redis refuses HSET, and so every invalidation, which would free
// memory. It accepts HSET in a script that has already written, so set begins with PERSIST.
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

// lagHolder is the token of the hold that lasts until the database's replicas have caught up.
const lagHolder = "lag"

// holdScript puts a key on hold. It may be repeated, because it never shortens a hold. A full
// Redis refuses ZADD, but not in a script that has already written, so the script begins with
// ZREM. If the key is not a sorted set, that command fails before anything has changed. A script
// empties the set only with its last command: while a cluster migrates the slot, a server refuses
// commands on a key that no longer exists. ARGV: the holder, the duration in ms.
var holdScript = conn.NewScript(clockMS + `
redis.call('ZREM', KEYS[1], '')
local ends = math.max(now + ARGV[2], tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0))
redis.call('ZADD', KEYS[1], string.format('%.0f', ends), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1] == 'lag' and 0 or now)
redis.call('PEXPIRE', KEYS[1], math.max(last() - now, 1))
return 1`)

// renewScript extends a hold that is still in the set and has not ended. It does not create a lost
// hold again, because a value may have been stored since. It first extends the life of the set,
// which is also a write that makes a full Redis accept the rest. ARGV as in holdScript. The script
// returns 0 if the hold was lost.
var renewScript = conn.NewScript(clockMS + `
local held = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0)
if held <= now then return 0 end
redis.call('PEXPIRE', KEYS[1], math.max(last() - now, ARGV[2]))
redis.call('ZADD', KEYS[1], string.format('%.0f', math.max(now + ARGV[2], held)), ARGV[1])
return 1`)

// releaseScript releases one holder's hold of a key. If it was the last one, the set is gone.
// ARGV: the holder.
var releaseScript = conn.NewScript(clockMS + `
local others = #redis.call('ZRANGE', KEYS[1], 0, 1) > 1
redis.call('ZREM', KEYS[1], ARGV[1])
if others then redis.call('PEXPIRE', KEYS[1], last() - now) end
return 1`)

// clockMS defines the variable now, which is Redis' time in milliseconds, and the function last,
// which returns the end of the last hold in the set.
const clockMS = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function last() return tonumber(redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2] or 0) end`

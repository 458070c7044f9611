package bloom

import (
	"github.com/cacheaside/cacheaside/internal/conn"
)

// The scripts on a segment compare its header first, and answer -1 where it is another, or there is none: then it is lost, or was removed. Nobody makes it again, so an answer that is
// found in it is of all that was ever added to it. Places are 4 bytes each, and count from the beginning of the string.

// whole checks a segment.
const whole = `
if redis.call('GETRANGE', KEYS[1], 0, 15) ~= ARGV[1] then return -1 end
local function at(s, i)
  local a, b, c, d = string.byte(s, i, i + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end`

// lookupScript tells of each key, whose places are ARGV[3], ARGV[2] for each, whether all of them are set: '1' or '0'.
var lookupScript = conn.NewScript(whole + `
local step, reply = 4 * ARGV[2], {}
for i = 1, #ARGV[3], step do
  local found = '1'
  for j = i, i + step - 1, 4 do
    if redis.call('GETBIT', KEYS[1], at(ARGV[3], j)) == 0 then found = '0' break end
  end
  reply[#reply + 1] = found
end
return table.concat(reply)`)

// addScript sets the places ARGV[2], and answers how many were not set. ARGV[3] is the size of the bits in bytes: they are allocated at once, for a string that Redis lets grow is given up to twice as
// much as it needs.
var addScript = conn.NewScript(whole + `
if redis.call('STRLEN', KEYS[1]) == 16 then redis.call('SET', KEYS[1], ARGV[1] .. string.rep('\0', tonumber(ARGV[3]))) end
local set = 0
for i = 1, #ARGV[2], 4 do
  set = set + 1 - redis.call('SETBIT', KEYS[1], at(ARGV[2], i), 1)
end
return set`)

// mergeScript is addScript for so many places that it takes less to send all bits: ARGV[2], as they are to be set, with an empty header. KEYS[2] is theirs for the time being.
var mergeScript = conn.NewScript(whole + `
local before = redis.call('BITCOUNT', KEYS[1], 16, -1)
redis.call('SET', KEYS[2], ARGV[2])
redis.call('BITOP', 'OR', KEYS[1], KEYS[1], KEYS[2])
redis.call('DEL', KEYS[2])
return redis.call('BITCOUNT', KEYS[1], 16, -1) - before`)

// touchScript counts the bits that were set, ARGV: id and number by turns, in the hash KEYS[2], and answers the descriptor and that hash.
const touchScript = `
local d = redis.call('GET', KEYS[1]) or ''
for i = 1, #ARGV, 2 do
  if tonumber(ARGV[i + 1]) > 0 and string.find(d, ARGV[i], 1, true) then redis.call('HINCRBY', KEYS[2], 'bits:' .. ARGV[i], ARGV[i + 1]) end
end
return {d, redis.call('HGETALL', KEYS[2])}`

// swapScript changes the descriptor from ARGV[1] to ARGV[2], if it is still that.
var swapScript = conn.NewScript(`
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1`)

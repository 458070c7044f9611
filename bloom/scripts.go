package bloom

import (
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/invalidation"
)

// The scripts on a segment check first that the string is this segment, whole, and return -1 if not:
// then it is lost, or was removed. No process makes it again, so what a script finds in a segment is
// all that was ever added to it. Places are 4 bytes each, and count from the beginning of the string.

// segments has what the scripts do with a segment. Its header has the size of its bits. See
// generation.bitsOf.
const segments = `
local function at(s, i)
  local a, b, c, d = string.byte(s, i, i + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end
local function whole(key, header, tag)
  if redis.call('GETRANGE', key, 0, 15) ~= header then return false end
  local size = 8 * at(header, 5)
  return redis.call('GETRANGE', key, 16 + size, 24 + size) == tag or redis.call('GETRANGE', key, 16, 24) == tag
end
local function allocated(key, header, tag)
  if not whole(key, header, tag) then return false end
  if redis.call('STRLEN', key) == 24 then
    redis.call('SET', key, header .. string.rep('\0', 8 * at(header, 5)) .. tag)
  end
  return true
end`

// lookupScript tells of each key, whose places are ARGV[4], ARGV[3] for each, whether all of them
// are set: '1' or '0'. All scripts have the header and the tag of the segment before that.
var lookupScript = conn.NewScript(segments + `
if not whole(KEYS[1], ARGV[1], ARGV[2]) then return -1 end
local step, reply = 4 * ARGV[3], {}
for i = 1, #ARGV[4], step do
  local found = '1'
  for j = i, i + step - 1, 4 do
    if redis.call('GETBIT', KEYS[1], at(ARGV[4], j)) == 0 then found = '0' break end
  end
  reply[#reply + 1] = found
end
return table.concat(reply)`)

// addScript sets the places ARGV[3], and answers how many were not set. The bits are allocated at
// once, for a string that Redis lets grow is given up to twice as much as it needs.
var addScript = conn.NewScript(segments + `
if not allocated(KEYS[1], ARGV[1], ARGV[2]) then return -1 end
local set = 0
for i = 1, #ARGV[3], 4 do set = set + 1 - redis.call('SETBIT', KEYS[1], at(ARGV[3], i), 1) end
return set`)

// mergeScript is addScript for so many places that it takes less to send all bits: ARGV[3], as they
// are to be set, with an empty header. KEYS[2] is theirs for the time being.
var mergeScript = conn.NewScript(segments + `
if not allocated(KEYS[1], ARGV[1], ARGV[2]) then return -1 end
local before = redis.call('BITCOUNT', KEYS[1], 16, -1)
redis.call('SET', KEYS[2], ARGV[3])
redis.call('BITOP', 'OR', KEYS[1], KEYS[1], KEYS[2])
redis.call('DEL', KEYS[2])
return redis.call('BITCOUNT', KEYS[1], 16, -1) - before`)

// touchScript counts the bits that were set (ARGV from the second on: id and number by turns) in the
// tally KEYS[2], and leaves the mark ARGV[1], unless it is empty, in KEYS[3]. It returns the mark, the
// descriptor KEYS[1], the tally, and 0.
const touchScript = marks + `
local d = redis.call('GET', KEYS[1]) or ''
for i = 2, #ARGV, 2 do
  if tonumber(ARGV[i + 1]) > 0 and string.find(d, ARGV[i], 1, true) then redis.call('HINCRBY', KEYS[2], 'bits:' .. ARGV[i], ARGV[i + 1]) end
end
local left = {}
if ARGV[1] ~= '' then left = mark(KEYS[3], ARGV[1]) end
return {left, d, redis.call('HGETALL', KEYS[2]), 0}`

// onceScript adds keys where all that it takes is on one server, and tells of them, in one step.
// KEYS: of the announcements; the descriptor; its tally; the marks; then the segments. ARGV: what
// announces (4); the mark; how the descriptor begins that is known; '1' if the tally is asked for,
// else empty; how many generations; how long a descriptor begins; for each generation its id, its
// header, the size of a segment with its header, and how many segments; for each of these its tag,
// how many places, and these in decimal. It returns the number of the mark if there is nothing else
// to report, as nearly always; else the mark, the descriptor, the tally, and how many segments were
// lost.
//
// It is what an Add costs, so it asks as little as it can: a segment that ends in its tag is whole.
var onceScript = conn.NewScript(`
local call, ARGV, KEYS = redis.call, ARGV, KEYS
local function made(name, header, tag)` + segments + `
  return allocated(name, header, tag)
end
local key, arg, missing = 5, 10, 0
for _ = 1, tonumber(ARGV[8]) do
  local id, header, size, set = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2], 0
  local last = arg + 3
  for s = 1, tonumber(ARGV[last]) do
    local name, tag, places = KEYS[key], ARGV[arg + 4], tonumber(ARGV[arg + 5])
    if call('GETRANGE', name, size, size + 8) == tag or made(name, header, tag) then
      for i = arg + 6, arg + 5 + places do set = set + 1 - call('SETBIT', name, ARGV[i], 1) end
    else
      missing = missing + 1
    end
    key, arg = key + 1, arg + 2 + places
  end
  if set > 0 then call('HINCRBY', KEYS[3], 'bits:' .. id, set) end
  arg = arg + 4
end
` + invalidation.AnnounceLua + `
local n, known = call('HINCRBY', KEYS[4], ARGV[5], 1), call('GETRANGE', KEYS[2], 0, tonumber(ARGV[9]) - 1) == ARGV[6]
if n > 1 and known and missing == 0 and ARGV[7] == '' then return n end
local left, tally = {tostring(n)}, {}
if n == 1 then left[2] = call('HGET', KEYS[4], '') or '0' end
if ARGV[7] == '1' then tally = call('HGETALL', KEYS[3]) end
return {left, call('GET', KEYS[2]) or '', tally, missing}`)

// swapScript changes the descriptor from ARGV[1] to ARGV[2], if it is still that.
const swapScript = `
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1`

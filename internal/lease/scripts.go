package lease

import (
	"strconv"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Each script changes KEYS[1] alone, and decides by what the key holds and by Redis' own clock. Lua
// counts from 1: bytes 3 to 14 are the token, the first 24 bytes all that a script needs of an
// entry.

// FirstLook is how many bytes of what a key holds are read at first: by GETRANGE, not by GET, so
// that what is long keeps neither Redis nor those who wait for what goes the same way. An empty
// string is as good as none.
const FirstLook = 64 << 10

// takeScript gives a lease if the key holds nothing, or still begins with exactly the bytes whose
// hash is ARGV[3], which the caller could not read. Otherwise it answers what the key holds, as a
// first look shows it: the second check of double-checked locking, in the same trip. On hold it
// answers 1, and changes nothing. ARGV: lease, its life in ms, hash of unreadable bytes or "", what
// onHold needs.
var takeScript = conn.NewScript(`
local v = redis.call('GETRANGE', KEYS[1], 0, ` + strconv.Itoa(FirstLook-1) + `)
if v ~= '' and (ARGV[3] == '' or redis.sha1hex(v) ~= ARGV[3]) then return v end` + onHold + `
if held then return 1 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false`)

// claimScript takes a key for a refresh. Nothing there, a failure or unreadable bytes: a lease. A
// lease, or an entry whose claim has not ended: answers it. An entry: claims it, in the entry
// itself, so that readers keep being served and nothing can come between; the key is made to
// outlive the claim, for if it expired another reader would take a lease and load too. Where the
// stamp of an entry is given, only that entry is claimed: it may have been reloaded since it was
// read. Without one, the claim that a failure has left stops nobody. ARGV: lease, token, life in
// ms, stamp or "", what onHold needs. Answers {what}, also {'held'}, whatever is there, or for a
// writer's mark; {'busy', bytes}, or {'claimed', old header, Unix ms of its hard end or -1}.
var claimScript = conn.NewScript(onHold + `
if held then return {'held'} end
local life = tonumber(ARGV[3])
local h = redis.call('GETRANGE', KEYS[1], 0, 23)
local kind = string.byte(h, 1)
if kind == 161 and #h == 14 then return {'busy', h} end
if kind == 193 then return {'held'} end
if kind ~= 225 or #h < 24 then
  if ARGV[4] ~= '' then return {'other'} end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', life)
  return {'leased'}
end` + clock + `
local flags, stamp = string.byte(h, 2), string.sub(h, 3, 14)
if flags % 2 == 1 and taken(h) and (ARGV[4] ~= '' or stamp ~= nobody) then return {'busy', h} end
if ARGV[4] ~= '' and stamp ~= ARGV[4] then return {'other'} end
local ttl = redis.call('PTTL', KEYS[1])
redis.call('SETRANGE', KEYS[1], 1, string.char(flags - flags % 2 + 1) .. ARGV[2] .. string.sub(h, 15, 20) .. ends(life))
if ttl >= 0 and ttl < life then redis.call('PEXPIRE', KEYS[1], life) end
return {'claimed', h, ttl < 0 and '-1' or string.format('%.0f', now + ttl)}`)

// fillScript stores an entry if the key still holds the caller's lease or claim, which takes its
// place. The token is the entry's stamp, so that a fill that is repeated because its reply was lost
// recognises itself. ARGV: token, entry, its life in ms. Answers 1 if the entry is stored.
var fillScript = conn.NewScript(`
local h = redis.call('GETRANGE', KEYS[1], 0, 13)
if string.sub(h, 3, 14) ~= ARGV[1] then return 0 end
if string.byte(h, 1) == 225 and string.byte(h, 2) % 2 == 0 then return 1 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`)

// fillLeasesScript is fillScript with a faster form for many keys. There a key's three arguments
// begin at 4*i-1: those of all keys follow one another, each key's after their number.
var fillLeasesScript = fillScript.Widened(`
local stored = {}
for i = 1, #KEYS do
  local h, at = redis.call('GETRANGE', KEYS[i], 0, 13), 4 * i - 1
  if string.sub(h, 3, 14) ~= ARGV[at] then
    stored[i] = 0
  else
    if string.byte(h, 1) ~= 225 or string.byte(h, 2) % 2 == 1 then redis.call('SET', KEYS[i], ARGV[at + 1], 'PX', ARGV[at + 2]) end
    stored[i] = 1
  end
end
return stored`)

// renewScript keeps the caller's lease or claim alive. ARGV: token, life in ms. Answers 0 if it is
// the caller's no longer.
var renewScript = conn.NewScript(`
local life = tonumber(ARGV[2])
local h = redis.call('GETRANGE', KEYS[1], 0, 23)
if string.sub(h, 3, 14) ~= ARGV[1] then return 0 end
if string.byte(h, 1) == 161 then return redis.call('PEXPIRE', KEYS[1], life) end
if string.byte(h, 1) ~= 225 or string.byte(h, 2) % 2 == 0 then return 0 end` + clock + `
redis.call('SETRANGE', KEYS[1], 20, ends(life))
local ttl = redis.call('PTTL', KEYS[1])
if ttl >= 0 and ttl < life then redis.call('PEXPIRE', KEYS[1], life) end
return 1`)

// endScript gives up the caller's lease or claim without a value. A lease becomes the marker of a
// failure, or goes; a claimed entry gets back its cost and what is left of its hard life, or, after
// a failure, stays claimed by nobody for that long; if its hard life is over, it ends as a lease
// does. ARGV: marker or "", its life in ms, the header as it was before the claim or "" if not
// known, when the entry was to expire or -1 (both of the first token's claim), then the tokens. A
// marker that a full Redis refuses is done without. Answers 1 if there was something of the
// caller's.
var endScript = conn.NewScript(`
local h = redis.call('GETRANGE', KEYS[1], 0, 23)
local token = string.sub(h, 3, 14)
local mine = false
for i = 5, #ARGV do mine = mine or token == ARGV[i] end
if not mine then return 0 end
local function gone()
  if ARGV[1] == '' or redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]).err then redis.call('DEL', KEYS[1]) end
  return 1
end
if string.byte(h, 1) == 161 then return gone() end
if string.byte(h, 1) ~= 225 or string.byte(h, 2) % 2 == 0 then return 0 end` + clock + `
local known = token == ARGV[5] and tonumber(ARGV[4]) >= 0
local left = tonumber(ARGV[4]) - now
if known and left <= 0 then return gone() end
if ARGV[1] ~= '' then
  redis.call('SETRANGE', KEYS[1], 2, nobody .. string.sub(h, 15, 20) .. ends(tonumber(ARGV[2])))
else
  local cost = string.char(0, 0, 0, 0)
  if token == ARGV[5] and ARGV[3] ~= '' and string.byte(ARGV[3], 2) % 2 == 0 then cost = string.sub(ARGV[3], 21, 24) end
  redis.call('SETRANGE', KEYS[1], 1, string.char(string.byte(h, 2) - 1) .. token .. string.sub(h, 15, 20) .. cost)
end
if known then redis.call('PEXPIRE', KEYS[1], left) end
return 1`)

// expireScript ends the soft life of an entry, and voids whatever load is under way, by a stamp of
// its own: what that has read may be what is not to be fresh any more. Where there is no entry, and
// where a full Redis does not let it be changed, the key is deleted. ARGV: stamp.
var expireScript = conn.NewScript(`
local h = redis.call('GETRANGE', KEYS[1], 0, 23)
local flags = string.byte(h, 2)
if string.byte(h, 1) ~= 225 or #h < 24 then return redis.call('DEL', KEYS[1]) end
local cost = flags % 2 == 1 and string.char(0, 0, 0, 0) or string.sub(h, 21, 24)
local set = redis.pcall('SETRANGE', KEYS[1], 1, string.char(flags - flags % 2) .. ARGV[1] .. string.rep(string.char(0), 6) .. cost)
if type(set) == 'table' then redis.call('DEL', KEYS[1]) end
return 1`)

// clock gives the scripts Redis' time in milliseconds, and what they need of the end of a claim, a
// 32-bit number of them. Plain arithmetic: doubles carry 53 bits, and neither struct.pack nor bit
// operations are everywhere.
const clock = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local nobody = string.rep(string.char(0), 12)
local function ends(life)
  local s, n = '', (now + life) % 4294967296
  for i = 1, 4 do s = string.char(n % 256) .. s; n = math.floor(n / 256) end
  return s
end
local function taken(h)
  local n = 0
  for i = 21, 24 do n = n * 256 + string.byte(h, i) end
  local left = (n - now) % 4294967296
  return left > 0 and left <= 3600000
end`

// onHold sets held to whether the key is on hold. KEYS: key, its hold; without that there are no
// holds. The last two of ARGV: the lag in ms, and a generation in microseconds by Redis' clock, or
// "" if it cannot be so young as to matter.
const onHold = `
local held = false
if KEYS[2] then
  held = redis.call('PTTL', KEYS[2]) ~= -2
  local generation = ARGV[#ARGV]
  if not held and generation ~= '' then
    local t = redis.call('TIME')
    held = generation / 1000 + ARGV[#ARGV - 1] > t[1] * 1000 + t[2] / 1000
  end
end`

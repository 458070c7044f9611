package lease

import (
	"strconv"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Each script changes only KEYS[1]. It decides by the content of the key and by Redis' clock.
//
// The scripts contain numbers of the layout in entry.go. The first byte is 0xA1 for a lease
// (leaseByte), 0xE1 for an entry (entryByte), and 0xC1 for a mark (markByte). GETRANGE counts
// bytes from 0, and Lua counts them from 1. So in Lua, byte 2 has the flags, of which the lowest
// bit is flagClaimed, bytes 3 to 14 are the token or stamp, bytes 15 to 20 the soft expiry, and
// bytes 21 to 24 the cost or the end of the claim. A script needs no more of an entry than these
// 24 bytes.

// FirstRead is how many bytes of a key the first read returns. That read uses GETRANGE instead of
// GET, so that a long string does not delay Redis and the other replies on the same connection. An
// empty string is treated like a missing key.
const FirstRead = 64 << 10

// takeScript grants a lease if the key does not exist, or still begins with the bytes whose hash
// is ARGV[3], which the caller could not decode. Then it returns no value. Otherwise it changes
// nothing, and returns the first FirstRead bytes of the key: this is the second check of
// double-checked locking, in the same trip. If the key is on hold, it changes nothing and returns
// 1. ARGV: lease, its life in ms, hash of undecodable bytes or "", arguments of onHold.
var takeScript = conn.NewScript(`
local v = redis.call('GETRANGE', KEYS[1], 0, ` + strconv.Itoa(FirstRead-1) + `)
if v ~= '' and (ARGV[3] == '' or redis.sha1hex(v) ~= ARGV[3]) then return v end` + onHold + `
if held then return 1 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false`)

// claimScript acquires a key for a refresh:
//
//   - If there is a lease, or an entry whose claim is live, the script returns {'busy', bytes}.
//   - If there is another entry, the script claims it inside the entry: readers can still use the
//     entry, and no other command can come in between. The script makes the key outlive the claim.
//     If the key expired first, another reader would acquire a lease and load as well. The script
//     returns {'claimed', old header, hard expiry in Unix ms or -1}.
//   - If there is no entry (nothing, the marker of an ended load or undecodable bytes), the script
//     sets a lease and returns {'leased'}.
//   - If the key is on hold, or has a writer's mark, the script returns {'held'}.
//
// With a stamp in ARGV[4], the script claims only the entry with that stamp, because the key may
// have been reloaded since it was read. If the key does not hold that entry, the script returns
// {'other'}. Without a stamp, the script ignores the claim that a failed reload has left. ARGV:
// lease, token, life in ms, stamp or "", arguments of onHold.
var claimScript = conn.NewScript(onHold + `
if held then return {'held'} end
local life = tonumber(ARGV[3])
local h = redis.call('GETRANGE', KEYS[1], 0, 23)
local kind = string.byte(h, 1)
if kind == 0xA1 and #h == 14 then return {'busy', h} end
if kind == 0xC1 then return {'held'} end
if kind ~= 0xE1 or #h < 24 then
  if ARGV[4] ~= '' then return {'other'} end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', life)
  return {'leased'}
end` + clock + `
local flags, stamp = string.byte(h, 2), string.sub(h, 3, 14)
if flags % 2 == 1 and live(h) and (ARGV[4] ~= '' or stamp ~= unowned) then return {'busy', h} end
if ARGV[4] ~= '' and stamp ~= ARGV[4] then return {'other'} end
local ttl = redis.call('PTTL', KEYS[1])
redis.call('SETRANGE', KEYS[1], 1, string.char(flags - flags % 2 + 1) .. ARGV[2] .. string.sub(h, 15, 20) .. ends(life))
if ttl >= 0 and ttl < life then redis.call('PEXPIRE', KEYS[1], life) end
return {'claimed', h, ttl < 0 and '-1' or string.format('%.0f', now + ttl)}`)

// fillScript stores an entry in place of the lease or claim of the caller, if the key still holds
// it. The stamp of the new entry is the token of that lease or claim. So a fill that is repeated
// because its reply was lost recognises its own entry. ARGV: token, entry, its life in ms. Returns
// 1 if the entry is stored, or 2 if its lease was awaited: see awaitScript.
var fillScript = conn.NewScript(`
local h = redis.call('GETRANGE', KEYS[1], 0, 13)
if string.sub(h, 3, 14) ~= ARGV[1] then return 0 end
if string.byte(h, 1) == 0xE1 and string.byte(h, 2) % 2 == 0 then return 1 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return ` + oneOrAwaited + `
`)

// fillLeasesScript is fillScript with a faster wide form, which one call runs for many keys (see
// conn.Script.Widened). ARGV of that form: the number of keys per attempt, 1; then for each
// attempt the number of its arguments, 3, and these arguments. So the arguments of key i begin at
// ARGV[4*i-1].
var fillLeasesScript = fillScript.Widened(`
local stored = {}
for i = 1, #KEYS do
  local h, at = redis.call('GETRANGE', KEYS[i], 0, 13), 4 * i - 1
  if string.sub(h, 3, 14) ~= ARGV[at] then
    stored[i] = 0
  else
    if string.byte(h, 1) ~= 0xE1 or string.byte(h, 2) % 2 == 1 then
      redis.call('SET', KEYS[i], ARGV[at + 1], 'PX', ARGV[at + 2])
    end
    stored[i] = ` + oneOrAwaited + `
  end
end
return stored`)

// awaitScript is a lookup that also counts the caller among those who wait for the end of a lease,
// in the second byte of the lease. If one of awaitedShare subscribers of the channel ARGV[1] waits,
// the lease is awaited, which the highest bit shows: the script that ends the lease returns 2
// instead of 1, and its caller announces the end. With fewer, their polls cost Redis less than a
// message to all subscribers. The script returns the first FirstRead bytes of the key, and with a
// lease the milliseconds of its life that are left. Versions that do not know the byte ignore it.
var awaitScript = conn.NewScript(`
local v = redis.call('GETRANGE', KEYS[1], 0, ` + strconv.Itoa(FirstRead-1) + `)
if #v ~= 14 or string.byte(v, 1) ~= 0xA1 then return v end
local left = redis.call('PTTL', KEYS[1])
if string.byte(v, 2) >= 128 then return {v, left} end
local n = math.min(string.byte(v, 2) + 1, 127)
local listeners = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])[2] or 0 -- 0 also if the user may not ask
if n == 127 or n * ` + strconv.Itoa(awaitedShare) + ` >= listeners then n = n + 128 end
if type(redis.pcall('SETRANGE', KEYS[1], 1, string.char(n))) == 'table' then return {v, left} end
return {string.sub(v, 1, 1) .. string.char(n) .. string.sub(v, 3), left}`)

// awaitedShare is the number of messages that cost Redis as much as the polls of a waiting process.
const awaitedShare = 32

// oneOrAwaited is 2 if h begins with a lease that is awaited, otherwise 1.
const oneOrAwaited = `(string.byte(h, 1) == 0xA1 and string.byte(h, 2) >= 128 and 2 or 1)`

// renewScript extends the life of the caller's lease or claim. ARGV: token, life in ms. Returns 0
// if the caller does not own it any more.
var renewScript = conn.NewScript(`
local life = tonumber(ARGV[2])
local h = redis.call('GETRANGE', KEYS[1], 0, 23)
if string.sub(h, 3, 14) ~= ARGV[1] then return 0 end
if string.byte(h, 1) == 0xA1 then return redis.call('PEXPIRE', KEYS[1], life) end
if string.byte(h, 1) ~= 0xE1 or string.byte(h, 2) % 2 == 0 then return 0 end` + clock + `
redis.call('SETRANGE', KEYS[1], 20, ends(life))
local ttl = redis.call('PTTL', KEYS[1])
if ttl >= 0 and ttl < life then redis.call('PEXPIRE', KEYS[1], life) end
return 1`)

// endScript ends the caller's lease or claim without a value:
//
//   - A lease is replaced by a marker, or deleted.
//   - A claimed entry gets back its cost and the rest of its hard life. If they are not known,
//     because the reply to the claim was lost, the entry keeps the claim, which ends now. So
//     readers do not trust the life of the key, which the claim has extended. After a failure the
//     claim stays, with the zero token, for the life of the marker, so that no background refresh
//     begins. An entry whose hard life has ended is treated like a lease.
//
// If a full Redis refuses the marker, the key is deleted. The script returns 1 if the caller owned
// the lease or claim, 2 if it owned a lease that was awaited, otherwise 0. ARGV:
//
//  1. the marker, or "" for none;
//  2. the life of the marker in ms;
//  3. the header of the entry before the claim, or "" if it is not known;
//  4. the hard expiry of the entry before the claim, in Unix ms, or -1 if it had none or it is not
//     known;
//  5. the token of the attempt, to which 3 and 4 belong; then its tokens whose replies were lost.
var endScript = conn.NewScript(`
local h = redis.call('GETRANGE', KEYS[1], 0, 23)
local token = string.sub(h, 3, 14)
local mine = false
for i = 5, #ARGV do mine = mine or token == ARGV[i] end
if not mine then return 0 end
local function remove()
  if ARGV[1] == '' or redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]).err then redis.call('DEL', KEYS[1]) end
  return ` + oneOrAwaited + `
end
if string.byte(h, 1) == 0xA1 then return remove() end
if string.byte(h, 1) ~= 0xE1 or string.byte(h, 2) % 2 == 0 then return 0 end` + clock + `
local known = token == ARGV[5] and tonumber(ARGV[4]) >= 0
local left = tonumber(ARGV[4]) - now
if known and left <= 0 then return remove() end
if ARGV[1] ~= '' then
  redis.call('SETRANGE', KEYS[1], 2, unowned .. string.sub(h, 15, 20) .. ends(tonumber(ARGV[2])))
elseif token == ARGV[5] and ARGV[3] ~= '' and string.byte(ARGV[3], 2) % 2 == 0 then
  local flags, cost = string.char(string.byte(h, 2) - 1), string.sub(ARGV[3], 21, 24)
  redis.call('SETRANGE', KEYS[1], 1, flags .. token .. string.sub(h, 15, 20) .. cost)
else
  redis.call('SETRANGE', KEYS[1], 20, ends(0))
end
if known then redis.call('PEXPIRE', KEYS[1], left) end
return 1`)

// expireScript ends the soft life of an entry. Its new stamp also voids any load in progress,
// which may have read the row before the change that ends the soft life. The key is deleted if it
// holds no entry, or if a full Redis refuses the change. ARGV: stamp.
var expireScript = conn.NewScript(`
local h = redis.call('GETRANGE', KEYS[1], 0, 23)
local flags = string.byte(h, 2)
if string.byte(h, 1) ~= 0xE1 or #h < 24 then return redis.call('DEL', KEYS[1]) end
local cost = flags % 2 == 1 and string.char(0, 0, 0, 0) or string.sub(h, 21, 24)
local set = redis.pcall('SETRANGE', KEYS[1], 1, string.char(flags - flags % 2) .. ARGV[1] ..
  string.rep(string.char(0), 6) .. cost)
if type(set) == 'table' then redis.call('DEL', KEYS[1]) end
return 1`)

// clock defines now, Redis' time in milliseconds, and functions for the end of a claim, a 32-bit
// number of milliseconds: ends(life) encodes it, and live(h) reports whether the claim in header h
// is live. The functions use plain arithmetic. It is exact, because doubles have 53 bits, and not
// all servers have struct.pack or bit operations. 4294967296 is 2^32, and 3600000 is maxClaim in
// ms.
const clock = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local unowned = string.rep(string.char(0), 12)
local function ends(life)
  local s, n = '', (now + life) % 4294967296
  for i = 1, 4 do s = string.char(n % 256) .. s; n = math.floor(n / 256) end
  return s
end
local function live(h)
  local n = 0
  for i = 21, 24 do n = n * 256 + string.byte(h, i) end
  local left = (n - now) % 4294967296
  return left > 0 and left <= 3600000
end`

// onHold sets held to whether the key is on hold. KEYS[2] is the set of holders of the key; it is
// absent if the cache has no holds. The last two of ARGV: the lag in ms, and Attempt.Young, a
// generation in microseconds by Redis' clock, or "" if that is 0.
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

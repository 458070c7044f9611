package lock

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
	"github.com/cacheaside/cacheaside/lock/driver"
	"github.com/cacheaside/cacheaside/lock/internal/holders"
)

// A read-write lock or a semaphore is a hash, prefix{name}:rw or prefix{name}:sem. The rules are
// those of package holders. Each field is the id of a request, and its value is "mode token until":
// until is the end of the entry by the server's clock, in milliseconds. The field "last" contains
// the last token, and "waited" exists if a release must be announced.

// readShared is the beginning of a script: it reads the time and the entries, and deletes those
// that have ended.
const readShared = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local all, live, last, waited = redis.call('HGETALL', KEYS[1]), {}, 0, false
for i = 1, #all, 2 do
  local id, value = all[i], all[i + 1]
  if id == 'last' then
    last = tonumber(value)
  elseif id == 'waited' then
    waited = true
  else
    local mode, token, till = string.match(value, '^([sxw]) (%d+) (%d+)$')
    if not mode or #token > 16 or #till > 16 then
      return redis.error_reply('ERR the key of the lock holds another value')
    end
    if till * 1000 > now then
      live[id] = {mode = mode, token = token, till = till * 1000}
    else
      redis.call('HDEL', KEYS[1], id)
    end
  end
end
local function set(id, mode, token, life)
  redis.call('HSET', KEYS[1], id, string.format('%s %s %.0f', mode, token, now / 1000 + life))
end
local function keep(life)
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(life, 60000 + math.ceil(math.max(last - now, 0) / 1000),
    redis.call('PTTL', KEYS[1]))))
end
local function remove(id)
  if not live[id] then return false end
  redis.call('HDEL', KEYS[1], id)
  return true
end
local function announce()
  keep(0)
  if waited then
    redis.call('HDEL', KEYS[1], 'waited')
    redis.call('PUBLISH', KEYS[1], '')
  end
end
`

var sharedScripts = redisScripts{
	// KEYS: as for acquireScript. ARGV: id, TTL in ms, time after which the request must not be
	// carried out (µs), whether to announce the release (1 or 0), driver.Request.Limit, whether the
	// request waits (1 or 0), ids of earlier requests that may have an entry.
	acquire: conn.NewScript(readShared + `
if now > tonumber(ARGV[3]) or KEYS[2] and redis.call('GET', KEYS[2]) then return {3, 0, now} end
local life, limit = tonumber(ARGV[2]), tonumber(ARGV[5])
for i = 7, #ARGV do
  remove(ARGV[i])
  live[ARGV[i]] = nil
end
local shared, first = 0, nil
for _, h in pairs(live) do
  if h.mode == 's' then shared = shared + 1 end
end
for _, h in pairs(live) do
  local prevents = h.mode ~= 'w'
  if limit > 0 then prevents = h.mode ~= 's' or shared >= limit end
  if prevents then first = math.min(first or h.till, h.till) end
end
if first then
  if ARGV[4] == '1' then redis.call('HSET', KEYS[1], 'waited', 1) end
  if limit == 0 and ARGV[6] == '1' then
    set(ARGV[1], 'w', '0', life)
    keep(life)
  end
  return {0, math.ceil((first - now) / 1000), now}
end
last = math.max(last + 1, now)
redis.call('HSET', KEYS[1], 'last', string.format('%.0f', last))
set(ARGV[1], limit == 0 and 'x' or 's', string.format('%.0f', last), life)
keep(life)
return {1, last, now}`),

	// ARGV: id, TTL in ms.
	extend: conn.NewScript(readShared + `
local h = live[ARGV[1]]
if not h or h.mode == 'w' then return {0, 0, now} end
set(ARGV[1], h.mode, h.token, tonumber(ARGV[2]))
keep(tonumber(ARGV[2]))
return {1, 0, now}`),

	// ARGV: id.
	release: conn.NewScript(readShared + `
if not remove(ARGV[1]) then return {0, 0, now} end
announce()
return {1, 0, now}`),

	// KEYS: as for cleanUpScript. ARGV: how long the requests are void, in ms; their ids.
	cleanUp: conn.NewScript(readShared + `
local removed = false
for i = 2, #ARGV do
  if KEYS[i] then redis.call('SET', KEYS[i], '', 'PX', ARGV[1]) end
  removed = remove(ARGV[i]) or removed
end
if removed then announce() end
return {1, 0, now}`),
}

var (
	// The replies contain the time of the server, and the value of the lock.
	inspectScript       = conn.NewScript(read + `return {now, value}`)
	inspectSharedScript = conn.NewScript(`
local t = redis.call('TIME')
return {t[1] * 1000000 + t[2], redis.call('HGETALL', KEYS[1])}`)

	// ARGV: token. The scripts return 1 if they have released the lock, otherwise 0.
	breakScript = conn.NewScript(read + `
if not value or holder == '-' or last ~= ARGV[1] or till * 1000 <= now then return {0, 0, now} end
redis.call('SET', KEYS[1], 'L1 - ' .. last .. ' 0 0', 'PX', 60000 + math.ceil(math.max(last - now, 0) / 1000))
if waited == '1' then redis.call('PUBLISH', KEYS[1], '') end
return {1, 0, now}`)
	breakSharedScript = conn.NewScript(readShared + `
for id, h in pairs(live) do
  if h.mode ~= 'w' and h.token == ARGV[1] then
    remove(id)
    announce()
    return {1, 0, now}
  end
end
return {0, 0, now}`)
)

// Inspect returns the state of a lock. The processes that wait are those that have subscribed to
// its channel. If Redis does not show them, Waiting is 1 if a release must be announced.
func (r *redisDriver) Inspect(ctx context.Context, req driver.Request) (d driver.State, err error) {
	a, began := r.attempt(req), time.Now()
	script := inspectScript
	if a.scripts == &sharedScripts {
		script = inspectSharedScript
	}
	cmd, err := redislock.Eval(ctx, r.conn.Send, script, false, []string{a.key})
	if err == nil {
		d, err = stateOf(cmd)
	}
	if err == nil {
		listeners := 0
		ended := r.conn.Await(ctx, func(ctx context.Context) { listeners, err = r.conn.Listeners(ctx, a.key) })
		if err = cmp.Or(ended, err); err == nil {
			d.Waiting = listeners
		} else if conn.IsReply(err) { // some services refuse the command
			err = nil
		}
	}
	return d, r.explain(ctx, err, "an inspection", a.key, began)
}

func stateOf(cmd *redis.Cmd) (d driver.State, err error) {
	reply, err := cmd.Slice()
	if err != nil || len(reply) == 0 {
		return d, err
	}
	now, _ := reply[0].(int64)
	if len(reply) == 1 { // there is no such key
		return d, nil
	}
	if value, ok := reply[1].(string); ok {
		if l, ok := redislock.Parse(value); ok && l.Held(time.UnixMicro(now)) {
			d.Holders = []driver.Holder{{Label: holders.Label(l.Holder), Token: l.Token, Alone: true,
				Left: l.Until.Sub(time.UnixMicro(now))}}
			d.Waiting, _ = strconv.Atoi(value[len(value)-1:])
		}
		return d, nil
	}
	fields, _ := reply[1].([]any)
	var s holders.State
	waiting := 0
	for i := 0; i+1 < len(fields); i += 2 {
		id, _ := fields[i].(string)
		value, _ := fields[i+1].(string)
		words := strings.Split(value, " ")
		if id == "waited" {
			waiting = 1
		}
		if len(words) != 3 {
			continue // "last" or "waited"
		}
		token, _ := strconv.ParseInt(words[1], 10, 64)
		until, _ := strconv.ParseInt(words[2], 10, 64)
		s = append(s, holders.Holder{ID: id, Mode: words[0][0], Token: token, Until: until * 1000})
	}
	d = s.Inspect(now)
	d.Waiting = waiting
	return d, nil
}

// Break releases a lock on behalf of the holder with this token.
func (r *redisDriver) Break(ctx context.Context, req driver.Request, token int64) error {
	a, began := r.attempt(req), time.Now()
	script := breakScript
	if a.scripts == &sharedScripts {
		script = breakSharedScript
	}
	reply, err := r.run(ctx, script, false, []string{a.key}, strconv.FormatInt(token, 10))
	if err == nil && reply.Status != redislock.IsGranted {
		err = driver.ErrLost
	}
	return r.explain(ctx, err, "a break", a.key, began)
}

package lock

import (
	"context"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// togetherScript acquires all locks, with one token, or none. KEYS: the locks, and redislock.Void
// of the id for each. ARGV: as for acquireScript, with the number of locks before the ids of
// earlier requests. If another holder has a lock, the reply contains its key.
var togetherScript = conn.NewScript(`
local t = redis.call('TIME')
local now, n = t[1] * 1000000 + t[2], tonumber(ARGV[5])
if now > tonumber(ARGV[3]) then return {3, 0, now} end
local life, token, marks = tonumber(ARGV[2]), now, {}
for i = 1, n do
  if redis.call('GET', KEYS[n + i]) then return {3, 0, now} end
  local value = redis.call('GET', KEYS[i])
  marks[i] = '0'
  if value then
    local holder, last, till, waited = string.match(value, '^L1 (%S+) (%d+) (%d+) ([01])$')
    if not holder or #last > 16 or #till > 16 then
      return redis.error_reply('ERR the key of the lock holds another value')
    end
    if till * 1000 > now then
      local mine = false
      for j = 6, #ARGV do mine = mine or holder == ARGV[j] end
      if not mine then
        if ARGV[4] == '1' and waited == '0' then
          redis.call('SET', KEYS[i], string.sub(value, 1, -2) .. '1', 'KEEPTTL')
        end
        return {0, math.ceil(till - now / 1000), now, KEYS[i]}
      end
      marks[i] = waited
    end
    token = math.max(token, last + 1)
  end
end
for i = 1, n do
  redis.call('SET', KEYS[i], string.format('L1 %s %.0f %.0f %s', ARGV[1], token, now / 1000 + life, marks[i]), 'PX',
    math.max(life, 60000 + math.ceil((token - now) / 1000)))
end
return {1, token, now}`)

var togetherScripts = redisScripts{acquire: togetherScript}

// singleRedis is the driver of a Redis that is not a cluster: all locks are in one slot.
type singleRedis struct{ *redisDriver }

// AcquireTogether acquires the locks by one script.
func (r *singleRedis) AcquireTogether(
	ctx context.Context, requests []driver.Request,
) (grants []driver.Grant, err error) {
	a := r.attempt(requests[0])
	a.scripts, a.args = &togetherScripts, []any{len(requests)}
	for _, req := range requests[1:] {
		a.others = append(a.others, redislock.KeyOf(r.prefix, req.Key))
	}
	began := time.Now()
	g, err := r.acquire(ctx, a, requests[0].Wait)
	for _, req := range requests {
		one := r.attempt(req)
		one.unresolved, one.bound = a.unresolved, a.bound
		if err != nil {
			one.cleanUp()
			continue
		}
		whole := *g.Lock.(*redisLock)
		whole.acquisition = one
		grants = append(grants, driver.Grant{Lock: &whole, Token: g.Token, Sent: g.Sent, TTL: g.TTL})
	}
	return grants, r.explain(ctx, err, "a request for the locks", a.key, began)
}

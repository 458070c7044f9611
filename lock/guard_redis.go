package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
	"github.com/cacheaside/cacheaside/internal/wording"
)

// SetFenced sets a key of Redis to value. If a newer holder of the lock has used the key, it
// returns ErrStale and changes nothing. ttl is the lifetime of the value, at least a millisecond;
// 0 means no expiry. SetFenced is safe for concurrent use.
//
// The value is stored unchanged, so any client can GET it. Writes by other means than SetFenced
// are not checked. The greatest token seen is stored in a second key, as "F1 token". Its name is
// "fence{key}", or "fence:key" if the key has a hash tag in braces, so both are in the same slot
// of a cluster. The second key lives a day longer than the value, or forever, and is not deleted
// with it. Older holders are rejected for that long, unless Redis evicts the key or loses its
// data. As with Guard, a key belongs to one lock.
//
// If the new value depends on the old one, read the old one with GetFenced. Until the newer
// holder has presented its token, the older holder may still change the value.
//
// rdb is a *redis.Client or a *redis.ClusterClient; the caller closes it. The key must not be
// empty, and must not contain "}" unless it has a hash tag. In addition to access to the key, the
// Redis user needs +eval +evalsha +get +set +pttl and ~fence*. SetFenced returns when ctx ends,
// or after the timeouts of the client. After an error that is not a reply of Redis, the value may
// have been set, or may still be set later. The caller may set it again with the same token, but
// a delayed request can arrive after the repeated one.
func SetFenced[V ~string | ~[]byte](
	ctx context.Context, rdb redis.UniversalClient, key string, value V, token int64, ttl time.Duration,
) error {
	if ttl < 0 || ttl > 0 && ttl < time.Millisecond {
		return fmt.Errorf("lock: SetFenced: a TTL of %v: must be 0, or at least 1ms", ttl)
	}
	// string(value) is a copy: the command may still be in use after ctx has ended.
	_, err := fenced(ctx, rdb, setFencedScript, key, token, string(value), ttl.Milliseconds())
	if err != nil {
		return wording.Errorf("lock: SetFenced: %w", err)
	}
	return nil
}

// GetFenced reads a value that SetFenced is going to replace. It stores the token, so older
// holders are rejected from then on and only the holder of the lock can change the value. If a
// newer holder has used the key, it returns ErrStale. If there is no value, it stores the token
// and returns redis.Nil (with errors.Is). Everything else is as with SetFenced. To read without a
// lock, use GET.
func GetFenced(ctx context.Context, rdb redis.UniversalClient, key string, token int64) (string, error) {
	value, err := fenced(ctx, rdb, getFencedScript, key, token)
	for i := 0; i < conn.MaxStale && conn.Stale(err) && ctx.Err() == nil; i++ { // repeating this script is safe
		value, err = fenced(ctx, rdb, getFencedScript, key, token)
	}
	if err != nil {
		return "", wording.Errorf("lock: GetFenced: %w", err)
	}
	return value, nil
}

// fenceCheck compares tokens as text, by length first, because Lua represents integers exactly
// only up to 2^53. Digits sort the same way in every locale.
const fenceCheck = `
local token, seen = ARGV[1], redis.call('GET', KEYS[2])
if seen then
  seen = string.match(seen, '^F1 (%d+)$')
  if not seen then return redis.error_reply('ERR the key of the fence holds another value') end
  if #seen > #token or #seen == #token and seen > token then return {0, false} end
end
local function set(key, value, ms)
  if ms > 0 then
    redis.call('SET', key, value, 'PX', string.format('%.0f', ms))
  else
    redis.call('SET', key, value)
  end
end
local function remember(life)
  if life > 0 then life = life + 86400000 end
  set(KEYS[2], 'F1 ' .. token, life)
end
`

var (
	// ARGV: token, value, lifetime in ms (0: no expiry).
	setFencedScript = conn.NewScript(fenceCheck + `
remember(tonumber(ARGV[3]))
set(KEYS[1], ARGV[2], tonumber(ARGV[3]))
return {1, ''}`)

	// ARGV: token. PTTL returns -2 if there is no value, and may return 0. Neither must be
	// mistaken for a value without expiry, so both become 1.
	getFencedScript = conn.NewScript(fenceCheck + `
local life = redis.call('PTTL', KEYS[1])
if life == -2 or life == 0 then life = 1 end
remember(life)
return {1, redis.call('GET', KEYS[1])}`)
)

// fenced checks its arguments and runs one of the scripts.
func fenced(
	ctx context.Context, rdb redis.UniversalClient, s conn.Script, key string, token int64, args ...any,
) (string, error) {
	fence, err := fenceKey(key)
	if err == nil {
		err = checkToken(token)
	}
	if err == nil && rdb == nil {
		err = errors.New("the Redis client is nil")
	}
	if err != nil {
		return "", err
	}
	// The Conn needs no Close. If ctx ends, one command may run on until the timeout of the client.
	c, err := conn.New(rdb, 0)
	if err != nil {
		return "", err
	}
	args = append([]any{strconv.FormatInt(token, 10)}, args...)
	// Eval sends the script once: a repeated one could arrive after the holder has set another
	// value.
	cmd, err := redislock.Eval(ctx, c.Send, s, true, []string{key, fence}, args...)
	if err != nil {
		return "", err
	}
	reply, err := cmd.Slice()
	if err != nil {
		return "", err
	}
	if len(reply) != 2 {
		return "", errors.New("unexpected reply from Redis")
	}
	if reply[0] != int64(1) {
		return "", ErrStale
	}
	value, ok := reply[1].(string)
	if !ok {
		return "", redis.Nil
	}
	return value, nil
}

// fenceKey returns the key of the token. Without a hash tag, the whole key becomes the hash tag
// of the fence. The character after "fence" keeps the two kinds of names distinct.
func fenceKey(key string) (string, error) {
	open := strings.IndexByte(key, '{')
	switch {
	case open >= 0 && strings.IndexByte(key[open+1:], '}') > 0:
		return "fence:" + key, nil
	case key == "" || strings.IndexByte(key, '}') >= 0:
		return "", errors.New(`the key is empty, or has a "}" without a hash tag`)
	default:
		return "fence{" + key + "}", nil
	}
}

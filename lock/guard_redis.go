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
)

// SetFenced sets a key of Redis to value, unless a newer holder of the lock has been there: then
// the error is ErrStale, and nothing is changed. ttl is how long the value lives, at least a
// millisecond; 0: without end. It is safe for concurrent use.
//
// The value is stored as it is: all can read it by GET; a client that writes it otherwise than by
// SetFenced is not checked. The greatest token that was shown is kept beside it, as "F1 token",
// under "fence{key}", or "fence:key" if the key has a hash tag in braces, so in the same slot of a
// cluster. That lives a day longer than the value, or without end, and is not deleted with it: so
// long an older holder is refused. It is forgotten where Redis evicts keys, or loses its data. As
// with Guard, a key belongs to one lock.
//
// The value that is set may be made of one that was read, if that was read by GetFenced: as long as
// the newer holder has not shown its token, the older one may still change it.
//
// rdb is a *redis.Client or a *redis.ClusterClient, and stays the caller's; the key is not empty,
// and has no "}" unless it has a hash tag. The user needs +eval +evalsha +get +set +pttl, and
// ~fence* beside the key. SetFenced returns when ctx ends, or by the client's own time-outs. After
// an error that is no answer of Redis it is not known whether the value was set, or will yet be: it
// may be set again with the same token, but one that is delayed can arrive after it.
func SetFenced[V ~string | ~[]byte](ctx context.Context, rdb redis.UniversalClient, key string, value V, token int64, ttl time.Duration) error {
	if ttl < 0 || ttl > 0 && ttl < time.Millisecond {
		return fmt.Errorf("lock: SetFenced: a TTL of %v: must be 0, or at least 1ms", ttl)
	}
	_, err := fenced(ctx, rdb, setFencedScript, key, token, string(value), ttl.Milliseconds()) // a copy: it may be in use when ctx has ended
	if err != nil {
		return fmt.Errorf("lock: SetFenced: %w", err)
	}
	return nil
}

// GetFenced reads what SetFenced is to replace: from then on an older holder is refused, so that
// the value does not change any more but by the one who has the lock. If a newer one has been
// there, the error is ErrStale; if there is no value it is redis.Nil (with errors.Is), and the
// token is remembered all the same. All else is as with SetFenced. To read without a lock, use GET.
func GetFenced(ctx context.Context, rdb redis.UniversalClient, key string, token int64) (string, error) {
	value, err := fenced(ctx, rdb, getFencedScript, key, token)
	for i := 0; i < conn.MaxStale && conn.Stale(err) && ctx.Err() == nil; i++ { // it may be asked twice
		value, err = fenced(ctx, rdb, getFencedScript, key, token)
	}
	if err != nil {
		return "", fmt.Errorf("lock: GetFenced: %w", err)
	}
	return value, nil
}

// Tokens are compared as text, by length first: numbers are exact in Lua up to 2^53 only. Digits
// are in this order in every locale.
const fenceHead = `
local token, seen = ARGV[1], redis.call('GET', KEYS[2])
if seen then
  seen = string.match(seen, '^F1 (%d+)$')
  if not seen then return redis.error_reply('ERR the key of the fence holds something else') end
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
	// ARGV: token, value, life in ms.
	setFencedScript = conn.NewScript(fenceHead + `
remember(tonumber(ARGV[3]))
set(KEYS[1], ARGV[2], tonumber(ARGV[3]))
return {1, ''}`)

	// ARGV: token. The life of a value that is not there, or no longer, must not be taken for one
	// without end.
	getFencedScript = conn.NewScript(fenceHead + `
local life = redis.call('PTTL', KEYS[1])
if life == -2 or life == 0 then life = 1 end
remember(life)
return {1, redis.call('GET', KEYS[1])}`)
)

// fenced runs one of the scripts.
func fenced(ctx context.Context, rdb redis.UniversalClient, s conn.Script, key string, token int64, args ...any) (string, error) {
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
	c, err := conn.New(rdb, 0) // there is nothing to close: what is left behind when ctx ends is a command that goes on to the client's time-out
	if err != nil {
		return "", err
	}
	args = append([]any{strconv.FormatInt(token, 10)}, args...)
	// Once: of two of the same, one could arrive when the holder has set another value already.
	cmd, err := redislock.Eval(ctx, c.Send, s, true, []string{key, fence}, args...)
	if err != nil {
		return "", err
	}
	reply, err := cmd.Slice()
	if err != nil {
		return "", err
	}
	if len(reply) != 2 {
		return "", errors.New("an unexpected answer from Redis")
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

// fenceKey is the key of the token. Without a hash tag the key as a whole becomes that of its
// fence; what follows "fence" keeps the two kinds apart.
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

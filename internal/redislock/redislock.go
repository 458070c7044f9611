// Package redislock is what a lock of package lock is in one Redis, for that package and for
// programs that look at locks from outside.
package redislock

import (
	"strconv"
	"strings"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// tagEscape keeps a name from ending the brace that it stands in.
var (
	tagEscape   = strings.NewReplacer("%", "%25", "}", "%7D")
	tagUnescape = strings.NewReplacer("%25", "%", "%7D", "}")
)

// Key is the key of a lock: its slot is that of the name as a whole, whatever is in it.
func Key(prefix, name string) string { return prefix + "{" + tagEscape.Replace(name) + "}" }

// KeyOf is Key for a driver.Request.Key, which is the prefix and the name.
func KeyOf(prefix, key string) string { return Key(prefix, strings.TrimPrefix(key, prefix)) }

// Name is the name of the lock whose key this is. It answers false for what is no key of a lock.
func Name(prefix, key string) (name string, ok bool) {
	tag, ok := strings.CutPrefix(key, prefix+"{")
	if !ok || !strings.HasSuffix(tag, "}") {
		return "", false
	}
	name = tagUnescape.Replace(tag[:len(tag)-1])
	return name, Key(prefix, name) == key
}

// A lock in Redis is a string, "L1 holder token until waited": the id of the request that has got
// it, or "-" when it is free; the last fencing token; until when it is held, by the server's clock
// in milliseconds; and 1 if a waiter is to be told of its release. It outlives a release,
// or its holder, until a minute after its token is in the past: as a token is the time or more, the
// next is greater then, whatever is remembered.
//
// Numbers of microseconds are exact in Lua up to 2^53 (the year 2255), and written by '%.0f':
// tostring keeps 14 digits.

// Lock is what the key of one holds.
type Lock struct {
	Holder string    // the id of the request that has got it; "-": nobody, it was released
	Token  int64     // the last fencing token
	Until  time.Time // held until then, by the clock of the server
	Waited bool      // somebody is to be told of the release
}

// Held tells whether it is held when the clock of the server shows now.
func (l Lock) Held(now time.Time) bool { return l.Holder != "-" && l.Until.After(now) }

// Parse reads what a key holds, as the scripts do. It answers false for what is no lock.
func Parse(value string) (l Lock, ok bool) {
	words := strings.Split(value, " ")
	if len(words) != 5 || words[0] != "L1" || words[1] == "" || strings.ContainsAny(words[1], "\t\n\v\f\r") || words[4] != "0" && words[4] != "1" {
		return Lock{}, false
	}
	var until int64
	for i, to := range []*int64{&l.Token, &until} {
		digits := words[2+i]
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || len(digits) > 16 {
			return Lock{}, false
		}
		*to = int64(n)
	}
	l.Holder, l.Until, l.Waited = words[1], time.UnixMilli(until), words[4] == "1"
	return l, true
}

// Read is the beginning of scripts: the time, and what the key holds.
const Read = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local value = redis.call('GET', KEYS[1])
local holder, last, till, waited
if value then
  holder, last, till, waited = string.match(value, '^L1 (%S+) (%d+) (%d+) ([01])$')
  if not holder or #last > 16 or #till > 16 then
    return redis.error_reply('ERR the key of the lock holds another value')
  end
end
`

// Break releases a lock in the place of its holder, if it is still the one that was looked at, and
// remembers its token as a release does, so that the next is greater. Those who wait are told.
// ARGV: holder, token. Answers 1 if it was so.
var Break = conn.NewScript(Read + `
if holder ~= ARGV[1] or last ~= ARGV[2] or till * 1000 <= now then return 0 end
redis.call('SET', KEYS[1], 'L1 - ' .. last .. ' 0 0', 'PX', 60000 + math.ceil(math.max(last - now, 0) / 1000))
if waited == '1' then redis.call('PUBLISH', KEYS[1], '') end
return 1`)

// Package redislock defines how package lock stores a lock in one Redis. Programs that inspect
// locks use it, too.
package redislock

import (
	"strconv"
	"strings"
	"time"
)

// tagEscape escapes "}" in names, because it would end the hash tag.
var (
	tagEscape   = strings.NewReplacer("%", "%25", "}", "%7D")
	tagUnescape = strings.NewReplacer("%25", "%", "%7D", "}")
)

// Key returns the key of a lock. Its slot depends on the whole name, even if the name contains
// braces.
func Key(prefix, name string) string { return prefix + "{" + tagEscape.Replace(name) + "}" }

// KeyOf returns the key for a driver.Request.Key, which consists of the prefix and the name.
func KeyOf(prefix, key string) string { return Key(prefix, strings.TrimPrefix(key, prefix)) }

// Shared returns the key of a read-write lock ("rw") or a semaphore ("sem"). key is that of the
// lock with the same name. The value is a hash: see package lock.
func Shared(key, kind string) string { return key + ":" + kind }

// Name returns the name of the lock with the given key. It returns false if key is not the key of
// a lock.
func Name(prefix, key string) (name string, ok bool) {
	tag, ok := strings.CutPrefix(key, prefix+"{")
	if !ok || !strings.HasSuffix(tag, "}") {
		return "", false
	}
	name = tagUnescape.Replace(tag[:len(tag)-1])
	return name, Key(prefix, name) == key
}

// A lock in Redis is a string, "L1 holder token until waited":
//   - holder: the id of the request that has acquired the lock, or "-" if it is free
//   - token: the last fencing token
//   - until: the end of the lock, by the server's clock in milliseconds
//   - waited: 1 if the release must be announced to waiting processes, otherwise 0
//
// The key stays after a release, or after the death of the holder, until a minute after the time
// that the token encodes. A new token is at least the current time, so it is greater than a
// forgotten one.
//
// Lua represents microseconds exactly up to 2^53 (the year 2255). The scripts format them with
// '%.0f', because tostring keeps only 14 digits.

// Lock is the parsed value of a lock's key.
type Lock struct {
	Holder string    // id of the request that has acquired it; "-": none, it is free
	Token  int64     // last fencing token
	Until  time.Time // when it expires, by the server's clock
	Waited bool      // whether the release must be announced
}

// Held reports whether the lock is held at the server's time now.
func (l Lock) Held(now time.Time) bool { return l.Holder != "-" && l.Until.After(now) }

// Parse parses the value of a lock's key as the scripts do. It returns false if value is not a
// lock.
func Parse(value string) (l Lock, ok bool) {
	words := strings.Split(value, " ")
	if len(words) != 5 || words[0] != "L1" || words[1] == "" || strings.ContainsAny(words[1], "\t\n\v\f\r") ||
		words[4] != "0" && words[4] != "1" {
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

// Read is the beginning of scripts that read the time and the lock.
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

package conn

import (
	"crypto/sha1" // Redis identifies scripts by it
	"encoding/hex"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A Script is a Lua script, and the SHA-1 hash under which Redis caches it.
type Script struct {
	Source, Hash string
	Wide         *Script // the form for many keys, or nil
}

// NewScript returns a Script with this source, and a wide form that runs it for each key.
func NewScript(src string) Script {
	one := named(strings.TrimSpace(src))
	many := named("local function one(KEYS, ARGV)\n" + one.Source + "\nend" + wide)
	one.Wide = &many
	return one
}

// Widened returns s with a faster wide form, whose arguments and results are those of the usual
// one.
func (s Script) Widened(src string) Script {
	many := named(strings.TrimSpace(src))
	s.Wide = &many
	return s
}

func named(src string) Script { return Script{Source: src, Hash: SHA1([]byte(src))} }

// wide runs a script, defined as the function one, for many keys in turn, and returns a list of
// its results. If the script fails for one key, the whole command fails; what it has done for the
// keys before remains. KEYS: those of each run. ARGV: the number of keys of each run; then for
// each run the number of its arguments, and these.
const wide = `
local results, per, at = {}, tonumber(ARGV[1]), 2
for k = 1, #KEYS, per do
  local n, keys, args = tonumber(ARGV[at]), {}, {}
  for i = 1, per do keys[i] = KEYS[k + i - 1] end
  for i = 1, n do args[i] = ARGV[at + i] end
  at = at + n + 1
  results[#results + 1] = one(keys, args)
end
return results`

// Unknown reports whether the server has not run a script because it does not know its hash. The
// script must then be sent in full.
func Unknown(cmd redis.Cmder) bool { return IsUnknown(cmd.Err(), cmd.Name()) }

// IsUnknown is Unknown for the error of a command with this name.
func IsUnknown(err error, name string) bool {
	return redis.HasErrorPrefix(err, "NOSCRIPT") && name == "evalsha"
}

// SHA1 returns the hexadecimal SHA-1 hash of b, as redis.sha1hex does in a script.
func SHA1(b []byte) string {
	sum := sha1.Sum(b)
	return hex.EncodeToString(sum[:])
}

// Once returns cmd as a command that the client does not send twice. A request for a lease or a
// lock must not be sent twice. The first copy could be delayed, and arrive when the lease of the
// second copy has ended.
func Once(cmd *redis.Cmd) redis.Cmder {
	return sentOnce{cmd}
}

type sentOnce struct{ *redis.Cmd }

func (sentOnce) NoRetry() bool { return true }

// withoutRetry returns cmd as a command that the client does not send twice. The usual types need
// no allocation.
func withoutRetry(cmd redis.Cmder) redis.Cmder {
	switch cmd := cmd.(type) {
	case *redis.Cmd:
		return sentOnce{cmd}
	case *redis.StringCmd:
		return stringOnce{cmd}
	case *redis.IntCmd:
		return intOnce{cmd}
	}
	return anyOnce{cmd}
}

type (
	stringOnce struct{ *redis.StringCmd }
	intOnce    struct{ *redis.IntCmd }
	anyOnce    struct{ redis.Cmder }
)

func (stringOnce) NoRetry() bool { return true }
func (intOnce) NoRetry() bool    { return true }
func (anyOnce) NoRetry() bool    { return true }

// keyOf returns the key of a command of the protocol: its first argument, or for a script, its
// first key.
func keyOf(cmd redis.Cmder) string {
	args, position := cmd.Args(), 1
	if strings.HasPrefix(cmd.Name(), "eval") {
		position = 3
	}
	if position >= len(args) {
		return ""
	}
	key, _ := args[position].(string)
	return key
}

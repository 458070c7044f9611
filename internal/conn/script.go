package conn

import (
	"crypto/sha1" // by which Redis names scripts
	"encoding/hex"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Script is a Lua script and the SHA-1 by which Redis caches it.
type Script struct {
	Source, Hash string
	Wide         *Script // does the same for many keys; nil: it has no such form
}

// NewScript makes a script.
func NewScript(src string) Script {
	one := named(strings.TrimSpace(src))
	many := named("local function one(KEYS, ARGV)\n" + one.Source + "\nend" + wide)
	one.Wide = &many
	return one
}

// Widened is the script with another wide form, which is faster: its arguments and answers are
// those of any.
func (s Script) Widened(src string) Script {
	many := named(strings.TrimSpace(src))
	s.Wide = &many
	return s
}

func named(src string) Script { return Script{Source: src, Hash: SHA1([]byte(src))} }

// wide runs a script, one, for many keys in turn, and answers what it answers for each. If it fails
// for one, the whole script fails there: what it has done for others until then stays done. KEYS:
// those of each. ARGV: how many keys each has; then for each how many arguments, and these.
const wide = `
local answers, per, at = {}, tonumber(ARGV[1]), 2
for k = 1, #KEYS, per do
  local n, keys, args = tonumber(ARGV[at]), {}, {}
  for i = 1, per do keys[i] = KEYS[k + i - 1] end
  for i = 1, n do args[i] = ARGV[at + i] end
  at = at + n + 1
  answers[#answers + 1] = one(keys, args)
end
return answers`

// Unknown tells whether a server has not run a script, since it does not know it by its hash: it
// must be sent in full.
func Unknown(cmd redis.Cmder) bool { return IsUnknown(cmd.Err(), cmd.Name()) }

// IsUnknown is Unknown for the error of a command with that name.
func IsUnknown(err error, name string) bool {
	return redis.HasErrorPrefix(err, "NOSCRIPT") && name == "evalsha"
}

// SHA1 is what Redis' sha1hex makes of b.
func SHA1(b []byte) string {
	sum := sha1.Sum(b)
	return hex.EncodeToString(sum[:])
}

// Once returns cmd as a command that is not sent twice. A request for a lease or a lock must not
// be: the delayed first send could arrive when the second has been carried out, and ended, already.
func Once(cmd *redis.Cmd) redis.Cmder {
	return sentOnce{cmd}
}

type sentOnce struct{ *redis.Cmd }

func (sentOnce) NoRetry() bool { return true }

// unrepeated returns cmd as a command that the client does not send twice. The usual types need no
// allocation.
func unrepeated(cmd redis.Cmder) redis.Cmder {
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

// keyOf is the key of a command of the protocol: a GET, or a script on one key.
func keyOf(cmd redis.Cmder) string {
	args, at := cmd.Args(), 1
	if strings.HasPrefix(cmd.Name(), "eval") {
		at = 3
	}
	if at >= len(args) {
		return ""
	}
	key, _ := args[at].(string)
	return key
}

package lease

import (
	"strconv"
	"time"

	"github.com/cacheaside/cacheaside/internal/keys"
)

// A key is on hold while a load of it may see what a replica of the database has not heard of yet: for a time after its delete, by a second key that the same
// script sets (see package channel), and for a time after its loader's generation was raised. No lease is given of it then, and no claim. A fill need not look: who has a
// lease took it before the hold, and setting the hold has voided it; or he took it after the hold, and so has loaded after it.

// Hold has the store ask whether keys are on hold, and tells for how long they are: whole milliseconds. It is called before all else, if at all.
func (s *Store) Hold(lag time.Duration) { s.lag = lag }

// keys are the keys of a script, after their number. One that asks for a lease is told of the hold.
func (s *Store) keys(a *Attempt, asks bool) []any {
	if !asks || s.lag == 0 {
		return []any{1, a.key}
	}
	return []any{2, a.key, keys.Hold(a.key)}
}

// holdArgs are what else a script that asks for a lease must know.
func (s *Store) holdArgs(a *Attempt) []any {
	switch {
	case s.lag == 0:
		return nil
	case a.Young == 0:
		return []any{s.lag.Milliseconds(), ""}
	default:
		return []any{s.lag.Milliseconds(), strconv.FormatUint(a.Young, 10)}
	}
}

// onHold sets held to whether the key is on hold. KEYS: key, its hold; without that there are no holds. The last two of ARGV: the lag in ms, and a generation in
// microseconds by Redis' clock, or "" if it cannot be so young as to matter.
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

package bloom

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// The scripts of programs that know of no tags.
const untaggedWhole = `
if redis.call('GETRANGE', KEYS[1], 0, 15) ~= ARGV[1] then return -1 end
local function at(s, i)
  local a, b, c, d = string.byte(s, i, i + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end`

var untaggedLookup = conn.NewScript(untaggedWhole + `
local step, reply = 4 * ARGV[2], {}
for i = 1, #ARGV[3], step do
  local found = '1'
  for j = i, i + step - 1, 4 do
    if redis.call('GETBIT', KEYS[1], at(ARGV[3], j)) == 0 then found = '0' break end
  end
  reply[#reply + 1] = found
end
return table.concat(reply)`)

var untaggedAdd = conn.NewScript(untaggedWhole + `
if redis.call('STRLEN', KEYS[1]) == 16 then redis.call('SET', KEYS[1], ARGV[1] .. string.rep('\0', tonumber(ARGV[3]))) end
local set = 0
for i = 1, #ARGV[2], 4 do
  set = set + 1 - redis.call('SETBIT', KEYS[1], at(ARGV[2], i), 1)
end
return set`)

var untaggedMerge = conn.NewScript(untaggedWhole + `
local before = redis.call('BITCOUNT', KEYS[1], 16, -1)
redis.call('SET', KEYS[2], ARGV[2])
redis.call('BITOP', 'OR', KEYS[1], KEYS[1], KEYS[2])
redis.call('DEL', KEYS[2])
return redis.call('BITCOUNT', KEYS[1], 16, -1) - before`)

// untagged does with a generation what those programs do.
type untagged struct {
	f *Redis
	g *generation
}

func (u untagged) run(t *testing.T, s conn.Script, segment uint64, args ...any) any {
	t.Helper()
	key := segmentKey(u.f.options.Prefix, u.f.name, u.g.ID, segment)
	reply, err := u.f.rdb.Eval(t.Context(), s.Source, []string{key, key + ":merged"}, append([]any{u.g.header()}, args...)...).Result()
	must(t, err)
	return reply
}

func (u untagged) add(t *testing.T, key string, merge bool) {
	h, s := []hash{hashOf(key)}, u.g.shape()
	reply := any(nil)
	if merge {
		reply = u.run(t, untaggedMerge, s.segment(&h[0]), s.mask(h, upTo(1)))
	} else {
		reply = u.run(t, untaggedAdd, s.segment(&h[0]), s.places(h, upTo(1)), s.bits/8)
	}
	if reply == int64(lost) {
		t.Fatal("a program that knows of no tags finds the segment lost")
	}
}

func (u untagged) has(t *testing.T, key string) bool {
	h, s := []hash{hashOf(key)}, u.g.shape()
	return u.run(t, untaggedLookup, s.segment(&h[0]), s.k, s.places(h, upTo(1))) != "0"
}

// TestMixedWithUntagged: programs that know of no tags add to the same filter, before and after
// those that do, and all find all; also when one of them has written the descriptor, without what
// it does not know.
func TestMixedWithUntagged(t *testing.T) {
	backends(t, func(t *testing.T, rdb redis.UniversalClient) {
		for what, forget := range map[string]bool{"told": false, "forgotten": true} {
			t.Run(what, func(t *testing.T) {
				f := newFilter(t, rdb, 200_000)
				u := untagged{f, built(t, f)}
				var keys []string
				both := func(n int, add func(key string)) {
					for _, key := range keysOf(string(rune('a'+len(keys))), n) {
						add(key)
						keys = append(keys, key)
					}
					for _, key := range keys {
						if !u.has(t, key) {
							t.Fatalf("%d keys: one is hidden from a program that knows of no tags", len(keys))
						}
					}
					maybe, err := f.MightContainMany(t.Context(), keys)
					must(t, err)
					for i, may := range maybe {
						if !may {
							t.Fatalf("key %d of %d is hidden", i, len(keys))
						}
					}
				}
				both(1, func(key string) { u.add(t, key, false) }) // to a segment whose bits are not there yet
				both(2, func(key string) { u.add(t, key, true) })
				if forget {
					raw, err := rdb.Get(t.Context(), f.key).Result()
					must(t, err)
					must(t, rdb.Set(t.Context(), f.key, strings.ReplaceAll(raw, `,"tagged":true`, ""), 0).Err())
					f.known.Store(nil)
				}
				both(30, func(key string) { must(t, f.Add(t.Context(), key)) })
				both(10, func(key string) { u.add(t, key, false) })
				both(10, func(key string) { u.add(t, key, true) })
				if s := f.Stats(); !forget && s.Unknown+s.LostAdds != 0 {
					t.Errorf("what they have added is taken for lost: %+v", s)
				}
				must(t, rdb.Del(t.Context(), f.key).Err())
			})
		}
	})
}

package invalidation

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/keys"
)

// Redis has a sorted set for each loader with groups and each range. Its members are the stable
// hashes of invalidated groups, and their scores are the numbers of their last invalidations. One
// more member, the empty string, has the floor as its score: entries whose loads began before it
// are outdated. A process reads the members from the score of the newest one that it knows. So it
// receives at least that one, unless the set was lost. Then the process creates the set again, with
// a floor that outdates everything from before. Like the hash of the range, the set does not
// expire.
//
// Nothing is recorded in a set that does not exist, because then no process can use an entry from
// before: it must create the set first.

func (b *Bus) groupsKey(rng int, loader string) string {
	return keys.Groups(b.prefix, loader, conn.Tag(rng))
}

// DeleteGroup outdates the entries of a group of a loader, which this process may not have. hash is
// the group's stable hash. life is the maximum life of an entry of the loader, or 0 if it is not
// known. DeleteGroup ends with ctx, and times out after maxTimeouts command time-outs.
func (b *Bus) DeleteGroup(ctx context.Context, loader string, hash uint64, life time.Duration) error {
	caller, began := ctx, time.Now()
	ctx, cancel := conn.WithTimeout(ctx, maxTimeouts*b.conn.Timeout())
	defer cancel()
	ranges := b.conn.InUse()
	errs := make([]error, ranges)
	send := func(ctx context.Context, r int) {
		errs[r] = conn.NotReturned(nil) // until it has
		errs[r] = b.announceGroup(ctx, r, loader, hash, life)
	}
	err := b.conn.Finish(ctx, func(ctx context.Context) {
		var all sync.WaitGroup
		defer all.Wait() // also if a hook ends the goroutine
		for r := 1; r < ranges; r++ {
			all.Go(func() { send(ctx, r) })
		}
		send(ctx, 0)
	})
	if err != nil {
		b.Disown() // Redis may still execute it
		return b.conn.Explain(caller, err, operation, b.keys[0], began)
	}
	for r, err := range errs {
		if err != nil {
			b.conn.Refused(caller, b.keys[r], err)
			b.Disown()
			return b.conn.Explain(caller, err, operation, b.keys[r], began)
		}
	}
	return nil
}

// announceGroup numbers, records and announces the invalidation of a group in one range, and then
// applies it in this process.
func (b *Bus) announceGroup(ctx context.Context, rng int, loader string, hash uint64, life time.Duration) error {
	of, last := b.loaders.groups(loader), uint64(0)
	if of != nil {
		last = of.Last(uint8(rng))
	}
	body := binary.BigEndian.AppendUint64([]byte{groupKind}, hash)
	args := []any{
		b.topic, appendHead(nil, rng, b.origin.Load()), append(body, loader...), 1 + rand.N(1000),
		last, life.Microseconds(), string(groups.Of(hash)),
	}
	digits, err := b.evalKeys(ctx, nil, announceGroupScript, []string{b.keys[rng], b.groupsKey(rng, loader)}, args).Text()
	if err != nil {
		return err
	}
	b.counts.announced.Add(1)
	number, err := parseNumber(digits)
	if err == nil && of != nil {
		of.Announced(rng, hash, number)
	}
	return err
}

// receivedGroup applies the announcement of another process. body is the group's hash and the name
// of its loader.
func (b *Bus) receivedGroup(m *Message) {
	if of := b.loaders.groups(string(m.Body[8:])); of != nil {
		of.Announced(m.Range, binary.BigEndian.Uint64(m.Body), m.Number)
	}
}

// ReadGroups reads the invalidations of a loader's groups in one range that this process does not
// know yet.
func (b *Bus) ReadGroups(ctx context.Context, rng int, loader string) error {
	ctx, cancel := context.WithTimeout(ctx, b.conn.Timeout())
	defer cancel()
	of := b.loaders.groups(loader)
	var news *redis.ZSliceCmd
	if err := b.conn.Await(ctx, func(ctx context.Context) {
		cmd := b.readGroupsCommand(ctx, rng, loader, of)
		b.conn.Process(ctx, []redis.Cmder{cmd})
		news = cmd
	}); err != nil {
		return err // news may still be in use
	}
	if news == nil {
		return conn.NotReturned(nil)
	}
	return b.applyGroups(ctx, rng, 0, loader, of, news)
}

func (b *Bus) readGroupsCommand(ctx context.Context, rng int, loader string, of *groups.Loader) *redis.ZSliceCmd {
	return redis.NewZSliceCmd(ctx, "zrange", b.groupsKey(rng, loader), strconv.FormatUint(of.Last(uint8(rng)), 10), "+inf", "byscore", "withscores")
}

// applyGroups applies the reply to readGroupsCommand. If the set has lost what this process knows,
// it creates the set again. now is as in groups.Loader.Read.
func (b *Bus) applyGroups(ctx context.Context, rng int, now uint64, loader string, of *groups.Loader, cmd *redis.ZSliceCmd) error {
	members, err := cmd.Result()
	if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") { // the script removes a key of another type
		return err
	}
	records, err := recordsOf(members)
	if err == nil && of.Read(rng, now, records) {
		return nil
	}
	if records, err = b.createGroups(ctx, rng, loader, of.Last(uint8(rng))); err != nil {
		return err
	}
	if !of.Read(rng, now, records) {
		return errors.New("the new set of groups is empty")
	}
	return nil
}

// createGroups creates the set of a loader's groups, unless it contains a number of at least last,
// and returns its records from last.
func (b *Bus) createGroups(ctx context.Context, rng int, loader string, last uint64) ([]groups.Record, error) {
	var cmd *redis.Cmd
	if err := b.conn.Await(ctx, func(ctx context.Context) {
		cmd = b.evalKeys(ctx, nil, createGroupsScript, []string{b.keys[rng], b.groupsKey(rng, loader)}, []any{last, 1 + rand.N(1000)})
	}); err != nil {
		return nil, err // cmd may still be in use
	}
	if cmd == nil {
		return nil, conn.NotReturned(nil)
	}
	reply, err := cmd.StringSlice()
	if err != nil {
		return nil, err
	}
	members := make([]redis.Z, len(reply)/2)
	for i := range members {
		score, err := strconv.ParseFloat(reply[2*i+1], 64) // some servers return an exponent
		if err != nil {
			return nil, errGroups
		}
		members[i] = redis.Z{Member: reply[2*i], Score: score}
	}
	return recordsOf(members)
}

var errGroups = errors.New("a set of groups has an unreadable member")

// recordsOf decodes members of a set of groups. A member that is not a group's hash counts as the
// floor, because it may be of a later version.
func recordsOf(members []redis.Z) ([]groups.Record, error) {
	records := make([]groups.Record, len(members))
	for i, m := range members {
		member, ok := m.Member.(string)
		if !ok || !(m.Score >= 0 && m.Score <= maxNumber) {
			return nil, errGroups
		}
		records[i] = groups.Record{Floor: len(member) != 8, Number: uint64(m.Score)}
		if !records[i].Floor {
			records[i].Group = groups.Set(member).At(0)
		}
	}
	return records, nil
}

// evalKeys is like eval, for a script with several keys in one slot. The commands in before go in
// the same trip.
func (b *Bus) evalKeys(ctx context.Context, before []redis.Cmder, s conn.Script, keys []string, args []any) *redis.Cmd {
	command := func(name, body string) *redis.Cmd {
		all := make([]any, 0, 3+len(keys)+len(args))
		all = append(all, name, body, len(keys))
		for _, key := range keys {
			all = append(all, key)
		}
		return redis.NewCmd(ctx, append(all, args...)...)
	}
	cmd := command("evalsha", s.Hash)
	b.conn.Process(ctx, append(before, cmd))
	if conn.Unknown(cmd) {
		cmd = command("eval", s.Source)
		b.conn.Process(ctx, []redis.Cmder{cmd})
	}
	return cmd
}

// newest is a function in Lua that returns the greatest number in the set, or 0 if there is none.
// If KEYS[2] is not a sorted set, or no script can have written the number, it deletes the key,
// which has the effect of a lost set.
const newest = `
local function newest()
  local top = redis.pcall('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  if top.err and not string.find(top.err, 'WRONGTYPE', 1, true) then error(top.err) end
  local n = tonumber(top[2] or 0) or 0
  if not top.err and n <= 4503599627370496 then return n end
  redis.call('DEL', KEYS[2])
  return 0
end`

// announceGroupScript is like announceScript, for a group. It also records the number, if the set
// exists. The number is greater than all that the caller knows, so an entry whose load began before
// cannot contain a greater one, even if Redis has lost numbers and its clock is behind.
//
// The script removes what no entry can refer to: if the oldest member is older than two lives of an
// entry, it removes those that are older than one; and the oldest, if there are more than
// groups.Max. The greatest number that it removes is the new floor.
//
// ARGV: channel, the part before the numbers, the part after them, a random step, the caller's last
// number, the life in microseconds or 0, the member.
var announceGroupScript = conn.NewScript(clock + newest + fmt.Sprintf(`
local prev, top = count(''), newest()
local n = math.max(prev, top, tonumber(ARGV[5]))
if now > n then n = now else n = n + ARGV[4] end
local digits = string.format('%%.0f', n)
set('', digits)
if top > 0 then
  redis.call('ZADD', KEYS[2], digits, ARGV[7])
  local function score(rank) return tonumber(redis.call('ZRANGE', KEYS[2], rank, rank, 'WITHSCORES')[2] or 0) end
  local life, cut = tonumber(ARGV[6]), score(-%d)
  if life > 0 and score(0) < n - 2 * life then cut = math.max(cut, n - life) end
  if cut > 0 then
    local removed = redis.call('ZRANGE', KEYS[2], string.format('%%.0f', cut), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', removed[2])
    redis.call('ZADD', KEYS[2], removed[2], '')
  end
end
redis.call('PUBLISH', ARGV[1], ARGV[2] .. string.format('%%.0f', prev) .. ' ' .. digits .. ' ' .. ARGV[3])
return digits`, groups.Max+1))

// createGroupsScript creates the set, unless it has a number of at least ARGV[1], the last one that
// the caller knows. The floor is greater than all numbers from before. It returns the members from
// ARGV[1] with their scores. ARGV[2]: a random step. DEL is a write, so that a full Redis accepts
// ZADD.
var createGroupsScript = conn.NewScript(clock + newest + `
local top, last = newest(), tonumber(ARGV[1])
if top < math.max(last, 1) then
  local n = math.max(count(''), top, last)
  if now > n then n = now else n = n + ARGV[2] end
  redis.call('DEL', KEYS[2])
  redis.call('ZADD', KEYS[2], string.format('%.0f', n), '')
end
return redis.call('ZRANGE', KEYS[2], ARGV[1], '+inf', 'BYSCORE', 'WITHSCORES')`)

package invalidation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
// a floor that outdates everything from before, also in its memory. So an invalidation that finds
// no set need not be recorded. Like the hash of the range, the set does not expire.

func (b *Bus) groupsKey(rng int, loader string) string {
	return keys.Groups(b.prefix, loader, conn.Tag(rng))
}

const (
	// firstNews is the maximum number of members that a process reads if it knows none. Ten loaders
	// on a cluster have 160 sets, which a new process reads before it trusts what is cached.
	firstNews = 16
	// maxNews is the maximum number of members that a process reads if it knows some, some 150 KB.
	maxNews = 4096
)

// newsLimit returns the maximum number of members to read from a set of a range. After each poll
// in a row that has timed out it is a quarter, because the reply may have been too long. A process
// that knows some members always reads firstNews, so that an outage costs it few entries.
func (b *Bus) newsLimit(rng int, last uint64) int {
	limit, least := maxNews, firstNews
	if last == 0 {
		limit, least = firstNews, 1
	}
	return max(limit>>(2*min(b.pollers[rng].timeouts.Load(), 8)), least)
}

// maxGroups is the maximum number of groups in one announcement. Some servers accept no more than
// 3,999 arguments of a command.
const maxGroups = 1000

// DeleteGroups outdates the entries of groups of a loader, which this process may not have. of are
// the groups' stable hashes. life is the maximum life of an entry of the loader, or 0 if it is not
// known. DeleteGroups ends with ctx, and times out after maxTimeouts command time-outs. After an
// error all or some of the groups may not be outdated.
func (b *Bus) DeleteGroups(ctx context.Context, loader string, set groups.Set, life time.Duration) error {
	caller, began := ctx, time.Now()
	ctx, cancel := conn.WithTimeout(ctx, maxTimeouts*b.conn.Timeout())
	defer cancel()
	ranges := b.conn.InUse()
	errs, numbers := make([]error, ranges), make([]uint64, ranges)
	send := func(ctx context.Context, r int) {
		errs[r] = conn.NotReturned(nil) // until it has
		for part := range slices.Chunk(set, 8*maxGroups) {
			numbers[r], errs[r] = b.announceGroups(ctx, r, loader, part, life)
			if errs[r] != nil {
				return
			}
		}
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
		b.collect(caller, r, 0, numbers[r])
	}
	return nil
}

// announceGroups numbers, records and announces the invalidation of at most maxGroups groups in one
// range, and then applies it in this process. It returns the number of the announcement.
func (b *Bus) announceGroups(
	ctx context.Context, rng int, loader string, set groups.Set, life time.Duration,
) (uint64, error) {
	log, last := b.loaders.groups(loader), uint64(0)
	if log != nil {
		last = log.Last(uint8(rng))
	}
	args := []any{
		b.topic, appendHead(nil, rng, b.origin.Load()), appendGroups(nil, loader, set), 1 + rand.N(1000),
		last, life.Microseconds(), loader,
	}
	for i := range set.Len() {
		args = append(args, []byte(set[8*i:8*i+8]))
	}
	cmd := b.evalKeys(ctx, nil, announceGroupsScript, []string{b.keys[rng], b.groupsKey(rng, loader)}, args)
	if cmd.Err() != nil {
		return 0, cmd.Err()
	}
	b.counts.announced.Add(1)
	number, err := b.gathered(rng, cmd)
	if err == nil && log != nil {
		log.Announced(rng, set, number)
	}
	return number, err
}

// receivedGroups applies the announcement of another process.
func (b *Bus) receivedGroups(m *Message) {
	loader, set := m.Groups()
	if log := b.loaders.groups(loader); log != nil {
		log.Announced(m.Range, set, m.Number)
	}
}

// groupNews is a read of the newest members of a set, in descending order.
type groupNews struct {
	cmd   *redis.ZSliceCmd
	last  uint64 // groups.Loader.Last when it was sent
	limit int    // the maximum number of members
}

func (b *Bus) readGroupsCommand(ctx context.Context, rng int, loader string, log *groups.Loader) *groupNews {
	last := log.Last(uint8(rng))
	limit := b.newsLimit(rng, last)
	return &groupNews{last: last, limit: limit, cmd: redis.NewZSliceCmd(ctx, "zrange", b.groupsKey(rng, loader),
		"+inf", strconv.FormatUint(last, 10), "byscore", "rev", "limit", 0, limit, "withscores")}
}

// A set of groups expires groupsLife after its last use, so that the sets of loaders that no longer
// exist do not stay for ever. Each announcement in the set is a use; processes that have the loader
// renew the set every groupsRenewal. The loss of an expired set outdates all entries, like any
// other loss of a set.
const (
	groupsLife    = 30 * 24 * time.Hour
	groupsRenewal = time.Hour
)

// applyGroups applies the reply to readGroupsCommand. If the set has lost what this process knows,
// it creates the set again. now is as in groups.Loader.Read.
func (b *Bus) applyGroups(
	ctx context.Context, rng int, now uint64, loader string, log *groups.Loader, news *groupNews,
) error {
	members, err := news.cmd.Result()
	if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") { // the script removes a key of another type
		return err
	}
	records, err := news.records(members)
	if err == nil && log.Read(rng, now, records) {
		return nil
	}
	if records, err = b.createGroups(ctx, rng, loader, log.Last(uint8(rng))); err != nil {
		return err
	}
	if !log.Read(rng, now, records) {
		return errors.New("the new set of groups is empty")
	}
	return nil
}

// createGroups creates the set of a loader's groups, unless it contains a number of at least last,
// and returns its records from last.
func (b *Bus) createGroups(ctx context.Context, rng int, loader string, last uint64) ([]groups.Record, error) {
	news := groupNews{last: last, limit: b.newsLimit(rng, last)}
	var cmd *redis.Cmd
	if err := b.conn.Await(ctx, func(ctx context.Context) {
		cmd = b.evalKeys(ctx, nil, createGroupsScript, []string{b.keys[rng], b.groupsKey(rng, loader)},
			[]any{last, 1 + rand.N(1000), news.limit})
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
	return news.records(members)
}

var errGroups = errors.New("a set of groups has an unreadable member")

// records returns members of a set, in descending order of their scores, as records in ascending
// order. A member that is not a group's hash counts as the floor, because it may be of a later
// version. If the set may have more members above last, the oldest record is a floor, too: a value
// from before it may belong to a group whose number was not read.
func (g *groupNews) records(members []redis.Z) ([]groups.Record, error) {
	records := make([]groups.Record, 0, len(members)+1)
	for _, m := range slices.Backward(members) {
		member, ok := m.Member.(string)
		if !ok || !(m.Score >= 0 && m.Score <= maxNumber) {
			return nil, errGroups
		}
		r := groups.Record{Floor: len(member) != 8, Number: uint64(m.Score)}
		if !r.Floor {
			r.Group = groups.Set(member).Hash(0)
		}
		if len(records) == 0 && len(members) >= g.limit && r.Number > g.last {
			records = append(records, groups.Record{Floor: true, Number: r.Number})
		}
		records = append(records, r)
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

// announceGroupsScript is like announceScript, for groups. It also records their number, if the set
// exists. The number is greater than all that the caller knows, even if Redis has lost numbers and
// its clock is behind. So no entry that this process has loaded before contains a greater one.
//
// Several groups get two numbers: the last group has the greater one, which is announced. So the
// newest number belongs to one member. Each process reads from the newest number that it knows,
// and would otherwise receive all of these groups with each read.
//
// The script removes what no entry can refer to: if the oldest member is older than two lives of an
// entry, it removes those that are older than one; and the oldest, if there are more than
// groups.Max. The greatest number that it removes is the new floor.
//
// If a process has polled for the loader, the script leaves the mark of pollScript. So programs
// without groups notice the invalidation, even if no program with groups has read the loader.
//
// ARGV: channel, the part before the numbers, the part after them, a random step, the caller's last
// number, the life in microseconds or 0, the loader, the members.
var announceGroupsScript = conn.NewScript(clock + gather + newest + fmt.Sprintf(`
local prev, top = count(''), newest()
local n = math.max(prev, top, tonumber(ARGV[5]))
if now > n then n = now else n = n + ARGV[4] end
local below = string.format('%%.0f', n)
if #ARGV > 8 then n = n + 1 end
local digits = string.format('%%.0f', n)
set('', digits)
local mark = ARGV[7] .. ':groups'
if not redis.call('HGET', KEYS[1], mark) and redis.call('HGET', KEYS[1], ARGV[7]) then set(mark, 1) end
if top > 0 then
  for i = 8, #ARGV - 1 do redis.call('ZADD', KEYS[2], below, ARGV[i]) end
  redis.call('ZADD', KEYS[2], digits, ARGV[#ARGV])
  local function score(rank) return tonumber(redis.call('ZRANGE', KEYS[2], rank, rank, 'WITHSCORES')[2] or 0) end
  local life, cut = tonumber(ARGV[6]), score(-%d)
  if life > 0 and score(0) < n - 2 * life then cut = math.max(cut, n - life) end
  if cut > 0 then
    local removed = redis.call('ZRANGE', KEYS[2], string.format('%%.0f', cut), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1,
      'WITHSCORES')
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', removed[2])
    redis.call('ZADD', KEYS[2], removed[2], '')
  end
  redis.call('PEXPIRE', KEYS[2], %d)
end
return announce(ARGV[1], ARGV[2], string.format('%%.0f', prev), digits, ARGV[3], true)`,
	groups.Max+1, groupsLife.Milliseconds()))

// createGroupsScript creates the set, unless it has a number of at least ARGV[1], the last one that
// the caller knows. The floor is greater than all numbers from before. The script returns the
// newest members down to ARGV[1] with their scores, at most ARGV[3]. ARGV[2]: a random step. Once a
// script has written, a full Redis no longer refuses its commands, so DEL comes before ZADD.
var createGroupsScript = conn.NewScript(clock + newest + `
local top, last = newest(), tonumber(ARGV[1])
if top < math.max(last, 1) then
  local n = math.max(count(''), top, last)
  if now > n then n = now else n = n + ARGV[2] end
  redis.call('DEL', KEYS[2])
  redis.call('ZADD', KEYS[2], string.format('%.0f', n), '')
  redis.call('PEXPIRE', KEYS[2], ` + strconv.FormatInt(groupsLife.Milliseconds(), 10) + `)
end
return redis.call('ZRANGE', KEYS[2], '+inf', ARGV[1], 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[3], 'WITHSCORES')`)

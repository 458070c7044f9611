package invalidation

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const allGroups = 1 << 60

// grouped makes a bus of a process that has the loader users, with groups, and no memory. Nothing
// polls in the background.
func (b *backend) grouped() (*Bus, *groups.Loader) {
	b.t.Helper()
	c := b.writer()
	log := groups.New(groups.Options{All: allGroups, InUse: true})
	c.Register("users", log, func(int, uint64) {})
	return c, log
}

func (b *backend) readGroups(c *Bus, rng int) {
	b.t.Helper()
	b.check(c.ReadGroups(b.ctx, rng, "users"))
}

func (b *backend) deleteGroup(c *Bus, hash uint64, life time.Duration) {
	b.t.Helper()
	b.check(c.DeleteGroups(b.ctx, "users", groups.SetOf(hash), life))
}

// numbersOf returns the set of a range: the number of each group, and the floor.
func (b *backend) numbersOf(c *Bus, rng int) (numbers map[uint64]uint64, floor uint64) {
	b.t.Helper()
	members, err := b.rdb.ZRangeWithScores(b.ctx, c.groupsKey(rng, "users"), 0, -1).Result()
	b.check(err)
	numbers = make(map[uint64]uint64)
	for _, m := range members {
		if m.Member == "" {
			floor = uint64(m.Score)
		} else {
			numbers[groups.Set(m.Member.(string)).Hash(0)] = uint64(m.Score)
		}
	}
	return numbers, floor
}

func member(hash uint64) string { return string(binary.BigEndian.AppendUint64(nil, hash)) }

// An invalidation has one number in each range. All processes read it, and keep what was loaded
// since.
func TestGroupsOfTwoProcesses(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.flush()
		p, here := b.grouped()
		q, there := b.grouped()
		for rng := range p.conn.InUse() {
			rng8 := uint8(rng)
			if here.Current(rng8, 1<<60, nil) {
				t.Fatal("current before the log was read")
			}
			b.readGroups(p, rng)
			b.readGroups(q, rng)
			numbers, floor := b.numbersOf(p, rng)
			if len(numbers) != 0 || floor == 0 || here.Last(rng8) != floor || there.Last(rng8) != floor ||
				!here.Current(rng8, floor, nil) || here.Current(rng8, floor-1, nil) {
				t.Fatalf("the set is %v from %d, read up to %d and %d", numbers, floor, here.Last(rng8),
					there.Last(rng8))
			}
		}
		b.deleteGroup(p, 7, 0)
		b.deleteGroup(q, 8, 0)
		b.deleteGroup(q, 7, 0)
		for rng := range p.conn.InUse() {
			rng8 := uint8(rng)
			known := here.Last(rng8)
			numbers, _ := b.numbersOf(p, rng)
			if len(numbers) != 2 || numbers[8] <= known || numbers[7] <= numbers[8] ||
				b.parseNumber(p, rng, "") != numbers[7] {
				t.Fatalf("%v after %d", numbers, known)
			}
			if here.Current(rng8, known, groups.SetOf(7)) || !here.Current(rng8, known, groups.SetOf(8)) ||
				there.Current(rng8, known, groups.SetOf(8)) {
				t.Error("a process applies its own invalidations before it returns, and has not read the others")
			}
			b.readGroups(p, rng)
			if here.Last(rng8) != numbers[7] || here.Current(rng8, numbers[7]-1, groups.SetOf(7)) ||
				here.Current(rng8, known, groups.SetOf(8)) ||
				!here.Current(rng8, numbers[7], groups.SetOf(7, 8, allGroups)) {
				t.Errorf("read up to %d of %v", here.Last(rng8), numbers)
			}
			if ttl := b.rdb.TTL(b.ctx, p.groupsKey(rng, "users")).Val(); ttl <= groupsLife-24*time.Hour ||
				ttl > groupsLife {
				t.Errorf("the set lives for %v", ttl)
			}
		}
	})
}

// A number is greater than all that anyone knows, also if Redis has lost some of them and its clock
// is behind. A new floor, too.
func TestNumbersOfGroupsWhereTheClockIsBehind(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
		for name, c := range map[string]struct{ announced, newest, last uint64 }{
			"the number of the range": {ahead + 2e9, ahead + 1e9, ahead},
			"the newest of the set":   {ahead, ahead + 2e9, ahead + 1e9},
			"the last of the caller":  {ahead + 1e9, ahead, ahead + 2e9},
		} {
			for _, there := range []bool{true, false} {
				b.flush()
				p, log := b.grouped()
				log.Read(0, 0, []groups.Record{{Floor: true, Number: c.last}})
				b.check(b.rdb.HSet(b.ctx, p.keys[0], "", c.announced).Err())
				if there {
					b.check(b.rdb.ZAdd(b.ctx, p.groupsKey(0, "users"),
						redis.Z{Score: float64(c.newest), Member: member(1)}).Err())
				}
				greatest := max(c.announced, c.last)
				if there {
					greatest = max(greatest, c.newest)
				}
				step := func(step string, n uint64) {
					t.Helper()
					if n <= greatest || n > greatest+1000 {
						t.Errorf("%s, %v: %s is %d, after %d", name, there, step, n, greatest)
					}
				}
				if !there || c.newest < c.last { // lost
					b.readGroups(p, 0)
					_, floor := b.numbersOf(p, 0)
					step("the floor", floor)
					greatest = floor
				}
				b.deleteGroup(p, 7, 0)
				numbers, _ := b.numbersOf(p, 0)
				step("the number", numbers[7])
				if log.Current(0, greatest, groups.SetOf(7)) {
					t.Errorf("%s, %v: current", name, there)
				}
			}
		}
	})
}

// A process that knows more than Redis, whose clock is behind, takes its own invalidation for a
// newer one: no value that it has loaded before is current afterwards.
func TestInvalidationOfAGroupAfterALoss(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.flush()
		p, log := b.grouped()
		known := uint64(time.Now().Add(time.Hour).UnixMicro())
		log.Read(0, 0, []groups.Record{{Floor: true, Number: known}})
		b.deleteGroup(p, 7, 0)
		if log.Current(0, known, groups.SetOf(7)) {
			t.Errorf("current after the number %d; %d was known", b.parseNumber(p, 0, ""), known)
		}
	})
}

// If Redis has lost what a process knows, everything from before is outdated.
func TestLostSetOfGroups(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		for name, lose := range map[string]func(key string) error{
			"lost":      func(key string) error { return b.rdb.Del(b.ctx, key).Err() },
			"gone back": func(key string) error { return b.rdb.ZRem(b.ctx, key, member(7)).Err() },
			"a string":  func(key string) error { return b.rdb.Set(b.ctx, key, "x", 0).Err() },
			"a hash":    func(key string) error { b.rdb.Del(b.ctx, key); return b.rdb.HSet(b.ctx, key, "x", "y").Err() },
			"an infinite one": func(key string) error {
				return b.rdb.ZAddArgs(b.ctx, key,
					redis.ZAddArgs{Members: []redis.Z{{Score: 1e300, Member: member(9)}}}).Err()
			},
		} {
			for _, first := range []string{"a read", "an invalidation"} {
				b.flush()
				p, log := b.grouped()
				q, other := b.grouped()
				b.readGroups(p, 0)
				b.deleteGroup(p, 7, 0)
				b.readGroups(p, 0)
				b.readGroups(q, 0)
				known := log.Last(0)
				b.check(lose(p.groupsKey(0, "users")))
				if first == "an invalidation" {
					b.deleteGroup(p, 7, 0)
					if log.Current(0, known, groups.SetOf(7)) {
						t.Errorf("%s, %s: current", name, first)
					}
				}
				b.readGroups(p, 0)
				b.readGroups(q, 0)
				for _, log := range []*groups.Loader{log, other} {
					if log.Last(0) <= known || first == "a read" && log.Current(0, known, nil) ||
						log.Current(0, known, groups.SetOf(7)) || !log.Current(0, log.Last(0), groups.SetOf(7, 8)) {
						t.Errorf("%s, %s: read up to %d, after %d", name, first, log.Last(0), known)
					}
				}
				now := log.Last(0)
				b.deleteGroup(p, 7, 0)
				if numbers, _ := b.numbersOf(p, 0); numbers[7] <= now {
					t.Errorf("%s, %s: %v after %d", name, first, numbers, now)
				}
			}
		}
	})
}

// A member that this version does not know outdates everything from before it.
func TestUnknownMemberOfASet(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.flush()
		p, log := b.grouped()
		b.readGroups(p, 0)
		known := log.Last(0)
		b.check(b.rdb.ZAdd(b.ctx, p.groupsKey(0, "users"),
			redis.Z{Score: float64(known + 1000), Member: "of a later version"}).Err())
		b.readGroups(p, 0)
		if log.Current(0, known, nil) || !log.Current(0, known+1000, groups.SetOf(7)) {
			t.Errorf("read up to %d, after %d", log.Last(0), known)
		}
	})
}

// An invalidation that finds no set leaves none: no entry can be older than the floor of the next
// one. So names of loaders from outside leave nothing.
func TestGroupsOfUnknownLoadersLeaveNothing(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.flush()
		c := b.writer()
		b.deleteGroup(c, 7, 0)
		for r := range c.conn.InUse() {
			if n := b.rdb.Exists(b.ctx, c.groupsKey(r, "users")).Val(); n != 0 {
				t.Errorf("range %d: there is a set", r)
			}
			if fields := b.rdb.HGetAll(b.ctx, c.keys[r]).Val(); len(fields) != 1 || fields[""] == "" {
				t.Errorf("range %d: %v", r, fields)
			}
		}
		p, log := b.grouped()
		b.readGroups(p, 0)
		if log.Last(0) <= b.parseNumber(c, 0, "") {
			t.Errorf("the floor is %d, and %d was announced before", log.Last(0), b.parseNumber(c, 0, ""))
		}
	})
}

// An invalidation by any process leaves the mark of a loader that a process without groups has
// polled for, in each range.
func TestInvalidationsOfGroupsLeaveMarks(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.flush()
		discovered := 0
		plain, writer := b.writer(), b.writer()
		log := groups.New(groups.Options{All: allGroups, Discovered: func() { discovered++ }})
		plain.Register("users", log, func(int, uint64) {})
		poll := func(rng int) {
			t.Helper()
			_, err := plain.poll(rng, []string{"users"}, []*groups.Loader{log}, false)
			b.check(err)
		}
		for rng := range plain.conn.InUse() {
			poll(rng)
		}
		if discovered != 0 {
			t.Fatal("no process has used groups")
		}
		b.deleteGroup(writer, 7, 0)
		for rng := range plain.conn.InUse() {
			poll(rng)
			if fields := b.rdb.HGetAll(b.ctx, plain.keys[rng]).Val(); fields["users:groups"] == "" || len(fields) != 3 {
				t.Errorf("range %d: %v", rng, fields)
			}
		}
		if discovered != 1 || !log.InUse() || log.Last(0) <= b.parseNumber(writer, 0, "") {
			t.Errorf("discovered %d times, read up to %d", discovered, log.Last(0))
		}
	})
}

// Members are removed when all entries from before them have expired: but not one by one.
func TestSetIsTrimmedByAge(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		const life = time.Hour
		number := func(ago time.Duration) uint64 { return uint64(b.rdb.Time(b.ctx).Val().Add(-ago).UnixMicro()) }
		for name, c := range map[string]struct {
			oldest  time.Duration
			life    time.Duration
			removed bool
		}{
			"older than two lives":    {life*2 + time.Minute, life, true},
			"older than one life":     {life*2 - time.Minute, life, false},
			"an unknown life":         {life * 1000, 0, false},
			"a loader without an end": {life * 1000, 10 * 365 * 24 * time.Hour, false},
		} {
			b.flush()
			p, log := b.grouped()
			key := p.groupsKey(0, "users")
			floor, removed, kept := number(c.oldest), number(life+time.Minute), number(life-time.Minute)
			b.check(b.rdb.ZAdd(b.ctx, key,
				redis.Z{Score: float64(floor), Member: ""}, redis.Z{Score: float64(removed - 1), Member: member(1)},
				redis.Z{Score: float64(removed), Member: member(2)},
				redis.Z{Score: float64(kept), Member: member(3)}).Err())
			b.deleteGroup(p, 7, c.life)
			numbers, now := b.numbersOf(p, 0)
			wantFloor, want := floor, 4
			if c.removed {
				wantFloor, want = removed, 2
			}
			if len(numbers) != want || now != wantFloor || numbers[3] != kept || numbers[7] == 0 {
				t.Errorf("%s: %d members, the floor is %d, want %d and %d", name, len(numbers), now, want, wantFloor)
			}
			b.readGroups(p, 0)
			if log.Current(0, removed-1, groups.SetOf(2)) || !log.Current(0, removed, groups.SetOf(1, 2)) {
				t.Errorf("%s: a value of a longer life is taken for current, or a younger one is not", name)
			}
			b.deleteGroup(p, 8, c.life) // it has nothing to remove
			if numbers, now := b.numbersOf(p, 0); len(numbers) != want+1 || now != wantFloor {
				t.Errorf("%s: then %d members, the floor is %d", name, len(numbers), now)
			}
		}
	})
}

func TestSetIsTrimmedByCount(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		if _, cluster := b.rdb.(*redis.ClusterClient); cluster {
			return // the script is the same
		}
		b.flush()
		p, log := b.grouped()
		b.readGroups(p, 0)
		floor := log.Last(0)
		members := make([]redis.Z, 0, groups.Max)
		for i := range uint64(groups.Max) {
			members = append(members, redis.Z{Score: float64(floor + 1 + i), Member: member(1000 + i)})
		}
		for i := 0; i < len(members); i += 1 << 12 {
			b.check(b.rdb.ZAdd(b.ctx, p.groupsKey(0, "users"), members[i:i+1<<12]...).Err())
		}
		count := func() int { return int(b.rdb.ZCard(b.ctx, p.groupsKey(0, "users")).Val()) }
		score := func(member string) uint64 {
			return uint64(b.rdb.ZScore(b.ctx, p.groupsKey(0, "users"), member).Val())
		}
		b.deleteGroup(p, 1000+groups.Max-1, 0) // one of them: there are not more
		if count() != groups.Max+1 || score("") != floor {
			t.Errorf("%d members, the floor is %d, want %d", count(), score(""), floor)
		}
		for i := range uint64(3) {
			b.deleteGroup(p, i, 0)
			if count() != groups.Max+1 || score("") != floor+1+i {
				t.Errorf("%d members, the floor is %d, want %d", count(), score(""), floor+1+i)
			}
		}
		numbers, now := b.numbersOf(p, 0)
		if numbers[1002] != 0 || now != floor+3 || numbers[1003] != floor+4 {
			t.Errorf("the floor is %d, and the number after it %d, want %d and the next", now, numbers[1003], floor+3)
		}
	})
}

// record adds members to a set, with the numbers from on, each once.
func (b *backend) record(c *Bus, rng int, from uint64, n int) {
	b.t.Helper()
	members := make([]redis.Z, n)
	for i := range members {
		members[i] = redis.Z{Score: float64(from + uint64(i)), Member: member(from + uint64(i))}
	}
	for part := range slices.Chunk(members, 1<<10) {
		b.check(b.rdb.ZAdd(b.ctx, c.groupsKey(rng, "users"), part...).Err())
	}
}

// reply returns the number of members in the reply to a read of a set.
func (b *backend) reply(c *Bus, rng int, log *groups.Loader) int {
	b.t.Helper()
	read := c.readGroupsCommand(b.ctx, rng, "users", log)
	c.conn.Process(b.ctx, []redis.Cmder{read.cmd})
	b.check(read.cmd.Err())
	return len(read.cmd.Val())
}

// A process that starts reads a few of the newest numbers of a set of any size. It rejects entries
// that were loaded before the oldest of them, and judges later ones.
func TestNewProcessReadsFewNumbers(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.flush()
		p, _ := b.grouped()
		b.readGroups(p, 0)
		_, floor := b.numbersOf(p, 0)
		const n = 1000
		b.record(p, 0, floor+1, n)
		newest := floor + n
		q, log := b.grouped()
		if n := b.reply(q, 0, log); n > firstNews {
			t.Errorf("a reply has %d members, want at most %d", n, firstNews)
		}
		if _, err := q.poll(0, []string{"users"}, []*groups.Loader{log}, false); err != nil {
			t.Fatal(err)
		}
		oldest := newest - firstNews + 1
		if log.Last(0) != newest || log.Current(0, oldest-1, groups.SetOf(7)) ||
			!log.Current(0, oldest, groups.SetOf(7, oldest)) ||
			log.Current(0, oldest, groups.SetOf(7, oldest+1)) ||
			!log.Current(0, newest, groups.SetOf(newest, allGroups)) {
			t.Errorf("read up to %d, want %d; values from %d on are judged", log.Last(0), newest, oldest)
		}
	})
}

// A process that was cut off reads a limited number of news. If there are more, it takes all values
// from before the oldest of them for outdated, also in its memory.
func TestProcessThatMissedManyNumbers(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		if _, cluster := b.rdb.(*redis.ClusterClient); cluster {
			return // the commands are the same
		}
		for _, many := range []bool{false, true} {
			b.flush()
			p, voids := b.writer(), 0
			log := groups.New(groups.Options{All: allGroups, InUse: true, Void: func() { voids++ }})
			p.Register("users", log, func(int, uint64) {})
			b.readGroups(p, 0)
			before, n := log.Last(0), maxNews-1
			if many {
				n = maxNews + 1
			}
			b.record(p, 0, before+1, n)
			b.readGroups(p, 0)
			oldest, newest := before+2, before+uint64(n)
			if log.Last(0) != newest || log.Current(0, newest-1, groups.SetOf(newest)) ||
				!log.Current(0, oldest, groups.SetOf(7)) {
				t.Errorf("%d news: read up to %d, want %d", n, log.Last(0), newest)
			}
			if log.Current(0, before, groups.SetOf(7)) == many || voids > 0 != many {
				t.Errorf("%d news: memory was outdated %d times", n, voids)
			}
		}
	})
}

// Each poll that times out makes the next one ask for less, until one succeeds.
func TestLatePollsAskForFewerNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		b := newBackend(t, rdb)
		p, log := b.grouped()
		late := &refusing{err: context.DeadlineExceeded}
		rdb.AddHook(late)
		for i, want := range []struct{ new, known int }{{16, 4096}, {4, 1024}, {1, 256}, {1, 64}, {1, 16}} {
			if unknown, known := p.readGroupsCommand(b.ctx, 0, "users", log).limit, p.newsLimit(0,
				1); unknown != want.new || known != want.known {
				t.Errorf("after %d late polls: at most %d members, and %d if some are known; want %+v", i, unknown,
					known, want)
			}
			p.pollers[0].poll()
		}
		late.err = errFailing
		p.pollers[0].poll()
		if n := p.pollers[0].timeouts.Load(); n != 5 {
			t.Errorf("%d late polls, and one that failed", n)
		}
		late.err = nil
		if p.pollers[0].poll(); p.newsLimit(0, log.Last(0)) != maxNews {
			t.Errorf("a poll has succeeded; then at most %d members", p.newsLimit(0, log.Last(0)))
		}
	})
}

// refusing fails all commands with an error, unless it is nil.
type refusing struct{ err error }

func (*refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.err != nil {
			cmd.SetErr(f.err)
			return f.err
		}
		return next(ctx, cmd)
	}
}

func (f *refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if f.err != nil {
				cmd.SetErr(f.err)
			}
		}
		if f.err != nil {
			return f.err
		}
		return next(ctx, cmds)
	}
}

// An invalidation of many groups in one call costs the reads that follow as much as one of a single
// group: after its news were read, one member.
func TestReadsAfterAnInvalidationOfManyGroups(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		for _, n := range []uint64{1, 2, maxGroups, 2*maxGroups + 1} {
			b.flush()
			p, log := b.grouped()
			q, other := b.grouped()
			b.readGroups(p, 0)
			b.readGroups(q, 0)
			known := log.Last(0)
			var all groups.Set
			for i := range n {
				all = append(all, groups.SetOf(1000+i)...)
			}
			b.check(p.DeleteGroups(b.ctx, "users", all, 0))
			b.readGroups(p, 0)
			b.readGroups(q, 0)
			for name, members := range map[string]int{"the process that invalidates": b.reply(p, 0, log),
				"another one": b.reply(q, 0, other)} {
				if members != 1 {
					t.Errorf("%d groups, %s: a read without news returns %d members", n, name, members)
				}
			}
			if log.Last(0) != b.parseNumber(p, 0, "") || other.Last(0) != log.Last(0) {
				t.Errorf("%d groups: read up to %d and %d; announced is %d", n, log.Last(0), other.Last(0),
					b.parseNumber(p, 0, ""))
			}
			for _, group := range []uint64{1000, 1000 + n/2, 1000 + n - 1} {
				for _, l := range []*groups.Loader{log, other} {
					if l.Current(0, known, groups.SetOf(group)) || !l.Current(0, l.Last(0), groups.SetOf(group)) {
						t.Errorf("%d groups: %d is current with a number from before, or outdated with the newest",
							n, group)
					}
				}
			}
		}
	})
}

// Who uses groups says so with its polls, and who does not learns of it.
func TestPollsOfGroups(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.flush()
		discovered := 0
		plain := b.writer()
		log := groups.New(groups.Options{All: allGroups, Discovered: func() { discovered++ }})
		plain.Register("users", log, func(int, uint64) {})
		poll := func(c *Bus, names []string, logs ...*groups.Loader) pollReply {
			t.Helper()
			reply, err := c.poll(0, names, logs, false)
			b.check(err)
			return reply
		}
		first := poll(plain, []string{"orders", "users"}, nil, log)
		if discovered != 0 || log.InUse() || log.Last(0) != 0 ||
			b.rdb.Exists(b.ctx, plain.groupsKey(0, "users")).Val() != 0 || b.rdb.HLen(b.ctx, plain.keys[0]).Val() != 3 {
			t.Errorf("no process uses groups; %v, %v", log.InUse(), b.rdb.HGetAll(b.ctx, plain.keys[0]).Val())
		}
		p, loaderLog := b.grouped()
		reply := poll(p, []string{"users", "orders"}, loaderLog, nil)
		if reply.generations[0] != first.generations[1] || reply.generations[1] != first.generations[0] ||
			loaderLog.Last(0) == 0 {
			t.Errorf("%+v, want %+v; read up to %d", reply, first, loaderLog.Last(0))
		}
		if err := b.rdb.HGet(b.ctx, p.keys[0], "users:groups").Err(); err != nil {
			t.Errorf("%v", b.rdb.HGetAll(b.ctx, p.keys[0]).Val())
		}
		b.deleteGroup(p, 7, 0)
		for range 2 {
			if reply = poll(plain, []string{"orders", "users"}, nil,
				log); reply.generations[1] != first.generations[1] || discovered != 1 || !log.InUse() {
				t.Errorf("%+v; discovered %d times", reply, discovered)
			}
			if log.Last(0) <= loaderLog.Last(0) || log.Current(0, loaderLog.Last(0), log.All()) {
				t.Errorf("read up to %d after %d", log.Last(0), loaderLog.Last(0))
			}
		}
		if n := b.rdb.HLen(b.ctx, p.keys[0]).Val(); n != 4 {
			t.Errorf("%v", b.rdb.HGetAll(b.ctx, p.keys[0]).Val())
		}
		b.check(b.rdb.Set(b.ctx, p.groupsKey(0, "users"), "x", 0).Err())
		known := loaderLog.Last(0)
		if poll(p, []string{"users"}, loaderLog); loaderLog.Last(0) <= known || loaderLog.Current(0, known, nil) {
			t.Errorf("lost, and read up to %d after %d", loaderLog.Last(0), known)
		}
	})
}

// Servers forget scripts. A read needs none while the set is there.
func TestGroupsWhereTheServersDoNotKnowTheScripts(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.flush()
		p, log := b.grouped()
		for range 2 {
			b.flushScripts()
			b.readGroups(p, 0)
			b.flushScripts()
			known := log.Last(0)
			b.deleteGroup(p, 7, 0)
			if numbers, _ := b.numbersOf(p, 0); numbers[7] <= known {
				t.Errorf("%v after %d", numbers, known)
			}
			b.flushScripts()
			if _, err := p.poll(0, []string{"users"}, []*groups.Loader{log}, false); err != nil ||
				log.Last(0) <= known {
				t.Errorf("%v; read up to %d after %d", err, log.Last(0), known)
			}
			b.check(b.rdb.Del(b.ctx, p.groupsKey(0, "users")).Err())
		}
	})
}

// An invalidation is recorded also by a full Redis.
func TestAFullRedisTakesInvalidationsOfGroups(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t, "--maxmemory-policy", "noeviction").Client(t))
	p, log := b.grouped()
	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "1").Err())
	if err := b.rdb.Set(b.ctx, "another", "v", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "OOM") {
		t.Fatalf("it is not full: %v", err)
	}
	for range 2 { // without a set, and with one
		b.flushScripts()
		b.readGroups(p, 0)
		known := log.Last(0)
		b.deleteGroup(p, 7, time.Microsecond)
		if numbers, floor := b.numbersOf(p, 0); len(numbers) != 1 || numbers[7] <= known || floor == 0 {
			t.Errorf("%v from %d, after %d", numbers, floor, known)
		}
		b.readGroups(p, 0)
	}
}

// Processes with a memory receive the announcement, which comes after the record. It does not
// stand for those before it.
func TestAnnouncementsOfGroups(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.flush()
		q, m := b.listen(long)
		log := groups.New(groups.Options{All: allGroups, InUse: true, Forget: m.Forget})
		q.Register("users", log, func(int, uint64) {})
		ranges := q.conn.InUse()
		for r := range ranges {
			b.readGroups(q, r)
		}
		messages := b.hear(q)
		p, _ := b.grouped()
		before := make([]uint64, ranges)
		for r := range before {
			before[r] = b.parseNumber(p, r, "")
		}
		b.deleteGroup(p, 7, 0)
		for range ranges {
			m, err := Decode([]byte((<-messages).Payload))
			b.check(err)
			numbers, _ := b.numbersOf(p, m.Range)
			if m.Kind != groupKind || string(m.Body) != "users\x00"+member(7) || m.Number != numbers[7] ||
				m.Previous != before[m.Range] || m.Origin != p.origin.Load() {
				t.Errorf("%+v, the set has %v, and the number was %d", m, numbers, before[m.Range])
			}
		}
		b.until("the announcements", func() bool { return q.Stats().Received == int64(ranges) })
		for r := range uint8(ranges) {
			last := log.Last(r)
			if log.Current(r, last, groups.SetOf(7)) || !log.Current(r, last, groups.SetOf(8)) ||
				last >= b.parseNumber(q, int(r), "") {
				t.Errorf("range %d: read up to %d", r, last)
			}
		}
		if !m.has(7) || !m.has(allGroups) || m.count() != 2*ranges || m.clears() > 2*ranges {
			t.Errorf("%d calls of Forget, %d ranges cleared", m.count(), m.clears())
		}
		b.deleteGroup(q, 9, 0) // its own
		for range ranges {
			<-messages
		}
		if !m.has(9) || log.Current(0, log.Last(0), groups.SetOf(9)) {
			t.Error("a process applies its own before DeleteGroups returns")
		}
		b.check(p.DeleteGroups(b.ctx, "orders", groups.SetOf(7), 0)) // a loader that q does not have
		b.until("all", func() bool { return q.Stats().Received == 2*int64(ranges) })
		if s := q.Stats(); s.Malformed != 0 || s.Gaps != 0 || s.Trusted != ranges {
			t.Errorf("%+v", s)
		}
	})
}

// A release that does not know an announcement of this kind clears the range.
func TestAnnouncementOfAnUnknownKind(t *testing.T) {
	b := newBackend(t, testenv.SharedRedis(t).Client(t))
	q, m := b.listen(long)
	before := m.clears()
	b.check(b.rdb.Publish(b.ctx, q.topic, encode(0, 7, "1 2 ", []byte("?users\x00"+member(7)))).Err())
	b.until("a cleared range", func() bool { return m.voids.Load() > 0 && m.clears() > before })
}

// DeleteGroups ends when all ranges have replied, and reports the error of any.
func TestDeleteGroupsNeedsAllRanges(t *testing.T) {
	c := testenv.SharedCluster(t)
	b := newBackend(t, c.Client(t))
	p, log := b.grouped()
	last := p.conn.InUse() - 1
	if last != conn.Ranges-1 {
		t.Fatalf("%d ranges", last+1)
	}
	for r := range p.conn.InUse() {
		b.readGroups(p, r)
	}
	b.check(b.rdb.Del(b.ctx, p.keys[last]).Err())
	b.rdb.(*redis.ClusterClient).AddHook(failing{p.keys[last]})
	origin := p.origin.Load()
	if err := p.DeleteGroups(b.ctx, "users", groups.SetOf(7), 0); err == nil || p.origin.Load() == origin {
		t.Errorf("%v; own messages are still taken for applied: %v", err, p.origin.Load() == origin)
	}
	for r := range uint8(last) {
		if log.Current(r, log.Last(r), groups.SetOf(7)) {
			t.Errorf("range %d has replied", r)
		}
	}
}

// A poll that cannot read the groups of a loader does not confirm its generation.
func TestPollThatCannotReadGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		b := newBackend(t, rdb)
		p, log := b.grouped()
		rdb.AddHook(failing{p.groupsKey(0, "users")})
		if _, err := p.poll(0, []string{"users"}, []*groups.Loader{log}, false); err == nil {
			t.Error("it was polled")
		}
		if err := p.Confirm(b.ctx, 0); err == nil {
			t.Error("it is confirmed")
		}
		if _, confirmed := p.ConfirmedAt(0); confirmed || log.Last(0) != 0 {
			t.Errorf("it is confirmed; read up to %d", log.Last(0))
		}
	})
}

// failing fails commands on a key.
type failing struct{ key string }

func (f failing) fails(cmd redis.Cmder) bool {
	return slices.ContainsFunc(cmd.Args(), func(arg any) bool { return arg == f.key })
}

func (failing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if f.fails(cmd) {
			cmd.SetErr(errFailing)
			return errFailing
		}
		return next(ctx, cmd)
	}
}

func (f failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if f.fails(cmd) {
				cmd.SetErr(errFailing)
				err = errFailing
			}
		}
		return err
	}
}

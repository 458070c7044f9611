package invalidation

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// read sends a poll that only reads, unless the script has to decide.
func (b *backend) read(c *Bus, names []string, logs ...*groups.Loader) *pollRequest {
	b.t.Helper()
	r := &pollRequest{rng: 0, names: names, logs: logs}
	c.sendPolls([]*pollRequest{r})
	b.check(r.err)
	return r
}

// pollCounter counts polls by their kind.
type pollCounter struct{ scripts, reads atomic.Int64 }

func (*pollCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *pollCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			p.scripts.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (p *pollCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if isPoll(cmds) {
			p.reads.Add(1)
		}
		return next(ctx, cmds)
	}
}

// In each bound there is one complete poll. The others only read.
func TestMostPollsOnlyRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		count := &pollCounter{}
		rdb.AddHook(count)
		c, m := newBackend(t, rdb).listen(time.Second)
		const bounds = 100
		time.Sleep(bounds * time.Second)
		if n := count.scripts.Load(); n < bounds*3/4 || n > bounds+2 {
			t.Errorf("%d complete polls in %d bounds", n, bounds)
		}
		// On average there are 8/7 as many as with the longest interval.
		n := float64(count.scripts.Load()+count.reads.Load()) / (pollsInBound * bounds)
		if n < 1.1 || n > 1.2 {
			t.Errorf("%.2f times as many polls as with the longest interval", n)
		}
		if s := c.Stats(); s.Trusted != 1 || s.Lapses+s.Gaps != 0 || m.clears() != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// A poll that only reads leaves to the script what has to be written.
func TestPollsThatReadAreCompleted(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		b.flush()
		plain, plainLog := b.writer(), groups.New(groups.Options{All: allGroups, Discovered: func() {}})
		plain.Register("users", plainLog, func(int, uint64) {})
		if r := b.read(plain, []string{"users"}, plainLog); !r.full || r.reply.last == 0 || r.reply.now == 0 {
			t.Errorf("nothing was in Redis, and a poll has returned %+v", r.reply)
		}
		first := b.read(plain, []string{"users"}, plainLog)
		if first.full || first.reply.now != 0 || first.reply.generations[0] != b.parseNumber(plain, 0, "users") {
			t.Errorf("%+v, complete: %v", first.reply, first.full)
		}
		p, log := b.grouped()
		r := b.read(p, []string{"users"}, log)
		if !r.full || b.rdb.HGet(b.ctx, p.keys[0], "users:groups").Err() != nil {
			t.Errorf("a process uses groups, and its poll has left no mark; complete: %v", r.full)
		}
		if r := b.read(p, []string{"users"}, log); r.full {
			t.Error("the mark was set, and a poll was complete again")
		}
		b.deleteGroup(p, 7, 0)
		if r := b.read(plain, []string{"users"}, plainLog); r.full || !plainLog.InUse() ||
			plainLog.Last(0) < log.Last(0) {
			t.Errorf("complete: %v; read up to %d of %d", r.full, plainLog.Last(0), log.Last(0))
		}
		for _, lost := range []string{"", "users"} {
			known := b.parseNumber(p, 0, lost)
			time.Sleep(10 * time.Millisecond) // numbers may be ahead of the clock
			b.check(b.rdb.HDel(b.ctx, p.keys[0], lost).Err())
			r := b.read(p, []string{"users"}, log)
			if got := b.parseNumber(p, 0, lost); !r.full || got <= known {
				t.Errorf("field %q was lost: %d, before %d; complete: %v", lost, got, known, r.full)
			}
		}
	})
}

// A server that has become a replica confirms nothing, whatever kind of poll asks.
func TestReplicaConfirmsNothing(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t).Client(t))
	c := b.writer()
	b.read(c, nil)
	b.check(b.rdb.Do(b.ctx, "replicaof", "127.0.0.1", "1").Err())
	for _, full := range []bool{false, true} {
		r := &pollRequest{full: full}
		if c.sendPolls([]*pollRequest{r}); r.err == nil {
			t.Errorf("complete: %v: a replica has confirmed %+v", full, r.reply)
		}
	}
}

// A user that does not have the permission for HMGET polls with the script.
func TestPollsWithoutThePermissionToRead(t *testing.T) {
	server := testenv.StartRedis(t)
	admin := server.Client(t)
	err := admin.Do(t.Context(), "acl", "setuser", "old", "on", ">secret", "~*", "&*", "+@all", "-hmget").Err()
	if err != nil {
		t.Fatal(err)
	}
	o := *admin.Options()
	o.Username, o.Password = "old", "secret"
	rdb := redis.NewClient(&o)
	defer rdb.Close()
	b := newBackend(t, rdb)
	c := b.writer()
	for range 2 {
		if r := b.read(c, []string{"users"}, nil); !r.full || r.reply.last == 0 || len(r.reply.generations) != 1 {
			t.Errorf("%+v, complete: %v", r.reply, r.full)
		}
	}
}

// The ranges of one server share their polls, except those whose last poll has failed.
func TestRangesOfAServerShareTheirPolls(t *testing.T) {
	rdb := testenv.SharedCluster(t).Client(t)
	b := newBackend(t, rdb)
	c := open(t, rdb, timeout, long, nil)
	for rng := range c.conn.InUse() {
		b.check(c.Confirm(b.ctx, uint8(rng)))
	}
	const failed = 1
	for _, rng := range []int{0, 5, 15} {
		p := c.pollers[failed]
		p.mu.Lock()
		p.err = errFailing
		p.mu.Unlock()
		var want []int
		for i := range c.conn.InUse() {
			if c.conn.Node(b.ctx, c.keys[i]) == c.conn.Node(b.ctx, c.keys[rng]) && i != failed {
				want = append(want, i)
			}
		}
		b.until("the ranges of a server are polled together", func() bool { // some may be polled now
			c.pollers[rng].polling.Lock()
			together := c.pollers[rng].together()
			defer c.pollRanges(together)
			var got []int
			for _, p := range together {
				got = append(got, p.rng)
			}
			slices.Sort(got)
			return slices.Equal(got, want)
		})
		for _, i := range want {
			if !c.pollers[i].works() {
				t.Errorf("range %d: %v", i, c.pollers[i].err)
			}
		}
	}
	c.pollers[failed].poll()
	if !c.pollers[failed].works() {
		t.Error("a range whose poll has failed is not polled alone")
	}
}

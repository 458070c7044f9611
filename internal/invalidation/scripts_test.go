package invalidation

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/groups"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// say announces something in range rng, and returns its number.
func (b *backend) say(c *Bus, rng int, loader string) uint64 {
	b.t.Helper()
	n, err := c.announce(b.ctx, rng, appendKeys(nil, []uint64{1}), loader)
	b.check(err)
	return n
}

// look polls range rng.
func (b *backend) look(c *Bus, rng int, loaders ...string) pollReply {
	b.t.Helper()
	logs := make([]*groups.Loader, len(loaders))
	read := &pollRequest{rng: rng, names: loaders, logs: logs}
	c.sendPolls([]*pollRequest{read})
	b.check(read.err)
	a, err := c.poll(rng, loaders, logs, false)
	b.check(err)
	if read.reply.last != a.last || !slices.Equal(read.reply.generations, a.generations) {
		b.t.Errorf("a poll that only reads returns %+v, and the script %+v", read.reply, a)
	}
	if len(a.generations) != len(loaders) {
		b.t.Fatalf("%d generations of %d loaders", len(a.generations), len(loaders))
	}
	return a
}

// poll sends a complete poll.
func (b *Bus) poll(rng int, names []string, logs []*groups.Loader, renew bool) (pollReply, error) {
	r := &pollRequest{rng: rng, names: names, logs: logs, renew: renew, full: true}
	b.sendPolls([]*pollRequest{r})
	return r.reply, r.err
}

// hear subscribes without the package's code.
func (b *backend) hear(c *Bus) <-chan *redis.Message {
	b.t.Helper()
	sub := b.rdb.Subscribe(b.ctx, c.topic)
	b.t.Cleanup(func() { sub.Close() })
	if _, err := sub.Receive(b.ctx); err != nil {
		b.t.Fatal(err)
	}
	return sub.Channel(redis.WithChannelHealthCheckInterval(0))
}

func TestAnnouncementHasThePreviousNumber(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c := b.writer()
		messages := b.hear(c)
		for rng := range c.conn.InUse() {
			begin := uint64(b.rdb.Time(b.ctx).Val().UnixMicro())
			prev := b.look(c, rng, "users").last // a process has the loader
			begin = max(begin, prev)
			for i := range 5 {
				loader := []string{"", "users"}[i%2]
				n := b.say(c, rng, loader)
				if n <= prev || n < begin || b.parseNumber(c, rng, "") != n {
					t.Fatalf("%d, after %d and %d; Redis has %d", n, prev, begin, b.parseNumber(c, rng, ""))
				}
				if g := b.parseNumber(c, rng, "users"); loader != "" && g != n {
					t.Fatalf("the generation is %d, want %d", g, n)
				}
				m, err := Decode([]byte((<-messages).Payload))
				b.check(err)
				if m.Range != rng || m.Number != n || m.Previous != prev || m.Origin != c.origin.Load() ||
					string(m.Body) != "\x00\x00\x00\x00\x00\x00\x00\x01" {
					t.Fatalf("the message is %+v, want number %d after %d", m, n, prev)
				}
				if a := b.look(c, rng); a.last != n || a.now < begin {
					t.Fatalf("a poll returns %+v, want %d", a, n)
				}
				prev = n
			}
		}
		if ttl := b.rdb.TTL(b.ctx, c.keys[0]).Val(); ttl != -1 {
			t.Errorf("the numbers live for %v", ttl)
		}
	})
}

// A number is of a time also when many are given in one microsecond, or the clock is behind.
func TestNumbersGoOnWhereTheClockIsBehind(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c := b.writer()
		ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
		b.check(b.rdb.HSet(b.ctx, c.keys[0], "", ahead, "users", ahead+10, "orders", 7).Err())
		step := func(step string, n, from uint64) {
			t.Helper()
			if n <= from || n > from+1000 {
				t.Errorf("%s: %d after %d", step, n, from)
			}
		}
		last := b.say(c, 0, "")
		step("a message", last, ahead)
		users := b.say(c, 0, "users")
		step("a loader", users, max(last, ahead+10))
		a := b.look(c, 0, "orders", "new", "users")
		if a.generations[0] != 7 || a.generations[1] != users+1 || a.generations[2] != users || a.last != users {
			t.Errorf("%+v", a)
		}
		last = b.say(c, 0, "")
		step("another message", last, users)
		step("the new loader", b.say(c, 0, "new"), max(last, users+1)) // more than its generation
	})
}

func TestAPollMakesMissingGenerationsAndChangesNoOthers(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c := b.writer()
		begin := uint64(b.rdb.Time(b.ctx).Val().UnixMicro()) - 1
		first := b.look(c, 0, "a", "b")
		for i, name := range []string{"a", "b"} {
			if g := first.generations[i]; g < begin || g != b.parseNumber(c, 0, name) {
				t.Errorf("%s is of generation %d, in Redis %d; it began at %d", name, g,
					b.parseNumber(c, 0, name), begin)
			}
		}
		if n := b.parseNumber(c, 0, ""); n < begin || first.last != n || first.generations[0] <= n {
			t.Errorf("the poll has made the number %d, and returned %+v", n, first)
		}
		if a := b.look(c, 0); a.last != first.last {
			t.Errorf("the number was %d, and is %d", first.last, a.last)
		}
		n := b.say(c, 0, "b")
		second := b.look(c, 0, "c", "b", "a")
		if want := []uint64{second.generations[0], n, first.generations[0]}; !slices.Equal(second.generations, want) ||
			want[0] == 0 || second.last != n {
			t.Errorf("%+v, want %v", second, want)
		}
		if third := b.look(c, 0, "a", "b", "c"); !slices.Equal(third.generations,
			[]uint64{first.generations[0], n, second.generations[0]}) {
			t.Errorf("they have changed: %+v", third)
		}
		b.check(b.rdb.HDel(b.ctx, c.keys[0], "a").Err())
		if g := b.look(c, 0, "a").generations[0]; g <= first.generations[0] || g <= n {
			t.Errorf("a lost generation came back as %d, it was %d", g, first.generations[0])
		}
	})
}

// What no script has written counts as nothing, so that numbers go on.
func TestGarbageInTheHash(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c := b.writer()
		for _, garbage := range []string{
			"", " ", "x", "-1", "-0", "0", "0.5", "-1e300", "1e300", "nan", "-nan", "inf", "-inf", "1 2",
			"4503599627370497", "9007199254740992",
			"99999999999999999999", strings.Repeat("9", 400), "\x00", "0x", "{}",
		} {
			b.check(b.rdb.HSet(b.ctx, c.keys[0], "", garbage, "users", garbage).Err())
			begin := uint64(b.rdb.Time(b.ctx).Val().UnixMicro())
			a := b.look(c, 0, "users")
			if a.last < begin-1 || a.last >= a.generations[0] || a.generations[0] > begin+60e6 {
				t.Errorf("%q: %+v", garbage, a)
			}
			b.check(b.rdb.HSet(b.ctx, c.keys[0], "", garbage, "users", garbage).Err())
			if n := b.say(c, 0, "users"); n < begin || n > begin+60e6 || b.parseNumber(c, 0, "users") != n {
				t.Errorf("%q: the number is %d", garbage, n)
			}
		}
		b.check(b.rdb.HSet(b.ctx, c.keys[0], "", "5.9").Err())
		if a := b.look(c, 0); a.last != 5 {
			t.Errorf("%+v", a)
		}
		const largest = 1 << 52
		b.check(b.rdb.HSet(b.ctx, c.keys[0], "", "4503599627370496").Err())
		if n := b.say(c, 0, ""); n <= largest || n > largest+1000 {
			t.Errorf("after the largest number comes %d", n)
		}
		if n := b.say(c, 0, ""); n > largest {
			t.Errorf("after more than that comes %d", n)
		}
	})
}

// A key of another type under the name of the hash counts as lost: the first poll or announcement
// replaces it.
func TestAKeyOfAnotherTypeIsReplaced(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c := b.writer()
		before := b.look(c, 0, "users")
		for name, put := range map[string]func() error{
			"string": func() error { return b.rdb.Set(b.ctx, c.keys[0], "a string", 0).Err() },
			"list":   func() error { return b.rdb.RPush(b.ctx, c.keys[0], "a", "b").Err() },
			"set":    func() error { return b.rdb.SAdd(b.ctx, c.keys[0], "a").Err() },
		} {
			for i, first := range []func() uint64{
				func() uint64 { return b.say(c, 0, "users") },
				func() uint64 { return b.look(c, 0, "users").generations[0] },
			} {
				time.Sleep(5 * time.Millisecond) // a bubble's clock stands still
				b.check(b.rdb.Del(b.ctx, c.keys[0]).Err())
				b.check(put())
				if n := first(); n <= before.generations[0] {
					t.Errorf("%s, %d: %d after %d", name, i, n, before.generations[0])
				}
				if after := b.look(c, 0, "users"); after.generations[0] <= before.generations[0] ||
					after.last <= before.last {
					t.Errorf("%s, %d: %+v after %+v", name, i, after, before)
				} else {
					before = after
				}
			}
		}
	})
}

// Names of loaders come from outside, as in the rows of a queue. A name that no process uses leaves
// nothing in Redis. A process that uses it later begins with a greater generation.
func TestUnknownLoadersLeaveNothingInRedis(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c := b.writer()
		b.look(c, 0, "users")
		last := uint64(0)
		for i := range 1000 {
			last = b.say(c, 0, fmt.Sprint("name-", i))
		}
		if n := b.rdb.HLen(b.ctx, c.keys[0]).Val(); n != 2 {
			t.Errorf("the hash has %d fields, want that of the number, and one loader's", n)
		}
		if g := b.look(c, 0, "name-999").generations[0]; g <= last {
			t.Errorf("a new loader is of generation %d, and %d was announced before", g, last)
		}
	})
}

func TestNumbersAreLargerAfterALoss(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c := b.writer()
		last := b.say(c, 0, "users")
		for range 3 {
			// a bubble's clock stands still, and a number may be ahead of it by a millisecond or
			// two
			time.Sleep(5 * time.Millisecond)
			b.flush()
			a := b.look(c, 0, "users")
			if a.last <= last || a.generations[0] <= a.last {
				t.Errorf("%+v after %d", a, last)
			}
			n := b.say(c, 0, "")
			if n <= last || n < a.generations[0] {
				t.Errorf("%d after %d; the generation is %d", n, last, a.generations[0])
			}
			last = b.say(c, 0, "users")
		}
	})
}

// Servers lose scripts at a start, a failover, or SCRIPT FLUSH.
func TestServersThatDoNotKnowTheScripts(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c := b.writer()
		names, hashes := []string{"a", "b", "c"}, []uint64{1, 2, 3}
		for name, f := range map[string]func(){
			"announce": func() { b.say(c, 0, "") },
			"poll":     func() { b.look(c, 0, "users") },
			"delete": func() {
				for _, key := range names {
					b.check(b.rdb.Set(b.ctx, key, "v", 0).Err())
				}
				for i, err := range c.Delete(b.ctx, names, hashes) {
					if n := b.rdb.Exists(b.ctx, names[i]).Val(); err != nil || n != 0 {
						t.Errorf("%s: %v, %d", names[i], err, n)
					}
				}
			},
			"delete a loader": func() { b.check(c.DeleteLoader(b.ctx, "users")) },
		} {
			messages := b.hear(c)
			for range 2 {
				b.flushScripts()
				f()
			}
			if name == "poll" {
				continue
			}
			if m, err := Decode([]byte((<-messages).Payload)); err != nil {
				t.Errorf("%s: %+v, %v", name, m, err)
			}
		}
	})
}

// An invalidation frees memory, so it is the last that a full Redis may refuse.
func TestAFullRedisTakesInvalidations(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t, "--maxmemory-policy", "noeviction").Client(t))
	c := b.writer()
	b.check(b.rdb.Set(b.ctx, "key:7", "v", 0).Err())
	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "1").Err())
	if err := b.rdb.Set(b.ctx, "another", "v", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "OOM") {
		t.Fatalf("it is not full: %v", err)
	}
	for _, there := range []bool{false, true} { // the hash
		if n := b.rdb.Exists(b.ctx, c.keys[0]).Val(); (n == 1) != there {
			t.Fatalf("there are %d hashes", n)
		}
		b.flushScripts()
		b.look(c, 0, "users")
		b.say(c, 0, "")
		b.delete(c, 7)
		b.check(c.DeleteLoader(b.ctx, "users"))
		if g := b.look(c, 0, "users").generations[0]; g == 0 || g != b.parseNumber(c, 0, "users") {
			t.Errorf("generation %d", g)
		}
		b.look(c, 0, "users", "orders"+decimal(uint64(time.Now().UnixNano())))
	}
	if n := b.rdb.Exists(b.ctx, "key:7").Val(); n != 0 {
		t.Error("the key was not deleted")
	}
}

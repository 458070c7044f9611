package invalidation

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestAMessageReachesOthersAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		a, received := b.listen(long) // nothing is found by polls
		c, sender := b.listen(long)
		var took []time.Duration
		for i := range uint64(20) {
			begin := time.Now()
			b.delete(c, i)
			b.until("received", func() bool { return received.has(i) })
			took = append(took, time.Since(begin))
		}
		slices.Sort(took)
		t.Logf("half of them within %v, all within %v", took[len(took)/2], took[len(took)-1])
		if median := took[len(took)/2]; median > 100*time.Millisecond && testenv.Accepting ||
			median > 2*time.Millisecond && b.bubble {
			t.Errorf("they took %v", took)
		}
		b.delete(a, 100)
		b.until("received", func() bool { return sender.has(100) })
		if sender.count() != 1 || received.has(100) {
			t.Errorf("its own messages were applied: %d, %v", sender.count()-1, received.has(100))
		}
		if s := a.Stats(); s.Received != 20 || s.Announced != 1 || s.Gaps+s.Lapses+s.Malformed+s.FailedPolls+
			s.Disconnects != 0 || s.Subscribes != 1 || s.MaxDelay > time.Second && (b.bubble || testenv.Accepting) {
			t.Errorf("%+v", s)
		}
		if received.clears() != a.conn.InUse() {
			t.Errorf("it was cleared %d times", received.clears())
		}
	})
}

// A message that was given up may come later, when its process has read again what it meant to
// delete.
func TestOwnMessagesAreAppliedAfterDisown(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend, n *network) {
		c, m := b.listen(long)
		message := func(hash uint64) []any {
			return []any{c.topic, appendHead(nil, 0, c.origin.Load()), appendKeys(nil, []uint64{hash}), "", 1}
		}
		first, second := message(1), message(2)
		arrive := func(args []any) {
			_, err := c.await(b.ctx, announceScript, c.keys[0], args...)
			b.check(err)
			time.Sleep(time.Second)
		}
		arrive(first)
		if m.has(1) {
			t.Error("it was applied")
		}
		n.failing.Store(true)
		if errs := c.Delete(b.ctx, []string{"a"}, []uint64{3}); errs[0] != nil { // a pipeline is not failing
			t.Fatal(errs)
		}
		if err := c.DeleteLoader(b.ctx, "users"); err != errFailing {
			t.Fatal(err)
		}
		n.failing.Store(false)
		c.Disown()
		arrive(second)
		if !m.has(2) {
			t.Error("it was not applied")
		}
		if s := c.Stats(); s.Gaps != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestMessagesThatCannotBeRead(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend, _ *network) {
		c, m := b.listen(long)
		before := m.clears()
		numbers := "5 9 "
		for i, payload := range []string{
			"", "x", strings.Repeat("x", 1<<16), "\xD2" + string(encode(0, 1, numbers, []byte("k")))[1:], "\xB1",
			"\xE1 an entry", "\xD1",
		} {
			b.check(b.rdb.Publish(b.ctx, c.topic, payload).Err())
			b.until("counted", func() bool { return c.Stats().Malformed == int64(i)+1 })
		}
		if s := c.Stats(); m.clears() != before || s.Gaps != 0 || s.Trusted != 1 || m.count() != 0 || s.Received != 0 {
			t.Errorf("%+v, %d clears", s, m.clears()-before)
		}
		for i, payload := range []string{ // these are announcements, by their first byte: see TestUnplacedInvalidations
			"\xC2" + string(encode(0, 1, numbers, []byte("k")))[1:], string(encode(0, 1, "x y ", []byte("k"))),
			string(encode(1, 1, numbers, []byte("k"))), string(encode(15, 1, numbers, []byte("k"))),
		} {
			b.check(b.rdb.Publish(b.ctx, c.topic, payload).Err())
			b.until("counted", func() bool { return c.Stats().Malformed == int64(i)+8 })
			if c.Stats().Trusted != 0 {
				t.Errorf("%d: trusted", i)
			}
		}
		b.check(c.Confirm(b.ctx, 0))
		if c.Stats().Trusted != 1 {
			t.Error("it is not trusted again")
		}
		before = m.clears()
		prev := b.parseNumber(c, 0, "")
		for i, body := range []string{"z a later kind", "k of another length"} {
			n, err := c.announce(b.ctx, 0, []byte(body), "")
			b.check(err)
			b.until("cleared", func() bool { return m.clears() == before+i+1 })
			if n <= prev {
				t.Fatal("no number")
			}
		}
		if s := c.Stats(); s.Gaps != 0 || s.Trusted != 1 || s.Malformed != 13 {
			t.Errorf("%+v", s)
		}
	})
}

// A process that has no memory needs no messages, and one that only writes asks for nothing.
func TestWhatAProcessDoesNotNeed(t *testing.T) {
	server := testenv.SharedRedis(t)
	b := newBackend(t, server.Client(t))
	c := b.writer()
	for i := range uint64(10) {
		b.delete(c, i)
	}
	time.Sleep(bound / 2) // more than a poll's period
	if calls := server.CommandCalls(t); calls["evalsha"] > 10+1 || calls["subscribe"]+calls["publish"] != 10 ||
		calls["del"] != 10 {
		t.Errorf("a process that deletes: %v", calls)
	}
	c.Listen()
	b.until("polled", func() bool { return c.pollers[0].confirmed.Load() > 0 })
	time.Sleep(bound / 2)
	if subs := b.rdb.PubSubNumSub(b.ctx, c.topic).Val()[c.topic]; subs != 0 || c.Stats().Subscribed {
		t.Errorf("%d subscriptions, %+v", subs, c.Stats())
	}
	if server.CommandCalls(t)["subscribe"] != 0 {
		t.Error("it has subscribed")
	}
	b.listen(short)
	if subs := b.rdb.PubSubNumSub(b.ctx, c.topic).Val()[c.topic]; subs != 1 {
		t.Errorf("%d subscriptions", subs)
	}
}

// A subscription that ends is noticed at once. Entries that were stored without it are discarded.
func TestSubscriptionThatIsKilled(t *testing.T) {
	for name, rdb := range map[string]func(t *testing.T) redis.UniversalClient{
		"redis":    func(t *testing.T) redis.UniversalClient { return testenv.SharedRedis(t).Client(t) },
		"cluster":  func(t *testing.T) redis.UniversalClient { return testenv.SharedCluster(t).Client(t) },
		"sentinel": func(t *testing.T) redis.UniversalClient { return testenv.SharedSentinel(t).Client(t) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, rdb(t))
			c, m := b.listen(time.Minute)
			cleared := m.clears()
			for i := range int64(2) {
				ended := m.untrusted()
				begin := time.Now()
				b.kill()
				b.until("untrusted", func() bool { return m.untrusted() != ended })
				t.Logf("noticed after %v", time.Since(begin))
				b.until("another", func() bool { return c.Stats().Subscribes == i+2 })
				b.trusted(c)
				if s := c.Stats(); s.Disconnects != i+1 || s.Gaps != 0 || s.Lapses != 0 ||
					m.clears() != cleared+int(i+1)*c.conn.InUse() {
					t.Errorf("%+v, %d clears", s, m.clears()-cleared)
				}
			}
			b.delete(b.writer(), 7)
			b.until("received", func() bool { return m.has(7) })
		})
	}
}

// kill ends all subscriptions of all nodes.
func (b *backend) kill() {
	b.t.Helper()
	var killed atomic.Int64
	b.eachMaster(func(ctx context.Context, c *redis.Client) error {
		n, err := c.ClientKillByFilter(ctx, "TYPE", "pubsub").Result()
		killed.Add(n)
		return err
	})
	if killed.Load() == 0 {
		b.t.Fatal("there was none")
	}
}

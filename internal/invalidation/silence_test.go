package invalidation

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const quiet = 10 * time.Second // a bound in a bubble, where time costs nothing

// Where a subscription has gone silent, what is announced is found missing by the polls, within the
// bound; then there is another subscription.
func TestSilentSubscriptionThatMissesSomething(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend, n *network) {
		c, m := b.listen(quiet)
		for round := range int64(3) {
			time.Sleep(3 * quiet)
			subscribes, cleared := c.Stats().Subscribes, m.clears()
			n.deaf.Store(true)
			b.delete(b.writer(), 7)
			announced := time.Now()
			b.within(quiet, "cleared, or not trusted", func() bool { return m.clears() > cleared || m.distrusted() })
			t.Logf("found after %v", time.Since(announced))
			b.within(quiet, "another subscription", func() bool { return c.Stats().Subscribes > subscribes })
			b.trusted(c)
			if s := c.Stats(); s.Disconnects != round+1 || s.Gaps != round+1 || m.has(7) {
				t.Errorf("%+v, %v", s, m.has(7))
			}
		}
	})
}

// within is until with a limit.
func (b *backend) within(limit time.Duration, step string, f func() bool) {
	b.t.Helper()
	for begin := time.Now(); !f(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > limit {
			b.t.Fatalf("it has not come about within %v: %s", limit, step)
		}
	}
}

// Where nothing is announced nothing is missed, but the next announcement would be: no pong comes.
func TestSilentSubscriptionThatMissesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend, n *network) {
		c, m := b.listen(quiet)
		time.Sleep(10 * quiet) // pongs come
		if s := c.Stats(); s.Disconnects != 0 || s.Trusted != 1 || s.Gaps+s.Lapses != 0 || m.clears() != 1 {
			t.Fatalf("before: %+v", s)
		}
		n.deaf.Store(true)
		b.within(quiet*3/2, "another subscription", func() bool { return c.Stats().Subscribes == 2 })
		b.trusted(c)
		if s := c.Stats(); s.Disconnects != 1 || s.Gaps != 0 || m.clears() != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// Without polls, missed messages are unknown once the bound has passed. The next poll shows that
// nothing was missed.
func TestPollsThatFail(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend, n *network) {
		c, m := b.listen(quiet)
		time.Sleep(5 * quiet)
		for round := range int64(3) {
			n.failing.Store(true)
			began := time.Now()
			b.within(quiet, "not trusted", func() bool { return m.distrusted() && !c.Confirmed(0) })
			if took := time.Since(began); took < quiet/2 {
				t.Errorf("it was distrusted after %v, though the last poll is not that old", took)
			}
			if s := c.Stats(); s.Trusted != 0 || !s.Subscribed || s.FailedPolls < 3 {
				t.Errorf("%+v", s)
			}
			time.Sleep(quiet)
			n.failing.Store(false)
			b.within(quiet/2, "trusted", func() bool { return !m.distrusted() && c.Confirmed(0) })
			if s := c.Stats(); m.clears() != 1 || s.Lapses != round+1 || s.Gaps != 0 || s.Disconnects != 0 ||
				s.Trusted != 1 {
				t.Errorf("%+v, %d clears", s, m.clears())
			}
		}
		// a message is missed from here on
		n.failing.Store(true)
		time.Sleep(2 * quiet)
		b.check(b.rdb.HIncrBy(b.ctx, c.keys[0], "", 1).Err())
		n.failing.Store(false)
		b.within(quiet, "cleared", func() bool { return m.clears() > 1 && !m.distrusted() })
		if s := c.Stats(); s.Gaps != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestAMessageThatIsLost(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c, m := b.listen(long) // no poll comes in time
		for r := range c.conn.InUse() {
			b.say(c, r, "")
		}
		b.until("received", func() bool {
			return slices.IndexFunc(c.tracks[:c.conn.InUse()],
				func(t *track) bool { t.mu.Lock(); defer t.mu.Unlock(); return t.lastReceived == t.base }) < 0
		})
		before := m.clears()
		for r := range c.conn.InUse() {
			b.check(b.rdb.HIncrBy(b.ctx, c.keys[r], "", 1).Err()) // an announcement that no process receives
			b.say(c, r, "")
			b.until("cleared", func() bool { return m.clears() == before+r+1 })
		}
		if s := c.Stats(); s.Gaps != int64(c.conn.InUse()) || s.Trusted != s.Ranges || s.Lapses+s.Disconnects != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Redis has lost its data, and with it the earlier invalidations and announcements.
func TestAllThatRedisHasIsLost(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		bound := short
		if testenv.Accepting {
			bound = 600 * time.Millisecond
		}
		c, m := b.listen(bound)
		for _, said := range []bool{false, true} {
			if said {
				b.delete(b.writer(), 7)
			}
			time.Sleep(10 * time.Millisecond)
			before := m.ofFirst()
			begin := time.Now()
			b.flush()
			b.until("cleared", func() bool {
				if !b.bubble && !testenv.Accepting { // at their own pace it is found within the bound
					b.poll(c)
				}
				return m.ofFirst() > before
			})
			if took := time.Since(begin); took > bound && b.bubble || took > bound+overshoot && testenv.Accepting {
				t.Errorf("it took %v", took)
			}
			b.trusted(c)
		}
	})
}

// poll has all ranges polled at once.
func (b *backend) poll(c *Bus) {
	for r := range c.conn.InUse() {
		select {
		case c.pollers[r].kick <- struct{}{}:
		default:
		}
	}
}

func (r *recorder) ofFirst() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cleared[0]
}

// A server that hangs makes only its own ranges uncertain.
func TestOneServerOfAClusterHangs(t *testing.T) {
	cluster := testenv.SharedCluster(t)
	o := cluster.Options()
	o.ReadTimeout = timeout // a poll of a server that hangs does not end before the others have been confirmed anew
	rdb := redis.NewClusterClient(o)
	defer rdb.Close()
	b := newBackend(t, rdb)
	c, _ := b.listen(short)
	theirs0 := map[int]bool{} // the ranges of node 0
	for r := range c.conn.InUse() {
		client, err := c.conn.Subscriber(b.ctx, c.keys[r])
		b.check(err)
		theirs0[r] = client.Options().Addr == cluster.Addrs[0]
	}
	cluster.Nodes[0].Pause()
	defer cluster.Nodes[0].Resume()
	b.until("in doubt", func() bool {
		for r, its := range theirs0 {
			if its && c.Confirmed(uint8(r)) {
				return false
			}
		}
		return true
	})
	was := map[int]int64{} // until when the others are confirmed
	for r, its := range theirs0 {
		if !its {
			was[r] = c.pollers[r].confirmed.Load()
		}
	}
	for r, until := range was {
		b.until("the others confirmed anew", func() bool { return c.pollers[r].confirmed.Load() > until })
	}
	cluster.Nodes[0].Resume()
	b.until("no doubt", func() bool { return c.Stats().Trusted == c.conn.InUse() })
}

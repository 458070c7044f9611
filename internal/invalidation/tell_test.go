package invalidation

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// listener is a memory that records announcements.
type listener struct {
	recorder
	hears func(body string) // nil: nothing

	mu   sync.Mutex
	told []string
}

func (l *listener) Received(body []byte) {
	if l.hears != nil {
		l.hears(string(body))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, string(body))
}

func (l *listener) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.told)
}

// told makes a channel that listens with l.
func (b *backend) told(l *listener, bound time.Duration) *Bus {
	b.t.Helper()
	cn, err := conn.NewHome(b.rdb, timeout)
	b.check(err)
	c := New(cn, "test:{told}", bound, l)
	b.t.Cleanup(func() {
		c.Close()
		cn.Close()
	})
	c.Listen()
	b.trusted(c)
	return c
}

func bodies(names ...string) (all [][]byte) {
	for _, name := range names {
		all = append(all, []byte(name))
	}
	return all
}

// increase is a change that is seen, and seen to be made twice.
func increase(ctx context.Context, name string) redis.Cmder {
	return redis.NewIntCmd(ctx, "incr", name)
}

// An announcement reaches all other processes once, in order, after the change, and counts as
// received only then.
func TestTell(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		var sender, other listener
		const name = "told:{told}"
		c, d := b.told(&sender, time.Minute), b.told(&other, long)
		other.hears = func(body string) {
			// While more is being published, the embedded server replies to no connection that
			// blocks it.
			if body != "last" {
				return
			}
			if changed := b.rdb.Get(b.ctx, name).Val(); changed != "1" {
				t.Errorf("announced before the change: %q", changed)
			}
			track := d.tracks[0]
			track.mu.Lock()
			received := track.lastReceived
			track.mu.Unlock()
			if received >= b.parseNumber(d, 0, "") {
				t.Error("it counted as received before its delivery")
			}
		}
		b.check(c.AnnounceBodies(b.ctx, name, bodies("first", "", "last"), increase))
		b.until("announced", func() bool { return len(other.all()) == 3 })
		if all := other.all(); !slices.Equal(all, []string{"first", "", "last"}) {
			t.Errorf("%q", all)
		}
		b.check(d.AnnounceBodies(b.ctx, name, bodies("back"), increase))
		b.until("announced", func() bool { return len(sender.all()) == 1 })
		if s := d.Stats(); len(other.all()) != 3 || s.Gaps != 0 || s.Received != 3 || s.Malformed != 0 ||
			s.Announced != 1 || other.clears() != 1 {
			t.Errorf("%q, %+v, %d clears", other.all(), s, other.clears())
		}
		b.flushScripts()
		b.check(c.AnnounceBodies(b.ctx, name, bodies("again"), increase))
		b.until("announced", func() bool { return len(other.all()) == 4 })
	})
}

// A body that did not come is missed at the next one, or by a poll.
func TestMissingBodyIsNoticed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend, n *network) {
		var l listener
		c := b.told(&l, bound)
		writer := New(c.conn, "test:{told}", bound, nil)
		voids := l.voids.Load()
		n.deaf.Store(true)
		b.check(writer.AnnounceBodies(b.ctx, "told:{told}", bodies("missed"), increase))
		b.until("cleared", func() bool { return l.voids.Load() == voids+1 })
		b.until("another subscription", func() bool { return c.Stats().Subscribes == 2 })
		b.trusted(c)
		b.check(writer.AnnounceBodies(b.ctx, "told:{told}", bodies("received"), increase))
		b.until("announced", func() bool { return len(l.all()) > 0 })
		if all := l.all(); !slices.Equal(all, []string{"received"}) || l.voids.Load() != voids+1 {
			t.Errorf("%q, %d", all, l.voids.Load()-voids)
		}
	})
}

// A failed announcement may still arrive later, and then as one of another process. A process
// without a Listener treats it as one that it may not ignore.
func TestFailedAnnouncementWithoutListener(t *testing.T) {
	inBubble(t, func(t *testing.T, b *backend, n *network) {
		var l listener
		c := b.told(&l, long)
		cn, err := conn.NewHome(b.rdb, timeout)
		b.check(err)
		defer cn.Close()
		var m recorder
		deaf := New(cn, "test:{told}", long, &m)
		defer deaf.Close()
		deaf.Listen()
		b.trusted(deaf)
		n.failing.Store(true)
		origin := c.origin.Load()
		if err := c.AnnounceBodies(b.ctx, "told:{told}", bodies("a", "b"), increase); err != errFailing ||
			c.origin.Load() == origin {
			t.Errorf("%v; the same origin: %v", err, c.origin.Load() == origin)
		}
		n.failing.Store(false)
		voids := m.voids.Load()
		_, err = c.await(b.ctx, announceScript, c.keys[0], c.topic, appendHead(nil, 0, origin), "tlate", "", 1)
		b.check(err)
		b.until("announced", func() bool { return slices.Equal(l.all(), []string{"late"}) })
		b.until("voided", func() bool { return m.voids.Load() == voids+1 })
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		if err := c.AnnounceBodies(ctx, "told:{told}", bodies("a"), increase); err == nil {
			t.Error("announced after the end of its context")
		}
	})
}

package invalidation

import (
	"context"
	"encoding/base64"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A collector keeps what stands for all that it has collected.
func TestCollector(t *testing.T) {
	for name, c := range map[string]struct{ added, want []tokenEntry }{
		"later":         {[]tokenEntry{{0, 1}, {0, 2}}, []tokenEntry{{0, 2}}},
		"again":         {[]tokenEntry{{0, 1}, {0, 1}}, []tokenEntry{{0, 1}}},
		"ranges":        {[]tokenEntry{{0, 1}, {1, 2}}, []tokenEntry{{0, 1}, {1, 2}}},
		"of a loader":   {[]tokenEntry{{0 | loaderBit, 1}, {0, 2}, {0, 3}}, []tokenEntry{{0 | loaderBit, 3}}},
		"before, after": {[]tokenEntry{{0, 2}, {0, 1}}, []tokenEntry{{0, 2}, {0, 1}}},
	} {
		var of Collector
		of.add("topic", c.added...)
		if fmt.Sprint(of.entries) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, of.entries, c.want)
		}
	}
	ctx, outer := Collect(t.Context())
	ctx, inner := Collect(ctx)
	(&Bus{topic: "topic"}).collect(ctx, 3, 0, 4)
	(&Bus{topic: "topic"}).collect(context.Background(), 3, 0, 5)
	if inner.Token() == "" || inner.Token() != outer.Token() {
		t.Errorf("inner %q, outer %q", inner.Token(), outer.Token())
	}
	if token := new(Collector).Token(); token != "" {
		t.Errorf("token %q of nothing", token)
	}
}

// Too many announcements, and those of several caches, make a token that no process has received.
func TestTokenOfTooMuch(t *testing.T) {
	for name, add := range map[string]func(c *Collector, topic string){
		"too many": func(c *Collector, topic string) {
			for n := uint64(maxTokenItems); n > 0; n-- {
				c.add(topic, tokenEntry{0, 2 * n})
			}
			c.add(topic, tokenEntry{0, 1})
		},
		"two caches": func(c *Collector, topic string) {
			c.add("another", tokenEntry{0, 1})
			c.add(topic, tokenEntry{0, 1})
		},
	} {
		b := &Bus{topic: "topic", conn: new(conn.Conn), pollers: [conn.Ranges]*poller{{}}}
		b.tracks[0] = &track{session: 1, synced: true}
		for n := range uint64(1000) {
			b.tracks[0].recent.add(n)
		}
		var c Collector
		c.add(b.topic, tokenEntry{0, 1})
		if !b.MayUseMemory(c.Token()) {
			t.Fatalf("%s: not received", name)
		}
		c = Collector{}
		add(&c, b.topic)
		b.pollers[0].confirmed.Store(1)
		if b.MayUseMemory(c.Token()) || b.pollers[0].confirmed.Load() != 0 {
			t.Errorf("%s: received, or the generations are confirmed", name)
		}
		for range 100 {
			add(&c, b.topic)
		}
		if n := len(c.Token()); n > MaxToken || len(c.entries) > maxTokenItems || b.MayUseMemory(c.Token()) {
			t.Errorf("%s: %d bytes, %d announcements", name, n, len(c.entries))
		}
	}
}

// A track has an announcement if it was received, or followed by a gap that has outdated memory,
// in a session that is trusted.
func TestTrackHas(t *testing.T) {
	tr := newFollower()
	has := func(num uint64, want bool) {
		t.Helper()
		if tr.track.has(num) != want {
			t.Errorf("has(%d) = %v", num, !want)
		}
	}
	tr.subscribed(1)
	tr.received(1, position{0, 10})
	has(10, false) // no poll: earlier ones may be missing
	tr.poll(0, 10)
	has(10, true)
	has(9, false)
	has(11, false)
	tr.received(1, position{10, 11})
	has(11, true)
	tr.received(1, position{13, 14}) // 12 and 13 are missing: memory is outdated
	has(14, true)
	has(13, true)
	has(12, false)                  // not known to this process
	tr.received(1, position{14, 5}) // after a failover
	has(5, true)
	has(6, false)
	tr.distrust()
	has(5, false)
	tr.poll(1, 5)
	has(5, true)
	tr.unsubscribed()
	has(5, false)
	tr.subscribed(2)
	tr.poll(2, 20)
	has(20, true) // the poll has outdated memory
	has(19, false)
	for range 2 * maxRecent {
		tr.poll(3, 20)
	}
	has(5, true) // polls that find nothing new displace nothing
	for n := range uint64(maxRecent) {
		tr.recent.add(100 + n)
	}
	tr.poll(4, 100+maxRecent-1)
	has(100, true)
	has(5, false)
	if n := len(tr.recent.numbers); n != maxRecent {
		t.Errorf("%d numbers", n)
	}
}

// An announcement that is missing may be of a whole loader. Before it counts as received, because
// memory is outdated, reads have to ask for the generations.
func TestGapsUnconfirmGenerations(t *testing.T) {
	b := open(t, testenv.SharedRedis(t).Client(t), timeout, time.Minute, &recorder{})
	f := b.tracks[0]
	f.subscribed(1)
	f.endPoll(f.beginPoll(time.Now()), 10)
	b.pollers[0].confirmed.Store(int64(time.Hour))
	b.received(1, string(encode(0, 0, "10 20 ", []byte("khashhash"))))
	if _, confirmed := b.ConfirmedAt(0); !confirmed || !f.has(20) {
		t.Errorf("without a gap: confirmed %v, received %v", confirmed, f.has(20))
	}
	b.received(1, string(encode(0, 0, "30 40 ", []byte("khashhash"))))
	if _, confirmed := b.ConfirmedAt(0); confirmed || !f.has(30) {
		t.Errorf("after a gap: confirmed %v, received %v", confirmed, f.has(30))
	}
}

// Each of the Deletes that share a trip gets a token of its announcement.
func TestTokensOfSharedDeletes(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c := open(t, b.rdb, timeout, bound, nil)
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				ctx, collector := Collect(t.Context())
				names, hashes := many(1)
				if err := c.Delete(ctx, names, hashes)[0]; err != nil {
					t.Error(err)
				}
				if collector.Token() == "" {
					t.Errorf("Delete %d has no token", i)
				}
			})
		}
		all.Wait()
	})
}

// A malformed token is not taken for one whose announcements were received.
func FuzzMayUseMemory(f *testing.F) {
	b := &Bus{topic: "topic", conn: new(conn.Conn), pollers: [conn.Ranges]*poller{{}}}
	b.tracks[0] = &track{session: 1, synced: true}
	b.tracks[0].recent.add(7)
	var c Collector
	c.add(b.topic, tokenEntry{0, 7})
	f.Add(c.Token())
	f.Add("")
	f.Add(base64.RawURLEncoding.EncodeToString(append(tokenOf("topic"), 255, 0, 0, 0, 0, 0, 0, 0, 7)))
	f.Fuzz(func(t *testing.T, token string) {
		if b.MayUseMemory(token) && token != "" {
			items, err := base64.RawURLEncoding.DecodeString(token)
			if err != nil || len(items) < tokenHead+tokenItem || string(items[:4]) != string(tokenOf("topic")) {
				t.Errorf("%q was accepted", token)
			}
		}
	})
}

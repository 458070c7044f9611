package invalidation

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// A key is deleted before its announcement is received: a process would otherwise read it again,
// and keep it.
func TestDeleteComesBeforeItsAnnouncement(t *testing.T) {
	server := testenv.SharedRedis(t)
	proxy := testenv.NewProxy(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr})
	defer rdb.Close()
	c := open(t, rdb, timeout, bound, nil)
	b := newBackend(t, rdb)
	b.delete(c, 99) // the script is known now
	for _, n := range []int{1, 3, 500} {
		names, hashes := many(n)
		var sent []byte
		proxy.OnRequest(func(chunk []byte) testenv.Action {
			sent = append(sent, chunk...)
			return testenv.Pass
		})
		trips := proxy.Trips()
		for _, err := range c.Delete(t.Context(), names, hashes) {
			b.check(err)
		}
		proxy.OnRequest(nil)
		dels, announcement := bytes.Count(sent, []byte("\r\ndel\r\n")), bytes.Index(sent, []byte("\r\nevalsha\r\n"))
		if last := bytes.LastIndex(sent, []byte("\r\ndel\r\n")); dels != n || announcement < last ||
			bytes.Count(sent, []byte("\r\nevalsha\r\n")) != 1 {
			t.Errorf("%d keys: %d are deleted, the last at %d, and announced at %d", n, dels, last, announcement)
		}
		if trips = proxy.Trips() - trips; n < 10 && trips != 1 {
			t.Errorf("%d keys take %d trips", n, trips)
		}
	}
}

// witness is a memory that checks Redis when it has to forget a key.
type witness struct {
	recorder
	looks func(stable uint64) bool

	mu   sync.Mutex
	late map[uint64]bool // keys that still existed at their last announcement
}

func (w *witness) Forget(stable uint64) {
	late := w.looks(stable)
	w.mu.Lock()
	w.late[stable] = late
	w.mu.Unlock()
	w.recorder.Forget(stable)
}

// watch subscribes through rdb, and checks the keys of each announcement.
func (b *backend) watch() *witness {
	b.t.Helper()
	w := &witness{late: map[uint64]bool{}}
	w.looks = func(stable uint64) bool { return b.rdb.Exists(b.ctx, fmt.Sprint("key:", stable-1)).Val() != 0 }
	c := open(b.t, b.rdb, timeout, long, nil)
	c.memory = w
	for r := range c.conn.InUse() {
		c.tracks[r].memory = w
	}
	c.Listen()
	b.trusted(c)
	return w
}

// gone deletes n keys by c, and fails if one was there when it was last announced.
func (b *backend) gone(w *witness, c *Bus, n int) {
	b.t.Helper()
	names, hashes := many(n)
	for _, err := range c.Delete(b.ctx, names, hashes) {
		b.check(err)
	}
	// An announcement may be made twice, and the first be received before the key is gone. Only
	// the state after the last one counts, and no message shows which one that is.
	bad := func() (keys []uint64) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, h := range hashes {
			if late, told := w.late[h]; late || !told {
				keys = append(keys, h-1)
			}
		}
		return keys
	}
	for began := time.Now(); len(bad()) > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > testenv.Hang {
			b.t.Fatalf("keys that were not announced, or still existed at their last announcement: %v", bad())
		}
	}
}

func TestAnnouncedKeysAreDeleted(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		w := b.watch()
		c := b.writer()
		for _, n := range []int{1, 40, 40} {
			names, _ := many(n)
			b.set(names...)
			b.flushScripts()
			b.gone(w, c, n)
		}
	})
}

// A client whose map of a cluster is old sends its commands to servers that have not got the keys.
func TestAnnouncedKeysAreDeletedWithOldMap(t *testing.T) {
	cluster := testenv.SharedCluster(t)
	b := newBackend(t, cluster.Client(t))
	w := b.watch()
	names, _ := many(40)
	b.set(names...)
	o := cluster.Options()
	o.ClusterSlots = func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: cluster.Addrs[0]}}}}, nil
	}
	rdb := redis.NewClusterClient(o)
	defer rdb.Close()
	b.gone(w, open(t, rdb, timeout, bound, nil), len(names))
}

// While a slot moves, its keys are at one of two servers, and the numbers of their range at either,
// or at a third.
func TestAnnouncedKeysAreDeletedWhileSlotMoves(t *testing.T) {
	cluster := testenv.SharedCluster(t)
	b := newBackend(t, cluster.Client(t))
	w := b.watch()
	c := b.writer()
	b.delete(c, 99)
	names, _ := many(1)
	slot := b.rdb.ClusterKeySlot(b.ctx, names[0]).Val()
	var from, to *testenv.Redis
	for _, node := range cluster.Nodes[:3] {
		if node.Client(t).Exists(b.ctx, names[0]).Err() == nil {
			from = node
		} else {
			to = node
		}
	}
	id := func(r *testenv.Redis) string { return r.Client(t).Do(b.ctx, "cluster", "myid").Val().(string) }
	do := func(r *testenv.Redis, args ...any) {
		t.Helper()
		b.check(r.Client(t).Do(b.ctx, args...).Err())
	}
	b.set(names...)
	do(to, "cluster", "setslot", slot, "importing", id(from))
	do(from, "cluster", "setslot", slot, "migrating", id(to))
	defer do(from, "cluster", "setslot", slot, "stable")
	defer do(to, "cluster", "setslot", slot, "stable")
	b.gone(w, c, 1) // it is where it was
	for range 3 {
		_, err := to.Client(t).Pipelined(b.ctx, func(p redis.Pipeliner) error {
			p.Do(b.ctx, "asking")
			p.Set(b.ctx, names[0], "v", 0)
			return nil
		})
		b.check(err)
		b.gone(w, c, 1) // it has moved
		if n := b.left(names...); n != 0 {
			t.Fatal("it is still there")
		}
	}
}

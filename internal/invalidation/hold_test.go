package invalidation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const lag = time.Hour

// holder makes a channel that puts on hold what it deletes.
func (b *backend) holder(lag time.Duration) *Bus {
	b.t.Helper()
	c := b.writer()
	c.Lag(lag)
	return c
}

// held fails unless these keys are on hold for about lag, and gone.
func (b *backend) held(names []string, lag time.Duration) {
	b.t.Helper()
	for _, name := range names {
		if d := b.rdb.PTTL(b.ctx, keys.Hold(name)).Val(); d > lag || d < lag-testenv.Hang {
			b.t.Fatalf("%s is on hold for %v, want %v", name, d, lag)
		}
	}
	if n := b.left(names...); n > 0 {
		b.t.Fatalf("%d keys are left", n)
	}
}

func tagged(n int) (names []string, hashes []uint64) {
	for i := range n {
		names, hashes = append(names, fmt.Sprintf("key:{%d}", i)), append(hashes, uint64(i)+1)
	}
	return names, hashes
}

func TestDeletePutsOnHold(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		_, m := b.listen(long)
		c := b.holder(lag)
		b.flushScripts()
		told := 0
		for _, n := range []int{1, 3, 1500} {
			names, hashes := tagged(n)
			b.set(names...)
			for _, err := range c.Delete(b.ctx, names, hashes) {
				b.check(err)
			}
			b.held([]string{names[0], names[n-1]}, lag)
			if left := b.left(names...); left > 0 {
				t.Errorf("%d of %d keys are left", left, n)
			}
			told += n
			b.until("received", func() bool { return m.count() >= told })
		}
		names, hashes := tagged(1)
		b.holder(time.Second).Delete(b.ctx, names, hashes)
		b.held(names, lag) // the longer one counts
		b.check(b.rdb.Persist(b.ctx, keys.Hold(names[0])).Err())
		c.Delete(b.ctx, names, hashes) // no hold is for ever
		b.held(names, lag)
	})
}

// order notes the commands of each pipeline, by what they are about.
type order struct {
	badHook
	sent *[]string
}

func (o order) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			*o.sent = append(*o.sent, cmd.Name()+" "+fmt.Sprint(cmd.Args()[min(3, len(cmd.Args())-1)]))
		}
		return next(ctx, cmds)
	}
}

// The delete voids a lease from before the hold, so it comes after the hold. A process that
// receives the announcement must find both done.
func TestHoldComesFirst(t *testing.T) {
	_, rdb := testenv.Mini(t)
	var sent []string
	rdb.AddHook(order{badHook{func() {}}, &sent})
	b := newBackend(t, rdb)
	c := b.holder(lag)
	names, hashes := tagged(1)
	c.Delete(b.ctx, names, hashes) // the scripts are known now
	sent = nil
	c.Delete(b.ctx, names, hashes)
	if want := []string{"eval key:{0}:hold", "del key:{0}", "evalsha " + c.keys[0]}; !slices.Equal(sent, want) {
		t.Errorf("sent %q", sent)
	}
}

// An invalidation frees memory, so it is the last that a full Redis may refuse; and so is its hold.
func TestAFullRedisTakesHolds(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t, "--maxmemory-policy", "noeviction").Client(t))
	c := b.holder(lag)
	names, hashes := tagged(3)
	b.set(names...)
	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "1").Err())
	if err := b.rdb.Set(b.ctx, "another", "v", 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "OOM") {
		t.Fatalf("it is not full: %v", err)
	}
	for range 2 {
		for _, err := range c.Delete(b.ctx, names, hashes) {
			b.check(err)
		}
		b.held(names, lag)
	}
}

// A key that could not be put on hold is not said to be invalidated, though it is deleted.
func TestHoldThatIsNotAllowed(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t).Client(t))
	c := b.holder(lag)
	names, hashes := tagged(2)
	b.set(names...)
	b.check(b.rdb.Do(b.ctx, "acl", "setuser", "default", "resetkeys", "~key:{0}*", "~key:{1}", "~test::*").Err())
	for i, err := range c.Delete(b.ctx, names, hashes) {
		if redis.IsPermissionError(err) != (i == 1) || (err != nil) != (i == 1) {
			t.Errorf("%s: %v", names[i], err)
		}
	}
	b.check(b.rdb.Do(b.ctx, "acl", "setuser", "default", "allkeys").Err())
	if n := b.left(names...); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

// Where a reply is lost the client sends all again.
func TestHoldWhoseReplyIsLost(t *testing.T) {
	server := testenv.SharedRedis(t)
	b := newBackend(t, server.Client(t))
	proxy := testenv.NewProxy(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr})
	defer rdb.Close()
	c := open(t, rdb, timeout, bound, nil)
	c.Lag(lag)
	for _, known := range []bool{false, true} { // the scripts
		names, hashes := tagged(3)
		b.set(names...)
		lost := false
		proxy.OnRequest(func(chunk []byte) testenv.Action {
			if lost || !strings.Contains(string(chunk), ":hold") {
				return testenv.Pass
			}
			lost = true
			return testenv.LoseReply
		})
		for _, err := range c.Delete(b.ctx, names, hashes) {
			if err != nil {
				t.Errorf("%v: %v", known, err)
			}
		}
		b.held(names, lag)
		if !lost {
			t.Error("nothing was lost")
		}
	}
}

// While a cluster moves a slot, a key may be at one node still and its hold at the other.
func TestHoldWhileItsSlotMoves(t *testing.T) {
	b, c, name, done := halfMoved(t)
	defer done()
	for _, err := range c.Delete(b.ctx, []string{name}, []uint64{1}) {
		b.check(err)
	}
	b.held([]string{name}, lag)
}

// Where nothing is left at the old node, all goes to the new one.
func TestWriterHoldsWhileItsSlotMoves(t *testing.T) {
	b, c, name, done := halfMoved(t)
	defer done()
	c.Lag(0)
	for range 2 { // in the second nothing is left at the old node
		b.hold(c, "token", name)
		b.renewed(c, "token", true, name)
		errs, left := c.Release(b.ctx, []string{name}, []uint64{1}, []string{"token"})
		b.check(errs[0])
		if !left[0] || b.left(name) != 0 || b.left(keys.Hold(name)) != 0 {
			t.Errorf("%v, %d keys, %d holds are left", left, b.left(name), b.left(keys.Hold(name)))
		}
	}
}

// halfMoved is a key whose slot is being moved to another node, where its hold would be.
func halfMoved(t *testing.T) (b *backend, c *Bus, name string, done func()) {
	t.Helper()
	cluster := testenv.SharedCluster(t)
	rdb := cluster.Client(t)
	b = newBackend(t, rdb)
	c = b.holder(lag)
	name = "key:{moving}"
	slot := rdb.ClusterKeySlot(b.ctx, name).Val()
	b.set(name)
	from, err := rdb.MasterForKey(b.ctx, name)
	b.check(err)
	to, err := rdb.MasterForKey(b.ctx, "key:{"+conn.Tag((conn.Ranges/3+c.conn.Range(name))%conn.Ranges)+"}")
	b.check(err)
	if from == to {
		t.Fatal("both are at one node")
	}
	id := func(c *redis.Client) string { return c.Do(b.ctx, "cluster", "myid").Val().(string) }
	b.check(to.Do(b.ctx, "cluster", "setslot", slot, "importing", id(from)).Err())
	b.check(from.Do(b.ctx, "cluster", "setslot", slot, "migrating", id(to)).Err())
	return b, c, name, func() {
		for _, key := range []string{name, keys.Hold(name)} {
			pipe := to.Pipeline()
			pipe.Do(b.ctx, "asking")
			pipe.Del(b.ctx, key)
			pipe.Exec(b.ctx)
		}
		b.check(from.Do(b.ctx, "cluster", "setslot", slot, "stable").Err())
		b.check(to.Do(b.ctx, "cluster", "setslot", slot, "stable").Err())
	}
}

// Writers' holds.

const life = time.Hour

// marking is a change that leaves something in the key.
func marking(ctx context.Context, name string) redis.Cmder {
	return conn.Once(redis.NewCmd(ctx, "set", name, "mark"))
}

func (b *backend) hold(c *Bus, token string, names ...string) {
	b.t.Helper()
	for _, err := range c.Hold(b.ctx, names, make([]uint64, len(names)), token, life, marking) {
		b.check(err)
	}
}

func (b *backend) renewed(c *Bus, token string, want bool, names ...string) {
	b.t.Helper()
	keep := func(ctx context.Context, name, token string) redis.Cmder { return redis.NewCmd(ctx, "get", name) }
	held, errs := c.Renew(b.ctx, names, slices.Repeat([]string{token}, len(names)), life, keep)
	for i, err := range errs {
		if err != nil && !errors.Is(err, redis.Nil) || held[i] != want && err == nil {
			b.t.Fatalf("%s is held by %s: %v, %v, want %v", names[i], token, held[i], err, want)
		}
	}
}

func (b *backend) holders(name string) []string {
	b.t.Helper()
	return b.rdb.ZRange(b.ctx, keys.Hold(name), 0, -1).Val()
}

func TestWriterHolds(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		_, m := b.listen(long)
		c := b.writer()
		b.flushScripts()
		for _, n := range []int{1, 3, conn.MaxPipeline/2 + 100} {
			names, hashes := tagged(n)
			told := m.count()
			for _, err := range c.Hold(b.ctx, names, hashes, "one", life, marking) {
				b.check(err)
			}
			b.until("received", func() bool { return m.count() >= told+n })
			for _, name := range []string{names[0], names[n-1]} {
				if d := b.rdb.PTTL(b.ctx, keys.Hold(name)).Val(); d > life || d < life-testenv.Hang ||
					b.rdb.Get(b.ctx, name).Val() != "mark" {
					t.Fatalf("%s is on hold for %v, and holds %q", name, d, b.rdb.Get(b.ctx, name).Val())
				}
			}
			b.renewed(c, "one", true, names...)
			b.renewed(c, "another", false, names...)
			errs, left := c.Release(b.ctx, names, hashes, slices.Repeat([]string{"one"}, n))
			for i, err := range errs {
				if b.check(err); !left[i] {
					t.Fatalf("%s is not left", names[i])
				}
			}
			if b.left(names...) > 0 || len(b.holders(names[0])) > 0 {
				t.Errorf("%d keys are left, %q hold", b.left(names...), b.holders(names[0]))
			}
			b.renewed(c, "one", false, names...)
			b.until("received", func() bool { return m.count() >= told+2*n })
		}
	})
}

// Each holder of a key ends its own hold, and the last ends with the key.
func TestHoldsOfMany(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c := b.writer()
		names, hashes := tagged(1)
		name := names[0]
		b.hold(c, "one", name)
		b.hold(c, "two", name)
		lagging := b.holder(2 * life)
		lagging.Delete(b.ctx, names, hashes)
		ends := func(want time.Duration) {
			t.Helper()
			if d := b.rdb.PTTL(b.ctx, keys.Hold(name)).Val(); d > want || d < want-testenv.Hang {
				t.Fatalf("on hold for %v, want %v", d, want)
			}
		}
		release := func(token string) {
			t.Helper()
			errs, left := c.Release(b.ctx, names, hashes, []string{token})
			if b.check(errs[0]); !left[0] {
				t.Fatal("it is not left")
			}
		}
		ends(2 * life)
		release("one")
		ends(2 * life)
		b.renewed(c, "two", true, name)
		b.renewed(c, "one", false, name)
		over := func(token string) {
			b.check(b.rdb.ZAdd(b.ctx, keys.Hold(name), redis.Z{Member: token, Score: 1}).Err())
		}
		over(lagHolder)
		over("killed")
		b.renewed(c, "two", true, name)
		release("one") // again
		ends(life)
		lagging.Delete(b.ctx, names, hashes)
		if got := b.holders(name); !slices.Equal(got, []string{"killed", "two", lagHolder}) {
			t.Errorf("%q hold", got)
		}
		b.hold(c, "three", name)
		if got := b.holders(name); len(got) != 3 || slices.Contains(got, "killed") {
			t.Errorf("%q hold", got)
		}
		over("killed")
		over(lagHolder)
		release("three")
		release("two")
		if b.left(keys.Hold(name)) != 0 {
			t.Errorf("%q hold", b.holders(name))
		}
	})
}

// A hold that has ended, or was lost, is not revived by its renewal.
func TestLostHoldIsNotRevived(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		c := b.writer()
		names, _ := tagged(2)
		b.hold(c, "one", names...)
		b.hold(c, "two", names[1])
		b.check(b.rdb.Del(b.ctx, keys.Hold(names[0])).Err())
		b.check(b.rdb.ZAdd(b.ctx, keys.Hold(names[1]),
			redis.Z{Member: "one", Score: float64(time.Now().Add(-time.Second).UnixMilli())}).Err())
		for range 2 {
			b.renewed(c, "one", false, names...)
		}
		if b.left(keys.Hold(names[0])) != 0 ||
			b.rdb.ZScore(b.ctx, keys.Hold(names[1]), "one").Val() > float64(time.Now().UnixMilli()) {
			t.Errorf("%q and %q hold", b.holders(names[0]), b.holders(names[1]))
		}
	})
}

// A writer's mark in the key voids a lease from before, so it is set after the hold. When a writer
// leaves, its mark is deleted first, or another writer would take itself for the only one too
// early.
func TestWriterHoldsFirstAndLeavesLast(t *testing.T) {
	_, rdb := testenv.Mini(t)
	var sent []string
	rdb.AddHook(order{badHook{func() {}}, &sent})
	b := newBackend(t, rdb)
	c := b.writer()
	names, hashes := tagged(1)
	b.hold(c, "known", names[0]) // the scripts are, from now on
	c.Release(b.ctx, names, hashes, []string{"known"})
	sent = nil
	b.hold(c, "token", names[0])
	if want := []string{"eval key:{0}:hold", "set mark", "evalsha " + c.keys[0]}; !slices.Equal(sent, want) {
		t.Errorf("sent %q", sent)
	}
	sent = nil
	c.Lag(lag)
	c.Release(b.ctx, names, hashes, []string{"token"})
	if want := []string{"eval key:{0}:hold", "del key:{0}", "evalsha " + c.keys[0],
		"eval key:{0}:hold"}; !slices.Equal(sent, want) {
		t.Errorf("sent %q", sent)
	}
}

func TestAFullRedisTakesWritersHolds(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t, "--maxmemory-policy", "noeviction").Client(t))
	c := b.writer()
	names, hashes := tagged(3)
	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "1").Err())
	for _, err := range c.Hold(b.ctx, names, hashes, "token", life, del) {
		b.check(err)
	}
	keep := func(ctx context.Context, name, token string) redis.Cmder { return redis.NewCmd(ctx, "exists", name) }
	held, errs := c.Renew(b.ctx, names, []string{"token", "token", "token"}, life, keep)
	for i := range names {
		if b.check(errs[i]); !held[i] {
			t.Errorf("%s is not held", names[i])
		}
	}
	_, left := c.Release(b.ctx, names, hashes, []string{"token", "token", "token"})
	if slices.Contains(left, false) {
		t.Error(left)
	}
}

// A writer's hold is sent once, with any settings of the client: after another process has
// invalidated the key, a late second request would count as not invalidated.
func TestWriterHoldIsSentOnce(t *testing.T) {
	server := testenv.SharedRedis(t)
	b := newBackend(t, server.Client(t))
	proxy := testenv.NewProxy(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr})
	defer rdb.Close()
	c := open(t, rdb, timeout, bound, nil)
	names, hashes := tagged(1)
	b.hold(c, "known", names[0])
	var sent int
	proxy.OnRequest(func(chunk []byte) testenv.Action {
		if !strings.Contains(string(chunk), "token") {
			return testenv.Pass
		}
		sent++
		return testenv.LoseReply
	})
	if errs := c.Hold(b.ctx, names, hashes, "token", life, marking); errs[0] == nil || sent != 1 {
		t.Errorf("sent %d times, %v", sent, errs)
	}
}

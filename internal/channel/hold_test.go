package channel

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/testenv"
)

const lag = time.Minute

// holder makes a channel that puts on hold what it deletes.
func (b *backend) holder(lag time.Duration) *Channel {
	b.t.Helper()
	c := b.writer()
	c.Hold(lag)
	return c
}

// held fails unless these keys are on hold for about lag, and gone.
func (b *backend) held(names []string, lag time.Duration) {
	b.t.Helper()
	for _, name := range names {
		if d := b.rdb.PTTL(b.ctx, keys.Hold(name)).Val(); d > lag || d < lag-longest {
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
		_, m := b.listen(time.Minute)
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
			b.until("heard", func() bool { return m.count() >= told })
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

// A lease from before the hold is voided by the delete, so that comes second; and who hears of it must find both done.
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
	if want := []string{"evalsha key:{0}:hold", "del key:{0}", "evalsha " + c.keys[0]}; !slices.Equal(sent, want) {
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
	c.Hold(lag)
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
	cluster := testenv.SharedCluster(t)
	rdb := cluster.Client(t)
	b := newBackend(t, rdb)
	c := b.holder(lag)
	name := "key:{moving}"
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
	defer func() {
		pipe := to.Pipeline()
		pipe.Do(b.ctx, "asking")
		pipe.Del(b.ctx, keys.Hold(name))
		pipe.Exec(b.ctx)
		b.check(from.Do(b.ctx, "cluster", "setslot", slot, "stable").Err())
		b.check(to.Do(b.ctx, "cluster", "setslot", slot, "stable").Err())
	}()
	for _, err := range c.Delete(b.ctx, []string{name}, []uint64{1}) {
		b.check(err)
	}
	b.held([]string{name}, lag)
}

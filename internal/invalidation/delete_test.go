package invalidation

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// set stores something under each key.
func (b *backend) set(keys ...string) {
	b.t.Helper()
	cmds := make([]redis.Cmder, len(keys))
	for i, key := range keys {
		cmds[i] = redis.NewStatusCmd(b.ctx, "set", key, "v")
	}
	_, err := b.rdb.Pipelined(b.ctx, func(p redis.Pipeliner) error { return p.BatchProcess(b.ctx, cmds...) })
	b.check(err)
}

// left counts the keys that are there.
func (b *backend) left(keys ...string) (n int) {
	b.t.Helper()
	cmds, err := b.rdb.Pipelined(b.ctx, func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.Exists(b.ctx, key)
		}
		return nil
	})
	b.check(err)
	for _, cmd := range cmds {
		n += int(cmd.(*redis.IntCmd).Val())
	}
	return n
}

func many(n int) (names []string, hashes []uint64) {
	for i := range n {
		names, hashes = append(names, fmt.Sprint("key:", i)), append(hashes, uint64(i)+1)
	}
	return names, hashes
}

// hears waits until a memory has received the given number of keys in all, and fails unless these
// are among them.
func (b *backend) hears(m *recorder, told int, hashes []uint64) {
	b.t.Helper()
	b.until("received", func() bool { return m.count() >= told })
	for _, h := range hashes {
		if !m.has(h) {
			b.t.Fatalf("key %d of %d was not announced", h, len(hashes))
		}
	}
}

func TestDeleteAnnouncesItsKeys(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		_, m := b.listen(long)
		c := b.writer()
		told := 0
		for _, n := range []int{0, 1, 2, 100, conn.MaxPipeline - 1, conn.MaxPipeline, 2*conn.MaxPipeline + 500} {
			names, hashes := many(n)
			if n > 0 {
				b.set(names...)
			}
			before := c.Stats().Announced
			errs := c.Delete(b.ctx, names, hashes)
			if len(errs) != n {
				t.Fatalf("%d errors for %d keys", len(errs), n)
			}
			for _, err := range errs {
				b.check(err)
			}
			if n > 0 && b.left(names...) != 0 {
				t.Errorf("of %d keys %d are left", n, b.left(names...))
			}
			told += n
			b.hears(m, told, hashes)
			if parts := c.Stats().Announced - before; parts > int64((n+998)/999+c.conn.InUse()) {
				t.Errorf("%d messages for %d keys", parts, n)
			}
		}
		if m.count() != told || m.clears() != c.conn.InUse() {
			t.Errorf("%d of %d announced, and cleared %d times", m.count(), told, m.clears())
		}
	})
}

// Without a change, keys are announced and stay, and are not put on hold.
func TestDoWithoutAChange(t *testing.T) {
	onEach(t, func(t *testing.T, b *backend) {
		_, m := b.listen(long)
		c := b.holder(time.Minute)
		told := 0
		for _, n := range []int{0, 1, 100, conn.MaxPipeline + 500} {
			names, hashes := tagged(n)
			if n > 0 {
				b.set(names...)
			}
			errs := c.Do(b.ctx, names, hashes, nil)
			if len(errs) != n {
				t.Fatalf("%d errors for %d keys", len(errs), n)
			}
			for _, err := range errs {
				b.check(err)
			}
			if n > 0 && (b.left(names...) != n || b.rdb.Exists(b.ctx, keys.Hold(names[0])).Val() != 0) {
				t.Errorf("of %d keys %d are left", n, b.left(names...))
			}
			told += n
			b.hears(m, told, hashes)
		}
		if m.count() != told {
			t.Errorf("%d of %d announced", m.count(), told)
		}
	})
}

func TestDeleteReportsDeletedKeys(t *testing.T) {
	b := newBackend(t, testenv.StartRedis(t).Client(t))
	c := b.writer()
	keys, hashes := []string{"mine:1", "other:1", "mine:2", "other:2"}, []uint64{1, 2, 3, 4}
	b.set(keys...)
	messages := b.hear(c)
	b.check(b.rdb.Do(b.ctx, "acl", "setuser", "default", "resetkeys", "~mine:*", "~test::*").Err())
	origin := c.origin.Load()
	for i, err := range c.Delete(b.ctx, keys, hashes) {
		if want := i%2 == 1; redis.IsPermissionError(err) != want || (err != nil) != want {
			t.Errorf("%s: %v", keys[i], err)
		}
	}
	if c.origin.Load() == origin {
		t.Error("its own message is not applied by itself, though a key may come about to be deleted later")
	}
	if m, err := Decode([]byte(testenv.Receive(b.t, "a message", messages).Payload)); err != nil ||
		len(m.Body) != 8*len(keys) {
		t.Errorf("the keys that were deleted: %+v, %v", m, err)
	}
	b.check(b.rdb.Do(b.ctx, "acl", "setuser", "default", "allkeys").Err())
	for i, key := range keys {
		if n := b.left(key); n != i%2 {
			t.Errorf("%s: there are %d", key, n)
		}
	}
}

// A process that may not publish must not assume that others received the announcement.
func TestDeleteThatMayNotAnnounce(t *testing.T) {
	for name, rules := range map[string][]any{
		"publish":     {"acl", "setuser", "default", "-publish"},
		"the channel": {"acl", "setuser", "default", "resetchannels"},
		"the hash":    {"acl", "setuser", "default", "resetkeys", "~key:*"},
		"scripts":     {"acl", "setuser", "default", "-evalsha"},
	} {
		b := newBackend(t, testenv.StartRedis(t).Client(t))
		c := b.writer()
		names, hashes := many(3)
		b.set(names...)
		b.check(b.rdb.Do(b.ctx, rules...).Err())
		for i, err := range c.Delete(b.ctx, names, hashes) {
			if err == nil {
				t.Errorf("%s: %s: no error", name, names[i])
			}
		}
		if err := c.DeleteLoader(b.ctx, "users"); err == nil {
			t.Errorf("%s: no error for a loader", name)
		}
	}
}

func TestDeleteWithoutRedisIsAnErrorForEachKey(t *testing.T) {
	r := testenv.StartRedis(t)
	r.Kill()
	for name, rdb := range map[string]redis.UniversalClient{
		"client":  redis.NewClient(&redis.Options{Addr: r.Addr}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{r.Addr}}),
	} {
		c := open(t, rdb, 50*time.Millisecond, bound, nil)
		for _, n := range []int{0, 1, 3} {
			keys, hashes := many(n)
			errs := c.Delete(t.Context(), keys, hashes)
			if len(errs) != len(keys) {
				t.Errorf("%s: %d errors for %d keys", name, len(errs), len(keys))
			}
			for i, err := range errs {
				if err == nil {
					t.Errorf("%s: %s, one of %d, is said to be deleted", name, keys[i], len(keys))
				}
			}
		}
		if err := c.DeleteLoader(t.Context(), "users"); err == nil {
			t.Errorf("%s: a loader is said to be deleted", name)
		}
		rdb.Close()
	}
}

// A delete whose reply was lost is repeated. If no reply comes at all, its result is unknown.
func TestDeleteWhoseReplyIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		always bool
		keys   int
	}{
		"one key, once":     {false, 1},
		"many keys, once":   {false, 3},
		"one key, always":   {true, 1},
		"many keys, always": {true, 3},
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.SharedRedis(t)
			b := newBackend(t, server.Client(t))
			proxy := testenv.NewProxy(t, server.Addr)
			rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr})
			defer rdb.Close()
			limit := timeout
			if c.always {
				limit = 500 * time.Millisecond
			}
			channel := open(t, rdb, limit, bound, nil)
			b.delete(b.writer(), 99)       // the script is known now
			b.check(rdb.Ping(b.ctx).Err()) // and there is a connection
			messages := b.hear(channel)
			keys, hashes := many(c.keys)
			b.set(keys...)
			lost := false
			proxy.OnRequest(func([]byte) testenv.Action {
				if lost && !c.always {
					return testenv.Pass
				}
				lost = true
				return testenv.LoseReply
			})
			for i, err := range channel.Delete(t.Context(), keys, hashes) {
				if (err != nil) != c.always {
					t.Errorf("%s: %v", keys[i], err)
				}
			}
			proxy.OnRequest(nil)
			if n := b.left(keys...); n != 0 {
				t.Errorf("%d keys are left", n)
			}
			if m, err := Decode([]byte(testenv.Receive(b.t, "a message", messages).Payload)); err != nil ||
				len(m.Body) != 8*c.keys {
				t.Errorf("%+v, %v", m, err)
			}
		})
	}
}

func TestDeleteAfterClose(t *testing.T) {
	b := newBackend(t, testenv.SharedRedis(t).Client(t))
	c := b.writer()
	c.Close()
	c.conn.Close()
	if errs := c.Delete(t.Context(), []string{"a"}, []uint64{1}); errs[0] != conn.ErrClosed {
		t.Error(errs)
	}
	if err := c.DeleteLoader(t.Context(), "users"); err != conn.ErrClosed {
		t.Error(err)
	}
}

// inFlight is a hook that records the greatest number of pipelines with a delete in progress, and
// delays each.
type inFlight struct {
	mu        sync.Mutex
	now, most int
	parts     map[any]bool // the first keys of the pipelines
	delay     time.Duration
	err       error // of each pipeline
}

func (*inFlight) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*inFlight) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (f *inFlight) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "del" {
			return next(ctx, cmds)
		}
		f.mu.Lock()
		f.now++
		f.parts[cmds[0].Args()[1]] = true
		f.most = max(f.most, f.now)
		f.mu.Unlock()
		defer func() {
			f.mu.Lock()
			f.now--
			f.mu.Unlock()
		}()
		time.Sleep(f.delay)
		if err := f.fails(); err != nil {
			conn.Fail(cmds, err)
			return err
		}
		return next(ctx, cmds)
	}
}

func (f *inFlight) fails() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// begin sets the error of all pipelines, and returns the number of different ones so far.
func (f *inFlight) begin(err error) (sent int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent = len(f.parts)
	f.parts, f.err = map[any]bool{}, err
	return sent
}

// A delete of very many keys sends a few pipelines at a time, until all are deleted. If Redis does
// not reply, it sends no more of them.
func TestDeleteOfVeryManyKeys(t *testing.T) {
	names, hashes := many(12 * conn.MaxPipeline)
	for i := range names {
		names[i] += "{tag}" // on a cluster, of one range
	}
	check := func(b *backend, f *inFlight, timeout time.Duration, most int) {
		c := open(b.t, b.rdb, timeout, bound, nil)
		b.set(names...)
		f.begin(nil)
		for _, err := range c.Delete(b.ctx, names, hashes) {
			b.check(err)
		}
		if n := b.left(names...); n != 0 {
			b.t.Errorf("%d keys are left", n)
		}
		if sent := f.begin(context.DeadlineExceeded); f.most > most || sent < 13 {
			b.t.Errorf("of %d pipelines, %d were in progress at once", sent, f.most)
		}
		for i, err := range c.Delete(b.ctx, names, hashes) {
			if err == nil {
				b.t.Fatalf("key %d of a delete without a reply has no error", i)
			}
		}
		if sent := f.begin(nil); sent > most {
			b.t.Errorf("%d pipelines were sent to a server that does not reply", sent)
		}
	}
	t.Run("miniredis", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, rdb := testenv.Mini(t)
			f := &inFlight{delay: 100 * time.Millisecond} // all pipelines take longer than one may
			rdb.AddHook(f)
			check(newBackend(t, rdb), f, 30*time.Millisecond, maxParts)
		})
	})
	t.Run("cluster", func(t *testing.T) {
		rdb := testenv.SharedCluster(t).Client(t)
		f := &inFlight{delay: 10 * time.Millisecond}
		rdb.OnNewNode(func(node *redis.Client) { node.AddHook(f) })
		check(newBackend(t, rdb), f, timeout, 1)
	})
}

package promises

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// An invalidation in one process removes the key from the memory of the others.

// sees waits until a Get of key returns want, for any length of time.
func (p process) sees(t testing.TB, key int, want string, _ ...time.Duration) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("a Get(%d) = %q", key, want), func() bool {
		got, err := p.Get(t.Context(), key)
		return got == want && err == nil
	})
}

// awaitMemory waits until memory serves row for key. On a busy machine, a process with short
// timeouts may distrust its memory for a while.
func (p process) awaitMemory(t testing.TB, key int, row string) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("row %d in memory", key), func() bool {
		hits := p.Stats().MemoryHits
		v, err := p.Get(t.Context(), key)
		p.settle()
		return v == row && err == nil && p.Stats().MemoryHits > hits
	})
}

// remembers fails unless memory serves row for key.
func (p process) remembers(t testing.TB, key int, row string) {
	t.Helper()
	hits := p.Stats().MemoryHits
	p.want(t, key, row, nil)
	p.settle()
	p.want(t, key, row, nil)
	if p.Stats().MemoryHits == hits {
		t.Fatalf("key %d is not in memory", key)
	}
}

func TestInvalidateReachesOtherProcesses(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		rows := make(map[int]string)
		for i := range 40 { // in all ranges of a cluster
			rows[i] = "old"
		}
		d := newTable(rows)
		o := patient
		o.MaxStaleness = time.Minute // so that a slow machine does not lose trust
		p, q := start(t, b, d, o, nil), start(t, b, d, o, nil)
		writer := startOn(t, b.client(t), d, noMemory, nil)
		for i := range 40 {
			p.remembers(t, i, "old")
			q.remembers(t, i, "old")
		}
		for i := range 20 {
			d.write(i, "new")
			if err := writer.Invalidate(t.Context(), i); err != nil {
				t.Fatal(err)
			}
			p.sees(t, i, "new")
			q.sees(t, i, "new")
		}
		var keys []int
		for i := 20; i < 40; i++ {
			d.write(i, "new")
			keys = append(keys, i)
		}
		if err := p.Invalidate(t.Context(), keys...); err != nil {
			t.Fatal(err)
		}
		for _, i := range keys {
			p.want(t, i, "new", nil)
			q.sees(t, i, "new")
		}
		s := q.Stats().Bus
		if s.Received == 0 || s.Gaps != 0 || s.Lapses != 0 || s.Subscribes != 1 || s.Malformed != 0 {
			t.Errorf("%+v", s)
		}
		t.Logf("%d messages, received after %v, at most %v", s.Received, s.Delay, s.MaxDelay)
		if s := writer.Stats().Bus; s.Subscribed || s.Subscribes != 0 || s.Announced == 0 {
			t.Errorf("the writer: %+v", s)
		}
	})
}

// A value that a process has read since its own Invalidate stays in its memory: its own message
// does not remove it.
func TestOwnMessagesKeepMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "old"})
		p := start(t, b, d, patient, nil)
		defer p.cache.Close()
		p.remembers(t, 1, "old")
		for range 100 {
			if err := p.Invalidate(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			p.want(t, 1, "old", nil) // into memory, usually before the message arrives
			p.settle()
			synctest.Wait() // the message has arrived
			hits := p.Stats().MemoryHits
			p.want(t, 1, "old", nil)
			if p.Stats().MemoryHits != hits+1 {
				t.Fatal("the value is not in memory")
			}
		}
	})
}

// A process that only writes, or has no memory tier, does not subscribe. One that only writes does
// not poll either.
func TestOnlyReadersWithMemorySubscribe(t *testing.T) {
	b := realBackend(t)
	flushAll(t, b)
	d := newTable(map[int]string{1: "a"})
	short := cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		MaxStaleness: 40 * time.Millisecond}
	listeners := func() int64 {
		return b.admin.PubSubNumSub(t.Context(), "cacheaside::invalidations").Val()["cacheaside::invalidations"]
	}
	// The subscriptions of another test have ended.
	waitFor(t, func() bool { return listeners() == 0 })
	before := b.calls(t)
	writes := startOn(t, b.client(t), d, short, nil)
	if err := writes.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if n := b.calls(t)["publish"] - before["publish"]; n != 1 || b.calls(t)["hget"]-before["hget"] != 2 ||
		listeners() != 0 {
		t.Errorf("a process that only writes: %d scripts, %d listeners", n, listeners())
	}
	none := short
	none.MemoryBytes = -1
	bare, off := startOn(t, b.client(t), d, none, nil), startOn(t, b.client(t), d, short,
		&cacheaside.LoaderOptions{MemoryTTL: -1})
	bare.want(t, 1, "a", nil)
	off.want(t, 1, "a", nil)
	time.Sleep(50 * time.Millisecond)
	if n := listeners(); n != 0 {
		t.Errorf("%d processes without a memory tier listen", n)
	}
	reads := startOn(t, b.client(t), d, short, nil)
	reads.want(t, 1, "a", nil)
	waitFor(t, func() bool { return listeners() == 1 })
}

// Fresh reads bypass memory unless memory is up to date.
func TestFresh(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		d := newTable(map[int]string{1: "old", 2: "other"})
		p := start(t, b, d, patient, nil)
		p.remembers(t, 1, "old")
		p.remembers(t, 2, "other")
		d.write(1, "new")
		// Without an announcement.
		if err := b.admin.Del(t.Context(), redisKey(1)).Err(); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "old", nil)
		if v, err := p.Get(t.Context(), 1, cacheaside.Fresh); v != "new" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
		if m, err := p.GetMany(t.Context(), []int{1, 2, 3}, cacheaside.Fresh); err != nil || len(m) != 2 ||
			m[1] != "new" || m[2] != "other" {
			t.Errorf("%v, %v", m, err)
		}
		hits := p.Stats().MemoryHits
		if p.Get(t.Context(), 2, cacheaside.Fresh); p.Stats().MemoryHits != hits {
			t.Error("memory serves a fresh read")
		}
	})
}

// A fresh read that joins while another runs does not get the value that the other has put into
// memory. That may be from before an Invalidate elsewhere whose message has not arrived.
func TestFreshAfterInvalidateElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "old"})
		p := start(t, b, d, patient, nil)
		defer p.cache.Close()
		reached, resume := d.pause(1)
		first := later(func() (string, error) { return p.Get(t.Context(), 1, cacheaside.Fresh) })
		reach(t, reached, "the load")
		second := later(func() (string, error) { return p.Get(t.Context(), 1, cacheaside.Fresh) })
		synctest.Wait() // it waits behind the first read
		hook := &onFill{rdb: b.admin, do: func() { d.write(1, "new"); b.admin.Del(context.Background(), redisKey(1)) }}
		b.admin.(*redis.Client).AddHook(hook)
		resume()
		wantResult(t, first, "old")
		wantResult(t, second, "new")
	})
}

// onFill runs a function once, after an entry has been stored.
type onFill struct {
	rdb  redis.UniversalClient
	do   func()
	done bool
}

func (*onFill) DialHook(next redis.DialHook) redis.DialHook { return next }

func (o *onFill) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		args := cmd.Args()
		if !o.done && strings.HasPrefix(cmd.Name(), "eval") && len(args) == 7 &&
			fmt.Sprint(cmd.(interface{ Val() any }).Val()) == "1" {
			// the fill script
			o.done = true
			o.do()
		}
		return err
	}
}

func (*onFill) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A process that is cut off without noticing stops trusting its memory within the bound.
func TestStalenessIsBounded(t *testing.T) {
	server := testenv.SharedRedis(t)
	const bound = 300 * time.Millisecond
	for name, cut := range map[string]func(*testenv.Proxy){
		"silent": func(p *testenv.Proxy) { p.Hang(true) },
		"cut":    func(p *testenv.Proxy) { p.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			server.Client(t).FlushAll(t.Context())
			proxy, rdb := proxied(t, server)
			d := newTable(map[int]string{1: "old"})
			p := startOn(t, server.Client(t), d, patient, nil)
			q := startOn(t, rdb, d, cacheaside.Options{RedisTimeout: 50 * time.Millisecond,
				ReadTimeout: 50 * time.Millisecond, MaxStaleness: bound}, nil)
			defer q.cache.Close()
			defer proxy.Hang(false)
			hear(t, q.Loader)
			q.awaitMemory(t, 1, "old")
			cut(proxy)
			d.write(1, "new")
			if err := p.Invalidate(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			invalidated := time.Now()
			var oldest time.Duration
			for time.Since(invalidated) < 2*bound {
				began := time.Since(invalidated)
				if v, err := q.Get(t.Context(), 1); v == "old" {
					oldest = began
				} else if v != "new" || err != nil {
					t.Fatal(v, err)
				}
				time.Sleep(time.Millisecond)
			}
			t.Logf("served for %v", oldest)
			if oldest > bound {
				t.Errorf("the old value is served %v after its invalidation; the bound is %v", oldest, bound)
			}
			proxy.Hang(false)
			proxy.Restore()
			q.awaitMemory(t, 1, "new")
		})
	}
}

// A renewed subscription has missed unknown messages, so older memory is not served.
func TestReconnectClearsMemory(t *testing.T) {
	server := testenv.StartRedis(t)
	d := newTable(map[int]string{1: "old", 2: "same"})
	p := startOn(t, server.Client(t), d, patient, nil)
	// The subscription breaks. Before it is renewed, another process invalidates.
	proxy, rdb := proxied(t, server)
	q := startOn(t, rdb, d, patient, nil)
	hear(t, q.Loader)
	q.remembers(t, 1, "old")
	q.remembers(t, 2, "same")
	subscribing, goOn := make(chan struct{}), make(chan struct{})
	var once bool
	proxy.OnRequest(func(chunk []byte) testenv.Action {
		if strings.Contains(string(chunk), "subscribe") && !once {
			once = true
			close(subscribing)
			<-goOn
		}
		return testenv.Pass
	})
	if n := server.Client(t).ClientKillByFilter(t.Context(), "TYPE", "pubsub").Val(); n != 1 {
		t.Fatalf("%d connections killed", n)
	}
	reach(t, subscribing, "the new subscription")
	d.write(1, "new")
	if err := p.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	hear(t, q.Loader)
	q.want(t, 1, "new", nil)
	q.want(t, 2, "same", nil)
	if s := q.Stats().Bus; s.Subscribes < 2 || s.Disconnects == 0 {
		t.Errorf("%+v", s)
	}
}

// If a message is lost while the connection stands, the next message or the next poll reveals it.
func TestMissingMessages(t *testing.T) {
	for _, found := range []string{"by the next message", "by a poll"} {
		t.Run(found, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, b := embedded(t)
				d := newTable(map[int]string{1: "old", 2: "a"})
				q := start(t, b, d, patient, nil)
				defer q.cache.Close()
				q.remembers(t, 1, "old")
				// The steps of another process, except the message.
				d.write(1, "new")
				m.Del(redisKey(1))
				m.HSet("cacheaside::announced:{"+tagOfAll+"}", "", fmt.Sprint(time.Now().UnixMicro()+1))
				q.want(t, 1, "old", nil) // the process cannot know
				if found == "by the next message" {
					w := startOn(t, b.client(t), d, noMemory, nil)
					defer w.cache.Close()
					if err := w.Invalidate(t.Context(), 2); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				} else {
					time.Sleep(2 * time.Second)
				}
				q.want(t, 1, "new", nil)
				if s := q.Stats().Bus; s.Gaps != 1 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// tagOfAll is the tag of the only range of a single server.
var tagOfAll = conn.Tag(0)

// A process that was suspended for longer than the bound distrusts its memory before it receives a
// message.
func TestSuspendedProcess(t *testing.T) {
	server := testenv.StartRedis(t)
	child := testenv.SpawnChild(t, "suspended", "REDIS="+server.Addr)
	if line, err := child.ReadLine(testenv.Hang); err != nil || line != "remembered" {
		t.Fatal(line, err)
	}
	const bound = 200 * time.Millisecond
	for i := range 3 {
		child.Pause()
		server.Client(t).Set(t.Context(), "row", fmt.Sprint("new ", i), 0)
		p := startOn(t, server.Client(t), newTable(nil), patient, nil)
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		invalidated := time.Now()
		time.Sleep(2 * bound)
		child.Resume()
		// Start of its last Get that returned the old value.
		line, err := child.ReadLine(testenv.Hang)
		if err != nil {
			t.Fatal(err)
		}
		last, err := time.Parse(time.RFC3339Nano, line)
		if err != nil {
			t.Fatal(line, err)
		}
		if over := last.Sub(invalidated); over > bound {
			t.Errorf("a Get that begins %v after the Invalidate returns the old value", over)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func init() { testenv.RegisterChild("suspended", suspendedChild) }

// suspendedChild reads one key repeatedly, and reports at each change the start of its last read of
// the previous value.
func suspendedChild() {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS")})
	defer rdb.Close()
	c, err := newCache(rdb, &cacheaside.Options{MaxStaleness: 200 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "row",
		func(ctx context.Context, _ int) (string, error) { return rdb.Get(ctx, "row").Result() }, nil)
	if err != nil {
		panic(err)
	}
	rdb.Set(context.Background(), "row", "first", 0)
	told, value, last := false, "first", time.Now()
	for {
		began := time.Now()
		v, err := l.Get(context.Background(), 1)
		switch {
		case err != nil:
		case v == value:
			if last = began; !told && l.Stats().MemoryHits > 10 {
				told = true
				fmt.Println("remembered")
			}
		default:
			value = v
			fmt.Println(last.Format(time.RFC3339Nano))
		}
	}
}

// A Delete whose caller has left may still run. Its message counts as that of another process,
// because memory would otherwise keep a value read in between.
func TestLateOwnDeleteInvalidatesMemory(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "old"})
	p := start(t, b, d, cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		MaxStaleness: time.Minute}, nil)
	p.remembers(t, 1, "old")
	if err := p.Invalidate(t.Context(), 9); err != nil { // loads the script
		t.Fatal(err)
	}
	late := &lateDelete{held: make(chan struct{}), goOn: make(chan struct{})}
	b.admin.AddHook(late)
	ctx, cancel := context.WithCancel(t.Context())
	gone := later(func() (string, error) { return "", p.Invalidate(ctx, 1) })
	reach(t, late.held, "the delete")
	d.write(1, "new")
	cancel()
	if _, err := gone(t); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	p.remembers(t, 1, "old") // from Redis, which still has it
	close(late.goOn)
	p.sees(t, 1, "new")
}

// lateDelete delays commands that begin with a DEL until it is released. Then they run, although
// their callers have left.
type lateDelete struct{ held, goOn chan struct{} }

func (l *lateDelete) hold(ctx context.Context, cmd redis.Cmder) context.Context {
	if cmd.Name() != "del" {
		return ctx
	}
	close(l.held)
	<-l.goOn
	return context.WithoutCancel(ctx)
}

func (*lateDelete) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *lateDelete) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return next(l.hold(ctx, cmd), cmd) }
}

func (l *lateDelete) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return next(l.hold(ctx, cmds[0]), cmds) }
}

// A process that receives an invalidation reads Redis again. The key must be deleted by then, or
// the old value would come back.
func TestDeletePrecedesAnnouncement(t *testing.T) {
	server := testenv.SharedRedis(t)
	server.Client(t).FlushAll(t.Context())
	proxy, rdb := proxied(t, server)
	d := newTable(map[int]string{1: "0"})
	p := startOn(t, rdb, d, patient, nil)
	q := startOn(t, server.Client(t), d, patient, nil)
	hear(t, q.Loader)
	proxy.OnRequest(func(chunk []byte) testenv.Action {
		if strings.Contains(string(chunk), "del") {
			return testenv.Delay(50 * time.Millisecond)
		}
		return testenv.Pass
	})
	for i := range 5 {
		q.remembers(t, 1, fmt.Sprint(i))
		d.write(1, fmt.Sprint(i+1))
		done := make(chan error, 1)
		go func() { done <- p.Invalidate(t.Context(), 1) }()
		for len(done) == 0 {
			q.Get(t.Context(), 1)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		q.sees(t, 1, fmt.Sprint(i+1))
	}
}

// A process that has lost one server of a cluster stops trusting memory for the keys of that
// server. It continues to receive messages from the others.
func TestLostMasterIsNotTrusted(t *testing.T) {
	c := testenv.SharedCluster(t)
	const bound = 500 * time.Millisecond
	proxies, rdb := proxiedCluster(t, c, true, func(*redis.ClusterOptions) {})
	rows := make(map[int]string)
	for key := range 60 {
		rows[key] = "old"
	}
	d := newTable(rows)
	p := startOn(t, c.Client(t), d, noMemory, nil)
	flushAll(t, backend{admin: c.Client(t)})
	q := startOn(t, rdb, d, cacheaside.Options{RedisTimeout: 100 * time.Millisecond,
		ReadTimeout: 100 * time.Millisecond, MaxStaleness: bound}, nil)
	defer q.cache.Close()
	hear(t, q.Loader)
	var far, near []int // keys of the lost server, and of the others
	lost, err := rdb.MasterForKey(t.Context(), redisKey(0))
	if err != nil {
		t.Fatal(err)
	}
	for key := range rows {
		q.awaitMemory(t, key, "old")
		if master, err := rdb.MasterForKey(t.Context(), redisKey(key)); err != nil {
			t.Fatal(err)
		} else if master == lost {
			far = append(far, key)
		} else {
			near = append(near, key)
		}
	}
	proxies[lost.Options().Addr].Hang(true)
	defer proxies[lost.Options().Addr].Hang(false)
	for key := range rows {
		d.write(key, "new")
	}
	if err := p.Invalidate(t.Context(), append(slices.Clone(far), near...)...); err != nil {
		t.Fatal(err)
	}
	invalidated := time.Now()
	oldest := make(map[bool]time.Duration)
	for time.Since(invalidated) < 2*bound {
		for key := range rows {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			began := time.Since(invalidated)
			if v, err := q.Get(ctx, key); err == nil && v == "old" {
				oldest[slices.Contains(far, key)] = began
			}
			cancel()
		}
	}
	t.Logf("%d keys of the lost server are served for %v, %d others for %v: %+v",
		len(far), oldest[true], len(near), oldest[false], q.Stats().Bus)
	if max(oldest[true], oldest[false]) > bound {
		t.Errorf("an old value is served after %v and %v; the bound is %v", oldest[true], oldest[false], bound)
	}
	if s := q.Stats().Bus; s.Trusted == s.Ranges {
		t.Errorf("%+v", s)
	}
	// If the process subscribed at the lost server, it trusts the others again.
	waitFor(t, func() bool {
		hits := q.Stats().MemoryHits
		v, err := q.Get(t.Context(), near[0])
		return err == nil && v == "new" && q.Stats().MemoryHits > hits
	})
}

// A Refresh removes the key from this process's memory even while that is not trusted: it may be
// trusted again without having been cleared.
func TestRefreshWhileUntrusted(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "old"})
	p := start(t, b, d, cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		MaxStaleness: time.Minute}, nil)
	p.remembers(t, 1, "old")
	d.write(1, "new")
	partsOf(p.cache).memory.Trust(0, time.Time{}) // the trust has expired
	if v, err := p.Refresh(t.Context(), 1); v != "new" || err != nil {
		t.Fatal(v, err)
	}
	partsOf(p.cache).memory.Trust(0, time.Now().Add(time.Minute)) // the next poll finds no missing message
	p.want(t, 1, "new", nil)
}

// hooked calls before and after around each command.
type hooked struct{ before, after func(redis.Cmder) }

func (hooked) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hooked) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.before(cmd)
		defer h.after(cmd)
		return next(ctx, cmd)
	}
}

func (h hooked) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.before(cmd)
			defer h.after(cmd)
		}
		return next(ctx, cmds)
	}
}

// If a refreshed value is too large to store, the previous entry is deleted, and then removed from
// memory. In the other order, a reader could refill memory from Redis.
func TestRefreshOutgrowsMaxValueBytes(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "old"})
	p := start(t, b, d, patient, &cacheaside.LoaderOptions{MaxValueBytes: 10})
	p.remembers(t, 1, "old")
	long := strings.Repeat("new", 10)
	d.write(1, long)
	var once sync.Once
	b.admin.AddHook(hooked{before: func(cmd redis.Cmder) {
		if cmd.Name() == "del" {
			once.Do(func() {
				p.Get(context.Background(), 1)
				p.settle()
			})
		}
	}, after: func(redis.Cmder) {}})
	if v, err := p.Refresh(t.Context(), 1); v != long || err != nil {
		t.Fatal(v, err)
	}
	p.want(t, 1, long, nil)
}

// Messages reach all databases of a server, but keys do not. Messages of another database have no
// effect.
func TestTwoDatabasesOfOneServer(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "one"})
	p := start(t, b, d, patient, nil)
	o := *b.admin.(*redis.Client).Options()
	o.DB = 1
	rdb := redis.NewClient(&o)
	defer rdb.Close()
	q := startOn(t, rdb, d, patient, nil)
	defer q.cache.Close()
	hear(t, q.Loader)
	p.remembers(t, 1, "one")
	for i := range 20 {
		if err := q.Invalidate(t.Context(), i+100); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.InvalidateAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return q.Stats().Bus.Announced == 21 })
	loads := d.loads.Load()
	p.want(t, 1, "one", nil)
	if s := p.Stats().Bus; s.Received != 0 || s.Gaps != 0 || d.loads.Load() != loads {
		t.Errorf("%+v", s)
	}
}

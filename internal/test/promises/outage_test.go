package promises

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// While Redis is unreachable, reads follow the policy without waiting, and only until Redis is
// back.

var policies = map[cacheaside.DownPolicy]string{cacheaside.LoadWhenDown: "new", cacheaside.StaleWhenDown: "old",
	cacheaside.FailWhenDown: ""}

// readsWhileDown reads a row that a process has in memory as "old" while Redis is unreachable, with
// the process's policy. It returns the time of the first read, and of 30 reads after a few have
// failed. The latter send nothing to Redis.
func readsWhileDown(t *testing.T, p process, asked *atomic.Int64, want string) (first, rest time.Duration) {
	t.Helper()
	var fresh []cacheaside.ReadOption
	if want == "new" { // otherwise memory serves it after a load
		fresh = []cacheaside.ReadOption{cacheaside.Fresh}
	}
	get := func() time.Duration {
		t.Helper()
		began := time.Now()
		v, err := p.Get(t.Context(), 1, fresh...)
		if v != want || want == "" != errors.Is(err, cacheaside.ErrRedis) || want != "" && err != nil {
			t.Fatalf("%q, %v", v, err)
		}
		return time.Since(began)
	}
	first = get()
	for range 3 {
		get()
	}
	if partsOf(p.cache).conn.Down(0) == nil {
		t.Fatal("the outage is not noticed")
	}
	before := asked.Load()
	for range 30 {
		rest += get()
	}
	if n := asked.Load() - before; n != 0 {
		t.Errorf("%d of 30 reads send a command to Redis", n)
	}
	if err := p.Invalidate(t.Context(), 2); err == nil { // it has tried
		t.Error("Invalidate succeeds without Redis")
	}
	return first, rest
}

// asking counts the commands for keys of the test's rows.
func asking(n *atomic.Int64) redis.Hook {
	return hooked{before: func(cmd redis.Cmder) {
		for _, arg := range cmd.Args() {
			if text, ok := arg.(string); ok && strings.HasPrefix(text, "cacheaside:row:1:") {
				n.Add(1)
			}
		}
	}, after: func(redis.Cmder) {}}
}

// If a server hangs or dies, only the first few reads wait, for ReadTimeout. Each policy works, and
// Redis is used again when it is back. TestReadsWhileRedisIsDown measures the times.
func TestRedisOutOfReach(t *testing.T) {
	const wait = 300 * time.Millisecond
	for policy, want := range policies {
		for name, lose := range map[string]func(*testenv.Redis) func(testing.TB){
			"hangs": func(s *testenv.Redis) func(testing.TB) { s.Pause(); return func(testing.TB) { s.Resume() } },
			"dies":  func(s *testenv.Redis) func(testing.TB) { s.Kill(); return s.Restart },
		} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				t.Parallel()
				server := testenv.StartRedis(t)
				b := backend{func(t testing.TB) redis.UniversalClient { return server.Client(t) },
					server.Client(t), server}
				d := newTable(map[int]string{1: "old"})
				rdb := keepsDeadlines(t, b)
				var asked atomic.Int64
				rdb.AddHook(asking(&asked))
				o := cacheaside.Options{RedisTimeout: 2 * wait, ReadTimeout: wait, MaxStaleness: wait,
					MemoryBytes: steady.MemoryBytes}
				p := startOn(t, rdb, d, o, &cacheaside.LoaderOptions{RedisDown: policy})
				hear(t, p.Loader)
				// A machine that stands still may look like an outage now and then.
				testenv.Eventually(t, "a hit in memory", func() bool {
					hits := p.Stats().MemoryHits
					p.Get(t.Context(), 1)
					p.settle()
					p.Get(t.Context(), 1)
					return p.Stats().MemoryHits > hits
				})
				before := p.Stats()
				back := lose(server)
				d.write(1, "new")
				testenv.Eventually(t, "the end of the trust in memory",
					func() bool { return p.cache.Stats().Bus.Trusted == 0 })
				first, rest := readsWhileDown(t, p, &asked, want)
				t.Logf("the first read waits for %v, 30 later ones together for %v", first, rest)
				if accepting && (first > wait+150*time.Millisecond || rest > 10*wait) {
					t.Error("the reads wait too long")
				}
				s := p.Stats()
				if s.RedisDown == before.RedisDown || s.Stale > before.Stale != (policy == cacheaside.StaleWhenDown) ||
					s.Loads > before.Loads != (policy == cacheaside.LoadWhenDown) {
					t.Errorf("%+v", s)
				}
				back(t)
				began := time.Now()
				testenv.Eventually(t, "its return", func() bool { return partsOf(p.cache).conn.Down(0) == nil })
				took := time.Since(began)
				t.Logf("the return of Redis is noticed after %v", took)
				if accepting && took > time.Second {
					t.Errorf("the return of Redis is noticed after %v", took)
				}
				testenv.Eventually(t, "an invalidation", func() bool { return p.Invalidate(t.Context(), 1) == nil })
				testenv.Eventually(t, "the new row", func() bool { v, _ := p.Get(t.Context(), 1); return v == "new" })
				testenv.Eventually(t, "a hit in Redis", func() bool {
					hits := p.Stats().RedisHits
					p.Get(t.Context(), 1, cacheaside.Fresh)
					return p.Stats().RedisHits > hits
				})
			})
		}
	}
}

// While Redis hangs, the first reads wait for ReadTimeout, and later ones do not wait. Its return
// is noticed within a second.
func TestReadsWhileRedisIsDown(t *testing.T) {
	for policy, want := range policies {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			embeddedBubble(t, func(t *testing.T, _ *miniredis.Miniredis, b backend) {
				d := newTable(map[int]string{1: "old"})
				rdb := b.client(t)
				var asked atomic.Int64
				out := &outage{}
				rdb.AddHook(&slowOutage{out})
				rdb.AddHook(asking(&asked))
				const wait = 300 * time.Millisecond
				o := cacheaside.Options{RedisTimeout: 2 * wait, ReadTimeout: wait, MaxStaleness: time.Minute,
					MemoryBytes: steady.MemoryBytes}
				p := startOn(t, rdb, d, o, &cacheaside.LoaderOptions{RedisDown: policy, MemoryTTL: 10 * time.Second})
				hear(t, p.Loader)
				p.remembers(t, 1, "old")
				out.on.Store(true)
				d.write(1, "new")
				time.Sleep(10 * time.Second) // memory is no longer served
				first, rest := readsWhileDown(t, p, &asked, want)
				if first != wait || rest != 0 {
					t.Errorf("the first read waits for %v, 30 later ones together for %v", first, rest)
				}
				out.on.Store(false)
				time.Sleep(time.Second)
				if err := partsOf(p.cache).conn.Down(0); err != nil {
					t.Errorf("the return of Redis is not noticed: %v", err)
				}
				noError(t, p.Invalidate(t.Context(), 1))
				p.want(t, 1, "new", nil)
			})
		})
	}
}

// outage is a hook. While it is on, Redis is unreachable.
type outage struct{ on atomic.Bool }

var errOutage = errors.New("no route to host")

func (*outage) DialHook(next redis.DialHook) redis.DialHook { return next }

func (o *outage) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if o.on.Load() {
			cmd.SetErr(errOutage)
			return errOutage
		}
		return next(ctx, cmd)
	}
}

func (o *outage) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if o.on.Load() {
			for _, cmd := range cmds {
				cmd.SetErr(errOutage)
			}
			return errOutage
		}
		return next(ctx, cmds)
	}
}

// inOutage runs f in a bubble, with a process whose Redis is lost while o is on.
func inOutage(t *testing.T, lo cacheaside.LoaderOptions, f func(t *testing.T, p process, d *table, o *outage)) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "old", 3: "three"})
		lo.RedisDown = cacheaside.StaleWhenDown
		rdb := b.client(t)
		o := &outage{}
		rdb.AddHook(o)
		p := startOn(t, rdb, d, steady, &lo)
		defer p.cache.Close()
		hear(t, p.Loader)
		for key, err := range map[int]error{1: nil, 2: cacheaside.ErrNotFound, 3: nil} {
			if _, got := p.Get(t.Context(), key); !sameError(got, err) {
				t.Fatal(got)
			}
		}
		p.settle()
		f(t, p, d, o)
	})
}

// Under StaleWhenDown, a value is served until the end of its hard life, and a null for at most
// another NullTTL.
func TestStaleWhenDownHasAnEnd(t *testing.T) {
	inOutage(t, cacheaside.LoaderOptions{TTL: time.Minute, NullTTL: time.Minute, StaleFor: time.Hour, Jitter: -1},
		func(t *testing.T, p process, d *table, o *outage) {
			o.on.Store(true)
			time.Sleep(100 * time.Second)
			p.want(t, 1, "old", nil)
			p.want(t, 2, "", cacheaside.ErrNotFound)
			time.Sleep(30 * time.Second)
			p.want(t, 1, "old", nil)
			p.want(t, 2, "", cacheaside.ErrRedis)
			time.Sleep(time.Hour - 80*time.Second)
			p.want(t, 1, "old", nil)
			time.Sleep(time.Minute)
			p.want(t, 1, "", cacheaside.ErrRedis)
			if s := p.Stats(); s.Stale != 4 || s.Loads != 3 || s.RedisDown != 6 {
				t.Errorf("%+v", s)
			}
			o.on.Store(false)
			time.Sleep(time.Second)
			p.want(t, 1, "old", nil)
			if s := p.Stats(); s.Loads != 4 {
				t.Errorf("%+v", s)
			}
		})
}

// Values with a known invalidation are not served, even if the Invalidate did not reach Redis.
// Values that others may have invalidated are served, but never to Fresh reads.
func TestStaleWhenDownServesNothingInvalidated(t *testing.T) {
	inOutage(t, cacheaside.LoaderOptions{StaleFor: cacheaside.Forever},
		func(t *testing.T, p process, d *table, o *outage) {
			o.on.Store(true)
			time.Sleep(2 * time.Minute)
			partsOf(p.cache).memory.Clear(0) // as after a gap
			p.want(t, 1, "old", nil)
			if _, err := p.Get(t.Context(), 1, cacheaside.Fresh); !errors.Is(err, cacheaside.ErrRedis) ||
				!errors.Is(err, errOutage) {
				t.Errorf("Fresh: %v", err)
			}
			if err := p.Invalidate(t.Context(), 1); !errors.Is(err, cacheaside.ErrRedis) {
				t.Error(err)
			}
			p.want(t, 1, "", cacheaside.ErrRedis)
			p.want(t, 3, "three", nil)
			readerOf(p.Loader).Raise(0, 7) // an InvalidateAll
			p.want(t, 3, "", cacheaside.ErrRedis)
			if n := d.loads.Load(); n != 3 {
				t.Errorf("%d loads", n)
			}
		})
}

// Redis is lost during a load. Values that cannot be stored are counted, and once the outage is
// known, no caller waits for Redis.
func TestWritesWhileRedisIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "one", 2: "two", 3: "three"})
		rdb := b.client(t)
		o := &outage{}
		slow := &slowOutage{o}
		rdb.AddHook(slow)
		p := startOn(t, rdb, d, cacheaside.Options{RedisTimeout: time.Second, MemoryBytes: -1}, nil)
		defer p.cache.Close()
		p.want(t, 9, "", cacheaside.ErrNotFound)
		reached, resume := d.pause(2)
		got := later(func() (string, error) { return p.Get(context.Background(), 1) })
		reach(t, reached, "the load")
		o.on.Store(true)
		for range 4 {
			p.Get(t.Context(), 2)
		}
		if partsOf(p.cache).conn.Down(0) == nil {
			t.Fatal("the outage is not noticed")
		}
		before := p.Stats().WriteErrors
		began := time.Now()
		resume()
		wantResult(t, got, "one")
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the caller waits %v for an unreachable Redis", took)
		}
		if s := p.Stats(); s.WriteErrors == before || s.WriteErrors > s.RedisErrors {
			t.Errorf("%+v", s)
		}
	})
}

// A read waits for ReadTimeout, not for RedisTimeout, for a value as well as for the current
// generation.
func TestReadTimeout(t *testing.T) {
	for name, asked := range map[string]time.Duration{"the value": 0, "the generation": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, b := embedded(t)
				rdb := b.client(t)
				o := &outage{}
				rdb.AddHook(&slowOutage{o})
				p := startOn(t, rdb, newTable(map[int]string{1: "one"}),
					cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: time.Second,
						MaxStaleness: 3 * time.Second, MemoryBytes: -1}, nil)
				defer p.cache.Close()
				p.want(t, 1, "one", nil)
				o.on.Store(true)
				time.Sleep(2 * asked) // the last successful poll is this old
				began := time.Now()
				p.want(t, 1, "one", nil)
				if took := time.Since(began); took < time.Second || took > time.Second+50*time.Millisecond {
					t.Errorf("the read takes %v", took)
				}
			})
		})
	}
}

// slowOutage is an outage in which commands take until their timeout.
type slowOutage struct{ *outage }

func (s *slowOutage) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	fail := s.outage.ProcessHook(next)
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.wait(ctx)
		return fail(ctx, cmd)
	}
}

func (s *slowOutage) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	fail := s.outage.ProcessPipelineHook(next)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.wait(ctx)
		return fail(ctx, cmds)
	}
}

func (s *slowOutage) wait(ctx context.Context) {
	if deadline, ok := ctx.Deadline(); ok && s.on.Load() {
		time.Sleep(time.Until(deadline))
	}
}

// A server that replies to everything that it cannot serve, for example while it loads its data,
// counts as unreachable until it serves.
func TestServerRefuses(t *testing.T) {
	for _, says := range []string{
		"LOADING Redis is loading the dataset in memory", "READONLY You can't write against a read only replica.",
		"CLUSTERDOWN The cluster is down",
		"BUSY Redis is busy running a script.", "MISCONF Errors writing to the AOF file: No space left on device",
		"NOREPLICAS Not enough good replicas to write.", "NOAUTH Authentication required.",
	} {
		t.Run(says[:7], func(t *testing.T) {
			addr := refusing(t, says)
			rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, Protocol: 2,
				DisableIdentity: true})
			t.Cleanup(func() { rdb.Close() })
			d := newTable(map[int]string{1: "one"})
			p := startOn(t, rdb, d, steady, nil)
			q, err := cacheaside.NewLoader(p.cache, "fails", d.load,
				&cacheaside.LoaderOptions{RedisDown: cacheaside.FailWhenDown})
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				if got, err := p.Get(t.Context(), 1, cacheaside.Fresh); got != "one" || err != nil {
					t.Error(got, err)
				}
			}
			if err := partsOf(p.cache).conn.Down(0); !errors.Is(err, conn.ErrDown) ||
				!redis.HasErrorPrefix(err, says[:7]) {
				t.Error(err)
			}
			if _, err := q.Get(t.Context(), 1); !errors.Is(err, cacheaside.ErrRedis) ||
				!redis.HasErrorPrefix(err, says[:7]) {
				t.Error(err)
			}
		})
	}
}

// refusing returns the address of a server that replies to every command with this error.
func refusing(t *testing.T, says string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			all.Go(func() { refuse(c, says) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return l.Addr().String()
}

func refuse(c net.Conn, says string) {
	in := bufio.NewReader(c)
	for {
		head, err := in.ReadString('\n') // *n
		if err != nil {
			return
		}
		n, _ := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(head, "*")))
		for range n {
			size, err := in.ReadString('\n') // $n
			if err != nil {
				return
			}
			length, _ := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(size, "$")))
			if _, err := io.CopyN(io.Discard, in, int64(length)+2); err != nil {
				return
			}
		}
		if _, err := fmt.Fprintf(c, "-%s\r\n", says); err != nil {
			return
		}
	}
}

// The slot of a key that is constantly read and invalidated moves between nodes. No caller gets an
// error or a value from before an acknowledged Invalidate.
func TestSlotMoves(t *testing.T) {
	c := testenv.SharedCluster(t)
	b := backend{client: func(t testing.TB) redis.UniversalClient { return c.Client(t) }, admin: c.Client(t)}
	var version, acknowledged atomic.Int64
	load := func(context.Context, int) (string, error) { return strconv.FormatInt(version.Load(), 10), nil }
	var loaders []*cacheaside.Loader[int, string]
	for range 2 {
		cache, err := cacheaside.New(b.client(t), &steadyNoMemory)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cache.Close() })
		l, err := cacheaside.NewLoader(cache, "row", load, nil)
		if err != nil {
			t.Fatal(err)
		}
		loaders = append(loaders, l)
	}
	const key = 1
	slot := int(b.admin.ClusterKeySlot(t.Context(), redisKey(key)).Val())
	stop := make(chan struct{})
	var all sync.WaitGroup
	running := func(f func()) {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f()
				}
			}
		})
	}
	var reads atomic.Int64
	for i := range 4 {
		running(func() {
			least := acknowledged.Load()
			keys := []int{key, key + 1 + i}
			found, err := loaders[i%2].GetMany(context.Background(), keys)
			if got, _ := strconv.ParseInt(found[key], 10, 64); err != nil || got < least {
				t.Errorf("version %d after %d was acknowledged, %v", got, least, err)
			}
			reads.Add(1)
		})
	}
	for i := range 8 { // these share trips with each other
		running(func() {
			least := acknowledged.Load()
			got, err := loaders[0].Get(context.Background(), key+i)
			if v, _ := strconv.ParseInt(got, 10, 64); err != nil || i == 0 && v < least {
				t.Errorf("version %s after %d was acknowledged, %v", got, least, err)
			}
			reads.Add(1)
		})
	}
	running(func() {
		v := version.Add(1)
		if err := loaders[0].Invalidate(context.Background(), key); err != nil {
			t.Error(err)
		}
		acknowledged.Store(v)
		time.Sleep(5 * time.Millisecond)
	})
	from, to := slotOwner(t, c, key)
	for range 6 {
		goOn := func() { // reads and writes
			r, v := reads.Load(), acknowledged.Load()
			testenv.Eventually(t, "more reads and invalidations",
				func() bool { return reads.Load() > r+20 && acknowledged.Load() > v+2 })
		}
		moveSlot(t, c, slot, c.Nodes[from], c.Nodes[to], goOn)
		goOn()
		from, to = to, from
	}
	close(stop)
	all.Wait()
	t.Logf("%d reads, %d invalidations", reads.Load(), acknowledged.Load())
}

// slotOwner returns the node of a key, and another node.
func slotOwner(t *testing.T, c *testenv.Cluster, key int) (from, to int) {
	t.Helper()
	to = 1
	for i, n := range c.Nodes[:3] {
		if !redis.HasErrorPrefix(n.Client(t).Get(t.Context(), redisKey(key)).Err(), "MOVED") {
			from, to = i, (i+1)%3
		}
	}
	return from, to
}

// moveSlot moves a slot as redis-cli does. Reads and writes goOn between its steps.
func moveSlot(t *testing.T, c *testenv.Cluster, slot int, from, to *testenv.Redis, goOn func()) {
	t.Helper()
	ctx := t.Context()
	source, target := from.Client(t), to.Client(t)
	do := func(rdb *redis.Client, args ...any) {
		if err := rdb.Do(ctx, args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	id := func(rdb *redis.Client) string { return rdb.Do(ctx, "cluster", "myid").Val().(string) }
	do(target, "cluster", "setslot", slot, "importing", id(source))
	do(source, "cluster", "setslot", slot, "migrating", id(target))
	goOn()
	_, port, _ := net.SplitHostPort(to.Addr)
	for {
		keys, err := source.ClusterGetKeysInSlot(ctx, slot, 10).Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		args := []any{"migrate", "127.0.0.1", port, "", 0, 5000, "keys"}
		for _, key := range keys {
			args = append(args, key)
		}
		do(source, args...)
	}
	goOn()
	do(target, "cluster", "setslot", slot, "node", id(target))
	do(source, "cluster", "setslot", slot, "node", id(target))
	for _, n := range c.Nodes[:3] {
		do(n.Client(t), "cluster", "setslot", slot, "node", id(target))
	}
}

package promises

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) {
	fetch.SlowTrip = 0 // the commands of a read must not depend on the load of the machine
	testenv.Main(m)
}

// backend is a Redis that the tests run on.
type backend struct {
	client func(testing.TB) redis.UniversalClient // a new client, as in another process
	admin  redis.UniversalClient                  // for the test's own commands
	server interface {                            // of a real single server
		Pause()
		Resume()
		Kill()
		Restart(testing.TB)
	}
}

// realBackend is a real redis-server with TLS only. Its user has exactly the commands that the
// package comment lists, on keys and channels with the prefix.
func realBackend(t testing.TB) backend {
	r := testenv.SharedRedisTLS(t, documentedACL...)
	return backend{func(t testing.TB) redis.UniversalClient { return patientClient(t, r.Options()) },
		r.AdminClient(t), r}
}

// plainBackend is a real redis-server without TLS, whose user has all permissions.
func plainBackend(t testing.TB) backend {
	r := testenv.SharedRedis(t)
	return backend{func(t testing.TB) redis.UniversalClient { return patientClient(t, r.Options()) }, r.Client(t), r}
}

// patientClient returns a client that waits for a busy machine as long as a test does.
func patientClient(t testing.TB, o *redis.Options) *redis.Client {
	o.DialTimeout = testenv.Hang
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// embedded is miniredis, which works in a synctest bubble.
func embedded(t testing.TB) (*miniredis.Miniredis, backend) {
	m, rdb := testenv.Mini(t)
	return m, backend{client: func(testing.TB) redis.UniversalClient { return rdb }, admin: rdb}
}

// calls counts the commands that the server has executed for this test, including those in scripts.
// It omits the commands that set up connections and that count.
func (b backend) calls(t testing.TB) map[string]int {
	t.Helper()
	info, err := b.admin.InfoMap(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	calls := make(map[string]int)
	for name, stat := range info["Commandstats"] {
		name = strings.TrimPrefix(name, "cmdstat_")
		switch name {
		case "hello", "auth", "client|setinfo", "client|maint_notifications", "info", "config|resetstat", "ping":
			continue
		}
		var n int
		if _, err := fmt.Sscanf(stat, "calls=%d,", &n); err != nil {
			t.Fatal(stat, err)
		}
		calls[name] = n
	}
	return calls
}

// documentedACL lists the permissions that the Redis user needs according to the package comment.
var documentedACL = []string{
	"~cacheaside*", "&cacheaside*",
	"+set", "+getrange", "+setrange", "+pttl", "+pexpire", "+rename", "+time", "+del", "+eval", "+evalsha",
	"+zadd", "+zrem", "+zcard", "+zrange", "+zscore", "+zremrangebyscore",
	"+hget", "+hmget", "+hset", "+hlen", "+hgetall", "+persist", "+publish", "+subscribe", "+ping", "+pubsub|numsub",
}

// onlyServer makes each and everywhere run their tests on a server only.
var onlyServer bool

// each runs f on the embedded Redis and a server, and in long runs on a cluster.
func each(t *testing.T, f func(t *testing.T, b backend)) {
	if !onlyServer {
		t.Run("embedded", func(t *testing.T) {
			_, b := embedded(t)
			f(t, b)
		})
	}
	t.Run("redis", func(t *testing.T) { f(t, realBackend(t)) })
	if accepting && !onlyServer {
		onCluster(t, f)
	}
}

func onCluster(t *testing.T, f func(t *testing.T, b backend)) {
	t.Run("cluster", func(t *testing.T) {
		c := testenv.SharedCluster(t)
		f(t, backend{client: func(t testing.TB) redis.UniversalClient { return c.Client(t) }, admin: c.Client(t)})
	})
}

// everywhere runs f on every kind of Redis. Tests of the protocol use it: of what a key or a group
// holds after an invalidation.
func everywhere(t *testing.T, f func(t *testing.T, b backend)) {
	each(t, f)
	if onlyServer {
		return
	}
	if !accepting {
		onCluster(t, f)
	}
	t.Run("sentinel", func(t *testing.T) {
		s := testenv.SharedSentinel(t)
		f(t, backend{client: func(t testing.TB) redis.UniversalClient { return s.Client(t) }, admin: s.Client(t)})
	})
	t.Run("serverless", func(t *testing.T) { f(t, serverless(t)) })
}

// serverless is a Redis behind a proxy with the rules of a managed service.
func serverless(t testing.TB) backend {
	s := testenv.SharedServerless(t)
	return backend{client: func(t testing.TB) redis.UniversalClient { return s.Client(t) }, admin: s.AdminClient(t)}
}

// patient has timeouts that a slow test machine keeps, so that Redis does not count as down; see
// unhurried.
var patient = cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second}

// unhurried extends the options of a patient process: options that are not set get values for a
// busy machine, where a slow process would be considered dead and would distrust its memory. It
// does not do so in a bubble, where nothing is late (its clock begins in the year 2000), nor while
// a guard is removed, so that unsuccessful waits end soon.
func unhurried(o cacheaside.Options, lo *cacheaside.LoaderOptions) (cacheaside.Options, *cacheaside.LoaderOptions) {
	if o.RedisTimeout < patient.RedisTimeout || time.Now().Year() < 2020 || os.Getenv("CACHEASIDE_MUTANT") != "" {
		return o, lo
	}
	o.RedisTimeout, o.ReadTimeout = max(o.RedisTimeout, testenv.Hang), max(o.ReadTimeout, testenv.Hang)
	o.LeaseTTL = cmp.Or(o.LeaseTTL, 20*time.Second)
	o.MaxStaleness = cmp.Or(o.MaxStaleness, time.Minute)
	o.QueueTimeout = cmp.Or(o.QueueTimeout, testenv.Hang)
	var l cacheaside.LoaderOptions
	if lo != nil {
		l = *lo
	}
	l.LoadTimeout = cmp.Or(l.LoadTimeout, testenv.Hang)
	l.ErrorTTL = cmp.Or(l.ErrorTTL, testenv.Hang)
	return o, &l
}

// accepting selects the long runs whose figures are reported (make accept).
var accepting = testenv.Accepting

// noMemory are patient options for a process without a memory tier.
var noMemory = cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, MemoryBytes: -1}

// rarePolls are patient options for a test that counts commands.
var rarePolls = cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, MemoryBytes: -1,
	MaxStaleness: time.Minute}

// rarelyPolling are patient options with a memory tier, for hours in a bubble.
var rarelyPolling = cacheaside.Options{RedisTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
	MaxStaleness: time.Minute}

// table stands in for a database with rows of text. Its reads are counted and can be paused.
type table struct {
	mu    sync.Mutex
	rows  map[int]string
	loads atomic.Int64

	now, most atomic.Int64 // loads in progress, and their maximum

	// read, if set, is called by each load after it has read its row and before it returns, with
	// the number of the load.
	read func(ctx context.Context, n int64) error

	loaded func(key int) // called at the start of a load
}

func newTable(rows map[int]string) *table { return &table{rows: rows} }

func (t *table) write(key int, row string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows[key] = row
}

func (t *table) load(ctx context.Context, key int) (string, error) {
	n := t.loads.Add(1)
	t.most.Store(max(t.now.Add(1), t.most.Load())) // where it matters, loads are seconds apart
	defer t.now.Add(-1)
	t.mu.Lock()
	row, ok := t.rows[key]
	read := t.read
	t.mu.Unlock()
	if t.loaded != nil {
		t.loaded(key)
	}
	if read != nil {
		if err := read(ctx, n); err != nil {
			return "", err
		}
	}
	if !ok {
		return "", cacheaside.ErrNotFound
	}
	return row, nil
}

// process is one process of a fleet: a cache with its own client, and a loader of the table.
type process struct {
	*cacheaside.Loader[int, string]
	cache *cacheaside.Cache
}

func start(t testing.TB, b backend, d *table, o cacheaside.Options, lo *cacheaside.LoaderOptions) process {
	t.Helper()
	p := startOn(t, b.client(t), d, o, lo)
	hear(t, p.Loader)
	return p
}

// hear waits until the memory tier is trusted and Redis is known to be reachable. Earlier reads are
// not kept in memory.
func hear[K comparable, V any](t testing.TB, l *cacheaside.Loader[K, V]) {
	t.Helper()
	if !readerOf(l).HasMemory() || partsOf(cacheOf(l)).bus == nil {
		return
	}
	partsOf(cacheOf(l)).bus.Listen()
	testenv.Eventually(t, "the trust in memory", func() bool {
		s := cacheOf(l).Stats().Bus
		return s.Trusted == s.Ranges && reached(cacheOf(l))
	})
}

// reached reports whether all ranges of keys count as reachable.
func reached(c *cacheaside.Cache) bool {
	for r := range partsOf(c).conn.InUse() {
		if partsOf(c).conn.Down(r) != nil {
			return false
		}
	}
	return true
}

// newCache is New, or NewLocal if rdb is nil.
func newCache(rdb redis.UniversalClient, o *cacheaside.Options) (*cacheaside.Cache, error) {
	if rdb == nil {
		return cacheaside.NewLocal(o)
	}
	return cacheaside.New(rdb, o)
}

func startOn(
	t testing.TB, rdb redis.UniversalClient, d *table, o cacheaside.Options, lo *cacheaside.LoaderOptions,
) process {
	t.Helper()
	o, lo = unhurried(o, lo)
	c, err := newCache(rdb, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewLoader(c, "row", d.load, lo)
	if err != nil {
		t.Fatal(err)
	}
	return process{l, c}
}

// proxied returns a client that reaches the server through a proxy.
func proxied(t testing.TB, server *testenv.Redis) (*testenv.Proxy, *redis.Client) {
	t.Helper()
	proxy := testenv.NewProxy(t, server.Addr)
	o := server.Options()
	o.Addr = proxy.Addr
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	return proxy, rdb
}

// settle waits until the memory tier has applied all writes.
func (p process) settle() {
	if partsOf(p.cache).memory != nil {
		partsOf(p.cache).memory.Wait()
	}
}

// want fails unless Get returns exactly this row or this error.
func (p process) want(t testing.TB, key int, row string, wantErr error) {
	t.Helper()
	got, err := p.Get(t.Context(), key)
	if got != row || !sameError(err, wantErr) {
		t.Fatalf("Get(%d) = %q, %v; want %q, %v", key, got, err, row, wantErr)
	}
}

// later runs f, and returns a function that waits for its result.
func later[T any](f func() (T, error)) func(testing.TB) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	return func(t testing.TB) (T, error) {
		t.Helper()
		r := testenv.Receive(t, "a result", done)
		return r.v, r.err
	}
}

// pause makes load number n wait after it has read its row, until resume is called. reached is
// closed when the load has got there.
func (t *table) pause(n int64) (reached <-chan struct{}, resume func()) {
	at, gone := make(chan struct{}), make(chan struct{})
	t.mu.Lock()
	before := t.read
	t.read = func(ctx context.Context, i int64) error {
		if before != nil {
			if err := before(ctx, i); err != nil {
				return err
			}
		}
		if i == n {
			close(at)
			<-gone
		}
		return nil
	}
	t.mu.Unlock()
	return at, sync.OnceFunc(func() { close(gone) })
}

func sameError(got, want error) bool {
	if want == nil {
		return got == nil
	}
	return errors.Is(got, want)
}

func reach(t testing.TB, c <-chan struct{}, what string) {
	t.Helper()
	testenv.Receive(t, what, c)
}

func waitFor(t testing.TB, done func() bool) {
	t.Helper()
	testenv.Eventually(t, "what was begun", done)
}

// redisKey returns the name in Redis of a row of the test table.
func redisKey(key int) string { return fmt.Sprintf("cacheaside:row:1:{%d}", key) }

// sleeps returns a read of a table that takes d.
func sleeps(d time.Duration) func(context.Context, int64) error {
	return func(context.Context, int64) error {
		time.Sleep(d)
		return nil
	}
}

package bounded_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const mib = 1 << 20

// fleet is a Redis behind a proxy, and loaders without memory tiers that count what they load.
type fleet struct {
	server *testenv.Redis
	proxy  *testenv.Proxy
	rdb    *redis.Client
}

func newFleet(t *testing.T, bounded bool) *fleet {
	t.Helper()
	f := &fleet{server: testenv.SharedRedis(t)}
	f.proxy = testenv.NewProxy(t, f.server.Addr)
	o := f.server.Options()
	o.Addr, o.ContextTimeoutEnabled = f.proxy.Addr, bounded
	f.rdb = redis.NewClient(o)
	t.Cleanup(func() { f.rdb.Close() })
	return f
}

// rows is a loader of rows that are as long as their length says.
type rowsOf struct {
	*cacheaside.Loader[int, string]
	length func(key int) int
	loads  atomic.Int64
}

func (f *fleet) rows(t *testing.T, o *cacheaside.Options, length func(key int) int) *rowsOf {
	t.Helper()
	if o == nil {
		o = &cacheaside.Options{}
		if !testenv.Accepting { // how busy the machine is must not matter
			o.RedisTimeout, o.ReadTimeout, o.LeaseTTL = testenv.Hang, testenv.Hang, testenv.Hang
		}
	}
	o.MemoryBytes = -1
	cache, err := cacheaside.New(f.rdb, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close() })
	l := &rowsOf{length: length}
	l.Loader, err = cacheaside.NewBatchLoader(cache, "row",
		func(_ context.Context, keys []int) (map[int]string, error) {
			l.loads.Add(int64(len(keys)))
			rows := make(map[int]string, len(keys))
			for _, key := range keys {
				rows[key] = l.row(key)
			}
			return rows, nil
		}, &cacheaside.LoaderOptions{TTL: time.Hour, EarlyRefresh: -1, BatchSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (r *rowsOf) row(key int) string {
	text := fmt.Sprint(key, " ")
	return strings.Repeat(text, r.length(key)/len(text)+1)
}

func (r *rowsOf) want(t *testing.T, key int) {
	t.Helper()
	if got, err := r.Get(t.Context(), key); err != nil || got != r.row(key) {
		t.Errorf("row %d: %d bytes, %v", key, len(got), err)
	}
}

// others reads rows 1 to 100, which are cached, from some goroutines until the returned function is
// called. That returns the number of reads.
func (r *rowsOf) others(t *testing.T) (stop func() int64) {
	for key := range 101 {
		if key > 0 {
			r.want(t, key)
		}
	}
	r.loads.Store(0)
	var n atomic.Int64
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					r.want(t, 1+rand.N(100))
					n.Add(1)
				}
			}
		})
	}
	return func() int64 { close(done); readers.Wait(); return n.Load() }
}

func atLeast(key, first, others int) int {
	if key == 0 {
		return first
	}
	return others
}

// A large row is read from Redis over a link of any speed, and does not delay other reads.
func TestLargeRowOnASlowLink(t *testing.T) {
	for name, bounded := range map[string]bool{"client that keeps contexts": true, "client that does not": false} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, bounded)
			length := rows(12*mib, mib)
			l := f.rows(t, nil, func(key int) int { return atLeast(key, length, 100) })
			stop := l.others(t)
			if testenv.Accepting {
				f.proxy.Rate(18e6) // it is stored after RedisTimeout
			}
			l.want(t, 0)
			if testenv.Accepting {
				f.proxy.Rate(40e6)
			}
			loads := l.loads.Load()
			for range rows(20, 3) {
				l.want(t, 0)
			}
			n := stop()
			t.Logf("%d reads of others, %d loads", n, l.loads.Load())
			if got := l.loads.Load(); got != 1 || loads != 1 {
				t.Errorf("%d loads, %d of them while the link was fast, want 1", got, loads)
			}
		})
	}
}

// A string that was not stored as a row, under a row's name and longer than any row may be, is not
// read, and is replaced by the next load.
func TestGiantStringUnderARowsName(t *testing.T) {
	f := newFleet(t, true)
	l := f.rows(t, nil, func(key int) int { return 100 })
	admin := f.server.Client(t)
	l.want(t, 0)
	name := admin.Keys(t.Context(), "*{0}").Val()
	if len(name) != 1 {
		t.Fatalf("row 0 is %q", name)
	}
	entry := admin.Get(t.Context(), name[0]).Val()
	giants := map[string]string{"garbage": "{giant}1", "an entry and more": "{giant}2"}
	admin.Set(t.Context(), giants["an entry and more"], entry, 0)
	for _, giant := range giants { // before anybody reads, for it keeps the server for long
		admin.SetRange(t.Context(), giant, int64(rows(500, 30)*mib), "x")
	}
	sent := sentBytes(t, admin)
	stop := l.others(t)
	for title, giant := range giants {
		if err := admin.Rename(t.Context(), giant, name[0]).Err(); err != nil {
			t.Fatal(err)
		}
		before := l.loads.Load()
		for range 20 {
			l.want(t, 0)
		}
		if n := l.loads.Load() - before; n != 1 {
			t.Errorf("%s: %d loads, want 1", title, n)
		}
	}
	n := stop()
	sent = sentBytes(t, admin) - sent
	t.Logf("%d reads of others, %d loads, %d MiB read", n, l.loads.Load(), sent/mib)
	if sent > 2*mib+1000*n {
		t.Errorf("%d MiB were read", sent/mib)
	}
	if got := l.loads.Load(); got != int64(len(giants)) {
		t.Errorf("%d loads: others were loaded, too", got)
	}
}

// sentBytes is how many bytes a server has sent to its clients.
func sentBytes(t *testing.T, admin *redis.Client) (n int64) {
	t.Helper()
	for line := range strings.Lines(admin.Info(t.Context(), "stats").Val()) {
		if _, err := fmt.Sscanf(line, "total_net_output_bytes:%d", &n); err == nil {
			return n
		}
	}
	t.Fatal("the server does not report how much it has sent")
	return 0
}

// Many rows by one call, of some callers at once, are read from Redis.
func TestManyRowsAtOnce(t *testing.T) {
	for name, bounded := range map[string]bool{"client that keeps contexts": true, "client that does not": false} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, bounded)
			l := f.rows(t, nil, func(int) int { return 4 << 10 })
			keys := make([]int, rows(50_000, 3000))
			for i := range keys {
				keys[i] = i
			}
			read := func() {
				found, err := l.GetMany(t.Context(), keys)
				if err != nil || len(found) != len(keys) || len(found[17]) < 4<<10 {
					t.Errorf("%d of %d rows: %v", len(found), len(keys), err)
				}
			}
			read()
			for range 3 { // what could not be stored, on a busy machine
				read()
			}
			loads := l.loads.Load()
			var callers sync.WaitGroup
			for range 3 {
				callers.Go(func() {
					for range 3 {
						read()
					}
				})
			}
			callers.Wait()
			t.Logf("%d loads at first, %d of cached rows", loads, l.loads.Load()-loads)
			if l.loads.Load() != loads {
				t.Errorf("%d cached rows were loaded", l.loads.Load()-loads)
			}
		})
	}
}

// fetches holds up the fetch of what is long, until it is released.
type fetches struct{ begun, release chan struct{} }

func (fetches) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (fetches) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (f fetches) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "getrange" && fmt.Sprint(cmds[0].Args()[2]) != "0" {
			f.begun <- struct{}{}
			<-f.release
		}
		return next(ctx, cmds)
	}
}

// The reader of a short row does not wait for a long one that another reads together with it,
// cached or not.
func TestShortRowsDoNotWaitForLongOnes(t *testing.T) {
	f := newFleet(t, true)
	l := f.rows(t, nil, func(key int) int { return atLeast(key, mib, 100) })
	if _, err := l.GetMany(t.Context(), []int{0, 1}); err != nil {
		t.Fatal(err)
	}
	h := fetches{make(chan struct{}, 100), make(chan struct{})}
	f.rdb.AddHook(h)
	release := sync.OnceFunc(func() { close(h.release) })
	defer release()
	both := make(chan error)
	go func() {
		_, err := l.GetMany(t.Context(), []int{0, 1, 2})
		both <- err
	}()
	testenv.Receive(t, "the fetch", h.begun)
	short := make(chan error, 1)
	go func() {
		for range 2 { // the first may gather for a round
			if _, err := l.Get(t.Context(), 1); err != nil {
				short <- err
				return
			}
		}
		short <- nil
	}()
	select {
	case err := <-short:
		if err != nil {
			t.Error(err)
		}
	case err := <-both:
		t.Errorf("the long row was read first: %v", err)
	case <-time.After(testenv.Hang):
		t.Error("the short row waits for the long one")
	}
	testenv.Eventually(t, "the load of the row that is not cached", func() bool { return l.loads.Load() == 3 })
	release()
	testenv.Receive(t, "the end of the batch", both)
	if n := l.loads.Load(); n != 3 {
		t.Errorf("%d loads", n)
	}
}

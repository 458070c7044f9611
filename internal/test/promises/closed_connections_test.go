package promises

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// idleServer is a Redis whose idle connections a test can close. go-redis notices that only when it
// uses them.
type idleServer struct {
	client  func(t testing.TB, retries int) redis.UniversalClient
	masters func(t testing.TB) []*redis.Client // clients of its servers with all permissions
}

// idlePool is the size of the client's pool of connections to each server.
const idlePool = 128

func idleServers(t *testing.T) map[string]idleServer {
	plain, secure := testenv.SharedRedis(t), testenv.StartRedisTLS(t, "~*", "&*", "+@all")
	cluster, sentinel := testenv.SharedCluster(t), testenv.SharedSentinel(t)
	closed := func(t testing.TB, rdb redis.UniversalClient) redis.UniversalClient {
		t.Cleanup(func() { rdb.Close() })
		return rdb
	}
	return map[string]idleServer{
		"TLS": {func(t testing.TB, retries int) redis.UniversalClient {
			o := secure.Options()
			o.PoolSize, o.MaxRetries = idlePool, retries
			o.ContextTimeoutEnabled = retries != 0
			return closed(t, redis.NewClient(o))
		}, func(t testing.TB) []*redis.Client { return []*redis.Client{secure.AdminClient(t)} }},
		"a dialer of one's own": {func(t testing.TB, retries int) redis.UniversalClient {
			o := plain.Options()
			o.PoolSize, o.MaxRetries, o.Dialer = idlePool, retries, testenv.Opaque
			o.ContextTimeoutEnabled = retries != 0
			return closed(t, redis.NewClient(o))
		}, func(t testing.TB) []*redis.Client { return []*redis.Client{plain.Client(t)} }},
		"cluster": {func(t testing.TB, retries int) redis.UniversalClient {
			o := cluster.Options()
			o.PoolSize, o.MaxRetries, o.Dialer = idlePool, retries, testenv.Opaque
			o.ContextTimeoutEnabled = retries != 0
			return closed(t, redis.NewClusterClient(o))
		}, func(t testing.TB) (masters []*redis.Client) {
			var mu sync.Mutex
			err := cluster.Client(t).ForEachMaster(t.Context(), func(_ context.Context, c *redis.Client) error {
				mu.Lock()
				defer mu.Unlock()
				masters = append(masters, c)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return masters
		}},
		"sentinel": {func(t testing.TB, retries int) redis.UniversalClient {
			o := sentinel.Options()
			o.PoolSize, o.MaxRetries, o.Dialer = idlePool, retries, testenv.Opaque
			o.ContextTimeoutEnabled = retries != 0
			return closed(t, redis.NewFailoverClient(o))
		}, func(t testing.TB) []*redis.Client { return []*redis.Client{sentinel.Client(t)} }},
	}
}

// closeIdle leaves n idle connections to each server in the pool of rdb that the server has closed.
func (i idleServer) closeIdle(t testing.TB, rdb redis.UniversalClient, n int) {
	t.Helper()
	admins := i.masters(t)
	for _, admin := range admins {
		nodes := []*redis.Client{}
		if c, ok := rdb.(*redis.ClusterClient); ok {
			var mu sync.Mutex
			if err := c.ForEachMaster(t.Context(), func(_ context.Context, node *redis.Client) error {
				mu.Lock()
				defer mu.Unlock()
				if node.Options().Addr == admin.Options().Addr {
					nodes = append(nodes, node)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		} else {
			nodes = append(nodes, rdb.(*redis.Client))
		}
		for _, node := range nodes {
			testenv.FillPool(t, node, admin, n)
		}
	}
	for _, admin := range admins {
		testenv.CloseIdle(t, admin)
	}
}

// With any number of closed idle connections no read fails or bypasses Redis, and Redis is not
// considered down.
func TestIdleConnectionsClosed(t *testing.T) {
	for name, s := range idleServers(t) {
		for _, c := range []struct{ dead, readers, retries int }{{5, 1, 0}, {9, 64, -1}, {100, 192, 0}} {
			t.Run(fmt.Sprintf("%s/%d dead, %d readers, %d retries", name, c.dead, c.readers, c.retries),
				func(t *testing.T) {
					rdb, log := s.client(t, c.retries), &testenv.Log{}
					cache, err := cacheaside.New(rdb,
						&cacheaside.Options{Logger: log.Logger(), Prefix: "idle" + strconv.FormatUint(idlePrefix.Add(1),
							10), RedisTimeout: testenv.Hang, ReadTimeout: testenv.Hang, MaxStaleness: time.Minute})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { cache.Close() })
					var loads atomic.Int64
					l, err := cacheaside.NewLoader(cache, "row", func(context.Context, int) (string, error) {
						loads.Add(1)
						return "row", nil
					}, &cacheaside.LoaderOptions{RedisDown: cacheaside.FailWhenDown, MemoryTTL: -1})
					if err != nil {
						t.Fatal(err)
					}
					if _, err := l.Get(t.Context(), -1); err != nil {
						t.Fatal(err)
					}
					loads.Store(0)
					s.closeIdle(t, rdb, c.dead)
					var all sync.WaitGroup
					var failed atomic.Int64
					for i := range c.readers {
						all.Go(func() {
							if v, err := l.Get(t.Context(), i); v != "row" || err != nil {
								failed.Add(1)
								t.Log(err)
							}
						})
					}
					all.Wait()
					if n := failed.Load(); n != 0 {
						t.Errorf("%d of %d reads fail", n, c.readers)
					}
					st := cache.Stats()
					if n := loads.Load(); n != int64(c.readers) || st.Unvalidated != 0 || st.RedisErrors != 0 ||
						st.RedisOut != 0 {
						t.Errorf("%d loads, %+v", n, st)
					}
					for _, line := range log.Take() {
						if !strings.Contains(line, "ContextTimeoutEnabled") {
							t.Error(line)
						}
					}
				})
		}
	}
}

var idlePrefix atomic.Uint64

// Commands other than reads are also sent again, or repeated with another token.
func TestIdleConnectionsClosedWrites(t *testing.T) {
	for name, s := range idleServers(t) {
		if name == "sentinel" { // a client like the others
			continue
		}
		t.Run(name, func(t *testing.T) {
			rdb := s.client(t, -1)
			cache, err := cacheaside.New(rdb,
				&cacheaside.Options{Prefix: "idle" + strconv.FormatUint(idlePrefix.Add(1), 10), StrictWrites: true,
					RedisTimeout: testenv.Hang, ReadTimeout: testenv.Hang, MaxStaleness: time.Minute,
					LeaseTTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cache.Close() })
			l, err := cacheaside.NewLoader(cache, "row",
				func(_ context.Context, key int) (string,
					error) {
					return strconv.Itoa(key), nil
				}, &cacheaside.LoaderOptions{RedisDown: cacheaside.FailWhenDown, MemoryTTL: -1})
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			var held *cacheaside.Hold
			for _, do := range []struct {
				what string
				f    func() error
			}{
				{"GetMany", func() error { _, err := l.GetMany(ctx, []int{1, 2, 3, 4, 5}); return err }},
				{"Refresh", func() error { _, err := l.Refresh(ctx, 1); return err }},
				{"Expire", func() error { return l.Expire(ctx, 1) }},
				{"Invalidate", func() error { return l.Invalidate(ctx, 1, 2, 3) }},
				{"InvalidateAll", func() error { return l.InvalidateAll(ctx) }},
				{"Hold", func() (err error) { held, err = cache.Hold(ctx, l.Key(6), l.Key(7)); return err }},
				{"Check", func() error { return held.Check(ctx) }},
				{"Invalidate", func() error { return held.Invalidate(ctx) }},
			} {
				s.closeIdle(t, rdb, 20)
				if err := do.f(); err != nil {
					t.Errorf("%s: %v", do.what, err)
				}
			}
			if st := cache.Stats(); st.RedisOut != 0 || st.HoldsLeft != 0 || st.HoldsLost != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

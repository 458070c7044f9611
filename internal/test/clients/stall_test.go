package clients_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/mysqllock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

// silent listens, and never replies: like a server that stalls.
func silent(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		l.Close()
		accepting.Wait()
		for _, c := range open {
			c.Close()
		}
	})
	return l.Addr().String()
}

// refusing returns an address that refuses connections.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func client(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func database(t *testing.T, addr string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", "root@tcp("+addr+")/test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

const timeout = 200 * time.Millisecond

func TestLockServicesThatStall(t *testing.T) {
	o := lock.Options{Timeout: timeout}
	for name, c := range map[string]struct {
		open func(t *testing.T, addr string) (*lock.Locker, error)
		says string // in addition to the address, if it is known
		addr bool
	}{
		"redis": {func(t *testing.T, addr string) (*lock.Locker, error) { return lock.NewRedis(client(t, addr), &o) }, "no answer from Redis at", true},
		"redlock": {func(t *testing.T, addr string) (*lock.Locker, error) {
			return redlock.New([]*redis.Client{client(t, addr), client(t, silent(t)), client(t, silent(t))}, &o)
		}, "no majority", true},
		"rows": {func(t *testing.T, addr string) (*lock.Locker, error) {
			return mysqllock.New(database(t, addr), &mysqllock.Options{Options: o})
		}, "no answer from", false},
	} {
		t.Run(name, func(t *testing.T) {
			addr := silent(t)
			l, err := c.open(t, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			_, err = l.Acquire(context.Background(), "a", nil)
			if err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want an error other than DeadlineExceeded", err)
			}
			if err != nil && (!strings.Contains(err.Error(), c.says) || c.addr &&
				!strings.Contains(err.Error(), addr)) {
				t.Errorf("it does not say %q, or %s: %v", c.says, addr, err)
			}
			short, cancel := context.WithTimeout(t.Context(), timeout/4)
			defer cancel()
			if _, err := l.Acquire(short, "b", nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the caller's time was over: %v", err)
			}
		})
	}
}

// failures are the operations of a cache whose errors are its callers', on a Redis at addr.
func failures(t *testing.T, addr string, do func(t *testing.T, call func(context.Context) error)) {
	c, err := cacheaside.New(client(t, addr), &cacheaside.Options{RedisTimeout: timeout, ReadTimeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d := &table{}
	l, err := cacheaside.NewLoader(c, "row", d.load, &cacheaside.LoaderOptions{RedisDown: cacheaside.FailWhenDown})
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(context.Context) error{
		"Invalidate":     func(ctx context.Context) error { return l.Invalidate(ctx, 1) },
		"InvalidateAll":  l.InvalidateAll,
		"InvalidateKeys": func(ctx context.Context) error { return c.InvalidateKeys(ctx, l.Key(1), l.Key(2)) },
		"Get":            func(ctx context.Context) error { _, err := l.Get(ctx, 1); return err },
		"Refresh":        func(ctx context.Context) error { _, err := l.Refresh(ctx, 1); return err },
	} {
		t.Run(name, func(t *testing.T) { do(t, call) })
	}
}

func TestRedisThatStalls(t *testing.T) {
	addr := silent(t)
	failures(t, addr, func(t *testing.T, call func(context.Context) error) {
		err := call(context.Background())
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, cacheaside.ErrRedis) ||
			!strings.Contains(err.Error(), addr) {
			t.Errorf("%v, want an error that names %s and is not DeadlineExceeded", err, addr)
		}
		short, cancel := context.WithTimeout(t.Context(), timeout/4)
		defer cancel()
		if err := call(short); err == nil || !errors.Is(err, context.DeadlineExceeded) &&
			!strings.Contains(err.Error(), "command not sent, because Redis is down") {
			t.Errorf("%v, though the caller's time was over", err)
		}
	})
}

func TestRedisThatRefusesConnections(t *testing.T) {
	addr := refusing(t)
	failures(t, addr, func(t *testing.T, call func(context.Context) error) {
		err := call(context.Background())
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, syscall.ECONNREFUSED) ||
			!strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), addr) {
			t.Errorf("%v, want an error that names %s and refused connections", err, addr)
		}
	})
}

func TestLocksWithoutConnections(t *testing.T) {
	addr := refusing(t)
	l, err := lock.NewRedis(client(t, addr), &lock.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = l.Acquire(context.Background(), "a", nil)
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, syscall.ECONNREFUSED) ||
		!strings.Contains(err.Error(), addr) {
		t.Error(err)
	}
}

// The server is asked what it is as soon as it can be reached, and nothing else is sent to it
// before.
func TestClusterThatIsNotThereYet(t *testing.T) {
	shard := testenv.StartShard(t)
	proxy := testenv.NewProxy(t, shard.Addr)
	proxy.Cut()
	d := &table{}
	p := open(t, client(t, proxy.Addr), d, cacheaside.Options{RedisTimeout: timeout, ReadTimeout: timeout})
	if v, err := p.rows.Get(t.Context(), 1); v != 0 || err != nil {
		t.Error(v, err)
	}
	if err := p.rows.Invalidate(t.Context(), 1); !errors.Is(err, cacheaside.ErrRedis) {
		t.Error(err)
	}
	proxy.Restore()
	testenv.Eventually(t, "the server's reply", func() bool {
		err := p.rows.Invalidate(t.Context(), 1)
		return err != nil && strings.Contains(err.Error(), useCluster)
	})
	testenv.Eventually(t, "the end of the outage", func() bool {
		_, err := p.rows.Get(t.Context(), 1)
		return err != nil && strings.Contains(err.Error(), useCluster)
	})
	if keys := shard.Client(t).Keys(t.Context(), "*").Val(); len(keys) > 0 {
		t.Errorf("it has written %q", keys)
	}
}

// A cluster's client with slots of its own, as that of redis.NewFailoverClusterClient, takes a
// single server for sixteen ranges. It may have chosen another database, which its options do not
// show.
func TestClusterClientOnASingleServer(t *testing.T) {
	server := testenv.SharedRedis(t)
	for _, db := range []int{0, 3} {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			ContextTimeoutEnabled: true,
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: server.Addr}}}}, nil
			},
			OnConnect: func(ctx context.Context, c *redis.Conn) error { return c.Select(ctx, db).Err() },
		})
		p := open(t, rdb, &table{}, cacheaside.Options{})
		refused(t, "Invalidate", p.rows.Invalidate(t.Context(), 1), "redis.NewFailoverClient")
		_, err := p.rows.Get(t.Context(), 1)
		refused(t, "Get", err, "redis.NewFailoverClient")
		p.Close()
		rdb.Close()
	}
	shard := testenv.StartShard(t) // its address differs from the one that it reports, behind a proxy
	proxy := testenv.NewProxy(t, shard.Addr)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ContextTimeoutEnabled: true,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: proxy.Addr}}}}, nil
		},
	})
	defer rdb.Close()
	p := open(t, rdb, &table{}, cacheaside.Options{})
	if err := p.rows.Invalidate(t.Context(), 1); err != nil {
		t.Error(err)
	}
	p.Close()
}

// A plain client that asks for another database than 0 is refused by a cluster, too.
func TestPlainClientOnAClusterWithADatabase(t *testing.T) {
	shard := testenv.StartShard(t)
	rdb := redis.NewClient(&redis.Options{Addr: shard.Addr, DB: 3, ContextTimeoutEnabled: true})
	defer rdb.Close()
	p := open(t, rdb, &table{}, cacheaside.Options{})
	refused(t, "Invalidate", p.rows.Invalidate(t.Context(), 1), useCluster)
	p.Close()
}

// Package clients_test runs processes with clients of several kinds on one Redis, also at moments
// when a process knows little of the state of Redis.
package clients_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const rows = 200

// table is the database: all rows have its version.
type table struct {
	version atomic.Int64
	loads   atomic.Int64
}

func (t *table) load(context.Context, int) (int64, error) {
	t.loads.Add(1)
	return t.version.Load(), nil
}

type process struct {
	*cacheaside.Cache
	rows *cacheaside.Loader[int, int64]
}

func open(t *testing.T, rdb redis.UniversalClient, d *table, options cacheaside.Options) *process {
	t.Helper()
	c, err := cacheaside.New(rdb, &options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewLoader(c, "row", d.load, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &process{c, l}
}

// stale counts rows that are read older than the database has them.
func (p *process) stale(t *testing.T, d *table, options ...cacheaside.ReadOption) (n int) {
	t.Helper()
	for key := range rows {
		v, err := p.rows.Get(t.Context(), key, options...)
		if err != nil {
			t.Fatal(err)
		}
		if v != d.version.Load() {
			n++
		}
	}
	return n
}

// refused asserts that err says which client is to be used.
func refused(t *testing.T, step string, err error, says string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want an error that says %q", step, err, says)
	}
}

const useCluster = "redis.NewClusterClient"

// A plain client sees a cluster as one range of keys, a cluster's client as sixteen: one does not
// find the announcements of the other.
func TestPlainClientOnACluster(t *testing.T) {
	shard := testenv.StartShard(t)
	d := &table{}
	reader := open(t, shard.ClusterClient(t), d, cacheaside.Options{})
	writer := open(t, shard.Client(t), d, cacheaside.Options{})
	reader.stale(t, d)
	d.version.Add(1)
	if err := writer.InvalidateKeys(t.Context(), cacheaside.Key{Loader: "row", All: true}); err == nil {
		t.Errorf("nil, and %d of %d reads are stale", reader.stale(t, d, cacheaside.Fresh), rows)
	} else {
		refused(t, "InvalidateKeys(All)", err, useCluster)
	}
	refused(t, "InvalidateAll", writer.rows.InvalidateAll(t.Context()), useCluster)
	refused(t, "Invalidate", writer.rows.Invalidate(t.Context(), 1), useCluster)
	_, err := writer.rows.Get(t.Context(), 1)
	refused(t, "Get", err, useCluster)
	_, err = writer.rows.GetMany(t.Context(), []int{1, 2})
	refused(t, "GetMany", err, useCluster)
	_, err = writer.rows.Refresh(t.Context(), 1)
	refused(t, "Refresh", err, useCluster)
	_, err = writer.Hold(t.Context(), cacheaside.Key{Loader: "row", Text: "1"})
	if err == nil {
		t.Error("Hold: no error")
	}
	if s := writer.Stats().Bus; s.Subscribed || s.Trusted > 0 {
		t.Errorf("it listens: %+v", s)
	}
	if err := reader.rows.InvalidateAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := reader.stale(t, d, cacheaside.Fresh); n > 0 {
		t.Errorf("%d of %d reads are stale", n, rows)
	}
}

// A writer with a cluster's client announces ranges that a plain reader does not know.
func TestPlainReaderNextToAClusterWriter(t *testing.T) {
	shard := testenv.StartShard(t)
	d := &table{}
	bound := 2 * time.Second
	reader := open(t, shard.Client(t), d, cacheaside.Options{MaxStaleness: bound})
	writer := open(t, shard.ClusterClient(t), d, cacheaside.Options{MaxStaleness: bound})
	_, err := reader.rows.Get(t.Context(), 1)
	refused(t, "Get", err, useCluster)
	if err := writer.rows.Invalidate(t.Context(), 1); err != nil {
		t.Error(err)
	}
	if s := reader.Stats().Bus; s.Trusted > 0 || s.Subscribed {
		t.Errorf("it trusts what it has: %+v", s)
	}
}

// The address leads to another server one day, as where a single one is replaced by a cluster: that
// is noticed with the new connections.
func TestServerThatBecomesACluster(t *testing.T) {
	single, shard := testenv.StartRedis(t), testenv.StartShard(t)
	var mu sync.Mutex
	addr, conns := single.Addr, []net.Conn(nil)
	rdb := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			conns = append(conns, c)
			return c, err
		}})
	defer rdb.Close()
	p := open(t, rdb, &table{}, cacheaside.Options{})
	defer p.Close()
	if err := p.rows.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	addr = shard.Addr
	for _, c := range conns {
		c.Close()
	}
	mu.Unlock()
	testenv.Eventually(t, "refusal", func() bool {
		err := p.rows.Invalidate(t.Context(), 1)
		return err != nil && strings.Contains(err.Error(), useCluster)
	})
}

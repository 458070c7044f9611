package clients_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const useMaster = "use the address of the master"

// patient returns options with which a busy machine is not taken for a Redis out of reach.
func patient() cacheaside.Options {
	return cacheaside.Options{RedisTimeout: testenv.Hang, ReadTimeout: testenv.Hang}
}

// replicate makes a replica of a server, and waits until it has the server's data.
func replicate(t *testing.T, replica, primary *testenv.Redis) {
	t.Helper()
	host, port, _ := net.SplitHostPort(primary.Addr)
	admin := replica.Client(t)
	do(t, admin, "replicaof", host, port)
	testenv.Eventually(t, "the replica", func() bool {
		return strings.Contains(admin.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
}

// cut makes a replica lose its master, and keep what it has.
func cut(t *testing.T, replica *testenv.Redis) {
	t.Helper()
	do(t, replica.Client(t), "replicaof", "127.0.0.1", "1")
}

// A client of a replica is refused as any client of the wrong kind, until the replica becomes a
// master.
func TestClientOfAReplica(t *testing.T) {
	master, replica := testenv.StartRedis(t), testenv.StartRedis(t)
	replicate(t, replica, master)
	for name, connected := range map[string]bool{"new": false, "connected": true} {
		rdb := replica.Client(t)
		if connected { // before the cache sees the role of the server
			do(t, rdb, "ping")
		}
		p := open(t, rdb, &table{}, patient())
		_, err := p.rows.Get(t.Context(), 1)
		refused(t, name+" Get", err, useMaster)
		_, err = p.rows.Get(t.Context(), 1, cacheaside.Fresh)
		refused(t, name+" Get Fresh", err, useMaster)
		_, err = p.rows.GetMany(t.Context(), []int{1, 2})
		refused(t, name+" GetMany", err, useMaster)
		refused(t, name+" Invalidate", p.rows.Invalidate(t.Context(), 1), useMaster)
		refused(t, name+" Expire", p.rows.Expire(t.Context(), 1), useMaster)
		refused(t, name+" InvalidateAll", p.rows.InvalidateAll(t.Context()), useMaster)
		_, err = p.rows.Refresh(t.Context(), 1)
		refused(t, name+" Refresh", err, useMaster)
		refused(t, name+" Ready", p.Ready(t.Context()), useMaster)
		if s := p.Stats().Bus; s.Trusted > 0 || s.Subscribed {
			t.Errorf("%s: it listens: %+v", name, s)
		}
		if errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, cacheaside.ErrRedis) {
			t.Errorf("%s: %v", name, err)
		}
		do(t, replica.Client(t), "replicaof", "no", "one")
		testenv.Eventually(t, "a master", func() bool { return p.rows.Invalidate(t.Context(), 1) == nil })
		if v, err := p.rows.Get(t.Context(), 1); v != 0 || err != nil {
			t.Error(v, err)
		}
		p.Close()
		replicate(t, replica, master)
	}
}

// balanced returns a client of one address, which leads to the servers that next returns.
func balanced(t *testing.T, o *redis.Options, next func() *testenv.Redis) *redis.Client {
	t.Helper()
	o.ContextTimeoutEnabled = true
	o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, next().Addr)
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// At an address that leads to a master and its replicas, connections to the replicas are not used.
func TestAddressOfAMasterAndReplicas(t *testing.T) {
	master, replica := testenv.StartRedis(t), testenv.StartRedis(t)
	replicate(t, replica, master)
	d := &table{}
	var log logged
	var dials, leads atomic.Int64
	const toMaster, toReplica, inTurn = 0, 1, 2
	rdb := balanced(t, master.Options(), func() *testenv.Redis {
		if lead := leads.Load(); lead == toMaster || lead == inTurn && dials.Add(1)%3 == 0 {
			return master
		}
		return replica
	})
	o := patient()
	o.MemoryBytes, o.Logger = -1, slog.New(slog.NewTextHandler(&log, nil))
	p := open(t, rdb, d, o)
	writer := open(t, master.Client(t), d, o)
	p.stale(t, d)
	leads.Store(toReplica)
	if err := master.Client(t).ClientKillByFilter(t.Context(), "TYPE", "normal").Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "a log line about several servers", func() bool {
		p.stale(t, d)
		return log.says("the address leads to several servers")
	})
	leads.Store(inTurn)
	p.stale(t, d)
	writer.stale(t, d)
	replicas := func() int { // connections of clients
		all := replica.Client(t).ClientList(t.Context()).Val()
		return strings.Count(all, "cmd=getrange") + strings.Count(all, "cmd=evalsha")
	}
	cut(t, replica)
	d.version.Add(1)
	for key := range rows {
		if err := writer.rows.Invalidate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	for range 16 { // more connections
		all.Go(func() {
			if n := p.stale(t, d, cacheaside.Fresh); n > 0 {
				t.Errorf("%d of %d reads are stale", n, rows)
			}
		})
	}
	all.Wait()
	if n := replicas(); n > 0 {
		t.Errorf("%d connections to the replica are in use", n)
	}
}

// A client of sentinels that asks them for replicas is refused.
func TestReplicaOnly(t *testing.T) {
	sentinel := testenv.SharedSentinel(t)
	o := sentinel.Options()
	o.ReplicaOnly = true
	rdb := redis.NewFailoverClient(o)
	defer rdb.Close()
	p := open(t, rdb, &table{}, patient())
	defer p.Close()
	_, err := p.rows.Get(t.Context(), 1)
	refused(t, "Get", err, useMaster)
	refused(t, "Invalidate", p.rows.Invalidate(t.Context(), 1), useMaster)
}

// A sentinel is no server for keys, and a server without the client's database is none either.
func TestServersWithoutTheKeys(t *testing.T) {
	sentinel := testenv.SharedSentinel(t)
	few := testenv.StartRedis(t, "--databases", "2")
	other := few.Options()
	other.DB = 2
	other.ContextTimeoutEnabled = true
	noDatabase := redis.NewClient(other)
	defer noDatabase.Close()
	for says, rdb := range map[string]*redis.Client{"is a Redis Sentinel": sentinel.Sentinels[0].Client(t),
		"refuses the database of Options.DB": noDatabase} {
		p := open(t, rdb, &table{}, patient())
		_, err := p.rows.Get(t.Context(), 1)
		refused(t, "Get", err, says)
		refused(t, "Invalidate", p.rows.Invalidate(t.Context(), 1), says)
		p.Close()
	}
}

package lease

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// network is a real Redis behind a proxy. Its client has one connection, through the proxy, and
// what the scripts need is loaded.
type network struct {
	*backend // its store goes through the proxy, the rest does not
	server   *testenv.Redis
	proxy    *testenv.Proxy
	straight atomic.Bool // new connections do not go through the proxy

	mu   sync.Mutex
	conn *net.TCPConn // the client's last one
}

func newNetwork(t *testing.T, timeout time.Duration) *network {
	t.Helper()
	return networkOf(t, testenv.SharedRedis(t), timeout)
}

func networkOf(t *testing.T, server *testenv.Redis, timeout time.Duration) *network {
	t.Helper()
	n := &network{server: server}
	n.backend = newBackend(t, n.server.Client(t))
	n.proxy = testenv.NewProxy(t, n.server.Addr)
	o := n.server.Options()
	o.Dialer = n.dial
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	n.connect(rdb, timeout)
	return n
}

// newClusterNetwork is a network whose client treats the Redis as the only node of a cluster.
func newClusterNetwork(t *testing.T, timeout time.Duration) *network {
	t.Helper()
	return clusterNetworkOf(t, testenv.SharedRedis(t), timeout)
}

func clusterNetworkOf(t *testing.T, server *testenv.Redis, timeout time.Duration) *network {
	t.Helper()
	n := &network{server: server}
	n.backend = newBackend(t, n.server.Client(t))
	n.proxy = testenv.NewProxy(t, n.server.Addr)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: n.server.Addr}}}}, nil
		},
		Dialer: n.dial,
	})
	t.Cleanup(func() { rdb.Close() })
	n.connect(rdb, timeout)
	return n
}

func (n *network) connect(rdb redis.UniversalClient, timeout time.Duration) {
	n.t.Helper()
	n.store = open(n.t, rdb, testenv.Hang)
	a := n.attempt("warm")
	n.put("warm", Entry{}, long)
	n.claim(a, Mine)
	n.release(a)
	n.delete("warm")
	n.store = open(n.t, rdb, timeout)
}

func (n *network) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	addr := n.proxy.Addr
	if n.straight.Load() {
		addr = n.server.Addr
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conn = c.(*net.TCPConn)
	return c, nil
}

// hold keeps the next command on its way, until the returned function is called; it returns when
// Redis has carried out the command. Later ones go straight. The client learns by its time-out that
// no reply comes, or at once if broken is set: then the connection ends.
func (n *network) hold(broken bool) (arrive func()) {
	before := n.changes()
	n.straight.Store(true)
	n.proxy.Hang(true)
	var held atomic.Bool
	n.proxy.OnRequest(func([]byte) testenv.Action {
		held.Store(true)
		if broken {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.conn.CloseRead()
		}
		return testenv.Pass
	})
	return func() {
		n.t.Helper()
		if !held.Load() {
			n.t.Fatal("no command was held")
		}
		sent := n.changes()
		if sent == before {
			n.t.Fatal("no command has gone straight")
		}
		n.proxy.Hang(false)
		n.until(func() bool { return n.changes() > sent })
	}
}

// changes counts the scripts that Redis has run, and the SETs.
func (n *network) changes() int {
	calls := n.server.CommandCalls(n.t)
	return calls["eval"] + calls["evalsha"] + calls["set"]
}

// disturb makes the proxy treat each of the next scripts, and requests for leases, in the given
// way; what comes then passes.
func (n *network) disturb(actions ...testenv.Action) {
	n.proxy.OnRequest(func(chunk []byte) testenv.Action {
		if len(actions) == 0 || !bytes.Contains(chunk, []byte("evalsha")) &&
			!bytes.Contains(chunk, []byte("\r\nnx\r\n")) {
			return testenv.Pass
		}
		a := actions[0]
		actions = actions[1:]
		return a
	})
}

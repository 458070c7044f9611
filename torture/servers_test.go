package torture

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// servers are the Redis servers of a run.
type servers struct {
	topology string
	clients  []string         // the initial addresses of a client
	master   string           // the master's name in the sentinels
	nodes    []*testenv.Redis // servers with data
	all      []string         // every address that a client may connect to
	watchers []*testenv.Redis // the sentinels
}

// downAfter is how long a server must be silent until the others consider it dead. A false alarm on
// a busy machine is harmless: see monitor.
const downAfter = time.Second

// smallBuffers make Redis drop a subscriber that does not read: 32 KB at once, or more than 16 KB
// for a second.
const smallBuffers = "pubsub 32kb 16kb 1"

var topologies = []string{"single", "sentinel", "cluster"}

func startServers(t *testing.T, topology string) *servers {
	t.Helper()
	s := &servers{topology: topology}
	switch topology {
	case "single":
		one := testenv.StartRedis(t)
		s.clients, s.nodes = []string{one.Addr}, []*testenv.Redis{one}
	case "sentinel":
		set := testenv.StartSentinel(t, downAfter)
		s.clients, s.master, s.nodes, s.watchers = set.Addrs, set.MasterName, []*testenv.Redis{set.Master,
			set.Replica}, set.Sentinels
	case "cluster":
		c := testenv.StartCluster(t, downAfter)
		s.clients, s.nodes = c.Addrs, c.Nodes
	default:
		t.Fatalf("no topology %q", topology)
	}
	s.all = slices.Clone(s.clients)
	for _, node := range s.nodes {
		setUp(node.Addr)
		if !slices.Contains(s.all, node.Addr) {
			s.all = append(s.all, node.Addr)
		}
	}
	return s
}

// setUp runs after each start of a server. It disables persistence, because a killed replica would
// otherwise restart with an old state.
func setUp(addr string) {
	admin(addr, "config", "set", "client-output-buffer-limit", smallBuffers)
	admin(addr, "config", "set", "repl-diskless-load", "swapdb")
}

// answerLimit limits the wait for a server that may hang. A slow server counts as hanging, and is
// asked again later.
const answerLimit = time.Second

// admin sends one command to a server, without a proxy.
func admin(addr string, args ...any) (any, error) {
	c := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1, MaxRetries: -1, DialerRetries: 1,
		DisableIdentity: true, ContextTimeoutEnabled: true})
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	return c.Do(ctx, args...).Result()
}

// role returns "master" or "slave". linked reports whether a master has a connected replica, or a
// replica its master.
func role(addr string) (role string, linked bool) {
	info, _ := admin(addr, "info", "replication")
	text, _ := info.(string)
	switch {
	case strings.Contains(text, "role:master\r\n"):
		return "master", strings.Contains(text, "state=online")
	case strings.Contains(text, "role:slave\r\n"):
		return "slave", strings.Contains(text, "master_link_status:up")
	}
	return "", false
}

// replicaOf returns the replica of a master.
func (s *servers) replicaOf(m *testenv.Redis) *testenv.Redis {
	_, port, _ := net.SplitHostPort(m.Addr)
	for _, node := range s.nodes {
		info, _ := admin(node.Addr, "info", "replication")
		if text, _ := info.(string); strings.Contains(text, "master_port:"+port+"\r\n") {
			return node
		}
	}
	return nil
}

// masters returns the servers that accept writes.
func (s *servers) masters() (masters []*testenv.Redis) {
	for _, node := range s.nodes {
		if is, _ := role(node.Addr); is == "master" {
			masters = append(masters, node)
		}
	}
	return masters
}

// replaced reports whether all servers agree that a master was replaced.
func (s *servers) replaced(former *testenv.Redis) bool {
	sh := s.shape()
	if s.topology == "sentinel" {
		return sh.agreed != "" && sh.agreed != former.Addr && slices.Contains(sh.masters, sh.agreed)
	}
	others := slices.DeleteFunc(sh.masters, func(m string) bool { return m == former.Addr })
	return len(others) == len(s.nodes)/2
}

// masterOf returns the master's address according to a sentinel.
func (s *servers) masterOf(watcher *testenv.Redis) string {
	reply, _ := admin(watcher.Addr, "sentinel", "get-master-addr-by-name", s.master)
	parts, _ := reply.([]any)
	if len(parts) != 2 {
		return ""
	}
	host, _ := parts[0].(string)
	port, _ := parts[1].(string)
	return net.JoinHostPort(host, port)
}

// follow makes a server a replica.
func (s *servers) follow(addr, master string) {
	host, port, _ := net.SplitHostPort(master)
	admin(addr, "replicaof", host, port)
}

// until waits until f returns true or the limit passes, and reports which.
func until(limit time.Duration, f func() bool) bool {
	for deadline := time.Now().Add(limit); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

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

// servers are the Redis of a run.
type servers struct {
	topology string
	clients  []string         // the addresses that a client begins with
	master   string           // as the sentinels call it
	nodes    []*testenv.Redis // those that hold data
	all      []string         // every address that a client may go to
	watchers []*testenv.Redis // the sentinels
}

// downAfter is how long a server is silent before the others take it for dead. That they do so on a
// busy machine without a reason is no harm: see monitor.
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
		s.clients, s.master, s.nodes, s.watchers = set.Addrs, set.MasterName, []*testenv.Redis{set.Master, set.Replica}, set.Sentinels
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

// setUp is done again after each start of a server. A replica that wrote what it is sent to a file
// would come back with an old state when it is killed later.
func setUp(addr string) {
	admin(addr, "config", "set", "client-output-buffer-limit", smallBuffers)
	admin(addr, "config", "set", "repl-diskless-load", "swapdb")
}

// answerLimit is how long a server is waited for that may hang. One that is only late counts as one
// that does not answer: then it is asked again.
const answerLimit = time.Second

// admin sends one command to a server, not by way of a proxy.
func admin(addr string, args ...any) (any, error) {
	c := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true, ContextTimeoutEnabled: true})
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	return c.Do(ctx, args...).Result()
}

// role is "master" or "slave", and whether a master has a replica that follows, or a replica its
// master.
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

// replicaOf is the server that follows a master.
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

// masters are the servers that take writes.
func (s *servers) masters() (masters []*testenv.Redis) {
	for _, node := range s.nodes {
		if is, _ := role(node.Addr); is == "master" {
			masters = append(masters, node)
		}
	}
	return masters
}

// replaced tells whether all agree that another has taken the place of a master.
func (s *servers) replaced(former *testenv.Redis) bool {
	sh := s.shape()
	if s.topology == "sentinel" {
		return sh.agreed != "" && sh.agreed != former.Addr && slices.Contains(sh.masters, sh.agreed)
	}
	others := slices.DeleteFunc(sh.masters, func(m string) bool { return m == former.Addr })
	return len(others) == len(s.nodes)/2
}

// masterOf is the master's address, as a sentinel has it.
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

// follow makes a replica of a server.
func (s *servers) follow(addr, master string) {
	host, port, _ := net.SplitHostPort(master)
	admin(addr, "replicaof", host, port)
}

// until waits until f is true, and tells whether it has become so.
func until(limit time.Duration, f func() bool) bool {
	for deadline := time.Now().Add(limit); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

package testenv

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterMasters = 3
	clusterSlots   = 16384
)

// Cluster is a Redis cluster of three masters, each with one replica. One or two seconds after
// DownAfter, the replica replaces a master that hangs or has died.
type Cluster struct {
	Addrs []string // of all nodes
	Nodes []*Redis // Nodes[i] is a master for i < 3, and Nodes[i+3] its replica
}

// DownAfter is how long a server of SharedCluster or SharedSentinel may be silent before the others
// consider it dead. A busy machine may not schedule a healthy server for a second or more, and this
// must not cause a failover. When figures are measured nothing else runs, so failovers are quick.
var DownAfter = downAfter()

func downAfter() time.Duration {
	if Accepting {
		return time.Second
	}
	return 5 * time.Second
}

var sharedCluster shared[Cluster]

// SharedCluster returns the cluster of the test process, healthy and empty. After a test that
// killed nodes or promoted replicas, the next test gets a new cluster.
func SharedCluster(t testing.TB) *Cluster {
	t.Helper()
	c := sharedCluster.get((*Cluster).intact, func() *Cluster { return startCluster(t, DownAfter) })
	for _, master := range c.Nodes[:clusterMasters] {
		master.clean(t)
	}
	return c
}

// StartCluster starts a cluster for this test, which is killed when the test ends. A node counts as
// dead when it has not replied for downAfter.
func StartCluster(t testing.TB, downAfter time.Duration) *Cluster {
	t.Helper()
	c := startCluster(t, downAfter)
	for _, node := range c.Nodes {
		node.claim(t)
	}
	return c
}

func startCluster(t testing.TB, downAfter time.Duration) *Cluster {
	t.Helper()
	c := &Cluster{}
	for range 2 * clusterMasters {
		bus := FreePort(t)
		r := startRedis(t, "cluster",
			"--cluster-enabled", "yes",
			"--cluster-port", strconv.Itoa(bus),
			"--cluster-node-timeout", strconv.FormatInt(downAfter.Milliseconds(), 10),
			"--cluster-allow-replica-migration", "no")
		c.Nodes = append(c.Nodes, r)
		c.Addrs = append(c.Addrs, r.Addr)
	}
	if err := c.join(); err != nil {
		c.kill()
		t.Fatalf("build the cluster: %v", err)
	}
	return c
}

// join connects the nodes to a cluster.
func (c *Cluster) join() error {
	ids := make([]string, len(c.Nodes))
	for i, node := range c.Nodes {
		id, err := node.do("cluster", "myid")
		if err != nil {
			return err
		}
		ids[i] = id
		// With different epochs from the start, the masters need not resolve a conflict.
		if _, err := node.do("cluster", "set-config-epoch", i+1); err != nil {
			return err
		}
		if i < clusterMasters {
			first, end := i*clusterSlots/clusterMasters, (i+1)*clusterSlots/clusterMasters
			if _, err := node.do("cluster", "addslotsrange", first, end-1); err != nil {
				return err
			}
		}
		// A node that is introduced to all others does not wait for gossip.
		for _, other := range c.Nodes[:i] {
			bus := other.argument("--cluster-port")
			if _, err := node.do("cluster", "meet", "127.0.0.1", other.port, bus); err != nil {
				return err
			}
		}
	}
	for i, node := range c.Nodes[clusterMasters:] {
		// The node returns an error until it knows its master.
		err := eventually(func() error {
			_, err := node.do("cluster", "replicate", ids[i])
			return err
		}, settleLimit)
		if err != nil {
			return err
		}
	}
	return eventually(c.settled, settleLimit)
}

// settled returns nil if every node sees all nodes, each in its first role.
func (c *Cluster) settled() error {
	for i, node := range c.Nodes {
		info, err := node.do("cluster", "info")
		if err != nil {
			return err
		}
		for _, want := range []string{
			"cluster_state:ok",
			"cluster_slots_ok:" + strconv.Itoa(clusterSlots),
			"cluster_known_nodes:" + strconv.Itoa(len(c.Nodes)),
		} {
			if !strings.Contains(info, want+"\r\n") {
				return fmt.Errorf("node %s lacks %s:\n%s", node.Addr, want, info)
			}
		}
		nodes, err := node.do("cluster", "nodes")
		if err != nil {
			return err
		}
		if n := strings.Count(nodes, "slave "); n != clusterMasters || strings.Contains(nodes, "fail") {
			return fmt.Errorf("node %s sees other roles:\n%s", node.Addr, nodes)
		}
		if err := node.replicates(i >= clusterMasters); err != nil {
			return err
		}
	}
	return nil
}

// intact resumes paused nodes and reports whether the cluster can be used again. If not, it kills
// the nodes that are left.
func (c *Cluster) intact() bool {
	for _, node := range c.Nodes {
		node.Resume()
	}
	for _, node := range c.Nodes {
		if !node.alive() {
			c.kill()
			return false
		}
	}
	if eventually(c.settled, 2*time.Second) != nil {
		c.kill()
		return false
	}
	return true
}

func (c *Cluster) kill() {
	for _, node := range c.Nodes {
		node.Kill()
	}
}

// Options returns new options for a client of the cluster.
func (c *Cluster) Options() *redis.ClusterOptions {
	return &redis.ClusterOptions{
		Addrs:                    append([]string(nil), c.Addrs...),
		PoolSize:                 poolSize,
		ReadTimeout:              Hang,
		WriteTimeout:             Hang,
		PoolTimeout:              Hang,
		MaintNotificationsConfig: noMaintenance(),
	}
}

// Client returns a client that is closed when the test ends.
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	return closed(t, redis.NewClusterClient(c.Options()))
}

package conn

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// byNode finds a key for each master of a cluster, by asking the masters.
func byNode(t *testing.T, cluster *testenv.Cluster) (keys [3]string) {
	t.Helper()
	for i := range keys {
		node := cluster.Nodes[i].Client(t)
		for n := 0; ; n++ {
			key := fmt.Sprint("key:", n)
			if err := node.Get(t.Context(), key).Err(); err == redis.Nil {
				keys[i] = key
				break
			} else if !redis.HasErrorPrefix(err, "MOVED") {
				t.Fatal(err)
			}
		}
	}
	return keys
}

func TestProcessAtSendsToTheServerOfTheKey(t *testing.T) {
	cluster := testenv.SharedCluster(t)
	c, err := New(cluster.Client(t), testenv.Hang)
	if err != nil {
		t.Fatal(err)
	}
	keys := byNode(t, cluster)
	for i, name := range keys {
		cmds := []redis.Cmder{redis.NewStatusCmd(t.Context(), "set", name, "v")}
		for _, key := range keys {
			cmds = append(cmds, redis.NewStringCmd(t.Context(), "get", key))
		}
		info := redis.NewStringCmd(t.Context(), "info", "server")
		if !c.ProcessAt(t.Context(), name, append(cmds, info)) {
			t.Fatal("no server")
		}
		if want := fmt.Sprintf("process_id:%d\r\n", cluster.Nodes[i].Pid()); !strings.Contains(info.Val(), want) {
			t.Errorf("%s: it was not sent to node %d", name, i)
		}
		for j, cmd := range cmds[1:] { // no command is redirected by its server's reply
			if moved := redis.HasErrorPrefix(cmd.Err(), "MOVED"); moved == (i == j) || (cmd.Err() != nil) != moved {
				t.Errorf("at node %d, key of node %d: %v", i, j, cmd.Err())
			}
		}
		client, err := c.Subscriber(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if client.Options().Addr != cluster.Addrs[i] {
			t.Errorf("%s: a subscriber of %s, want %s", name, client.Options().Addr, cluster.Addrs[i])
		}
		for j, key := range keys {
			if same := c.Node(t.Context(), name) == c.Node(t.Context(), key); same != (i == j) ||
				c.Node(t.Context(), key) == nil {
				t.Errorf("nodes %d and %d: the same %v", i, j, same)
			}
		}
	}
}

func TestASingleServerHasAllKeys(t *testing.T) {
	rdb := testenv.SharedRedis(t).Client(t)
	c, err := New(rdb, testenv.Hang)
	if err != nil {
		t.Fatal(err)
	}
	cmds := []redis.Cmder{redis.NewStatusCmd(t.Context(), "set", "a", "v"), redis.NewStringCmd(t.Context(), "get", "a"),
		redis.NewStringCmd(t.Context(), "nonsense")}
	if !c.ProcessAt(t.Context(), "b", cmds) || cmds[1].(*redis.StringCmd).Val() != "v" || !IsReply(cmds[2].Err()) {
		t.Error(cmds)
	}
	if node := c.Node(t.Context(), "a"); node == nil || node != c.Node(t.Context(), "b") {
		t.Error("keys of one server are at two")
	}
	if client, err := c.Subscriber(t.Context(), "a"); client != rdb || err != nil {
		t.Errorf("%v, %v", client, err)
	}
}

func TestWithoutAClusterNoServerIsKnown(t *testing.T) {
	c, err := New(lazyCluster(t), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	cmd := redis.NewStatusCmd(t.Context(), "set", "a", "v")
	if c.ProcessAt(t.Context(), "a", []redis.Cmder{cmd}) {
		t.Error("it was sent")
	}
	if node := c.Node(t.Context(), "a"); node != nil {
		t.Errorf("it is at %v", node)
	}
	if client, err := c.Subscriber(t.Context(), "a"); client != nil || err == nil {
		t.Errorf("%v, %v", client, err)
	}
}

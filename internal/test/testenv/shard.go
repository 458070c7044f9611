package testenv

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

// StartShard starts a cluster of a single master with all slots, such as managed services offer. It
// is killed when the test ends.
func StartShard(t testing.TB) *Redis {
	t.Helper()
	r := startShard(t)
	r.claim(t)
	return r
}

// startShard starts such a cluster, with these arguments on the command line of its server.
func startShard(t testing.TB, args ...string) *Redis {
	t.Helper()
	args = append(args, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(FreePort(t)))
	r := startRedis(t, "shard", args...)
	if _, err := r.do("CLUSTER", "ADDSLOTSRANGE", 0, clusterSlots-1); err != nil {
		t.Fatalf("build a cluster of one: %v", err)
	}
	Eventually(t, "a cluster of one", func() bool {
		info, err := r.do("CLUSTER", "INFO")
		return err == nil && len(info) > 16 && info[:16] == "cluster_state:ok"
	})
	return r
}

// ClusterClient returns a cluster client for the server that is closed when the test ends.
func (r *Redis) ClusterClient(t testing.TB) *redis.ClusterClient {
	t.Helper()
	rdb := closed(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{r.Addr}, ContextTimeoutEnabled: true, MaintNotificationsConfig: noMaintenance(),
	}))
	if err := rdb.Ping(context.Background()).Err(); err != nil {
		t.Fatal(fmt.Errorf("a client of the cluster: %w", err))
	}
	return rdb
}

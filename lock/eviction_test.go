package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// TestWarnsOfEvictions: a Locker warns once if its server evicts keys. It works as usual if INFO is
// not permitted.
func TestWarnsOfEvictions(t *testing.T) {
	const rights = "+eval +evalsha +get +set +time +publish +subscribe +unsubscribe +ping ~lock:* &lock:*"
	for name, c := range map[string]struct {
		maxmemory, policy, rules string
		warns                    bool
	}{
		"evicts":              {"1gb", "volatile-lru", rights + " +info", true},
		"noeviction":          {"1gb", "noeviction", rights + " +info", false},
		"without a limit":     {"0", "allkeys-lru", rights + " +info", false},
		"INFO is not allowed": {"1gb", "allkeys-lru", rights, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.StartRedis(t, "--maxmemory", c.maxmemory, "--maxmemory-policy", c.policy)
			checkEvictions(t, locktest.Limited(t, server, c.rules), c.warns)
		})
	}
	t.Run("cluster", func(t *testing.T) {
		cluster := testenv.SharedCluster(t)
		err := cluster.Client(t).ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
			t.Cleanup(func() { c.ConfigSet(context.Background(), "maxmemory", "0") })
			return errors.Join(c.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err(),
				c.ConfigSet(ctx, "maxmemory", "1gb").Err())
		})
		if err != nil {
			t.Fatal(err)
		}
		checkEvictions(t, cluster.Client(t), true)
	})
}

// checkEvictions acquires locks, and reports an error if the Locker does not warn as expected.
func checkEvictions(t *testing.T, rdb redis.UniversalClient, warns bool) {
	t.Helper()
	var log testenv.Log
	l, err := lock.NewRedis(rdb, &lock.Options{Logger: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		lease, err := l.Acquire(t.Context(), "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil { // waits for the check
		t.Fatal(err)
	}
	lines := log.Take()
	if len(lines) > 1 || warns != (len(lines) == 1 && strings.Contains(lines[0], "level=WARN") &&
		strings.Contains(lines[0], "maxmemory_policy=")) {
		t.Errorf("logged %q", lines)
	}
}

package testenv

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisReady checks that the server answers and that it is the wanted one, not
// another one on the same port.
func redisReady(s *server, o *redis.Options) error {
	// The driver is slow to report a closed port.
	c, err := net.DialTimeout("tcp", s.addr(), answerLimit)
	if err != nil {
		return err
	}
	c.Close()
	plain(o)
	client := redis.NewClient(o)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	if !strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", s.Pid())) {
		return fmt.Errorf("another server listens on port %d", s.port)
	}
	return nil
}

// clean brings the server back to the state after its start.
func (r *Redis) clean(t testing.TB) {
	t.Helper()
	clean(t, r.server, r.Options())
}

// clean does so with a client of these options, whose user may do everything.
func clean(t testing.TB, s *server, o *redis.Options) {
	t.Helper()
	s.revive(t)
	plain(o)
	client := redis.NewClient(o)
	defer client.Close()
	_, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Do(t.Context(), "client", "unpause")
		p.Do(t.Context(), "flushall", "sync")
		p.Do(t.Context(), "script", "flush", "sync")
		p.Do(t.Context(), "function", "flush", "sync")
		p.Do(t.Context(), "config", "resetstat")
		return nil
	})
	if err != nil {
		t.Fatalf("clean redis %s: %v", o.Addr, err)
	}
}

// replicates says whether the node has the wanted role and, as a replica, a
// connection to its master.
func (r *Redis) replicates(replica bool) error {
	info, err := r.do("info", "replication")
	if err != nil {
		return err
	}
	want := "role:master"
	if replica {
		want = "master_link_status:up"
	}
	if !strings.Contains(info, want+"\r\n") {
		return fmt.Errorf("%s is not in the state %s:\n%s", r.Addr, want, info)
	}
	return nil
}

// argument returns the value of a flag of the command line.
func (r *Redis) argument(flag string) string {
	for i, a := range r.argv {
		if a == flag {
			return r.argv[i+1]
		}
	}
	return ""
}

// do sends one command on a connection of its own.
func (r *Redis) do(args ...any) (string, error) {
	o := r.Options()
	plain(o)
	client := redis.NewClient(o)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	return client.Do(ctx, args...).Text()
}

// plain makes a client for this package's own use, without retries.
func plain(o *redis.Options) {
	o.PoolSize = 1
	o.MaxRetries = -1
	o.DisableIdentity = true
	o.ContextTimeoutEnabled = true
	o.ReadTimeout = answerLimit
	o.MaintNotificationsConfig = noMaintenance()
}

// answerLimit is how long a server that runs may take to answer one command. It is
// idle, but on an overloaded machine it may not be given the processor for a while.
const answerLimit = 20 * time.Second

// settleLimit is how long a group of servers may take to find each other.
const settleLimit = 2 * time.Minute

// eventually repeats f until it returns nil, and gives up after the limit.
func eventually(f func() error, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

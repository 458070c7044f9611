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

// redisReady returns nil if the server replies and is process s, not another one on the same port.
func redisReady(s *server, o *redis.Options) error {
	// The driver is slow to report a closed port.
	c, err := net.DialTimeout("tcp", s.addr(), replyLimit)
	if err != nil {
		return err
	}
	c.Close()
	plain(o)
	client := redis.NewClient(o)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), replyLimit)
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

// clean restores the state that the server had after its start.
func (r *Redis) clean(t testing.TB) {
	t.Helper()
	clean(t, r.server, r.Options())
}

// clean restores the state that server s had after its start. The user of options o must be allowed
// to run all commands.
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

// replicates returns nil if the node has the wanted role. A replica must also be connected to its
// master.
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

// argument returns the value of a flag on the server's command line, or "".
func (r *Redis) argument(flag string) string {
	for i, a := range r.argv {
		if a == flag {
			return r.argv[i+1]
		}
	}
	return ""
}

// do sends one command on a new connection.
func (r *Redis) do(args ...any) (string, error) {
	o := r.Options()
	plain(o)
	client := redis.NewClient(o)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), replyLimit)
	defer cancel()
	return client.Do(ctx, args...).Text()
}

// plain changes options for this package's own clients: one connection, no retries.
func plain(o *redis.Options) {
	o.PoolSize = 1
	o.MaxRetries = -1
	o.DisableIdentity = true
	o.ContextTimeoutEnabled = true
	o.ReadTimeout = replyLimit
	o.MaintNotificationsConfig = noMaintenance()
}

// replyLimit is how long a running server may take to reply to one command. The server is idle, but
// on an overloaded machine it may not be scheduled for a while.
const replyLimit = 20 * time.Second

// settleLimit is how long a group of servers may take to find each other.
const settleLimit = 2 * time.Minute

// eventually calls f until it returns nil. After the limit it returns the last error.
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

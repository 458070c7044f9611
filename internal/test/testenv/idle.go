package testenv

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Opaque dials and hides the type of the connection, as a program's own Dialer may. If the server
// has closed such a connection, go-redis notices that only when it uses the connection.
func Opaque(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return struct{ net.Conn }{c}, nil
}

// pipelinePool is the size of go-redis's second pool, which holds the connections of pipelines.
const pipelinePool = redis.DefaultPipelinePoolSize

// FillPool leaves n idle connections in client's pool, and in its pool for pipelines n or as many
// as fit. admin is a client of the same server whose user has all permissions.
func FillPool(t testing.TB, client, admin *redis.Client, n int) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	waits := client.WithTimeout(0) // uses the same pools; 0 is no limit, because the wait has no known length
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for range 1000 {
				// WAIT blocks, as there are no replicas; an error comes from a connection that was
				// closed earlier
				if waits.Do(ctx, "wait", 99, 0).Err() == nil {
					return
				}
			}
		})
	}
	pipelined := min(n, pipelinePool)
	for range pipelined {
		all.Go(func() {
			for range 1000 {
				_, err := waits.Pipelined(ctx, func(p redis.Pipeliner) error {
					p.Do(ctx, "wait", 99, 0)
					p.Ping(ctx)
					return nil
				})
				if err == nil {
					return
				}
			}
		})
	}
	var waiting []string
	Eventually(t, "all connections are in use", func() bool {
		list, err := admin.Do(ctx, "client", "list", "type", "normal").Text()
		check(err)
		waiting = waiting[:0]
		for line := range strings.Lines(list) {
			if strings.Contains(line, " cmd=wait ") && strings.Contains(line, " flags=b ") {
				// without the flag, the connection is idle after an earlier WAIT
				id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
				waiting = append(waiting, id)
			}
		}
		return len(waiting) == n+pipelined
	})
	for _, id := range waiting {
		check(admin.Do(ctx, "client", "unblock", id).Err())
	}
	all.Wait()
}

// CloseIdle makes the server close all connections except admin's own and those of subscribers, as
// a server or a load balancer closes idle connections.
func CloseIdle(t testing.TB, admin *redis.Client) {
	t.Helper()
	if err := admin.Do(context.WithoutCancel(t.Context()), "client", "kill", "type", "normal").Err(); err != nil {
		t.Fatal(err)
	}
}

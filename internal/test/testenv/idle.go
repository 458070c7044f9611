package testenv

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Opaque dials and hides the type of the connection, as a program's own Dialer may. go-redis cannot
// see that the server has closed such a connection until it uses it.
func Opaque(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return struct{ net.Conn }{c}, nil
}

// pipelinePool is the size of the second pool of go-redis, from which pipelines take connections.
const pipelinePool = redis.DefaultPipelinePoolSize

// FillPool leaves n idle connections in the pool of client, and as many as fit, at most n, in that
// of its pipelines. admin is a client of the same server whose user may do everything.
func FillPool(t testing.TB, client, admin *redis.Client, n int) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	waits := client.WithTimeout(0) // it takes connections from the same pools; 0 is no limit, for how long they must wait is not known
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for range 1000 { // it waits for replicas that there are not; an error is that of a connection that was closed before
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
			if strings.Contains(line, " cmd=wait ") && strings.Contains(line, " flags=b ") { // without the flag, it is idle after an earlier WAIT
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

// CloseIdle has the server of admin close all connections except admin's own and those that
// listen, as a server or a load balancer closes idle ones.
func CloseIdle(t testing.TB, admin *redis.Client) {
	t.Helper()
	if err := admin.Do(context.WithoutCancel(t.Context()), "client", "kill", "type", "normal").Err(); err != nil {
		t.Fatal(err)
	}
}

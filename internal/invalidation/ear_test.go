package invalidation

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// network controls a client: the connection of its subscription, and its scripts.
type network struct {
	deaf     atomic.Bool // what comes by a subscription that exists is lost; a new one is not deaf
	failing  atomic.Bool // scripts and polls
	subs     atomic.Int64
	pollsRun atomic.Int64
	held     atomic.Pointer[chan struct{}] // scripts and polls wait until it is closed
}

// through makes a client like rdb that goes through the network.
func (n *network) through(t *testing.T, rdb *redis.Client) *redis.Client {
	o := *rdb.Options()
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return &ear{Conn: c, network: n}, err
	}
	client := redis.NewClient(&o)
	client.AddHook(n)
	t.Cleanup(func() { client.Close() })
	return client
}

// ear is a connection that can stop receiving.
type ear struct {
	net.Conn
	network    *network
	subscribed atomic.Bool
	deaf       atomic.Bool
}

func (e *ear) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("subscribe\r\n")) {
		e.subscribed.Store(true)
		e.network.subs.Add(1)
		e.network.deaf.Store(false)
	}
	return e.Conn.Write(b)
}

func (e *ear) Read(b []byte) (int, error) {
	for {
		n, err := e.Conn.Read(b)
		if e.subscribed.Load() && e.network.deaf.Load() {
			e.deaf.Store(true)
		}
		if err != nil || !e.deaf.Load() {
			return n, err
		}
	}
}

func (n *network) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *network) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !isPoll(cmds) {
			return next(ctx, cmds)
		}
		return n.process(cmds, func() error { return next(ctx, cmds) })
	}
}

func (n *network) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" {
			return next(ctx, cmd)
		}
		return n.process([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (n *network) process(cmds []redis.Cmder, next func() error) error {
	n.pollsRun.Add(1)
	if held := n.held.Load(); held != nil {
		<-*held
	}
	if n.failing.Load() {
		for _, cmd := range cmds {
			cmd.SetErr(errFailing)
		}
		return errFailing
	}
	return next()
}

var errFailing = errors.New("no poll for now")

// inBubble runs f with a backend whose clients go through the network, on a clock that is made up.
func inBubble(t *testing.T, f func(t *testing.T, b *backend, n *network)) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		n := &network{}
		f(t, newBackend(t, n.through(t, rdb)), n)
	})
}

package conn

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/noanswer"
)

// Explain makes the error of an operation on a key one that its caller can be given; began is when
// the operation began, and ctx the caller's. Where Redis has not answered, the error tells which
// server, what was asked, for how long, and why; only if ctx has ended, or is about to, it is ctx's
// error.
func (c *Conn) Explain(ctx context.Context, err error, asked, key string, began time.Time) error {
	if err == nil || IsReply(err) {
		return err
	}
	client := c.clientOf(key)
	return noanswer.For(ctx, err, address(client), asked, began, why(client, began))
}

// explain does so for commands that have been sent together.
func (c *Conn) explain(ctx context.Context, cmds []redis.Cmder, began time.Time) {
	var before, told error // of many commands it is often the same one
	for _, cmd := range cmds {
		err := cmd.Err()
		if err == nil || IsReply(err) {
			continue
		}
		if told == nil || err != before { //nolint:errorlint // the very same
			before, told = err, c.Explain(ctx, err, strings.ToUpper(cmd.Name()), keyOf(cmd), began)
		}
		cmd.SetErr(told)
	}
}

// clientOf is the client of the server where key lives, if that is known: nobody waits for that.
func (c *Conn) clientOf(key string) redis.UniversalClient {
	if c.cluster == nil || key == "" || !c.met.Load() {
		return c.rdb
	}
	node, err := c.cluster.MasterForKey(ended, key)
	if err != nil {
		return c.rdb
	}
	return node
}

// address names the server of a client. A client of sentinels has no address: the error of its
// dials may tell it.
func address(client redis.UniversalClient) string {
	switch client := client.(type) {
	case *redis.Client:
		addr := client.Options().Addr
		if _, _, err := net.SplitHostPort(addr); err != nil && !strings.Contains(addr, "/") {
			return "the Redis master that the sentinels name"
		}
		return "Redis at " + addr
	case *redis.ClusterClient:
		return "the Redis Cluster of " + strings.Join(client.Options().Addrs, ", ")
	}
	return "Redis"
}

// why is why no connection could be made since then, if that is known.
func why(client redis.UniversalClient, began time.Time) error {
	if one, ok := client.(*redis.Client); ok {
		return dialsOf(one).why(began)
	}
	return nil
}

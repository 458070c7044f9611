package conn

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// ProcessAt leaves each command with its reply or error, from the server where key lives, in one
// pipeline; in the order of cmds, and none runs elsewhere. Where a server answers that a key is no
// longer its own, that is the command's error. ok is false if there is no such server to be asked.
func (c *Conn) ProcessAt(ctx context.Context, key string, cmds []redis.Cmder) (ok bool) {
	if c.cluster == nil {
		c.Process(ctx, cmds)
		return true
	}
	node, err := c.cluster.MasterForKey(ctx, key)
	if err != nil {
		return false
	}
	c.processAt(ctx, node, cmds)
	return true
}

// At names the server where key lives, for comparison: nil if it is not known.
func (c *Conn) At(ctx context.Context, key string) any {
	if c.cluster == nil {
		return c
	}
	node, err := c.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil
	}
	return node
}

// Listeners tells how many clients are subscribed to a Redis channel, at all servers of a cluster.
// (PUBLISH answers that for its own server only.)
func (c *Conn) Listeners(ctx context.Context, topic string) (n int, err error) {
	if err := c.fits(ctx); err != nil {
		return 0, err
	}
	var all atomic.Int64
	count := func(ctx context.Context, node *redis.Client) error {
		subscribed := redis.NewMapStringIntCmd(ctx, "pubsub", "numsub", topic)
		Do(ctx, node, subscribed)
		all.Add(subscribed.Val()[topic])
		return subscribed.Err()
	}
	if c.cluster == nil {
		err = count(ctx, c.rdb.(*redis.Client))
	} else {
		err = c.cluster.ForEachMaster(ctx, count)
	}
	return int(all.Load()), err
}

// Subscriber is the client of the server where key lives, for a subscription.
func (c *Conn) Subscriber(ctx context.Context, key string) (*redis.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err := NotReturned(nil) // until it has
	if ended := c.Await(ctx, func(ctx context.Context) { err = c.fits(ctx) }); ended != nil {
		return nil, ended
	}
	if err != nil {
		return nil, err
	}
	if c.cluster == nil {
		return c.rdb.(*redis.Client), nil
	}
	return c.cluster.MasterForKey(ctx, key)
}

// Process leaves each command with its reply or its error.
func (c *Conn) Process(ctx context.Context, cmds []redis.Cmder) { c.processAt(ctx, c.rdb, cmds) }

// processAt sends them by this client.
func (c *Conn) processAt(ctx context.Context, client redis.UniversalClient, cmds []redis.Cmder) {
	if err := c.fits(ctx); err != nil {
		Fail(cmds, err)
		return
	}
	process(ctx, client, cmds)
	if c.cluster != nil && !c.met.Load() && slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() == nil || IsReply(cmd.Err()) }) {
		c.met.Store(true)
	}
}

// Send sends cmds in pipelines, one after the other if there are very many, and returns when each
// has its reply or error, or, unless the client keeps ctx by itself, when ctx ends. If it returns
// an error, cmds may still be in use and must not be read.
func (c *Conn) Send(ctx context.Context, cmds []redis.Cmder) error {
	if c.bounded {
		c.Process(ctx, cmds)
		return nil
	}
	return c.Await(ctx, func(ctx context.Context) { c.Process(ctx, cmds) })
}

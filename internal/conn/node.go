package conn

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// ProcessAt sends cmds to the server of key in one pipeline, in their order, and sets their
// replies or errors. No command runs on another server: if a key does not belong to that server
// any more, its reply is the error of the command. ok is false if the server is unknown.
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

// Node returns a comparable value that identifies the server of key, or nil if the server is
// unknown.
func (c *Conn) Node(ctx context.Context, key string) any {
	if c.cluster == nil {
		return c
	}
	node, err := c.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil
	}
	return node
}

// Listeners returns the number of clients that are subscribed to a Redis channel, at all servers
// of a cluster. (The reply to PUBLISH counts only those at one server.)
func (c *Conn) Listeners(ctx context.Context, topic string) (n int, err error) {
	if err := c.checkClient(ctx); err != nil {
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

// Subscriber returns a client of the server of key, for a subscription.
func (c *Conn) Subscriber(ctx context.Context, key string) (*redis.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err := NotReturned(nil) // replaced when checkClient returns
	if ended := c.Await(ctx, func(ctx context.Context) { err = c.checkClient(ctx) }); ended != nil {
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

// Process sends cmds, and sets the reply or error of each.
func (c *Conn) Process(ctx context.Context, cmds []redis.Cmder) { c.processAt(ctx, c.rdb, cmds) }

// processAt sends cmds through client.
func (c *Conn) processAt(ctx context.Context, client redis.UniversalClient, cmds []redis.Cmder) {
	if err := c.checkClient(ctx); err != nil {
		Fail(cmds, err)
		return
	}
	process(ctx, client, cmds)
	if c.cluster != nil && !c.reached.Load() &&
		slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() == nil || IsReply(cmd.Err()) }) {
		c.reached.Store(true)
	}
}

// Send sends cmds in pipelines of limited size, one after the other. It returns when each command
// has its reply or error. If the client ignores deadlines, Send also returns when ctx ends. If it
// returns an error, cmds may still be in use and must not be read.
func (c *Conn) Send(ctx context.Context, cmds []redis.Cmder) error {
	if c.bounded {
		c.Process(ctx, cmds)
		return nil
	}
	return c.Await(ctx, func(ctx context.Context) { c.Process(ctx, cmds) })
}

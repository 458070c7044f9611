package conn

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/noanswer"
)

// Sent tells of which commands the replies may be read: a pipeline that was left behind may still
// be using its own.
type Sent struct {
	whole error   // why none may be
	parts []error // or why one may not be; nil if all may
}

// NotSent is for commands none of which may be read.
func NotSent(err error) Sent { return Sent{whole: err} }

// Err is nil if command i may be read, else its error.
func (s Sent) Err(i int) error {
	if s.whole != nil || s.parts == nil {
		return s.whole
	}
	return s.parts[i]
}

// Ask sends commands of the protocol, each on one key, and notes what becomes of them. bound is
// ctx, of those who ask, with a time-out of ours. On a cluster each node is sent its own, so that
// those of one that hangs do not keep the replies of the others: go-redis waits for all, and lets
// all fail together.
func (c *Conn) Ask(ctx, bound context.Context, cmds []redis.Cmder) Sent {
	return c.askAll(ctx, bound, cmds, func(cmds []redis.Cmder, err error) { c.note(ctx, cmds, err) })
}

// AskLong is Ask for commands with many bytes, or for them: that they are not answered in time is
// no trouble of Redis.
func (c *Conn) AskLong(ctx, bound context.Context, cmds []redis.Cmder) Sent {
	return c.askAll(ctx, bound, cmds, func(cmds []redis.Cmder, err error) {
		if err != nil {
			return
		}
		answered := slices.DeleteFunc(slices.Clone(cmds), func(cmd redis.Cmder) bool { return cmd.Err() != nil && !IsReply(cmd.Err()) })
		c.note(ctx, answered, nil)
	})
}

// noteFunc notes what has become of commands that were sent together; err is the error of all, if
// it is not nil.
type noteFunc func(cmds []redis.Cmder, err error)

func (c *Conn) askAll(ctx, bound context.Context, cmds []redis.Cmder, note noteFunc) Sent {
	if c.cluster == nil || len(cmds) == 1 {
		return NotSent(c.ask(ctx, bound, cmds, note))
	}
	nodes := c.partsByNode(cmds)
	if len(nodes) == 1 {
		return NotSent(c.ask(ctx, bound, cmds, note))
	}
	s := Sent{parts: make([]error, len(cmds))}
	var all sync.WaitGroup
	for _, at := range nodes {
		all.Go(func() { c.askSome(ctx, bound, cmds, at, s.parts, note) })
	}
	all.Wait()
	return s
}

func (c *Conn) ask(ctx, bound context.Context, cmds []redis.Cmder, note noteFunc) error {
	began := time.Now()
	err := c.Send(bound, cmds)
	if err == nil {
		c.explain(ctx, cmds, began)
	} else if len(cmds) > 0 {
		err = c.Explain(ctx, err, strings.ToUpper(cmds[0].Name()), keyOf(cmds[0]), began)
	}
	note(cmds, err)
	return err
}

// askSome sends the commands at these places. By the client of the whole cluster, not to the node,
// for a key may have moved since.
func (c *Conn) askSome(ctx, bound context.Context, cmds []redis.Cmder, at []int, errs []error, note noteFunc) {
	for _, i := range at {
		errs[i] = NotReturned(nil) // until it has
	}
	some := make([]redis.Cmder, len(at))
	for j, i := range at {
		some[j] = cmds[i]
	}
	err := c.ask(ctx, bound, some, note)
	for _, i := range at {
		errs[i] = err
	}
}

// partsByNode returns the places of the commands for each node where their keys seem to live. The
// commands whose node is not known are one part: all of them, before the client has learned its
// nodes.
func (c *Conn) partsByNode(cmds []redis.Cmder) (parts [][]int) {
	place := make(map[redis.UniversalClient]int)
	for i, cmd := range cmds {
		node := c.clientOf(keyOf(cmd))
		p, ok := place[node]
		if !ok {
			p = len(parts)
			place[node], parts = p, append(parts, nil)
		}
		parts[p] = append(parts[p], i)
	}
	return parts
}

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

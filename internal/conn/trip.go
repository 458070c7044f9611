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

// Sent records which of the commands that were sent together may be read. A pipeline that was
// left behind may still be using its commands.
type Sent struct {
	whole error   // why no command may be read
	parts []error // for each command, why it may not be read; nil if all may
}

// NotSent returns a Sent for commands of which none may be read.
func NotSent(err error) Sent { return Sent{whole: err} }

// Err returns nil if command i may be read. Otherwise it returns the error of the command.
func (s Sent) Err(i int) error {
	if s.whole != nil || s.parts == nil {
		return s.whole
	}
	return s.parts[i]
}

// Ask sends commands, each on one key, and records their results in the breakers. ctx is the
// context of the caller; bound is ctx with the timeout of the library. On a cluster, each node
// gets its own trip, so that a node that hangs does not delay the replies of the others: go-redis
// waits for all nodes, and fails all commands together.
func (c *Conn) Ask(ctx, bound context.Context, cmds []redis.Cmder) Sent {
	return c.sendTrips(ctx, bound, cmds, func(cmds []redis.Cmder, err error) { c.record(ctx, cmds, err) })
}

// AskLong is like Ask for commands with large arguments or replies: a missing reply is not
// counted as a failure of Redis.
func (c *Conn) AskLong(ctx, bound context.Context, cmds []redis.Cmder) Sent {
	return c.sendTrips(ctx, bound, cmds, func(cmds []redis.Cmder, err error) {
		if err != nil {
			return
		}
		answered := slices.DeleteFunc(slices.Clone(cmds),
			func(cmd redis.Cmder) bool { return cmd.Err() != nil && !IsReply(cmd.Err()) })
		c.record(ctx, answered, nil)
	})
}

// A recordFunc records the results of commands that were sent together. If err is not nil, it is
// the error of all.
type recordFunc func(cmds []redis.Cmder, err error)

// sendTrips sends commands in one trip for each node, concurrently, and calls record for each
// trip.
func (c *Conn) sendTrips(ctx, bound context.Context, cmds []redis.Cmder, record recordFunc) Sent {
	if c.cluster == nil || len(cmds) == 1 || c.ServerOf(cmds) != nil {
		return NotSent(c.sendTrip(ctx, bound, cmds, record))
	}
	nodes := c.partsByNode(cmds)
	if len(nodes) == 1 {
		return NotSent(c.sendTrip(ctx, bound, cmds, record))
	}
	s := Sent{parts: make([]error, len(cmds))}
	var all sync.WaitGroup
	for _, positions := range nodes {
		all.Go(func() { c.sendPart(ctx, bound, cmds, positions, s.parts, record) })
	}
	all.Wait()
	return s
}

// sendTrip sends commands in one trip, and calls record with their results.
func (c *Conn) sendTrip(ctx, bound context.Context, cmds []redis.Cmder, record recordFunc) error {
	began := time.Now()
	err := c.Send(bound, cmds)
	if err == nil {
		c.explain(ctx, cmds, began)
	} else if len(cmds) > 0 {
		err = c.Explain(ctx, err, strings.ToUpper(cmds[0].Name()), keyOf(cmds[0]), began)
	}
	record(cmds, err)
	return err
}

// sendPart sends the commands with the indexes at, and stores their errors in errs. It uses the
// client of the whole cluster instead of that of a node, because a key may have moved since.
func (c *Conn) sendPart(
	ctx, bound context.Context, cmds []redis.Cmder, positions []int, errs []error, record recordFunc,
) {
	for _, i := range positions {
		errs[i] = NotReturned(nil) // replaced below, unless a hook calls runtime.Goexit
	}
	some := make([]redis.Cmder, len(positions))
	for j, i := range positions {
		some[j] = cmds[i]
	}
	err := c.sendTrip(ctx, bound, some, record)
	for _, i := range positions {
		errs[i] = err
	}
}

// partsByNode returns the indexes of the commands for each node to which their keys seem to
// belong. Commands with an unknown node form one part. Before the client knows its nodes, these
// are all commands.
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

// Explain converts err, the error of an operation on key, to one that a caller can get. ctx is
// the caller's, asked names the operation, and began is when it began. If Redis has not replied,
// the new error names the server, the operation, its duration and the reason. It is the error of
// ctx only if ctx has ended, or is about to end.
func (c *Conn) Explain(ctx context.Context, err error, asked, key string, began time.Time) error {
	if err == nil || IsReply(err) {
		return err
	}
	client := c.clientOf(key)
	return noanswer.Wrap(ctx, err, address(client), asked, began, dialErrorOf(client, began))
}

// explain converts the errors of commands that were sent together.
func (c *Conn) explain(ctx context.Context, cmds []redis.Cmder, began time.Time) {
	var before, explained error // many commands often have the same error
	for _, cmd := range cmds {
		err := cmd.Err()
		if err == nil || IsReply(err) {
			continue
		}
		if explained == nil || err != before { //nolint:errorlint // the same value
			before, explained = err, c.Explain(ctx, err, strings.ToUpper(cmd.Name()), keyOf(cmd), began)
		}
		cmd.SetErr(explained)
	}
}

// clientOf returns the client of the server of key, if it is known without I/O, and otherwise the
// client of the whole cluster.
func (c *Conn) clientOf(key string) redis.UniversalClient {
	if c.cluster == nil || key == "" || !c.reached.Load() {
		return c.rdb
	}
	node, err := c.cluster.MasterForKey(cancelledCtx, key)
	if err != nil {
		return c.rdb
	}
	return node
}

// ServerOf returns a comparable value that identifies the server to which the keys of all commands
// seem to belong, in a cluster. It returns nil if there are several, or if the client does not know
// it without I/O.
func (c *Conn) ServerOf(cmds []redis.Cmder) any {
	node := c.clientOf(keyOf(cmds[0]))
	if node == c.rdb || slices.ContainsFunc(cmds[1:],
		func(cmd redis.Cmder) bool { return c.clientOf(keyOf(cmd)) != node }) {
		return nil
	}
	return node
}

// address returns the name of a client's server for error texts. The client of a sentinel does
// not know the address; the error of a dial may contain it.
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

// dialErrorOf returns why no connection could be made since began, if it is known.
func dialErrorOf(client redis.UniversalClient, began time.Time) error {
	if one, ok := client.(*redis.Client); ok {
		return dialsOf(one).dialError(began)
	}
	return nil
}

package conn

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
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
	nodes, err := c.nodes(bound, cmds)
	if err != nil {
		note(cmds, err)
		return NotSent(err)
	}
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

// nodes parts commands by the node where their keys seem to live; those of which it is not known
// are a part. Before a cluster's client has learned its nodes, it takes its own time for that.
func (c *Conn) nodes(ctx context.Context, cmds []redis.Cmder) (parts [][]int, err error) {
	if c.met.Load() {
		return c.partsByNode(ctx, cmds), nil
	}
	found := make(chan [][]int, 1)
	if err := c.Await(ctx, func(ctx context.Context) { found <- c.partsByNode(ctx, cmds) }); err != nil {
		return nil, err
	}
	select {
	case parts = <-found:
		return parts, nil
	default:
		return nil, NotReturned(nil)
	}
}

func (c *Conn) partsByNode(ctx context.Context, cmds []redis.Cmder) (parts [][]int) {
	place := make(map[any]int)
	for i, cmd := range cmds {
		node := c.At(ctx, keyOf(cmd))
		if node != nil {
			c.met.Store(true)
		} else if len(parts) == 0 && !c.met.Load() {
			all := make([]int, len(cmds))
			for j := range all {
				all[j] = j
			}
			return [][]int{all} // do not try for each
		}
		p, ok := place[node]
		if !ok {
			p = len(parts)
			place[node], parts = p, append(parts, nil)
		}
		parts[p] = append(parts[p], i)
	}
	return parts
}

package conn

import (
	"context"
	"errors"
	"net"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Servers and load balancers close idle connections. go-redis notices that before it uses a plain
// TCP connection, but not over TLS or behind a Dialer of the program's own: there the next command
// fails. That is no trouble of Redis. So this package sends commands again that a connection from
// the pool has lost, at once, until a connection works. Each try removes a closed connection from
// the pool. If a connection that was made after the command is closed as well, Redis is in trouble.

// lost reports whether err says that the command was sent by a connection from the pool that was
// closed. last is the number of the last connection made before the command. A connection without a
// number is older than the hook that numbers them.
func lost(err error, last int64) bool {
	if err == nil || IsReply(err) || !isClosed(err) {
		return false
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return false
	}
	e, numbered := errors.AsType[*closedError](err)
	return !numbered || e.number <= last
}

// send sends a command by itself, or several in one pipeline, and again where closed connections
// lose them. The client may not repeat them before that: it waits before each try, and its next
// connection is probably closed as well. After other failures the client sends them once more, and
// repeats them as its options say.
func send(ctx context.Context, rdb redis.UniversalClient, cmds []redis.Cmder) {
	last := connections.Load()
	sendOnce(ctx, rdb, cmds, false)
	resend(ctx, rdb, cmds, last)
	if ctx.Err() == nil && retryable(cmds) && repeats(rdb) {
		sendOnce(ctx, rdb, cmds, true)
	}
}

// retryable reports whether the client would send cmds again, all of them and in their order.
func retryable(cmds []redis.Cmder) bool {
	first, last := cmds[0].Err(), cmds[len(cmds)-1].Err()
	return (Unable(first) || redis.IsTryAgainError(first) || last != nil && !IsReply(last)) && !slices.ContainsFunc(cmds, redis.Cmder.NoRetry)
}

// resend sends the commands again that a closed connection has lost. Where one of them must not be
// sent twice, resend sends PING instead until Redis replies, and marks their errors as Stale. It
// keeps the order of cmds. last is the number of the last connection made before they were sent.
func resend(ctx context.Context, rdb redis.UniversalClient, cmds []redis.Cmder, last int64) {
	lost := lostOf(cmds, last)
	if len(lost) == 0 {
		return
	}
	node := serverOf(rdb, keyOf(lost[0]))
	if !slices.ContainsFunc(lost, redis.Cmder.NoRetry) {
		sendUntilKept(ctx, rdb, lost, last)
		return
	}
	pings := []redis.Cmder{redis.NewStatusCmd(ctx, "ping"), redis.NewStatusCmd(ctx, "ping")}
	pings = pings[:min(len(cmds), 2)] // go-redis has one pool for commands, and another for pipelines
	if !sendUntilKept(ctx, node, pings, last) || pings[0].Err() != nil && !IsReply(pings[0].Err()) {
		return
	}
	for _, cmd := range lost {
		cmd.SetErr(&staleError{cmd.Err()})
	}
}

// sendUntilKept sends commands until no closed connection loses one of them. It reports whether
// that came about; a command may have another error then.
func sendUntilKept(ctx context.Context, rdb redis.UniversalClient, cmds []redis.Cmder, last int64) bool {
	for range pooled(rdb) {
		if ctx.Err() != nil {
			return false
		}
		sendOnce(ctx, rdb, cmds, false)
		if cmds = lostOf(cmds, last); len(cmds) == 0 {
			return true
		}
	}
	return false
}

// lostOf returns the commands that a closed connection has lost.
func lostOf(cmds []redis.Cmder, last int64) (all []redis.Cmder) {
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && lost(err, last) {
			all = append(all, cmd)
		}
	}
	return all
}

// repeats reports whether a client sends commands again at all.
func repeats(rdb redis.UniversalClient) bool {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return cluster.Options().MaxRedirects > 0
	}
	return rdb.(*redis.Client).Options().MaxRetries > 0
}

// pooled is how many connections to one server may rest in the pools of a client.
func pooled(rdb redis.UniversalClient) int {
	size, pipelines := 0, 0
	switch c := rdb.(type) {
	case *redis.Client:
		size, pipelines = c.Options().PoolSize, c.Options().PipelinePoolSize
	case *redis.ClusterClient:
		size, pipelines = c.Options().PoolSize, c.Options().PipelinePoolSize
	}
	return size + max(pipelines, redis.DefaultPipelinePoolSize)
}

// serverOf returns the client of the server of key, and numbers the connections to it from now on:
// the client of a cluster may have met that server before New had it. It returns rdb where the
// server is not known.
func serverOf(rdb redis.UniversalClient, key string) redis.UniversalClient {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok || key == "" {
		return rdb
	}
	node, err := cluster.MasterForKey(ended, key)
	if err != nil {
		return rdb
	}
	dialsOf(node)
	return node
}

// Do sends a command that may be repeated to the server of a client.
func Do(ctx context.Context, node redis.UniversalClient, cmd redis.Cmder) {
	process(ctx, node, []redis.Cmder{cmd})
}

// MaxPipeline is how many commands go into one pipeline, so that one does not keep a connection, or
// the server, for long.
const MaxPipeline = 1000

func process(ctx context.Context, rdb redis.UniversalClient, cmds []redis.Cmder) {
	returned := false
	defer func() {
		if !returned {
			Fail(cmds, NotReturned(recover()))
		}
	}()
	if len(cmds) == 1 {
		send(ctx, rdb, cmds)
	} else {
		for part := range slices.Chunk(cmds, MaxPipeline) {
			send(ctx, rdb, part)
		}
	}
	returned = true
}

// pipelineOf asks each type of client by itself: a program that calls UniversalClient.Pipeline
// links the pipelines of all that there are, go-redis's AutoPipeliner among them.
func pipelineOf(rdb redis.UniversalClient) redis.Pipeliner {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return cluster.Pipeline()
	}
	return rdb.(*redis.Client).Pipeline()
}

// sendOnce sends a command by itself, or several in one pipeline. With repeats the client may send
// them again by itself, as its options say.
func sendOnce(ctx context.Context, rdb redis.UniversalClient, cmds []redis.Cmder, repeats bool) {
	first := cmds[0]
	if !repeats {
		first = unrepeated(first) // a pipeline is not repeated if one of its commands must not be
	}
	if len(cmds) == 1 {
		rdb.Process(ctx, first) //nolint:errcheck // the command has it
		return
	}
	pipe := pipelineOf(rdb)
	err := pipe.BatchProcess(ctx, first)
	if err == nil {
		err = pipe.BatchProcess(ctx, cmds[1:]...)
	}
	if err != nil {
		Fail(cmds, err)
		return
	}
	_, err = pipe.Exec(ctx)
	if err != nil && !slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Err() != nil }) {
		Fail(cmds, err) // a hook's: no command has it
	}
}

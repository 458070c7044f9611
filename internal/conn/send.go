package conn

import (
	"context"
	"errors"
	"net"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Servers and load balancers close idle connections. go-redis detects that before it uses a plain
// TCP connection again, but not over TLS or with the program's own Dialer. There the next command
// fails, although Redis works. Therefore this package immediately resends commands that failed on
// a closed connection from the pool, until a connection works. Each attempt removes a closed
// connection from the pool. If a connection that was made after the command is closed as well,
// Redis has failed.

// onClosed reports whether err says that the command was sent on a closed connection from the
// pool. last is the number of the last connection made before the command. A connection without a
// number is older than the hook that numbers them.
func onClosed(err error, last int64) bool {
	if err == nil || IsReply(err) || !isClosed(err) {
		return false
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return false
	}
	e, numbered := errors.AsType[*closedError](err)
	return !numbered || e.number <= last
}

// send sends one command, or several in one pipeline, and resends those that failed on closed
// connections. In these attempts the client's own retries are disabled: the client waits before
// each retry, and its next connection is probably closed as well. After any other failure, send
// sends the commands once more with the client's retries.
func send(ctx context.Context, rdb redis.UniversalClient, cmds []redis.Cmder) {
	last := connections.Load()
	sendOnce(ctx, rdb, cmds, false)
	resend(ctx, rdb, cmds, last)
	if ctx.Err() == nil && retryable(cmds) && clientRetries(rdb) {
		sendOnce(ctx, rdb, cmds, true)
	}
}

// retryable reports whether the client would retry cmds: all of them, in their order.
func retryable(cmds []redis.Cmder) bool {
	first, last := cmds[0].Err(), cmds[len(cmds)-1].Err()
	return (Unable(first) || redis.IsTryAgainError(first) || last != nil && !IsReply(last)) &&
		!slices.ContainsFunc(cmds, redis.Cmder.NoRetry)
}

// resend repeats the commands that failed on a closed connection, in their order. If one of them
// must not be sent twice, resend sends PING instead until Redis replies, and marks the errors of
// all as Stale. last is the number of the last connection made before the commands were sent.
func resend(ctx context.Context, rdb redis.UniversalClient, cmds []redis.Cmder, last int64) {
	failed := allOnClosed(cmds, last)
	if len(failed) == 0 {
		return
	}
	node := serverOf(rdb, keyOf(failed[0]))
	if !slices.ContainsFunc(failed, redis.Cmder.NoRetry) {
		sendUntilOpen(ctx, rdb, failed, last)
		return
	}
	pings := []redis.Cmder{redis.NewStatusCmd(ctx, "ping"), redis.NewStatusCmd(ctx, "ping")}
	pings = pings[:min(len(cmds), 2)] // go-redis has one pool for commands, and another for pipelines
	if !sendUntilOpen(ctx, node, pings, last) || pings[0].Err() != nil && !IsReply(pings[0].Err()) {
		return
	}
	for _, cmd := range failed {
		cmd.SetErr(&staleError{cmd.Err()})
	}
}

// sendUntilOpen sends commands until none of them fails on a closed connection. It reports
// whether it has achieved that. A command may have another error then.
func sendUntilOpen(ctx context.Context, rdb redis.UniversalClient, cmds []redis.Cmder, last int64) bool {
	for range maxPooled(rdb) {
		if ctx.Err() != nil {
			return false
		}
		sendOnce(ctx, rdb, cmds, false)
		if cmds = allOnClosed(cmds, last); len(cmds) == 0 {
			return true
		}
	}
	return false
}

// allOnClosed returns the commands that failed on a closed connection.
func allOnClosed(cmds []redis.Cmder, last int64) (all []redis.Cmder) {
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && onClosed(err, last) {
			all = append(all, cmd)
		}
	}
	return all
}

// clientRetries reports whether the client's own retries are enabled.
func clientRetries(rdb redis.UniversalClient) bool {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return cluster.Options().MaxRedirects > 0
	}
	return rdb.(*redis.Client).Options().MaxRetries > 0
}

// maxPooled returns the maximum number of idle connections to one server in the pools of a
// client.
func maxPooled(rdb redis.UniversalClient) int {
	size, pipelines := 0, 0
	switch c := rdb.(type) {
	case *redis.Client:
		size, pipelines = c.Options().PoolSize, c.Options().PipelinePoolSize
	case *redis.ClusterClient:
		size, pipelines = c.Options().PoolSize, c.Options().PipelinePoolSize
	}
	return size + max(pipelines, redis.DefaultPipelinePoolSize)
}

// serverOf returns the client of the server of key, or rdb if that is unknown. From then on,
// connections to that server are numbered: a cluster's client may have connected to it before it
// was passed to New.
func serverOf(rdb redis.UniversalClient, key string) redis.UniversalClient {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok || key == "" {
		return rdb
	}
	node, err := cluster.MasterForKey(cancelledCtx, key)
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

// MaxPipeline is the maximum number of commands in one pipeline, so that none occupies a
// connection, or the server, for long.
const MaxPipeline = 1000

// process sends cmds, and sets the reply or error of each, even if a hook of the client panics or
// calls runtime.Goexit.
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

// pipelineOf returns a pipeline of a client. It does not call UniversalClient.Pipeline, because a
// program that does links the pipelines of all types of clients, including AutoPipeliner.
func pipelineOf(rdb redis.UniversalClient) redis.Pipeliner {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return cluster.Pipeline()
	}
	return rdb.(*redis.Client).Pipeline()
}

// sendOnce sends one command, or several in one pipeline. If retry is true, the client's own
// retries are enabled.
func sendOnce(ctx context.Context, rdb redis.UniversalClient, cmds []redis.Cmder, retry bool) {
	first := cmds[0]
	if !retry {
		first = withoutRetry(first) // a pipeline is not repeated if one of its commands must not be
	}
	if len(cmds) == 1 {
		// The keys of our commands follow one another. Without this, the client of a cluster asks a
		// node for that (COMMAND) for up to 5 seconds, regardless of ctx (go-redis 9.23, cmdInfo).
		first.SetStepCount(1)
		rdb.Process(ctx, first) //nolint:errcheck // it is the command's error
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
		Fail(cmds, err) // the error of a hook, which did not set it on any command
	}
}

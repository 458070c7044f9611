package conn

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// Servers and load balancers close idle connections. go-redis notices that before it uses a plain
// TCP connection, but not over TLS or behind a Dialer of the program's own: there the next command
// fails. That is no trouble of Redis. So this package sends commands again that a connection from
// the pool has lost, at once, until a connection works. Each try removes a closed connection from
// the pool. If a connection that was made after the command is closed as well, Redis is in trouble.

// connections numbers the connections of all clients in the order in which they are made.
var connections atomic.Int64

// connection is a connection whose errors carry its number.
type connection struct {
	net.Conn
	number int64
}

// transparent is a connection that go-redis can examine before it uses it again.
type transparent struct {
	*connection
	syscall.Conn
}

// anyOpaque is whether any client has had a connection that go-redis cannot examine.
var anyOpaque atomic.Bool

// isOpaque reports whether this client has had one.
func isOpaque(rdb redis.UniversalClient) bool {
	if !anyOpaque.Load() {
		return false
	}
	switch c := rdb.(type) {
	case *redis.Client:
		return dialsOf(c).opaque.Load()
	case *redis.ClusterClient:
		return watchNodes(c).opaque.Load()
	}
	return false
}

func numbered(c net.Conn) (_ net.Conn, opaque bool) {
	n := &connection{c, connections.Add(1)}
	if s, ok := c.(syscall.Conn); ok {
		return transparent{n, s}, false
	}
	return n, true
}

func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, ofConnection(c.number, err)
}

func (c *connection) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, ofConnection(c.number, err)
}

// NetConn returns the connection that the client's Dialer has made.
func (c *connection) NetConn() net.Conn { return c.Conn }

// closedError is the error of a connection that was closed.
type closedError struct {
	error
	number int64 // of the connection
}

// Unwrap returns a list, which errors.Unwrap does not look into: go-redis unwraps the errors of new
// connections once by errors.Unwrap, and would lose the number.
func (e *closedError) Unwrap() []error { return []error{e.error} }

func ofConnection(number int64, err error) error {
	if err == nil || !isClosed(err) {
		return err
	}
	return &closedError{err, number}
}

// isClosed reports whether err says that a connection is closed.
func isClosed(err error) bool {
	for _, target := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

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

// staleError is the error of a command that must not be sent twice, and that a closed connection
// has lost. Redis has replied to another command since.
type staleError struct{ error }

func (e *staleError) Unwrap() error { return e.error }

// Stale reports whether err is that of a command that must not be sent twice, and that a closed
// connection from the pool has lost, although Redis is within reach. The command may have been
// carried out. The caller may ask again at once, under another token, MaxStale times.
func Stale(err error) bool {
	_, ok := errors.AsType[*staleError](err)
	return ok
}

// MaxStale is the maximum number of times that a request is made again because its error is Stale.
// Usually one is enough: when the error is returned, a connection that works is back in the pool.
const MaxStale = 16

// send sends a command by itself, or several in one pipeline, and again where closed connections
// lose them. Where that is to be expected the client does not repeat them: it waits before each
// try, and the next connection is probably closed as well. Other failures are left to the client.
func send(ctx context.Context, rdb redis.UniversalClient, cmds []redis.Cmder) {
	last, expected := connections.Load(), isOpaque(rdb)
	sendOnce(ctx, rdb, cmds, !expected)
	resend(ctx, rdb, cmds, last)
	if expected && ctx.Err() == nil && retryable(cmds) {
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

// ended is a context with which a cluster's client says what it knows, and asks nothing.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Do sends a command that may be repeated to the server of a client.
func Do(ctx context.Context, node redis.UniversalClient, cmd redis.Cmder) {
	process(ctx, node, []redis.Cmder{cmd})
}

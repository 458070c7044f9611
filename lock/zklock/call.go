package zklock

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

var (
	errTimeout = errors.New("no reply from ZooKeeper in time")
	errExpired = errors.New("the session with ZooKeeper has expired")
)

// call is a request that runs on its own goroutine, because go-zk does not support contexts. It
// ends at the latest when the connection or the client is closed. If a connection ends before a
// request was sent, go-zk sends the request on the next connection. So a caller that abandons a
// request must find out its outcome later.
type call[T any] struct {
	done  chan struct{}
	sent  time.Time
	value T
	err   error
}

// begin waits for a connection and sends a request.
func begin[T any](ctx context.Context, c *client, f func(*zk.Conn) (T, error)) (*call[T], error) {
	s, l, err := c.connected(ctx)
	if err != nil {
		return nil, err
	}
	k := &call[T]{done: make(chan struct{}), sent: time.Now()}
	if !c.background(func() {
		defer close(k.done)
		k.value, k.err = f(c.conn)
		c.recordReply(s, l, k.sent, k.err)
	}) {
		return nil, errClosed
	}
	return k, nil
}

// recordReply updates the session after a request.
func (c *client) recordReply(s *session, l *link, sent time.Time, err error) {
	if errors.Is(err, zk.ErrSessionExpired) {
		c.expired(s)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if replied(err) && c.current == s && c.link == l {
		s.record(sent, time.Now())
	}
}

// wait returns the reply of the server. If ctx ends first, the request may still be carried out.
func (c *call[T]) wait(ctx context.Context) (T, error) {
	select {
	case <-c.done:
		return c.value, c.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// do sends a request and waits for the reply, for at most the timeout.
func do[T any](ctx context.Context, c *client, timeout time.Duration, f func(*zk.Conn) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	k, err := begin(ctx, c, f)
	if err != nil {
		var none T
		return none, err
	}
	return k.wait(ctx)
}

// watch returns a channel that receives when the node may be deleted, or zk.ErrNoNode if it does
// not exist. go-zk keeps a watch until it fires, even if no caller waits for it, so watch
// registers at most one for each node.
//
// The watch is on the children of the node. An ephemeral node cannot have children, so the watch
// fires only on deletion. It does not fire when the owner sets the node's data to prove that its
// session lives.
func (c *client) watch(ctx context.Context, node string, timeout time.Duration) (<-chan zk.Event, error) {
	c.mu.Lock()
	maps.DeleteFunc(c.watches, func(_ string, ch <-chan zk.Event) bool { return fired(ch) })
	ch := c.watches[node]
	c.mu.Unlock()
	if ch != nil {
		return ch, nil
	}
	return do(ctx, c, timeout, func(z *zk.Conn) (<-chan zk.Event, error) {
		_, _, ch, err := z.ChildrenW(node)
		if err == nil { // even if the caller has returned
			c.mu.Lock()
			c.watches[node] = ch
			c.mu.Unlock()
		}
		return ch, err
	})
}

// fired reports whether a watch has fired. Its channel is then closed, which wakes all callers
// that wait for it.
func fired(ch <-chan zk.Event) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// replyErrors are the errors with which a server rejects a request. The request was not carried
// out.
var replyErrors = []error{zk.ErrAPIError, zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals,
	zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrInvalidACL, zk.ErrBadArguments}

// replied reports whether the server has replied, so the outcome of the request is known.
func replied(err error) bool {
	return err == nil || refused(err) ||
		slices.ContainsFunc(replyErrors, func(e error) bool { return errors.Is(err, e) })
}

// refused reports whether a server has rejected a request with an error that go-zk does not know.
// A retry would be rejected, too.
func refused(err error) bool {
	// Unimplemented; an ephemeral node of a local session; SASL is required; a quota is exceeded.
	for _, code := range []string{"-6", "-120", "-124", "-125"} {
		if err != nil && strings.HasSuffix(err.Error(), "unknown error: "+code) {
			return true
		}
	}
	return false
}

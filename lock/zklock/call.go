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
	errTimeout = errors.New("ZooKeeper did not answer in time")
	errExpired = errors.New("the session with ZooKeeper has expired")
)

// call is a request, on a goroutine of its own: go-zk knows no contexts. It ends with the
// connection, or the client, at the latest. One that has not been sent when the connection ends is
// sent by the next, so a caller that has given up a request must find out in the end what has
// become of it.
type call[T any] struct {
	done  chan struct{}
	sent  time.Time
	value T
	err   error
}

// begin sends a request, once there is a connection.
func begin[T any](ctx context.Context, c *client, f func(*zk.Conn) (T, error)) (*call[T], error) {
	s, l, err := c.connected(ctx)
	if err != nil {
		return nil, err
	}
	k := &call[T]{done: make(chan struct{}), sent: time.Now()}
	if !c.background(func() {
		defer close(k.done)
		k.value, k.err = f(c.conn)
		c.noted(s, l, k.sent, k.err)
	}) {
		return nil, errClosed
	}
	return k, nil
}

// noted is what an answer tells of the session.
func (c *client) noted(s *session, l *link, sent time.Time, err error) {
	if errors.Is(err, zk.ErrSessionExpired) {
		c.expired(s)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if answered(err) && c.now == s && c.link == l {
		s.hear(sent, time.Now())
	}
}

// wait returns what the server has answered. After another error the request may yet be carried
// out.
func (c *call[T]) wait(ctx context.Context) (T, error) {
	select {
	case <-c.done:
		return c.value, c.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// do is begin and wait, bounded by a time-out.
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

// watch returns a channel that has something to receive when the node is gone, or may be;
// zk.ErrNoNode if it is. go-zk keeps a watch until it fires, whether a caller still waits or not;
// so there is one for each node, however often it is waited for.
//
// It watches the children of the node, which an ephemeral one cannot have: so it does not hear of
// the node's data, which its owner sets whenever it proves that it lives.
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
		if err == nil { // also if the caller has left
			c.mu.Lock()
			c.watches[node] = ch
			c.mu.Unlock()
		}
		return ch, err
	})
}

// fired reports whether a watch has fired. Its channel is closed then, so all that wait for it are
// woken.
func fired(ch <-chan zk.Event) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// answers are the errors that only a server gives: it has not done what was asked for.
var answers = []error{zk.ErrAPIError, zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals, zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrInvalidACL, zk.ErrBadArguments}

// answered reports whether a request was answered, so that it is known whether it was carried out.
func answered(err error) bool {
	return err == nil || refused(err) || slices.ContainsFunc(answers, func(e error) bool { return errors.Is(err, e) })
}

// refused reports whether a server has refused a request for a reason that go-zk does not know: a
// caller that asked again would be refused again.
func refused(err error) bool {
	for _, code := range []string{"-6", "-120", "-124", "-125"} { // unimplemented; an ephemeral node of a local session; SASL is required; a quota is exceeded
		if err != nil && strings.HasSuffix(err.Error(), "unknown error: "+code) {
			return true
		}
	}
	return false
}

package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// held is a lock that this process has.
type held struct {
	d       *client
	node    string
	session *session
	lost    func(error)
	timeout time.Duration // of a request

	unknown bool        // a Release was sent, and not answered
	cleans  atomic.Bool // the node is being deleted in the background
}

var errUnproven = errors.New("the leader may have lost the session")

// prove has the leader carry out a request for a node, as long as it is there and its session's: so
// does a lock whose node is the first. It tells when that was sent, and until when the session
// lives. A server that is cut off from the others could not answer that, but could answer any
// question.
func (c *client) prove(ctx context.Context, s *session, node string, timeout time.Duration) (stat *zk.Stat, sent, lives time.Time, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	k, err := begin(ctx, c, func(z *zk.Conn) (*zk.Stat, error) { return z.Set(node, nil, -1) })
	if err == nil {
		stat, err = k.wait(ctx)
	}
	if err != nil {
		return nil, sent, lives, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.ended() || stat.EphemeralOwner != s.id {
		return nil, sent, lives, errExpired
	}
	return stat, k.sent, s.lives(k.sent), nil
}

// hold notes a lock that was got; false if its session is over already.
func (c *client) hold(h *held) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.session.ended() {
		return false
	}
	h.session.locks[h.node] = h.lost
	return true
}

func (h *held) Extend(ctx context.Context, ttl time.Duration) error {
	_, sent, lives, err := h.d.prove(ctx, h.session, h.node, h.timeout)
	switch {
	case gone(err) || h.session.ended():
		h.end()
		return fmt.Errorf("%w: %w", driver.ErrLost, cmp.Or(err, errExpired))
	case err == nil && lives.Before(sent.Add(ttl)):
		return errUnproven
	}
	return err
}

// gone tells whether an error says that a node, or its session, is.
func gone(err error) bool {
	return errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrSessionExpired) || errors.Is(err, errExpired)
}

// end notes that it is not held any more.
func (h *held) end() {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	delete(h.session.locks, h.node)
}

// clean deletes the node in the background, unless that is being done.
func (h *held) clean() {
	if !h.cleans.Swap(true) {
		h.d.background(func() { h.d.remove(h.node, h.timeout) })
	}
}

// Release deletes the node. If the node is not known to be deleted, that goes on in the background,
// for as long as the session may live.
func (h *held) Release(ctx context.Context) error {
	h.end()
	if h.session.ended() {
		h.clean() // it goes with the session, unless that has only changed its time-out
		return driver.ErrLost
	}
	_, err := do(ctx, h.d, h.timeout, func(z *zk.Conn) (bool, error) { return true, z.Delete(h.node, -1) })
	before := h.unknown
	h.unknown = before || !answered(err)
	switch {
	case errors.Is(err, zk.ErrNoNode) && before:
		return nil // by a request before
	case gone(err):
		return driver.ErrLost
	case !answered(err):
		h.clean()
	}
	return err
}

// remove deletes a node, however long that takes.
func (c *client) remove(node string, timeout time.Duration) {
	for pause := 5 * time.Millisecond; c.closing.Err() == nil; pause = min(2*pause, time.Second) {
		_, err := do(c.closing, c, timeout, func(z *zk.Conn) (bool, error) { return true, z.Delete(node, -1) })
		if answered(err) { // or it may not be deleted
			return
		}
		c.sleep(pause)
	}
}

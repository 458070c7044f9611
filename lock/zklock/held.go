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

// held is an acquired lock.
type held struct {
	client  *client
	node    string
	session *session
	lost    func(error)
	timeout time.Duration // of each request

	releaseSent bool        // a Release was sent, and its reply was lost
	deleting    atomic.Bool // the node is being deleted in the background
}

var errUnproven = errors.New("the leader has not confirmed that the session lives")

// prove makes the leader carry out a write to the node, which succeeds only if the node exists.
// The node of a lock is the first in the queue. prove returns when the write was sent, and until
// when the session is then known to live. A server that is disconnected from the others can reply
// to reads but not to writes.
func (c *client) prove(
	ctx context.Context, s *session, node string, timeout time.Duration,
) (stat *zk.Stat, sent, lives time.Time, err error) {
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
	return stat, k.sent, s.livesUntil(k.sent), nil
}

// addLock registers an acquired lock with its session. It returns false if the session has ended.
func (c *client) addLock(h *held) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.session.ended() {
		return false
	}
	h.session.locks[h.node] = h.lost
	return true
}

func (h *held) Extend(ctx context.Context, ttl time.Duration) error {
	_, sent, lives, err := h.client.prove(ctx, h.session, h.node, h.timeout)
	switch {
	case gone(err) || h.session.ended():
		h.removeLock()
		return fmt.Errorf("%w: %w", driver.ErrLost, cmp.Or(err, errExpired))
	case err == nil && lives.Before(sent.Add(ttl)):
		return errUnproven
	}
	return err
}

// gone reports whether err says that a node or its session does not exist any more.
func gone(err error) bool {
	return errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrSessionExpired) || errors.Is(err, errExpired)
}

// removeLock removes the lock from its session.
func (h *held) removeLock() {
	h.client.mu.Lock()
	defer h.client.mu.Unlock()
	delete(h.session.locks, h.node)
}

// deleteLater deletes the node in the background, unless that is in progress.
func (h *held) deleteLater() {
	if !h.deleting.Swap(true) {
		h.client.background(func() { h.client.remove(h.node, h.timeout) })
	}
}

// Release deletes the node. If the deletion is not confirmed, it continues in the background for
// as long as the session may live.
func (h *held) Release(ctx context.Context) error {
	h.removeLock()
	if h.session.ended() {
		h.deleteLater() // needed if only the session's timeout has changed
		return driver.ErrLost
	}
	_, err := do(ctx, h.client, h.timeout, func(z *zk.Conn) (bool, error) { return true, z.Delete(h.node, -1) })
	before := h.releaseSent
	h.releaseSent = before || !replied(err)
	switch {
	case errors.Is(err, zk.ErrNoNode) && before:
		return nil // an earlier request has deleted it
	case gone(err):
		return driver.ErrLost
	case !replied(err):
		h.deleteLater()
	}
	return err
}

// remove deletes a node. It retries until the server replies or the client is closed.
func (c *client) remove(node string, timeout time.Duration) {
	for delay := 5 * time.Millisecond; c.closing.Err() == nil; delay = min(2*delay, time.Second) {
		_, err := do(c.closing, c, timeout, func(z *zk.Conn) (bool, error) { return true, z.Delete(node, -1) })
		if replied(err) { // deleted, or the deletion is not allowed
			return
		}
		c.sleep(delay)
	}
}

package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// attempt is the state of one Acquire.
type attempt struct {
	client *client
	r      driver.Request
	parent string

	id        string        // id in the name of the node
	created   *call[string] // request that creates the node; nil: none, or it has failed
	node      string        // path of the node; empty: not known
	lastReply time.Time     // when ZooKeeper last replied
}

// Acquire waits in ZooKeeper's queue. If it fails, it deletes its node, if necessary in the
// background.
func (c *client) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := c.start(); err != nil {
		return driver.Grant{}, err
	}
	a := &attempt{client: c, r: r, parent: c.options.Root + "/" + escape(r.Key), lastReply: time.Now()}
	g, err := a.run(ctx)
	if err != nil {
		a.abandon()
	}
	return g, err
}

var errRetry = errors.New("the node, or the one before it, was deleted")

// run runs steps until it gets the lock or must not wait for it. It tolerates failing requests
// for up to maxSilence.
func (a *attempt) run(ctx context.Context) (driver.Grant, error) {
	for {
		g, err := a.step(ctx)
		switch {
		case err == nil && g.Lock != nil:
			return g, nil
		case ctx.Err() != nil:
			return g, context.Cause(ctx)
		case err == nil, errors.Is(err, errRetry):
			a.lastReply = time.Now()
			continue
		case gone(err): // the session has expired, and the node with it
			a.lastReply = time.Now()
		case replied(err), errors.Is(err, driver.ErrHeld), errors.Is(err, errClosed),
			time.Since(a.lastReply) > a.maxSilence():
			return g, err
		}
		a.client.sleep(10 * time.Millisecond)
	}
}

// maxSilence returns how long ZooKeeper may fail to reply. A waiting contender keeps its place in
// the queue for as long as its session may live.
func (a *attempt) maxSilence() time.Duration {
	if a.node != "" && a.r.Wait {
		return a.client.options.SessionTimeout
	}
	return 2 * a.r.Timeout
}

// checkFree returns ErrHeld to a caller that does not wait if the queue is not empty, without
// creating a node. It asks the leader, because the data of a server may be old.
func (a *attempt) checkFree(ctx context.Context) error {
	names, err := a.contenders(ctx)
	if errors.Is(err, zk.ErrNoNode) {
		return nil
	}
	for _, name := range names {
		if _, _, ok := place(name); ok {
			return driver.ErrHeld
		}
	}
	return err
}

// contenders returns the queue as the leader knows it. It fails if the connection changes between
// its two requests: Sync concerns only the server that has received it, and the next one may be
// behind.
func (a *attempt) contenders(ctx context.Context) ([]string, error) {
	return do(ctx, a.client, a.r.Timeout, func(z *zk.Conn) ([]string, error) {
		before := a.client.currentLink()
		if _, err := z.Sync(a.parent); err != nil {
			return nil, err
		}
		names, _, err := z.Children(a.parent)
		if before == nil || a.client.currentLink() != before {
			return nil, errNoConnection
		}
		return names, err
	})
}

// step creates the node if necessary, and then acquires the lock or waits until the node before
// its own is deleted.
func (a *attempt) step(ctx context.Context) (g driver.Grant, err error) {
	if !a.r.Wait && a.created == nil {
		if err := a.checkFree(ctx); err != nil {
			return g, err
		}
	}
	if err := a.ensureNode(ctx); err != nil {
		return g, err
	}
	names, err := do(ctx, a.client, a.r.Timeout,
		func(z *zk.Conn) ([]string, error) { names, _, err := z.Children(a.parent); return names, err })
	if err != nil {
		return g, a.forgetIfGone(err)
	}
	before, found := ahead(names, a.id)
	switch {
	case !found: // the node is deleted, or the server is behind
		node, err := a.findNode(ctx)
		if err == nil && node == "" {
			err = errRetry
		}
		return g, a.forgetIfGone(err)
	case before == "":
		return a.take(ctx)
	case !a.r.Wait:
		return g, driver.ErrHeld
	}
	return g, a.wait(ctx, a.parent+"/"+before)
}

// forgetIfGone forgets the node if err says that it does not exist any more. It returns err.
func (a *attempt) forgetIfGone(err error) error {
	if gone(err) || errors.Is(err, errRetry) {
		a.created, a.node = nil, ""
	}
	return err
}

// ensureNode creates the node. If the reply is lost, it searches for a node with its id before it
// creates another one.
func (a *attempt) ensureNode(ctx context.Context) error {
	if a.node != "" {
		return nil
	}
	if a.created == nil {
		if err := a.create(ctx); err != nil {
			return err
		}
	}
	limited, cancel := context.WithTimeoutCause(ctx, a.r.Timeout, errTimeout)
	defer cancel()
	node, err := a.created.wait(limited)
	select {
	case <-a.created.done:
	default:
		return err
	}
	switch {
	case err == nil:
		a.node = node
		return nil
	case replied(err):
		a.created = nil
	default:
		node, err = a.findNode(ctx)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		if a.node = node; node == "" {
			a.created = nil
			a.client.sleep(10 * time.Millisecond) // the servers may be overloaded
			return errRetry
		}
		return nil
	}
	if errors.Is(err, zk.ErrNoNode) {
		if err = a.client.createParents(ctx, a.parent, a.r.Timeout); err == nil {
			err = errRetry
		}
	}
	return err
}

func (a *attempt) create(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, a.r.Timeout, errTimeout)
	defer cancel()
	a.id = newID()
	path := a.parent + "/" + nodeName(a.id)
	a.created, err = begin(ctx, a.client, func(z *zk.Conn) (string, error) {
		return z.Create(path, nil, zk.FlagEphemeralSequential, a.client.options.ACL)
	})
	return err
}

// findNode searches for the node after its request has ended. It asks the leader, because the
// client may be connected to another server now, which does not know the node yet.
func (a *attempt) findNode(ctx context.Context) (string, error) {
	names, err := a.contenders(ctx)
	for _, name := range names {
		if id, _, ok := place(name); ok && id == a.id {
			return a.parent + "/" + name, nil
		}
	}
	return "", err
}

// wait returns when the node before may be deleted. It also returns after one session timeout, in
// case the watch is lost.
func (a *attempt) wait(ctx context.Context, before string) error {
	s := a.client.session()
	if s == nil {
		return errNoConnection
	}
	ch, err := a.client.watch(ctx, before, a.r.Timeout)
	if errors.Is(err, zk.ErrNoNode) {
		return errRetry
	}
	if err != nil {
		return err
	}
	a.lastReply = time.Now()
	backstop := time.NewTimer(a.client.options.SessionTimeout)
	defer backstop.Stop()
	select {
	case <-ch:
	case <-s.gone:
	case <-backstop.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-a.client.closing.Done():
		return errClosed
	}
	a.lastReply = time.Now()
	return nil
}

// take acquires the lock. The node is the first in the queue, and the leader confirms that the node
// exists and that the session lives. If the session is proven to live for less than the TTL, the
// start of the TTL is moved back, so that the TTL ends no later than the session.
func (a *attempt) take(ctx context.Context) (g driver.Grant, err error) {
	s := a.client.session()
	if s == nil {
		return g, errNoConnection
	}
	ttl := min(a.r.TTL, maxTTL(s.timeout))
	stat, sent, lives, err := a.client.prove(ctx, s, a.node, a.r.Timeout)
	switch {
	case errors.Is(err, errExpired):
		return g, err // the node may belong to the next session already; search for it again
	case err != nil:
		return g, a.forgetIfGone(err)
	case lives.Before(sent.Add(ttl / 2)):
		return g, errUnproven
	case lives.Before(sent.Add(ttl)):
		sent = lives.Add(-ttl)
	}
	h := &held{client: a.client, node: a.node, session: s, lost: a.r.Lost, timeout: a.r.Timeout}
	if !a.client.addLock(h) {
		return g, a.forgetIfGone(errExpired)
	}
	return driver.Grant{Lock: h, Token: stat.Czxid, Sent: sent, TTL: ttl}, nil
}

// abandon deletes the node in the background, even if a request that no caller waits for creates
// it later.
func (a *attempt) abandon() {
	if a.created != nil {
		a.client.background(a.deleteNode)
	}
}

// deleteNode finds out whether the node was created, and deletes it. ZooKeeper carries out no
// request of an old connection after a request of the next one.
func (a *attempt) deleteNode() {
	select {
	case <-a.created.done:
	case <-a.client.closing.Done():
		return
	}
	node, err := a.created.value, a.created.err
	for delay := 5 * time.Millisecond; err != nil && !replied(err); delay = min(2*delay, time.Second) {
		a.client.sleep(delay)
		if a.client.closing.Err() != nil {
			return
		}
		node, err = a.findNode(a.client.closing)
	}
	if err == nil && node != "" {
		a.client.remove(node, a.r.Timeout)
	}
}

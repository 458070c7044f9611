package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/cacheaside/cacheaside/lock/driver"
)

// attempt is one Acquire.
type attempt struct {
	d      *client
	r      driver.Request
	parent string

	id      string        // of the node
	created *call[string] // the request for it; nil: none, or it has failed
	node    string        // empty: not known yet
	heard   time.Time     // when ZooKeeper has last answered
}

// Acquire waits in line. Its node is deleted, whatever ends the wait, in the background if need be.
func (c *client) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := c.start(); err != nil {
		return driver.Grant{}, err
	}
	a := &attempt{d: c, r: r, parent: c.options.Root + "/" + escape(r.Key), heard: time.Now()}
	g, err := a.run(ctx)
	if err != nil {
		a.abandon()
	}
	return g, err
}

var errAgain = errors.New("the node, or the one before it, is gone")

// run goes on until the lock is got, or it may not wait for it; it bears with requests that fail,
// within limits.
func (a *attempt) run(ctx context.Context) (driver.Grant, error) {
	for {
		g, err := a.step(ctx)
		switch {
		case err == nil && g.Lock != nil:
			return g, nil
		case ctx.Err() != nil:
			return g, context.Cause(ctx)
		case err == nil, errors.Is(err, errAgain):
			a.heard = time.Now()
			continue
		case gone(err): // with the session
			a.heard = time.Now()
		case answered(err), errors.Is(err, driver.ErrHeld), errors.Is(err, errClosed), time.Since(a.heard) > a.maxSilence():
			return g, err
		}
		a.d.sleep(10 * time.Millisecond)
	}
}

// maxSilence is for how long ZooKeeper may fail to answer: a contender in line keeps its place
// for as long as its session may live.
func (a *attempt) maxSilence() time.Duration {
	if a.node != "" && a.r.Wait {
		return a.d.options.SessionTimeout
	}
	return 2 * a.r.Timeout
}

// free tells a caller that does not wait that somebody is in line, without a node of the caller's
// own. A server's knowledge may be old, so it asks the leader first.
func (a *attempt) free(ctx context.Context) error {
	names, err := a.list(ctx)
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

// list is the line, as far as the leader knows.
func (a *attempt) list(ctx context.Context) ([]string, error) {
	return do(ctx, a.d, a.r.Timeout, func(z *zk.Conn) ([]string, error) {
		if _, err := z.Sync(a.parent); err != nil {
			return nil, err
		}
		names, _, err := z.Children(a.parent)
		return names, err
	})
}

// step stands in line, if that is yet to be done, and takes the lock, or waits until the one before
// has gone.
func (a *attempt) step(ctx context.Context) (g driver.Grant, err error) {
	if !a.r.Wait && a.created == nil {
		if err := a.free(ctx); err != nil {
			return g, err
		}
	}
	if err := a.stand(ctx); err != nil {
		return g, err
	}
	names, err := do(ctx, a.d, a.r.Timeout, func(z *zk.Conn) ([]string, error) { names, _, err := z.Children(a.parent); return names, err })
	if err != nil {
		return g, a.left(err)
	}
	before, found := ahead(names, a.id)
	switch {
	case !found: // or the server is behind
		node, err := a.find(ctx)
		if err == nil && node == "" {
			err = errAgain
		}
		return g, a.left(err)
	case before == "":
		return a.take(ctx)
	case !a.r.Wait:
		return g, driver.ErrHeld
	}
	return g, a.wait(ctx, a.parent+"/"+before)
}

// left forgets the node, if an error says that it has gone.
func (a *attempt) left(err error) error {
	if gone(err) || errors.Is(err, errAgain) {
		a.created, a.node = nil, ""
	}
	return err
}

// stand creates the node. If the reply is lost, it looks for it by its id, before it creates
// another.
func (a *attempt) stand(ctx context.Context) error {
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
	case answered(err):
		a.created = nil
	default:
		node, err = a.find(ctx)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		if a.node = node; node == "" {
			a.created = nil
			a.d.sleep(10 * time.Millisecond) // the servers may have too much to do
			return errAgain
		}
		return nil
	}
	if errors.Is(err, zk.ErrNoNode) {
		if err = a.d.createParents(ctx, a.parent, a.r.Timeout); err == nil {
			err = errAgain
		}
	}
	return err
}

func (a *attempt) create(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, a.r.Timeout, errTimeout)
	defer cancel()
	a.id = newID()
	path := a.parent + "/" + nodeName(a.id)
	a.created, err = begin(ctx, a.d, func(z *zk.Conn) (string, error) {
		return z.Create(path, nil, zk.FlagEphemeralSequential, a.d.options.ACL)
	})
	return err
}

// find looks for the node, of which the request is over. It asks the leader first: the server may
// be another one now, that has not heard of it.
func (a *attempt) find(ctx context.Context) (string, error) {
	names, err := a.list(ctx)
	for _, name := range names {
		if id, _, ok := place(name); ok && id == a.id {
			return a.parent + "/" + name, nil
		}
	}
	return "", err
}

// wait returns when the node before has gone, or may have; it asks now and then by itself, too.
func (a *attempt) wait(ctx context.Context, before string) error {
	s := a.d.session()
	if s == nil {
		return errNoConnection
	}
	ch, err := a.d.watch(ctx, before, a.r.Timeout)
	if errors.Is(err, zk.ErrNoNode) {
		return errAgain
	}
	if err != nil {
		return err
	}
	a.heard = time.Now()
	backstop := time.NewTimer(a.d.options.SessionTimeout)
	defer backstop.Stop()
	select {
	case <-ch:
	case <-s.gone:
	case <-backstop.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-a.d.closing.Done():
		return errClosed
	}
	a.heard = time.Now()
	return nil
}

// take takes the lock: the node is the first, and the leader confirms that it is still there, and
// lets it live. If the life is not proven to be a whole one, the lock begins with what is left of
// it.
func (a *attempt) take(ctx context.Context) (g driver.Grant, err error) {
	s := a.d.session()
	if s == nil {
		return g, errNoConnection
	}
	ttl := min(a.r.TTL, life(s.timeout))
	stat, sent, lives, err := a.d.prove(ctx, s, a.node, a.r.Timeout)
	switch {
	case errors.Is(err, errExpired):
		return g, err // the node may be that of the next session already: it is looked for again
	case err != nil:
		return g, a.left(err)
	case lives.Before(sent.Add(ttl / 2)):
		return g, errUnproven
	case lives.Before(sent.Add(ttl)):
		sent = lives.Add(-ttl)
	}
	h := &held{d: a.d, node: a.node, session: s, lost: a.r.Lost, timeout: a.r.Timeout}
	if !a.d.hold(h) {
		return g, a.left(errExpired)
	}
	return driver.Grant{Lock: h, Token: stat.Czxid, Sent: sent, TTL: ttl}, nil
}

// abandon deletes, in the background, the node that there may be: also one that is created only
// now, by a request that no caller waits for any more.
func (a *attempt) abandon() {
	if a.created != nil {
		a.d.background(a.undo)
	}
}

// undo finds out what has become of the request for the node. Nothing of an old connection comes
// after a request by the next.
func (a *attempt) undo() {
	select {
	case <-a.created.done:
	case <-a.d.closing.Done():
		return
	}
	node, err := a.created.value, a.created.err
	for pause := 5 * time.Millisecond; err != nil && !answered(err); pause = min(2*pause, time.Second) {
		a.d.sleep(pause)
		if a.d.closing.Err() != nil {
			return
		}
		node, err = a.find(a.d.closing)
	}
	if err == nil && node != "" {
		a.d.remove(node, a.r.Timeout)
	}
}

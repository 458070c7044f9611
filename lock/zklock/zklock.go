// Package zklock keeps the locks of package lock in ZooKeeper: they survive the loss of servers as
// long as most of them are left. Those who wait get a lock in the order in which they came, also
// between processes. The fencing token is ZooKeeper's own transaction number. The package is a
// module of its own.
package zklock

import (
	"context"
	"fmt"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// New makes a Locker on the ZooKeeper with these servers, each "host:port", or "host" for port
// 2181 (an IPv6 address with a port is "[::1]:2181"). It refuses an address that cannot work, such
// as one with a path: see Options.Root. It needs ZooKeeper 3.5 or later. nil options are the
// defaults. New does no I/O. The Locker has a session of its own, from its first use on, which
// Close ends; if the session expires, its locks are lost, and there is a new one.
//
// A lock is an ephemeral sequential node below a node of its own, Root/name, which is a container:
// the servers delete it a while after its last use. Root stays. Each contender watches only the one
// before it.
//
// Differences from other services: a lock lives, at most, for half of the time-out that the servers
// have granted the session: a longer lock.LockerOptions.TTL, or Options.TTL, counts as that; a
// shorter one is kept by the holder itself, but if its process dies, others wait for the whole
// time-out of the session. One small request each eighth of that keeps the session's life proven.
// Why half: a server that is not the leader tells the leader only each half of a tick which
// sessions it has heard of. That holds for time-outs of two ticks or more, as servers want them
// unless their minSessionTimeout is set.
//
// Tokens grow as long as the ensemble keeps its data; an ensemble that was set up anew begins anew.
func New(servers []string, options *Options) (*lock.Locker, error) {
	o := options.withDefaults()
	checked, err := addresses(servers)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return nil, fmt.Errorf("zklock: %w", err)
	}
	c := newClient(checked, o)
	d := &zookeeper{client: c, parents: parents{client: c, root: o.Root, acl: o.ACL}}
	d.watches.init()
	c.gone = d.watches.gone
	return lock.New(d, o.locker())
}

// zookeeper is the driver.
type zookeeper struct {
	*client
	parents parents
	watches watches
}

// Acquire waits in line. Its node is deleted, whatever ends the wait, in the background if need be.
func (d *zookeeper) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := d.start(); err != nil {
		return driver.Grant{}, err
	}
	a := newAttempt(d, r)
	g, err := a.run(ctx)
	if err != nil {
		a.abandon()
	}
	return g, err
}

// Close ends the session, and so all that is left of it.
func (d *zookeeper) Close() error {
	d.client.close()
	return nil
}

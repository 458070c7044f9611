// Package zklock keeps the locks of package lock in ZooKeeper: they survive the loss of servers as
// long as most of them are left. Those who wait get a lock in the order in which they came, also
// between processes. The fencing token is ZooKeeper's own transaction number. The package is a
// module of its own.
package zklock

import (
	"fmt"

	"github.com/cacheaside/cacheaside/lock"
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
	return lock.New(newClient(checked, o), o.locker())
}

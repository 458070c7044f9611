// Package zklock stores the locks of package lock in ZooKeeper. They survive the loss of a
// minority of the servers. Waiting callers get a lock in order of arrival, also across processes.
// The fencing token is ZooKeeper's transaction number. The package is a separate module.
package zklock

import (
	"fmt"

	"github.com/cacheaside/cacheaside/lock"
)

// New returns a Locker on the ZooKeeper ensemble with the given servers. Each is "host:port", or
// "host" for port 2181. An IPv6 address with a port is "[::1]:2181". New rejects invalid
// addresses, such as one with a path; use Options.Root instead. It needs ZooKeeper 3.5 or later.
// A nil options means the defaults. New does no I/O. The Locker opens its own session on first
// use, and Close ends it. If the session expires, its locks are lost and the Locker opens a new
// one.
//
// A lock is an ephemeral sequential node under its own container node, Root/name. The servers
// delete the container some time after its last use. Root remains. Each contender watches only
// the node before its own.
//
// The TTL differs from other services. It is at most half of the session timeout that the servers
// have granted; a longer TTL, of the Locker or of an Acquire, is reduced to that. The holder's
// process enforces a shorter TTL itself, but if the process dies, others wait for the whole
// session timeout. A small request in each eighth of the session timeout proves that the session
// lives.
//
// The TTL is only half of the session timeout because a server reports its sessions to the leader
// only once per half tick. The calculation requires a session timeout of at least two ticks,
// which servers enforce unless their minSessionTimeout is set.
//
// Tokens increase as long as the ensemble keeps its data. A new ensemble starts with small tokens
// again.
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

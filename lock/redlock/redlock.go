// Package redlock keeps the locks of package lock on several independent Redis servers, by the
// Redlock algorithm of github.com/go-redsync/redsync.
package redlock

import (
	"cmp"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/redislock"
	"github.com/cacheaside/cacheaside/lock"
)

// New makes a Locker on several Redis servers that know nothing of each other. The holder of a lock
// has it on a majority of them. So a lock survives the loss of a minority: of one in three, of two
// in five. nil options are the defaults. The clients stay the caller's, to be closed after the
// Locker. New does no I/O. Redis 7.0 or later, or Valkey.
//
// At least three nodes are needed, and each has one vote. Clients of one address are refused here.
// Two clients that lead to the same database of one server by different addresses count as one: the
// second vote is an error. A client that asks sentinels is refused, because a replica that is
// promoted may have forgotten the lock. Nodes of one Redis Cluster do not serve either: they refuse
// all keys except their own. An even number is allowed, and no better than the odd one below: four
// nodes can lose one, as three can, and votes can be split evenly.
//
// lock.LockerOptions.Timeout bounds each request to each node. Acquire, Extend and Release return
// when a majority has replied alike, so a node that hangs delays no caller, unless the votes of the
// others are split. Without a majority they return an error, within one time-out for each round of
// requests. A request to which a node has not replied is followed up in the background, until the
// node has released what the request got and has voided it, or the TTL has passed. Each request
// also names a time, by the clock of the node, after which the node must not carry it out. If a
// node does not reply, Close waits for one time-out, or for the ReadTimeout of a client without
// ContextTimeoutEnabled. Callers that wait are woken by messages of the nodes, otherwise when lives
// end, at least each second.
//
// A lock is a key on each node, prefix{name}, with the id of the holder. The last token is in
// prefix{name}:token, until a minute after it is in the past. A request that was given up is void
// while prefix{name}:id exists: for two time-outs and a second. The token costs a second round of
// requests, unless lock.Options.NoToken is set. It is greater than each token that was stored on a
// majority, and is itself stored on a majority while the lock is there. The user needs +eval
// +evalsha +get +set +del +time +pttl +pexpire +publish +subscribe +unsubscribe +ping, ~prefix* and
// &prefix*.
//
// Its limits: it relies on clocks and delays, as each lock with a life does. The holder's process,
// or a node, may be suspended; a request may be delayed in the network; a node's clock may be set
// (keep it slewed, not stepped). If that takes longer than what is left of the TTL, two processes
// may both believe that they hold the lock. Where the resource checks the token (see lock.Guard and
// lock.SetFenced), it tells the two apart: the later holder has the greater token. That holds as
// long as no clock of a node goes back by more than a minute, and the nodes keep their data.
//
// Restarts: a node without persistence (or with appendfsync everysec) has forgotten its votes, and
// would vote again. The node must stay out for at least the longest TTL in use after a restart;
// with appendfsync always it need not. Nothing here can see to that: it is up to the operator of
// the servers.
//
// A lock is not extended onto a node that was away when it was acquired: the next lock is on it
// again.
func New(clients []*redis.Client, options *lock.LockerOptions) (*lock.Locker, error) {
	d, err := newNodes(clients, options)
	if err != nil {
		return nil, fmt.Errorf("redlock: %w", err)
	}
	l, err := lock.New(d, options)
	if err != nil {
		d.Close() //nolint:errcheck // always nil
	}
	return l, err
}

// nodes is the driver.
type nodes struct {
	all    []*node
	quorum int
	prefix string
}

// node is one of the servers.
type node struct {
	rdb   *redis.Client
	conn  *conn.Conn
	clock redislock.Clock
	wakes *redislock.Wakes
}

func newNodes(clients []*redis.Client, options *lock.LockerOptions) (*nodes, error) {
	var o lock.LockerOptions
	if options != nil {
		o = *options
	}
	if len(clients) < 3 {
		return nil, fmt.Errorf("at least 3 Redis servers are needed, not %d; for one server use lock.NewRedis", len(clients))
	}
	d := &nodes{prefix: cmp.Or(o.Prefix, redislock.DefaultPrefix), quorum: len(clients)/2 + 1}
	addresses := make(map[string]int)
	for i, rdb := range clients {
		c, err := conn.New(rdb, cmp.Or(o.Timeout, redislock.DefaultTimeout))
		if err == nil {
			err = independent(rdb, i, addresses)
		}
		if err != nil {
			return nil, fmt.Errorf("client %d: %w", i, err)
		}
		d.all = append(d.all, &node{rdb: rdb, conn: c, wakes: redislock.NewWakes(rdb, c)})
	}
	return d, nil
}

// independent refuses a client that does not lead to a server of its own, as far as the options
// show that.
func independent(rdb *redis.Client, i int, addresses map[string]int) error {
	addr := rdb.Options().Addr
	if addr == "FailoverClient" { // go-redis' name for it
		return errors.New("it uses sentinels, and a promoted replica may have lost the lock")
	}
	if first, ok := addresses[addr]; ok {
		return fmt.Errorf("it leads to the same server as client %d", first)
	}
	addresses[addr] = i
	return nil
}

// Close waits for what goes on in the background.
func (d *nodes) Close() error {
	var all sync.WaitGroup
	for _, n := range d.all {
		n.wakes.Close()
		all.Go(n.conn.Close)
	}
	all.Wait()
	return nil
}

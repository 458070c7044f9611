// Package redlock stores the locks of package lock on several independent Redis servers. It uses
// the Redlock algorithm of github.com/go-redsync/redsync.
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

// New returns a Locker on several independent Redis servers, the nodes. The holder of a lock has
// it on a majority of them, so a lock survives the loss of a minority: one node of three, or two
// of five. A nil options means the defaults. The caller closes the clients after the Locker. New
// does no I/O. The nodes need Redis 7.0 or later, or Valkey.
//
// At least three nodes are needed, and each has one vote. New rejects two clients with the same
// address. Two clients that reach the same database of one server through different addresses
// count as one, and the second vote is an error. New rejects clients that use sentinels, because
// a promoted replica may have lost the lock. Nodes of a Redis Cluster cannot be used, because
// each accepts only its own keys. An even number of nodes is allowed but has no advantage over
// one node fewer: four nodes can lose one, as three can, and votes can be split evenly.
//
// lock.Options.Timeout limits each request to each node. Acquire, Extend and Release return
// when the replies of a majority agree, so one hanging node does not delay them unless the votes
// of the others are split. Without a majority they return an error, within one timeout for each
// round of requests. Each request carries a time, by the clock of the node, after which the node
// must not carry it out. If a node does not reply, the Locker follows up in the background, until
// the node has released and voided the request or the TTL has passed. If a node does not reply,
// Close waits for one timeout, or for the ReadTimeout of a client without ContextTimeoutEnabled.
// Messages of the nodes wake waiting callers. Without messages they retry when the locks expire,
// and at least every second.
//
// A lock is a key on each node, prefix{name}, with the id of the holder. The last token is in
// prefix{name}:token, until a minute after the time that the token encodes. While prefix{name}:id
// exists, the node does not carry out the request with that id; the Locker sets it for abandoned
// requests, for three timeouts and a second. The token costs a second round of requests, unless
// lock.AcquireOptions.NoToken is set. It is greater than each token that was stored on a majority,
// and is itself stored on a majority while the lock is held. The Redis user needs +eval +evalsha
// +get +set +del +time +pttl +pexpire +publish +subscribe +unsubscribe +ping, ~prefix* and
// &prefix*.
//
// Redlock relies on clocks and delays, as every lock with a TTL does. The holder's process or a
// node may be suspended, a request may be delayed in the network, or a node's clock may be set
// (configure it to slew, not step). If that takes longer than the remaining TTL, two processes
// may both believe that they hold the lock. A resource that checks the token (see lock.Guard and
// lock.SetFenced) can distinguish them, because the token of the later holder is greater. This is
// true as long as no clock of a node is set back by more than a minute and the nodes keep their
// data.
//
// A node that restarts without persistence, or with appendfsync everysec, has lost votes and may
// vote a second time. The operator must keep it down for at least the longest TTL in use. With
// appendfsync always this is not necessary. The library cannot enforce this rule.
//
// A held lock is not extended to a node that was down when the lock was acquired. The next lock
// uses that node again.
func New(clients []*redis.Client, options *lock.Options) (*lock.Locker, error) {
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

func newNodes(clients []*redis.Client, options *lock.Options) (*nodes, error) {
	var o lock.Options
	if options != nil {
		o = *options
	}
	if len(clients) < 3 {
		return nil, fmt.Errorf("at least 3 Redis servers are needed, not %d; for one server use lock.NewRedis",
			len(clients))
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

// independent returns an error if the options of rdb show that it does not reach a separate
// server.
func independent(rdb *redis.Client, i int, addresses map[string]int) error {
	addr := rdb.Options().Addr
	if addr == "FailoverClient" { // set by go-redis
		return errors.New("the client uses sentinels, and a promoted replica may have lost the lock")
	}
	if first, ok := addresses[addr]; ok {
		return fmt.Errorf("same server as client %d", first)
	}
	addresses[addr] = i
	return nil
}

// Close ends the background work and waits for it.
func (n *nodes) Close() error {
	var all sync.WaitGroup
	for _, each := range n.all {
		each.wakes.Close()
		all.Go(each.conn.Close)
	}
	all.Wait()
	return nil
}

package lock

import (
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// NewRedlock makes a Locker on several Redis servers that know nothing of each other: the holder of
// a lock has it on a majority of them (the Redlock algorithm, counted by redsync). So a lock keeps
// through the loss of a minority: of one in three, of two in five. nil options are the defaults.
// The clients stay the caller's, to be closed after the Locker. NewRedlock does no I/O. Redis
// 7.0 or later, or Valkey.
//
// There are at least three nodes, and each is asked once: clients of one address are refused here,
// and two that lead to the same database of one server by different ones count as one (the other's
// vote is an error). A client that asks sentinels is refused: a replica that is promoted may have
// forgotten the lock. Nodes of one Redis Cluster do not serve as nodes, either: they refuse all
// keys but their own. An even number is allowed, and no better than the odd one below: four nodes
// can lose one, as three can, and votes can be split evenly; two can lose none, and are refused.
//
// LockerOptions.Timeout bounds each request to each node. Acquire, Extend and Release return when a
// majority has answered alike, so a node that hangs delays nobody, except those who have split the
// votes of the others; and if there is no majority, within one time-out for each round of requests,
// with an error. A request that a node did not answer is seen to in the background: until its
// effect is known, or it cannot take effect any more (each request names a time, by the clock of
// the node, after which it is not to be carried out), or the TTL has passed; Close waits for one
// time-out more, or where a client has no ContextTimeoutEnabled for its ReadTimeout. Those who wait
// are woken by messages of the nodes, else when lives are over, at least each second.
//
// A lock is a key on each node, prefix{name}, with the id of the holder; the last token is in
// prefix{name}:token, until a minute after it is in the past. The token costs a second round of
// requests, unless Options.NoToken: the token is greater than each that was stored on a majority,
// and is itself stored on a majority while the lock is there. The user needs +eval +evalsha +get
// +set +del +time +pttl +pexpire +publish +subscribe +unsubscribe +ping, ~prefix* and &prefix*.
//
// Its limits: it counts on clocks and delays, as each lock with a life does: the holder's process,
// or a node, may be suspended, a request be delayed in the network, a node's clock be set (keep it
// slewed, not stepped), each for longer than what is left of the TTL; then two may take themselves
// for the holder. The token tells them apart, where the resource checks it (see Guard and
// SetFenced): of two holders that overlap the later has the greater token. That holds as long as no
// clock of a node goes back by more than a minute, and the nodes keep their data.
//
// Restarts: a node without persistence (or with appendfsync everysec) has forgotten its votes, and
// would vote again. The node must stay out for at least the longest TTL in use after a restart;
// with appendfsync always it need not. Nothing here can see to that: it is up to the operator of
// the servers.
//
// One process's lock is not extended onto a node that was away when it was acquired: the next lock
// is on it again.
func NewRedlock(clients []*redis.Client, options *LockerOptions) (*Locker, error) {
	o := options.withDefaults()
	if len(clients) < 3 {
		return nil, fmt.Errorf("lock: a Redlock needs at least 3 Redis servers, not %d; for one server use NewRedis", len(clients))
	}
	d := &redlockDriver{prefix: o.Prefix, quorum: len(clients)/2 + 1}
	addresses := make(map[string]int)
	for i, rdb := range clients {
		c, err := conn.New(rdb, o.Timeout)
		if err == nil {
			err = independent(rdb, i, addresses)
		}
		if err != nil {
			return nil, fmt.Errorf("lock: client %d: %w", i, err)
		}
		d.nodes = append(d.nodes, &redlockNode{conn: c})
	}
	for i, n := range d.nodes {
		n.wakes.init(clients[i], n.conn)
	}
	l, err := New(d, options)
	if err != nil {
		d.Close() //nolint:errcheck // always nil
	}
	return l, err
}

// independent refuses what is no server of its own, as far as the options show that.
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

type redlockDriver struct {
	nodes  []*redlockNode
	quorum int
	prefix string
}

func (d *redlockDriver) Close() error {
	var all sync.WaitGroup
	for _, n := range d.nodes {
		n.wakes.close()
		all.Go(n.conn.Close)
	}
	all.Wait()
	return nil
}

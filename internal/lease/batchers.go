package lease

import (
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// batchers have a batcher for each server, so that a server that hangs delays only the commands on
// its own keys. A Store has batchers for reads, others for requests for leases, which must not be
// repeated, and others for other scripts, which may be repeated.
type batchers struct {
	one    batcher  // of a single server; on a cluster, for commands that share no trip
	byNode sync.Map // of a cluster: the server, as Conn.ServerOf returns it, to its *batcher
}

// init initializes b. wait is the timeout of a trip.
func (b *batchers) init(s *Store, wait time.Duration) {
	b.one = batcher{store: s, wait: wait, alone: s.conn.Cluster()}
}

// forCommands returns the batcher for commands that are sent together. On a cluster, commands on
// keys of several servers, or of an unknown one, share no trip with others.
func (b *batchers) forCommands(cmds []redis.Cmder) *batcher {
	if !b.one.alone {
		return &b.one
	}
	node := b.one.store.conn.ServerOf(cmds)
	if node == nil {
		return &b.one
	}
	if known, ok := b.byNode.Load(node); ok {
		return known.(*batcher)
	}
	return b.add(node)
}

// add returns the batcher of a server that is new. It drops idle batchers, because their servers
// may have left the cluster.
func (b *batchers) add(node any) *batcher {
	b.byNode.Range(func(other, known any) bool {
		if known.(*batcher).idle() {
			b.byNode.Delete(other)
		}
		return true
	})
	now, _ := b.byNode.LoadOrStore(node, &batcher{store: b.one.store, wait: b.one.wait, isNode: true})
	return now.(*batcher)
}

func (b *batcher) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.running == 0
}

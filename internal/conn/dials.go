package conn

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// dials are the connections that a client makes. The client's own error, where it has tried again
// and again until the time was over, does not tell why; and a new connection may lead to another
// server than the one before.
type dials struct {
	made   atomic.Int64
	failed atomic.Pointer[dialFailure] // the last one, unless a connection has been made since

	mastersOnly atomic.Bool // connections to replicas are refused
	master      atomic.Bool // a connection has led to a master
	whole       atomic.Bool // all keys are known to live on one server

	opaque  atomic.Bool                  // there was a connection that go-redis cannot examine
	members atomic.Pointer[clusterNodes] // that the client is one of; nil: none
}

type dialFailure struct {
	at  time.Time
	err error
}

// watchedClients has the dials of each client that is in use, so that many Conns of one client add
// one hook to it.
var watchedClients sync.Map // weak.Pointer[redis.Client] to *dials

// watchedClusters are the clients whose nodes are watched.
var watchedClusters sync.Map // weak.Pointer[redis.ClusterClient] to *clusterNodes

// clusterNodes is what is known of the clients of a cluster's nodes.
type clusterNodes struct {
	refused atomic.Pointer[error] // why they are not to be used; nil: they may be
	met     atomic.Bool           // also those are watched that were there before the others
	opaque  atomic.Bool           // one has had a connection that go-redis cannot examine
}

// watchNodes watches the clients of a cluster's nodes as they are made.
func watchNodes(cluster *redis.ClusterClient) *clusterNodes {
	key := weak.Make(cluster)
	known, loaded := watchedClusters.LoadOrStore(key, &clusterNodes{})
	nodes := known.(*clusterNodes)
	if !loaded {
		cluster.OnNewNode(nodes.watch)
		runtime.AddCleanup(cluster, func(key weak.Pointer[redis.ClusterClient]) { watchedClusters.Delete(key) }, key)
	}
	return nodes
}

// watch notes the dials of a node, and whether its client keeps values in the process, which
// ClusterOptions.NewClient can make it do.
func (n *clusterNodes) watch(node *redis.Client) {
	dialsOf(node).members.Store(n)
	if err := noCache(node.Options()); err != nil {
		err = fmt.Errorf("%w: %w", ErrWrongClient, err)
		n.refused.Store(&err)
	}
}

// check returns an error if a node's client is not to be used. When the cluster's client has first
// met its nodes, check watches those that were there before watchNodes.
func (n *clusterNodes) check(cluster *redis.ClusterClient) error {
	if !n.met.Load() {
		for r := range Ranges {
			node, err := cluster.MasterForKey(ended, Tag(r))
			if err != nil {
				return nil // not met yet
			}
			n.watch(node)
		}
		n.met.Store(true)
	}
	if refused := n.refused.Load(); refused != nil {
		return *refused
	}
	return nil
}

func dialsOf(client *redis.Client) *dials {
	key := weak.Make(client)
	if known, ok := watchedClients.Load(key); ok {
		return known.(*dials)
	}
	known, loaded := watchedClients.LoadOrStore(key, &dials{})
	if !loaded {
		client.AddHook(dialHook{known.(*dials)})
		runtime.AddCleanup(client, func(key weak.Pointer[redis.Client]) { watchedClients.Delete(key) }, key)
	}
	return known.(*dials)
}

// why is the error of the last connection that could not be made, if that was since began; nil if
// there is none.
func (d *dials) why(began time.Time) error {
	if f := d.failed.Load(); f != nil && !f.at.Before(began) {
		return f.err
	}
	return nil
}

func (d *dials) isOpaque() {
	anyOpaque.Store(true)
	d.opaque.Store(true)
	if m := d.members.Load(); m != nil {
		m.opaque.Store(true)
	}
}

// dialHook counts dials, keeps the last failure, numbers the connections, and notes the roles of
// the servers that they lead to.
type dialHook struct{ *dials }

func (h dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err == nil {
			h.made.Add(1)
			h.failed.Store(nil)
			c, opaque := numbered(c)
			if opaque {
				h.isOpaque()
			}
			return c, nil
		}
		if ctx.Err() == nil { // else it was given up, and the one before it tells more
			h.failed.Store(&dialFailure{time.Now(), err})
		}
		return nil, ofConnection(connections.Add(1), err)
	}
}

func (dialHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook { return nil }

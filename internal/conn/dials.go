package conn

import (
	"context"
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
}

type dialFailure struct {
	at  time.Time
	err error
}

// watchedClients has the dials of each client that is in use, so that many Conns of one client add
// one hook to it.
var watchedClients sync.Map // weak.Pointer[redis.Client] to *dials

// watchedClusters are the clients whose new nodes are watchedClients.
var watchedClusters sync.Map // weak.Pointer[redis.ClusterClient] to nothing

// watchNodes has the dials of a cluster's nodes be noted. Those that the client has met before are,
// when one of them has failed.
func watchNodes(cluster *redis.ClusterClient) {
	key := weak.Make(cluster)
	if _, known := watchedClusters.LoadOrStore(key, struct{}{}); known {
		return
	}
	cluster.OnNewNode(func(node *redis.Client) { dialsOf(node) })
	runtime.AddCleanup(cluster, func(key weak.Pointer[redis.ClusterClient]) { watchedClusters.Delete(key) }, key)
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

// dialHook notes what becomes of dials, and which role the servers have that they lead to.
type dialHook struct{ *dials }

func (h dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err == nil {
			h.made.Add(1)
			h.failed.Store(nil)
		} else if ctx.Err() == nil { // else it was given up, and the one before it tells more
			h.failed.Store(&dialFailure{time.Now(), err})
		}
		return c, err
	}
}

func (dialHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook { return nil }

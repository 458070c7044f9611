package conn

import (
	"context"
	"fmt"
	"net"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

// connections numbers the connections of all clients in the order in which they are made.
var connections atomic.Int64

// connection is a connection whose errors carry its number.
type connection struct {
	net.Conn
	number int64
}

// transparent is a connection that go-redis can examine before it uses it again.
type transparent struct {
	*connection
	syscall.Conn
}

// anyOpaque is whether any client has had a connection that go-redis cannot examine.
var anyOpaque atomic.Bool

// isOpaque reports whether this client has had one.
func isOpaque(rdb redis.UniversalClient) bool {
	if !anyOpaque.Load() {
		return false
	}
	switch c := rdb.(type) {
	case *redis.Client:
		return dialsOf(c).opaque.Load()
	case *redis.ClusterClient:
		return watchNodes(c).opaque.Load()
	}
	return false
}

func numbered(c net.Conn) (_ net.Conn, opaque bool) {
	n := &connection{c, connections.Add(1)}
	if s, ok := c.(syscall.Conn); ok {
		return transparent{n, s}, false
	}
	return n, true
}

func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, ofConnection(c.number, err)
}

func (c *connection) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, ofConnection(c.number, err)
}

// NetConn returns the connection that the client's Dialer has made.
func (c *connection) NetConn() net.Conn { return c.Conn }

// closedError is the error of a connection that was closed.
type closedError struct {
	error
	number int64 // of the connection
}

// Unwrap returns a list, which errors.Unwrap does not look into: go-redis unwraps the errors of new
// connections once by errors.Unwrap, and would lose the number.
func (e *closedError) Unwrap() []error { return []error{e.error} }

func ofConnection(number int64, err error) error {
	if err == nil || !isClosed(err) {
		return err
	}
	return &closedError{err, number}
}

// ended is a context with which a cluster's client says what it knows, and asks nothing.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// isReplicaRole reports whether a server names its role so.
func isReplicaRole(role string) bool { return role == "replica" || role == "slave" }

// metRole notes the role of a server that a connection leads to. It returns an error if the
// connection must not be used.
func (d *dials) metRole(role string) error {
	switch {
	case !d.mastersOnly.Load(): // a replica of a cluster sends readers of its keys to its master
		return nil
	case isReplicaRole(role):
		return &replicaError{before: d.master.Load()}
	case role != "" && !d.master.Load():
		d.master.Store(true)
	}
	return nil
}

// ProcessHook refuses connections to replicas: go-redis begins each connection with a HELLO, whose
// reply has the role of the server, and closes the connection if that command fails. Any other
// command passes by.
func (h dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		hello, ok := cmd.(*redis.MapStringInterfaceCmd)
		if !ok || err != nil || hello.Name() != "hello" {
			return err
		}
		role, _ := hello.Val()["role"].(string)
		if err = h.metRole(role); err != nil {
			hello.SetErr(err)
		}
		return err
	}
}

// noCache returns an error if a client with these options keeps values in the process: it would
// serve a value whose delete was acknowledged. options is a pointer to the options of any type of
// client. Newer versions of go-redis have such options for more types, under names that begin
// alike.
func noCache(options any) error {
	o := reflect.ValueOf(options).Elem()
	for i := range o.NumField() {
		if name := o.Type().Field(i).Name; strings.HasPrefix(name, "ClientSideCache") && !o.Field(i).IsZero() {
			return fmt.Errorf("the Redis client keeps values in a cache of its own (%s), which still serves a value after its delete was acknowledged", name)
		}
	}
	return nil
}

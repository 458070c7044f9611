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
}

type dialFailure struct {
	at  time.Time
	err error
}

// watchedClients has the dials of each client that is in use, so that many Conns of one client add
// one hook to it.
var watchedClients sync.Map // weak.Pointer[redis.Client] to *dials

// watchedClusters are the clients the dials of whose nodes are noted.
var watchedClusters sync.Map // set of weak.Pointer[redis.ClusterClient]

// watchNodes notes the dials of the clients of a cluster's nodes as they are made.
func watchNodes(cluster *redis.ClusterClient) {
	key := weak.Make(cluster)
	if _, known := watchedClusters.LoadOrStore(key, nil); known {
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

// dialHook counts dials, keeps the last failure, numbers the connections, and notes the roles of
// the servers that they lead to.
type dialHook struct{ *dials }

func (d dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err == nil {
			d.made.Add(1)
			d.failed.Store(nil)
			return numbered(c), nil
		}
		if ctx.Err() == nil { // else it was given up, and the one before it tells more
			d.failed.Store(&dialFailure{time.Now(), err})
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

func numbered(c net.Conn) net.Conn {
	n := &connection{c, connections.Add(1)}
	if s, ok := c.(syscall.Conn); ok {
		return transparent{n, s}
	}
	return n
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
func (c *closedError) Unwrap() []error { return []error{c.error} }

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
func (d dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		hello, ok := cmd.(*redis.MapStringInterfaceCmd)
		if !ok || err != nil || hello.Name() != "hello" {
			return err
		}
		role, _ := hello.Val()["role"].(string)
		if err = d.metRole(role); err != nil {
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

// noCacheOfNodes is noCache for the clients of a cluster's nodes, to which ClusterOptions.NewClient
// may give other options. It has one made, and closes it unused.
func noCacheOfNodes(o *redis.ClusterOptions) error {
	node := o.NewClient(&redis.Options{Addr: "127.0.0.1:6379"}) // with a name, go-redis would look it up
	defer node.Close()                                          //nolint:errcheck // it has no connections
	return noCache(node.Options())
}

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
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A dials records the connections that a client makes. The client's own error does not contain
// the reason if it has retried until its timeout. Also, a new connection may lead to a different
// server.
type dials struct {
	made   atomic.Int64                // the number of connections
	failed atomic.Pointer[dialFailure] // the last failure; nil if a connection has been made since

	mastersOnly atomic.Bool // refuse connections to replicas
	sawMaster   atomic.Bool // a connection has led to a master
	unsharded   atomic.Bool // all keys are known to live on one server
}

// A dialFailure is the error of a connection that could not be made.
type dialFailure struct {
	time time.Time
	err  error
}

// watchedClients contains the dials of each client in use, so that several Conns of one client
// add one hook to it.
var watchedClients sync.Map // weak.Pointer[redis.Client] to *dials

// watchedClusters contains the cluster clients whose nodes have dials.
var watchedClusters sync.Map // set of weak.Pointer[redis.ClusterClient]

// watchNodes adds a dials to the client of each node of a cluster when it is created.
func watchNodes(cluster *redis.ClusterClient) {
	key := weak.Make(cluster)
	if _, known := watchedClusters.LoadOrStore(key, nil); known {
		return
	}
	cluster.OnNewNode(func(node *redis.Client) { dialsOf(node) })
	runtime.AddCleanup(cluster, func(key weak.Pointer[redis.ClusterClient]) { watchedClusters.Delete(key) }, key)
}

// dialsOf returns the dials of client. The first call adds a hook to the client.
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

// dialError returns the error of the last dial, if it failed after began, or nil.
func (d *dials) dialError(began time.Time) error {
	if f := d.failed.Load(); f != nil && !f.time.Before(began) {
		return f.err
	}
	return nil
}

// A dialHook counts dials, stores the last failure, numbers the connections, and records the
// roles of their servers.
type dialHook struct{ *dials }

func (d dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err == nil {
			d.made.Add(1)
			d.failed.Store(nil)
			return numbered(c), nil
		}
		if ctx.Err() == nil { // an aborted dial says less than the failure before it
			d.failed.Store(&dialFailure{time.Now(), err})
		}
		return nil, ofConnection(connections.Add(1), err)
	}
}

func (dialHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook { return nil }

// connections is the number of the last connection. It numbers the connections of all clients in
// the order of their creation.
var connections atomic.Int64

// A connection adds its number to its errors if they say that it was closed.
type connection struct {
	net.Conn
	number int64
}

// A transparent connection is one that go-redis can examine before it uses it again.
type transparent struct {
	*connection
	syscall.Conn
}

// numbered returns c with a number. The result implements syscall.Conn if c does.
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

// A closedError is the error of a connection that was closed.
type closedError struct {
	error
	number int64 // of the connection
}

// Unwrap returns a list, so that errors.Unwrap returns nil. go-redis unwraps the errors of new
// connections once by errors.Unwrap, and would lose the number.
func (c *closedError) Unwrap() []error { return []error{c.error} }

// ofConnection adds the number of a connection to err if err says that it was closed.
func ofConnection(number int64, err error) error {
	if err == nil || !isClosed(err) {
		return err
	}
	return &closedError{err, number}
}

// cancelledCtx is a cancelled context. With it, the client of a cluster returns what it knows
// without I/O.
var cancelledCtx = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// isReplicaRole reports whether a server with this role is a replica.
func isReplicaRole(role string) bool { return role == "replica" || role == "slave" }

// noteRole records the role of the server of a connection. It returns an error if the connection
// must not be used.
func (d *dials) noteRole(role string) error {
	switch {
	case !d.mastersOnly.Load(): // a replica in a cluster redirects readers to its master
		return nil
	case isReplicaRole(role):
		return &replicaError{before: d.sawMaster.Load()}
	case role != "" && !d.sawMaster.Load():
		d.sawMaster.Store(true)
	}
	return nil
}

// ProcessHook refuses connections to replicas. go-redis begins each connection with HELLO, whose
// reply contains the role of the server, and closes the connection if that command fails. Other
// commands pass unchanged.
func (d dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		hello, ok := cmd.(*redis.MapStringInterfaceCmd)
		if !ok || err != nil || hello.Name() != "hello" {
			return err
		}
		role, _ := hello.Val()["role"].(string)
		if err = d.noteRole(role); err != nil {
			hello.SetErr(err)
		}
		return err
	}
}

// noCache returns an error if a client with these options caches values in the process: it would
// return a value after its delete was acknowledged. options is a pointer to the options of any
// type of client. Newer versions of go-redis have such options for more types, with the same
// prefix.
func noCache(options any) error {
	o := reflect.ValueOf(options).Elem()
	for i := range o.NumField() {
		if name := o.Type().Field(i).Name; strings.HasPrefix(name, "ClientSideCache") && !o.Field(i).IsZero() {
			return fmt.Errorf("the Redis client keeps values in its own cache (%s), which still serves a value after "+
				"its delete was acknowledged", name)
		}
	}
	return nil
}

// noCacheOfNodes applies noCache to the clients of a cluster's nodes, to which
// ClusterOptions.NewClient may give other options. It creates one such client and closes it
// unused. NewClient may return nil for an address that is not that of a node. So the addresses of
// nodes are tried as well. It returns nil if NewClient returns nil for all of them.
func noCacheOfNodes(o *redis.ClusterOptions) error {
	quiet := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled} // otherwise go-redis looks up names
	for _, addr := range append([]string{"127.0.0.1:6379"}, o.Addrs...) {
		if node := o.NewClient(&redis.Options{Addr: addr, MaintNotificationsConfig: quiet}); node != nil {
			defer node.Close() // it was not used
			return noCache(node.Options())
		}
	}
	return nil
}

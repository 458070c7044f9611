package conn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	errPlainOnCluster = fmt.Errorf(
		"%w: the server is a node of a Redis Cluster, and a *redis.Client treats it as a single server, so that it "+
			"and cluster clients do not find each other's data; "+
			"use redis.NewClusterClient, or UniversalOptions.IsClusterMode", ErrWrongClient)
	errClusterOnPlain = fmt.Errorf(
		"%w: the server is not a node of a Redis Cluster, and this *redis.ClusterClient (of "+
			"NewFailoverClusterClient, or with ClusterSlots) treats it as one, so that it and other clients do not "+
			"find each other's data; "+
			"use redis.NewClient or redis.NewFailoverClient", ErrWrongClient)
	errSentinel = fmt.Errorf("%w: the server is a Redis Sentinel, which holds no keys; use redis.NewFailoverClient",
		ErrWrongClient)
	errSharded = fmt.Errorf(
		"%w: the address leads to several Redis servers that share the keys, as behind a sharding proxy, which does "+
			"not preserve the order of commands; use a Redis Cluster and redis.NewClusterClient, or one server",
		ErrWrongClient)
	errDatabase = fmt.Errorf(
		"%w: the server refuses the database of Options.DB; a node of a Redis Cluster normally has only database 0, "+
			"and needs redis.NewClusterClient; a single server has as many as its setting \"databases\" says",
		ErrWrongClient)
)

// server is the known state of the server: whether it belongs to a cluster, and whether it is a
// replica. The type of the client does not show this state, which determines how keys are divided
// into ranges. So the server is asked before the first command, and again after new connections
// were made, because they may lead to another server.
type server struct {
	checked bool
	dials   *dials // of the client; nil for a cluster's client
	result  atomic.Pointer[checkResult]
}

// A checkResult is the result of a check of the server. It is immutable.
type checkResult struct {
	err   error // why commands are refused, or nil
	dials int64 // the number of connections made before the check
	time  time.Time
}

// recheckInterval is the minimum interval between two checks. Until the first one has succeeded,
// no other command is sent.
const recheckInterval = time.Second

// CheckServer makes all commands fail if the client is of the wrong kind for its server. It must
// be called before any command is sent.
func (c *Conn) CheckServer() {
	// A cluster's client asks its servers for the slots, and only cluster nodes reply to that. With
	// the option ClusterSlots it does not ask.
	c.server.checked = c.cluster == nil || c.cluster.Options().ClusterSlots != nil
}

// checkClient returns nil if commands may be sent. Usually it only reads two words.
func (c *Conn) checkClient(ctx context.Context) error {
	if !c.server.checked {
		return nil
	}
	v := c.server.result.Load()
	if v != nil && v.err == nil && v.dials == c.server.made() {
		return nil
	}
	if v != nil && time.Since(v.time) < recheckInterval {
		return v.err
	}
	err := c.identify(ctx)
	if err != nil && !errors.Is(err, ErrWrongClient) {
		return err
	}
	c.server.result.Store(&checkResult{dials: c.server.made(), time: time.Now(), err: err})
	return err
}

// mismatch returns an error if the client is of the wrong kind for a server of kind k.
func (c *Conn) mismatch(k kind) error {
	switch {
	case k.mode == "sentinel":
		return errSentinel
	case k.mode == "cluster" && c.cluster == nil:
		return errPlainOnCluster
	case k.mode != "cluster" && c.cluster != nil:
		return errClusterOnPlain
	case c.server.dials != nil:
		return c.server.dials.noteRole(k.role)
	}
	return nil
}

// shardingProxy returns an error if the keys of a single server live on several, as behind a
// sharding proxy. Such a proxy runs a script on the server of its key, and each run of a server
// has its own id. A server that does not return its id to a script counts as a single server.
// After a positive result the server is not asked again.
func (c *Conn) shardingProxy(ctx context.Context) error {
	if c.cluster != nil || c.server.dials.unsharded.Load() {
		return nil
	}
	cmds := make([]redis.Cmder, Ranges)
	for r := range cmds {
		cmds[r] = redis.NewCmd(ctx, "eval", runIDScript, 1, c.prefix+"::probe:{"+Tag(r)+"}")
	}
	process(ctx, c.rdb, cmds)
	ids := make(map[string]bool)
	for _, cmd := range cmds {
		if err := cmd.Err(); Unable(err) || err != nil && !IsReply(err) {
			return err
		}
		if id, ok := cmd.(*redis.Cmd).Val().(string); ok {
			ids[id] = true
		}
	}
	if len(ids) > 1 {
		return errSharded
	}
	c.server.dials.unsharded.Store(true)
	return nil
}

const runIDScript = `return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')`

// Doubt requests another check of the server, after at least recheckInterval, because a received
// message does not fit the last result.
func (c *Conn) Doubt() {
	if v := c.server.result.Load(); v != nil && v.err == nil {
		c.server.result.CompareAndSwap(v, &checkResult{dials: -1, time: v.time})
	}
}

func (s *server) made() int64 {
	if s.dials == nil {
		return 0
	}
	return s.dials.made.Load()
}

// identify asks the server for its kind. It returns an error if the client is of the wrong kind,
// or another error if the kind remains unknown.
func (c *Conn) identify(ctx context.Context) error {
	server := c.rdb
	if c.cluster != nil {
		node, err := c.cluster.MasterForKey(ctx, "")
		if err != nil {
			return err
		}
		server = node
	}
	k, err := kindOf(ctx, server)
	if err == nil {
		err = c.mismatch(k)
	}
	if err == nil {
		err = c.shardingProxy(ctx)
	}
	return err
}

// Clustered reports whether the server of a client is a node of a cluster.
func Clustered(ctx context.Context, server redis.UniversalClient) (bool, error) {
	k, err := kindOf(ctx, server)
	return k.mode == "cluster", err
}

// A kind contains the properties that a server reports. An empty field is unknown.
type kind struct {
	mode string // "standalone", "cluster" or "sentinel"
	role string // "master", or a role of isReplicaRole
}

// kindOf asks a client's server for its kind. HELLO is allowed to users with any ACL. A server
// that does not know HELLO, such as a proxy, has the empty kind.
func kindOf(ctx context.Context, server redis.UniversalClient) (kind, error) {
	hello := redis.NewCmd(ctx, "hello")
	process(ctx, server, []redis.Cmder{hello})
	switch err := hello.Err(); {
	case IsReply(err) && strings.Contains(err.Error(), clusterRefusesDatabase):
		return kind{mode: "cluster"}, nil
	case IsReply(err) && strings.Contains(err.Error(), databaseOutOfRange):
		return kind{}, errDatabase
	case Unable(err), err != nil && !IsReply(err):
		return kind{}, err
	}
	return kind{mode: field(hello, "mode"), role: field(hello, "role")}, nil
}

// Parts of the error reply to each command of a client that has selected a database that does not
// exist. The first one is from a cluster node before Valkey 9, the second one from a later node
// or a single server.
const (
	clusterRefusesDatabase = "SELECT is not allowed in cluster mode"
	databaseOutOfRange     = "DB index is out of range"
)

// field returns a field of the reply to HELLO, which is a map, or a list in RESP2.
func field(hello *redis.Cmd, name string) (value string) {
	switch fields := hello.Val().(type) {
	case map[any]any:
		value, _ = fields[name].(string)
	case []any:
		for i := 0; i+1 < len(fields); i += 2 {
			if fields[i] == name {
				value, _ = fields[i+1].(string)
			}
		}
	}
	return value
}

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
	errPlainOnCluster = fmt.Errorf("%w: the server is a node of a Redis Cluster, and a *redis.Client takes it for a single server, so that it and clients of the cluster do not find what the other has written; "+
		"use redis.NewClusterClient, or UniversalOptions.IsClusterMode", ErrWrongClient)
	errClusterOnPlain = fmt.Errorf("%w: the server is no node of a Redis Cluster, and this *redis.ClusterClient (of NewFailoverClusterClient, or with ClusterSlots) takes it for one, so that it and other clients do not find what the other has written; "+
		"use redis.NewClient or redis.NewFailoverClient", ErrWrongClient)
	errSentinel = fmt.Errorf("%w: the server is a Redis Sentinel, which holds no keys; use redis.NewFailoverClient", ErrWrongClient)
	errSharded  = fmt.Errorf("%w: the address leads to several Redis servers that share the keys, as behind a sharding proxy, which does not keep the order of commands; use a Redis Cluster and redis.NewClusterClient, or one server", ErrWrongClient)
	errDatabase = fmt.Errorf("%w: the server refuses the database of Options.DB; a node of a Redis Cluster has database 0 only, as a rule, and needs redis.NewClusterClient; a single server has those of its setting \"databases\"", ErrWrongClient)
)

// server is what is known of the server: whether it is a node of a cluster, or a replica. The type
// of the client does not say that, and by it keys are divided into ranges. So the server is asked
// before the first command, and again when new connections have been made, for they may lead to
// another one.
type server struct {
	checked bool
	dials   *dials // of the client; nil: a cluster's
	known   atomic.Pointer[verdict]
}

// verdict is what the server has answered; it is not changed.
type verdict struct {
	err   error // why commands are refused; nil: they are not
	dials int64 // connections made until then
	at    time.Time
}

// askAgain is how often the server is asked, at most. Nothing else is sent before it has answered
// for the first time.
const askAgain = time.Second

// CheckServer makes commands fail if the client is not of the kind that its server needs. It is
// called before anything is sent.
func (c *Conn) CheckServer() {
	// A cluster's client has asked its servers for the slots, which only nodes of a cluster answer,
	// unless it has been given other slots.
	c.server.checked = c.cluster == nil || c.cluster.Options().ClusterSlots != nil
}

// fits answers why nothing is to be sent, nil as a rule: then it has read two words.
func (c *Conn) fits(ctx context.Context) error {
	if !c.server.checked {
		return nil
	}
	v := c.server.known.Load()
	if v != nil && v.err == nil && v.dials == c.server.made() {
		return nil
	}
	if v != nil && time.Since(v.at) < askAgain {
		return v.err
	}
	err := c.askServer(ctx)
	if err != nil && !errors.Is(err, ErrWrongClient) {
		return err
	}
	c.server.known.Store(&verdict{dials: c.server.made(), at: time.Now(), err: err})
	return err
}

// unfit returns why the client is not one for a server of this kind, nil if it is.
func (c *Conn) unfit(k kind) error {
	switch {
	case k.mode == "sentinel":
		return errSentinel
	case k.mode == "cluster" && c.cluster == nil:
		return errPlainOnCluster
	case k.mode != "cluster" && c.cluster != nil:
		return errClusterOnPlain
	case c.server.dials != nil:
		return c.server.dials.metRole(k.role)
	}
	return nil
}

// shardingProxy returns an error if the keys of what looks like one server live on several, as
// behind a proxy that shards them: such a proxy runs a script where the script's key lives, and
// each run of a server has an id of its own. A server that does not say its id to a script is taken
// for one. After one good answer the client's server is not asked again.
func (c *Conn) shardingProxy(ctx context.Context) error {
	if c.cluster != nil || c.server.dials.whole.Load() {
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
	c.server.dials.whole.Store(true)
	return nil
}

const runIDScript = `return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')`

// Doubt makes the server be asked again, no sooner than that may be: what it was taken for does not
// agree with what was heard.
func (c *Conn) Doubt() {
	if v := c.server.known.Load(); v != nil && v.err == nil {
		c.server.known.CompareAndSwap(v, &verdict{dials: -1, at: v.at})
	}
}

func (s *server) made() int64 {
	if s.dials == nil {
		return 0
	}
	return s.dials.made.Load()
}

// askServer returns why the client is not one for its server, nil if it is; or an error that is not
// ErrWrongClient, if the server does not say what it is.
func (c *Conn) askServer(ctx context.Context) error {
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
		err = c.unfit(k)
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

// kind is what a server says of itself; "" is what it does not say.
type kind struct {
	mode string // "standalone", "cluster" or "sentinel"
	role string // "master", or see isReplicaRole
}

// kindOf asks the server of a client of what kind it is. Users with an ACL may always send HELLO. A
// server that does not know HELLO, as a proxy may be, is of the empty kind.
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

// These are parts of what a server replies to each command of a client that wants a database that
// is not there: the node of a cluster before Valkey 9 the one; a later node, or a single server,
// the other.
const (
	clusterRefusesDatabase = "SELECT is not allowed in cluster mode"
	databaseOutOfRange     = "DB index is out of range"
)

// field returns a field of the reply to HELLO, which is a map, or, by an older protocol, a list.
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

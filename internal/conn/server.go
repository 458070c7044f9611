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

// ErrWrongClient is the error of each command where the client is not of the kind that its server
// needs.
var ErrWrongClient = errors.New("the Redis client is of the wrong kind")

var (
	errPlainOnCluster = fmt.Errorf("%w: the server is a node of a Redis Cluster, and a *redis.Client takes it for a single server, so that it and clients of the cluster do not find what the other has written; "+
		"use redis.NewClusterClient, or UniversalOptions.IsClusterMode", ErrWrongClient)
	errClusterOnPlain = fmt.Errorf("%w: the server is no node of a Redis Cluster, and this *redis.ClusterClient (of NewFailoverClusterClient, or with ClusterSlots) takes it for one, so that it and other clients do not find what the other has written; "+
		"use redis.NewClient or redis.NewFailoverClient", ErrWrongClient)
)

// server is what is known of the server: whether it is a node of a cluster. The type of the client
// does not tell that, and by it keys are divided into ranges. So the server is asked before the
// first command, and again when new connections have been made, for they may lead to another one.
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
	clustered, err := c.askServer(ctx)
	if err != nil {
		return err
	}
	now := &verdict{dials: c.server.made(), at: time.Now()}
	switch {
	case clustered && c.cluster == nil:
		now.err = errPlainOnCluster
	case !clustered && c.cluster != nil:
		now.err = errClusterOnPlain
	}
	c.server.known.Store(now)
	return now.err
}

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

func (c *Conn) askServer(ctx context.Context) (clustered bool, err error) {
	if c.cluster == nil {
		return Clustered(ctx, c.rdb)
	}
	node, err := c.cluster.MasterForKey(ctx, "")
	if err != nil {
		return false, err
	}
	return Clustered(ctx, node)
}

// Clustered asks the server of a client whether it is a node of a cluster. Users with an ACL may
// always send HELLO; where neither command is known, that is the answer of something that is no
// node.
func Clustered(ctx context.Context, server redis.UniversalClient) (bool, error) {
	hello := redis.NewCmd(ctx, "hello")
	process(ctx, server, []redis.Cmder{hello})
	switch err := hello.Err(); {
	case IsReply(err) && strings.Contains(err.Error(), noDatabases):
		return true, nil
	case Unable(err), err != nil && !IsReply(err):
		return false, err
	case mode(hello) != "":
		return mode(hello) == "cluster", nil
	}
	info := redis.NewStringCmd(ctx, "info", "cluster")
	process(ctx, server, []redis.Cmder{info})
	if err := info.Err(); Unable(err) || err != nil && !IsReply(err) {
		return false, err
	}
	return strings.Contains(info.Val(), "cluster_enabled:1"), nil
}

// noDatabases is in what a node of a cluster replies to a client that wants another database than
// 0, whatever it asks.
const noDatabases = "SELECT is not allowed in cluster mode"

// mode is what a HELLO answers under that name: a map, or, by an older protocol, a list.
func mode(hello *redis.Cmd) string {
	switch fields := hello.Val().(type) {
	case map[any]any:
		mode, _ := fields["mode"].(string)
		return mode
	case []any:
		for i := 0; i+1 < len(fields); i += 2 {
			if fields[i] == "mode" {
				mode, _ := fields[i+1].(string)
				return mode
			}
		}
	}
	return ""
}

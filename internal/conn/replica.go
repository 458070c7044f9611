package conn

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// replicaError is the error of a connection that leads to a replica. It wraps nothing: go-redis
// unwraps the error of a connection that could not be set up.
type replicaError struct {
	before bool // other connections of the client have led to a master
}

func (e *replicaError) Error() string {
	const replica = "the server is a replica, which still serves a value after its delete was acknowledged"
	if e.before {
		return replica + "; earlier connections of this Redis client led to a master: there was a failover, or the address leads to several servers"
	}
	return ErrWrongClient.Error() + ": " + replica + "; use the address of the master, or redis.NewFailoverClient without ReplicaOnly"
}

// Is reports that a client that has never led to a master is of the wrong kind. Otherwise a master
// may come back.
func (e *replicaError) Is(target error) bool { return target == ErrWrongClient && !e.before }

func isReplica(err error) bool {
	_, ok := errors.AsType[*replicaError](err)
	return ok
}

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

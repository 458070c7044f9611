package conn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// codeOf returns the code of a reply by which a server refuses a command, such as "READONLY".
// Before version 7, Redis wraps the refusal of a script's command: "ERR Error running script (call
// to f_…): @user_script:3: @user_script: 3: -READONLY You can't write against a read only replica."
func codeOf(reply redis.Error) string {
	text := strings.TrimPrefix(reply.Error(), "ERR ")
	if strings.HasPrefix(text, "Error running script") {
		if _, refusal, wrapped := strings.Cut(text, ": -"); wrapped {
			text = refusal
		}
	}
	if strings.HasPrefix(text, "max number of clients") {
		return maxClients
	}
	code, _, _ := strings.Cut(text, " ")
	return code
}

// maxClients stands for a code where a server that has too many clients replies without one.
const maxClients = "MAXCLIENTS"

// servesNothing reports whether a reply with this code says that the server cannot serve now. Any
// other reply is a sign of life: also TRYAGAIN, by which a server says that two keys of one command
// are at two servers, since their slot is being moved. That is no trouble of the other slots. Nor
// is NOPERM, which concerns a command or a pattern of keys, or OOM, in spite of which keys can be
// deleted.
func servesNothing(code string) bool {
	switch code {
	case "LOADING", "CLUSTERDOWN", "MASTERDOWN", "BUSY": // BUSY: a script has run for too long
		return true
	case "NOAUTH", "WRONGPASS", maxClients:
		return true
	}
	return servesReadsOnly(code)
}

// servesReadsOnly reports whether a reply with this code says that the server refuses all writes.
// It goes on answering reads, with what could not be deleted since: by a replica, or a master that
// has lost its replicas, one of which may be the master by now, also with what another server has
// deleted.
func servesReadsOnly(code string) bool {
	return code == "READONLY" || code == "NOREPLICAS" || code == "MISCONF" // MISCONF: it cannot write to its disk
}

// certain reports whether one error of this kind is enough to take a server for out of reach. After
// a refused write reads may succeed, and so there may never be several failures in a row.
func certain(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	return ok && servesReadsOnly(codeOf(reply)) || isReplica(err)
}

// ErrClosed is the error of what is asked for after Close.
var ErrClosed = errors.New("the connection to Redis is closed")

// NotReturned is the error of a client one of whose hooks has panicked with p, or has called
// runtime.Goexit.
func NotReturned(p any) error {
	if p == nil {
		return errors.New("the Redis client called runtime.Goexit")
	}
	return fmt.Errorf("the Redis client panicked with a %T", p)
}

// Fail gives all cmds the same error.
func Fail(cmds []redis.Cmder, err error) {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// IsReply tells whether err is an answer of Redis, so that its command is known not to have been
// carried out. Any other error, a time-out say, leaves it open.
func IsReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// Unable reports whether err says that Redis cannot be asked: it has replied so, or has not
// replied. A Stale error does not say so, because Redis has replied since. Neither does the error
// of a client of the wrong kind.
func Unable(err error) bool {
	switch {
	case errors.Is(err, redis.Nil):
		return false
	case err == nil, errors.Is(err, ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, ErrWrongClient), Stale(err):
		return false
	}
	reply, ok := errors.AsType[redis.Error](err)
	return !ok || servesNothing(codeOf(reply))
}

// staleError is the error of a command that must not be sent twice, and that a closed connection
// has lost. Redis has replied to another command since.
type staleError struct{ error }

func (s *staleError) Unwrap() error { return s.error }

// Stale reports whether err is that of a command that must not be sent twice, and that a closed
// connection from the pool has lost, although Redis is within reach. The command may have been
// carried out. The caller may ask again at once, under another token, MaxStale times.
func Stale(err error) bool {
	_, ok := errors.AsType[*staleError](err)
	return ok
}

// MaxStale is the maximum number of times that a request is made again because its error is Stale.
// Usually one is enough: when the error is returned, a connection that works is back in the pool.
const MaxStale = 16

// isClosed reports whether err says that a connection is closed.
func isClosed(err error) bool {
	for _, target := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// ErrWrongClient is the error of each command where the client is not of the kind that its server
// needs.
var ErrWrongClient = errors.New("the Redis client is of the wrong kind")

// replicaError is the error of a connection that leads to a replica. It wraps nothing: go-redis
// unwraps the error of a connection that could not be set up.
type replicaError struct {
	before bool // other connections of the client have led to a master
}

func (r *replicaError) Error() string {
	const replica = "the server is a replica, which still serves a value after its delete was acknowledged"
	if r.before {
		return replica + "; earlier connections of this Redis client led to a master: there was a failover, or the address leads to several servers"
	}
	return ErrWrongClient.Error() + ": " + replica + "; use the address of the master, or redis.NewFailoverClient without ReplicaOnly"
}

// Is reports that a client that has never led to a master is of the wrong kind. Otherwise a master
// may come back.
func (r *replicaError) Is(target error) bool { return target == ErrWrongClient && !r.before }

func isReplica(err error) bool {
	_, ok := errors.AsType[*replicaError](err)
	return ok
}

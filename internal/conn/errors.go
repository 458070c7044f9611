package conn

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/limitedlog"
)

// codeOf returns the code of an error reply, such as "READONLY". Before version 7, Redis wraps
// the error of a script's command: "ERR Error running script (call to f_…): @user_script:3:
// @user_script: 3: -READONLY You can't write against a read only replica."
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

// maxClients is the code that codeOf returns for the reply of a server that has too many clients,
// which has no code.
const maxClients = "MAXCLIENTS"

// servesNothing reports whether a reply with this code says that the server cannot serve now. Any
// other reply shows that it works. TRYAGAIN says that two keys of one command are on two servers,
// because their slot is being moved; the other slots are not affected. NOPERM concerns one
// command or one pattern of keys. OOM does not prevent deletes.
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
// The server still replies to reads, with values that can no longer be deleted there. If it is a
// replica, or a master that has lost its replicas, one of which may have been promoted, it may
// also return values that were deleted on another server.
func servesReadsOnly(code string) bool {
	return code == "READONLY" || code == "NOREPLICAS" || code == "MISCONF" // MISCONF: it cannot write to its disk
}

// conclusive reports whether one error of this kind is enough to open the breaker. After a
// refused write, reads may succeed, so there may never be several failures in a row.
func conclusive(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	return ok && servesReadsOnly(codeOf(reply)) || isReplica(err)
}

// ErrClosed is the error of commands after Close.
var ErrClosed = errors.New("the connection to Redis is closed")

// NotReturned returns the error of commands during which a hook of the client has panicked with
// p, or has called runtime.Goexit if p is nil.
func NotReturned(p any) error {
	if p == nil {
		return errors.New("the Redis client called runtime.Goexit")
	}
	return limitedlog.Panicked("the Redis client", p)
}

// Fail sets the error of all cmds.
func Fail(cmds []redis.Cmder, err error) {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// IsReply reports whether err is an error reply of Redis, so that the command was not carried
// out. Any other error, such as a timeout, leaves that open.
func IsReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// Unable reports whether err says that Redis cannot serve: it has replied so, or has not replied.
// That is not the case for a Stale error, because Redis has replied since, nor for the error of a
// client of the wrong kind.
func Unable(err error) bool {
	switch {
	case errors.Is(err, redis.Nil):
		return false
	case err == nil, errors.Is(err, ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, ErrWrongClient),
		Stale(err):
		return false
	}
	reply, ok := errors.AsType[redis.Error](err)
	return !ok || servesNothing(codeOf(reply))
}

// A staleError is the error of a command that must not be sent twice and failed on a closed
// connection, although Redis has replied to another command since.
type staleError struct{ error }

func (s *staleError) Unwrap() error { return s.error }

// Stale reports whether err is that of a command that must not be sent twice, and that failed on
// a closed connection from the pool while Redis is up. The command may have been carried out. The
// caller may immediately send it again with a new token, up to MaxStale times.
func Stale(err error) bool {
	_, ok := errors.AsType[*staleError](err)
	return ok
}

// MaxStale is the maximum number of times that a request is repeated because its error is Stale.
// Usually once is enough: when the error is returned, the pool contains a working connection.
const MaxStale = 16

// isClosed reports whether err says that a connection is closed.
func isClosed(err error) bool {
	for _, target := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, syscall.ECONNRESET,
		syscall.ECONNABORTED, syscall.EPIPE, syscall.ETIMEDOUT} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// ErrWrongClient is the error of each command of a client of the wrong kind for its server.
var ErrWrongClient = errors.New("the Redis client is of the wrong kind")

// A replicaError is the error of a connection to a replica. It wraps no other error, because
// go-redis unwraps the error of a connection that could not be set up.
type replicaError struct {
	before bool // an earlier connection of the client led to a master
}

func (r *replicaError) Error() string {
	const replica = "the server is a replica, which still serves a value after its delete was acknowledged"
	if r.before {
		return replica + "; earlier connections of this Redis client led to a master: there was a failover, or the " +
			"address leads to several servers"
	}
	return ErrWrongClient.Error() + ": " + replica +
		"; use the address of the master, or redis.NewFailoverClient without ReplicaOnly"
}

// Is reports whether target is ErrWrongClient and the client has never reached a master. If it
// has, a master may come back.
func (r *replicaError) Is(target error) bool { return target == ErrWrongClient && !r.before }

func isReplica(err error) bool {
	_, ok := errors.AsType[*replicaError](err)
	return ok
}

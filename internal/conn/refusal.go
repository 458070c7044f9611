package conn

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Refused notes that the server of key has refused a write with this error, as Failed does, and
// reports whether err is such a refusal. A write that was not acknowledged in time is none: it may
// have been a large one, which is no trouble of Redis.
func (c *Conn) Refused(ctx context.Context, key string, err error) bool {
	refused := Unable(err) && (IsReply(err) || certain(err))
	if refused {
		c.Failed(ctx, key, err)
	}
	return refused
}

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

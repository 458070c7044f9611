package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// Store runs the protocol on one Redis. It is safe for concurrent use.
type Store struct {
	conn    *conn.Conn
	cluster bool
	holds   bool          // keys may be on hold
	lag     time.Duration // for how long they are after an invalidation
	old     atomic.Bool   // it does not know SET with NX and GET
	reads   gather
	asks    gather // for leases: sent once
	changes gather // that may be repeated
}

// NewStore runs the protocol by c, which the caller closes. Reads are bounded by wait, which is no longer than the time-out of c.
func NewStore(c *conn.Conn, wait time.Duration) *Store {
	s := &Store{conn: c, cluster: c.Cluster()}
	s.reads = gather{store: s, wait: wait, send: s.read}
	s.asks = gather{store: s, wait: c.Timeout(), send: c.Ask}
	s.changes = gather{store: s, wait: c.Timeout(), send: c.Ask}
	return s
}

// First reads keys for a caller who may want to leave, on his own goroutine: it returns when ctx ends, and not much later. It calls found for each.
func (s *Store) First(ctx context.Context, keys []string, found func(i int, held *State, err error)) {
	cmds, sent := s.reads.first(ctx, keys)
	tell(cmds, sent, found)
}

// Read reads keys, and calls found for each.
func (s *Store) Read(ctx context.Context, keys []string, found func(i int, held *State, err error)) {
	cmds, sent := s.reads.again(ctx, keys)
	tell(cmds, sent, found)
}

func tell(cmds []redis.Cmder, sent conn.Sent, found func(i int, held *State, err error)) {
	var held State
	for i, cmd := range cmds {
		err := sent.Err(i)
		if held = (State{}); err == nil { // else it must not be read
			err = state(cmd.(*redis.StringCmd), &held)
		}
		found(i, &held, err)
	}
}

// Expire is the command that ends the soft life of the entry that a key holds, and voids its claim; if the key holds anything else, that is deleted.
func Expire(ctx context.Context, key string) redis.Cmder {
	stamp := newToken()
	return redis.NewCmd(ctx, "eval", expireScript.Source, 1, key, stamp[:])
}

// state puts into held what the reply to a GET shows.
func state(cmd *redis.StringCmd, held *State) error {
	switch err := cmd.Err(); {
	case err == nil:
		b, _ := cmd.Bytes()
		decodeInto(held, b)
		return nil
	case errors.Is(err, redis.Nil):
		return nil
	default:
		return err
	}
}

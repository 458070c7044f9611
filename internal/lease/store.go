package lease

import (
	"context"
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
	reads   gather
	asks    gather // for leases: sent once
	changes gather // that may be repeated
	lanes   chan struct{}
}

// NewStore runs the protocol by c, which the caller closes. Reads are bounded by wait, which is no
// longer than the time-out of c.
func NewStore(c *conn.Conn, wait time.Duration) *Store {
	s := &Store{conn: c, cluster: c.Cluster(), lanes: make(chan struct{}, lanes)}
	s.reads = gather{store: s, wait: wait, send: c.Ask}
	s.asks = gather{store: s, wait: c.Timeout(), send: c.Ask}
	s.changes = gather{store: s, wait: c.Timeout(), send: c.Ask}
	return s
}

// First reads keys for a caller that may want to leave, on its own goroutine: it returns when ctx
// ends, and not much later. It calls found for each. An entry may be only the beginning of what the
// key holds: State.Long. sizes is how long such entries are; nil: nobody knows.
func (s *Store) First(ctx context.Context, sizes *Sizes, keys []string, found func(i int, held *State, err error)) {
	s.readAll(ctx, true, sizes, keys, found)
}

// Read reads keys, as First does, for a caller that need not leave before the store's time-outs.
func (s *Store) Read(ctx context.Context, sizes *Sizes, keys []string, found func(i int, held *State, err error)) {
	s.readAll(ctx, false, sizes, keys, found)
}

// Expire is the command that ends the soft life of the entry that a key holds, and voids its claim;
// if the key holds anything else, that is deleted.
func Expire(ctx context.Context, key string) redis.Cmder {
	stamp := newToken()
	return redis.NewCmd(ctx, "eval", expireScript.Source, 1, key, stamp[:])
}

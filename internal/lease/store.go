package lease

import (
	"time"

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
	s.reads = gather{store: s, wait: wait}
	s.asks = gather{store: s, wait: c.Timeout()}
	s.changes = gather{store: s, wait: c.Timeout()}
	return s
}

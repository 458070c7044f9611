package lease

import (
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// A Store runs the lease protocol on one Redis server or cluster. It is safe for concurrent use.
type Store struct {
	conn       *conn.Conn
	cluster    bool
	holds      bool          // whether scripts check that a key is not on hold
	lag        time.Duration // how long a key stays on hold after an invalidation
	reads      batcher
	requests   batcher // requests for leases, which are sent once
	firsts     batcher // the same, which are also the first lookup
	changes    batcher // other scripts, which may be repeated
	trips      trips
	largeTrips chan struct{} // a semaphore: see sendLarge
	compares   atomic.Int32  // whether the server has SET with IFEQ: unknown, yes or no
}

// values of Store.compares; 0 is unknown
const (
	yes = iota + 1
	no
)

// NewStore returns a Store that uses c. The caller closes c. wait is the timeout of a read; it is
// at most the timeout of c.
func NewStore(c *conn.Conn, wait time.Duration) *Store {
	s := &Store{conn: c, cluster: c.Cluster(), largeTrips: make(chan struct{}, maxLargeTrips)}
	s.reads = batcher{store: s, wait: wait}
	s.firsts = batcher{store: s, wait: wait}
	s.requests = batcher{store: s, wait: c.Timeout()}
	s.changes = batcher{store: s, wait: c.Timeout()}
	return s
}

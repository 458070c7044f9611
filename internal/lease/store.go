package lease

import (
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// A Store runs the lease protocol on one Redis server or cluster. It is safe for concurrent use.
type Store struct {
	conn       *conn.Conn
	holds      bool          // whether scripts check that a key is not on hold
	lag        time.Duration // how long a key stays on hold after an invalidation
	reads      batchers
	readers    atomic.Int32 // callers that read, and must be able to leave
	requests   batchers     // requests for leases, which are sent once
	firsts     batchers     // the same, which are also the first lookup
	changes    batchers     // other scripts, which may be repeated
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
	s := &Store{conn: c, largeTrips: make(chan struct{}, maxLargeTrips)}
	s.reads.init(s, wait)
	s.firsts.init(s, wait)
	s.requests.init(s, c.Timeout())
	s.changes.init(s, c.Timeout())
	return s
}

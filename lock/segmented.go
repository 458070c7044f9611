package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
)

// ErrAllSeen is the error of Segment.Next when the caller has seen every segment.
var ErrAllSeen = errors.New("lock: all segments have been seen")

const maxSegments = 1000

// Segmented divides a resource into N segments with a lock each, for cases where one lock is too
// slow. For example, a stock of 1,000 items can be ten rows of 100. A buyer of one item locks any
// of the rows, so ten buyers can buy concurrently. The lock of segment i has the name name + "/"
// + i. No request involves two of them, so the segments spread over the nodes of a Redis cluster.
// A Segmented is safe for concurrent use. It needs no Close; close its Locker.
//
// Segments have costs:
//   - There is no consistent total. Segments that are read one after the other may add up to a
//     sum that was never true. To know the total, stop the sales.
//   - The last items are spread over the segments. A buyer who finds an empty segment must try
//     others (Segment.Next), and each is one more lock to wait for, so the end of a sale is its
//     slowest part. A buyer of three items may have to take them from two segments, or fail
//     although three are left. If all segments were empty, each was empty at a different time.
//   - N is part of the data. All processes must use the same N. To change it, stop the sales and
//     redistribute the stock. N is also the number of keys and of queues.
//   - Searching for a free segment costs one request for each segment that another process holds.
//     The process knows without a request which segments it holds or waits for itself, so under
//     load few requests are wasted.
//   - There is no order: a later buyer may get an item earlier, from another segment.
type Segmented struct {
	l    *Locker
	n    int
	next atomic.Uint64
}

// NewSegmented returns a Segmented with n segments, from 1 to 1000, numbered from 0. The caller
// closes the Locker. The Locker may be used for other locks, but not for locks with the names of
// segments.
func NewSegmented(l *Locker, n int) (*Segmented, error) {
	if l == nil {
		return nil, errors.New("lock: the Locker is nil")
	}
	if n < 1 || n > maxSegments {
		return nil, fmt.Errorf("lock: %d segments: must be from 1 to %d", n, maxSegments)
	}
	s := &Segmented{l: l, n: n}
	s.next.Store(uint64(rand.IntN(n))) // so that processes start with different segments
	return s, nil
}

// Segment is a Lease on the lock of one segment.
type Segment struct {
	*Lease
	Index int // number of the segment, from 0

	segmented *Segmented
	search    search
}

// search is the state of one caller's search for a segment.
type search struct {
	name    string
	home    int
	options *AcquireOptions
	seen    []bool
}

// Acquire locks one segment of the given name. It takes the segment home if it is free, otherwise
// the next free one after it. If all segments are locked, Acquire waits for the one with the
// shortest queue in this process, and prefers segments closer to home. It keeps waiting for that
// segment even if another one becomes free. A nil options means the defaults, and the errors are
// those of Locker.Acquire. AcquireOptions.Wait limits only the waiting. If the service fails to
// reply for one segment, the search ends with that error. In a cluster, the caller may then retry
// with another home.
//
// home is any number and is taken modulo n, for example a hash of the customer, so that customers
// are spread over the segments. If all callers pass the same home, each must search for a free
// segment. If home is negative, successive calls start at successive segments.
//
// An owner (WithOwner) that holds a segment of this name gets the same segment again, independent
// of home. If it could wait for a second segment, two owners could deadlock.
func (s *Segmented) Acquire(ctx context.Context, name string, home int, options *AcquireOptions) (*Segment, error) {
	if home < 0 {
		home = int(s.next.Add(1) % uint64(s.n))
	}
	f := search{name: name, home: home % s.n, options: options, seen: make([]bool, s.n)}
	return s.find(ctx, f)
}

// Next releases this segment and locks another one, for a caller that finds the segment empty. It
// works like Acquire but skips segments that the caller has seen since Acquire. It returns
// ErrAllSeen if none is left. After any other error the caller may call Next again.
//
// ctx is like that of Acquire. It must not be the Context of this Lease, which ends here. To get
// the error of the release, call Release before Next. If the owner still holds another segment of
// this name, Next does not wait and may return ErrHeld.
func (s *Segment) Next(ctx context.Context) (*Segment, error) {
	s.Release() //nolint:errcheck // the caller has changed nothing under this lock
	if !slices.Contains(s.search.seen, false) {
		return nil, ErrAllSeen
	}
	f := s.search
	f.seen = slices.Clone(f.seen) // Next may be called on this segment again
	return s.segmented.find(ctx, f)
}

func (s *Segmented) lockName(name string, i int) string { return name + "/" + strconv.Itoa(i%s.n) }

// find locks one of the segments that the caller has not seen.
func (s *Segmented) find(ctx context.Context, f search) (*Segment, error) {
	lengths, owned := s.queueLengths(f, ownerOf(ctx))
	for owned >= 0 && !f.seen[owned] {
		if g, err := s.lock(ctx, f, owned, s.l.TryAcquire); !errors.Is(err, ErrHeld) {
			return g, err
		}
		lengths, owned = s.queueLengths(f, ownerOf(ctx)) // the owner has lost it
	}
	best := -1
	for i := range s.n {
		i = (f.home + i) % s.n
		if f.seen[i] {
			continue
		}
		if best < 0 || lengths[i] < lengths[best] {
			best = i
		}
		if lengths[i] > 0 { // this process holds or requests it
			continue
		}
		if g, err := s.lock(ctx, f, i, s.l.TryAcquire); !errors.Is(err, ErrHeld) {
			return g, err
		}
	}
	if owned >= 0 {
		return nil, failed(OpAcquire, s.l.options.Prefix+f.name, ErrHeld)
	}
	return s.lock(ctx, f, best, s.l.Acquire)
}

func (s *Segmented) lock(
	ctx context.Context, f search, i int, acquire func(context.Context, string, *AcquireOptions) (*Lease, error),
) (*Segment, error) {
	lease, err := acquire(ctx, s.lockName(f.name, i), f.options)
	if err != nil {
		return nil, err
	}
	f.seen[i] = true
	return &Segment{Lease: lease, Index: i, segmented: s, search: f}, nil
}

// queueLengths returns, without a request, how many callers of this process hold or wait for each
// segment. owned is a segment that o holds, preferably one that was not seen, or -1.
func (s *Segmented) queueLengths(f search, o *owner) (lengths []int, owned int) {
	lengths, owned = make([]int, s.n), -1
	keys := make([]string, s.n)
	for i := range keys {
		keys[i] = s.l.options.Prefix + s.lockName(f.name, i)
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	for i, key := range keys {
		q := s.l.names[key]
		if q == nil {
			continue
		}
		lengths[i] = q.length()
		if o != nil && q.ownedBy(o) && (owned < 0 || f.seen[owned]) {
			owned = i
		}
	}
	return lengths, owned
}

// ownedBy reports whether o holds the lock and is not releasing it.
func (q *queue) ownedBy(o *owner) bool {
	return q.held != nil && q.held.owner == o && q.held.endCause() == nil
}

// length returns how many callers of this process hold the lock, request it, or wait for it.
func (q *queue) length() int {
	n := len(q.waiting)
	if q.held != nil {
		n++
	}
	if q.contender != nil {
		n++
	}
	return n
}

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

// ErrAllSeen is the error of Segment.Next when the caller has had every segment.
var ErrAllSeen = errors.New("all segments have been seen")

const maxSegments = 1000

// Segmented locks one of the N segments of a resource, where one lock for all of it would be too
// slow: a stock of 1,000 pieces in ten rows of 100, say, with a lock for each. A buyer of a piece
// locks any of them; so ten can buy at a time. The lock of segment i of a name is the name + "/" +
// i; no request concerns two of them, so that in a Redis cluster they spread over the nodes. A
// Segmented is safe for concurrent use, and needs no closing but that of its Locker.
//
// Its costs:
//   - There is no moment at which the whole is known. The sum of the segments, read one after the
//     other, may never have been the real sum; to know the sum, sales must stop.
//   - The last pieces are spread over the segments. A buyer that finds its segment empty must look
//     into the others (Segment.Next), each of which is one more lock to wait for: the end of a sale
//     is its slowest part, and a buyer of three pieces may find one here and two there, or must do
//     without although three are left. All segments being empty means that each was, one after the
//     other.
//   - N is part of the data. All processes use the same; to change it, sales stop and the stock is
//     divided anew. It is also the number of keys, and of lines to wait in.
//   - Looking for a free one costs a request for each that another process has. (The process knows
//     without one which it has or waits for itself, so that under load few are sent in vain.)
//   - There is no order: a buyer that came later may have a piece sooner, in another segment.
type Segmented struct {
	l    *Locker
	n    int
	turn atomic.Uint64
}

// NewSegmented makes a Segmented of n segments, from 1 to 1000, numbered from 0. The Locker stays
// the caller's; use it for other locks, too, but not for those names.
func NewSegmented(l *Locker, n int) (*Segmented, error) {
	if l == nil {
		return nil, errors.New("lock: the Locker is nil")
	}
	if n < 1 || n > maxSegments {
		return nil, fmt.Errorf("lock: %d segments: from 1 to %d", n, maxSegments)
	}
	s := &Segmented{l: l, n: n}
	s.turn.Store(uint64(rand.IntN(n))) // so that processes do not begin at the same
	return s, nil
}

// Segment is the lock of one segment, a Lease.
type Segment struct {
	*Lease
	Index int // of the segment, from 0

	of     *Segmented
	search search
}

// search is one caller's way through the segments.
type search struct {
	name    string
	home    int
	options *Options
	seen    []bool
}

// Acquire locks one segment of this name: home if nobody has it, else the first after it that is
// free. Where all are taken Acquire waits in line for the segment for which the fewest of this
// process wait, home first; and goes on to wait for that one, even if another becomes free
// meanwhile. nil options are the defaults; errors are those of Locker.Acquire; Options.Wait bounds
// the waiting alone. A service that cannot tell of one segment ends the search with its error; for
// the other servers of a cluster, name another home.
//
// home is any number, modulo n: a hash of the customer's, say, so that customers are spread; where
// all name the same one, each request looks for a free segment first. If it is negative, each call
// has the next in turn.
//
// An owner (WithOwner) that has a segment of this name gets the same again, whatever home is: if it
// waited for a second one, two owners could wait for each other.
func (s *Segmented) Acquire(ctx context.Context, name string, home int, options *Options) (*Segment, error) {
	if home < 0 {
		home = int(s.turn.Add(1) % uint64(s.n))
	}
	f := search{name: name, home: home % s.n, options: options, seen: make([]bool, s.n)}
	return s.find(ctx, f)
}

// Next is for a caller that finds the segment empty: it releases this segment, and locks another,
// as Acquire does, but none that the caller has had since Acquire. When there is none left, the
// error is ErrAllSeen. After any other error Next may be called again.
//
// ctx is as that of Acquire; not the Context of this Lease, which has ended then. To learn how the
// release went, call Release before. An owner that still has another segment of this name does not
// wait: the error is ErrHeld.
func (s *Segment) Next(ctx context.Context) (*Segment, error) {
	s.Release() //nolint:errcheck // nothing was changed under it
	if !slices.Contains(s.search.seen, false) {
		return nil, ErrAllSeen
	}
	f := s.search
	f.seen = slices.Clone(f.seen) // whatever else Next is called on goes its own way
	return s.of.find(ctx, f)
}

func (s *Segmented) segment(name string, i int) string { return name + "/" + strconv.Itoa(i%s.n) }

// find locks one of the segments that have not been seen.
func (s *Segmented) find(ctx context.Context, f search) (*Segment, error) {
	lines, owned := s.lines(f, ownerOf(ctx))
	for owned >= 0 && !f.seen[owned] {
		if g, err := s.lock(ctx, f, owned, s.l.TryAcquire); !errors.Is(err, ErrHeld) {
			return g, err
		}
		lines, owned = s.lines(f, ownerOf(ctx)) // he has lost it meanwhile
	}
	best := -1
	for i := range s.n {
		i = (f.home + i) % s.n
		if f.seen[i] {
			continue
		}
		if best < 0 || lines[i] < lines[best] {
			best = i
		}
		if lines[i] > 0 { // it is taken, or about to be
			continue
		}
		if g, err := s.lock(ctx, f, i, s.l.TryAcquire); !errors.Is(err, ErrHeld) {
			return g, err
		}
	}
	if owned >= 0 {
		return nil, failed("acquire", s.l.options.Prefix+f.name, ErrHeld)
	}
	return s.lock(ctx, f, best, s.l.Acquire)
}

func (s *Segmented) lock(ctx context.Context, f search, i int, by func(context.Context, string, *Options) (*Lease, error)) (*Segment, error) {
	lease, err := by(ctx, s.segment(f.name, i), f.options)
	if err != nil {
		return nil, err
	}
	f.seen[i] = true
	return &Segment{Lease: lease, Index: i, of: s, search: f}, nil
}

// lines tells of each segment how many of this process have it or wait for it, without a request;
// and which segment the owner has, -1 if none: one that has not been seen, if there is one.
func (s *Segmented) lines(f search, o *owner) (lines []int, owned int) {
	lines, owned = make([]int, s.n), -1
	keys := make([]string, s.n)
	for i := range keys {
		keys[i] = s.l.options.Prefix + s.segment(f.name, i)
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	for i, key := range keys {
		q := s.l.names[key]
		if q == nil {
			continue
		}
		lines[i] = q.length()
		if o != nil && q.ownedBy(o) && (owned < 0 || f.seen[owned]) {
			owned = i
		}
	}
	return lines, owned
}

// ownedBy tells whether o has the lock, and is not releasing it already.
func (q *queue) ownedBy(o *owner) bool {
	return q.held != nil && q.held.owner == o && q.held.over() == nil
}

// length is how many of this process have the lock, contend for it, or wait for their turn.
func (q *queue) length() int {
	n := len(q.waiting)
	if q.held != nil {
		n++
	}
	if q.turn != nil {
		n++
	}
	return n
}

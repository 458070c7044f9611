package memory

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// stripes is how many counters there are: enough that two keys rarely share one, where sharing
// costs no more than a reload.
const stripes = 1 << 16

// Versions count the invalidations of keys. A value is read from Redis or the database after its
// key's version was taken; if the version is still the same, no invalidation that this
// process knows of has come between, and the value may be served from memory. So it does not matter
// when, in what order or whether the memory tier applies what it is told.
//
// Keys share striped counters, found by a stable hash of loader and encoded key, the same in every
// process; and beside them one counter for each range of keys, which ends all that is kept of it. A
// key's version is the sum: both only grow, so it is the same only if neither has moved.
type Versions struct {
	stripes [stripes]atomic.Uint64
	ranges  [conn.Ranges]struct {
		epoch atomic.Uint64
		trust atomic.Int64  // until when, on the tier's clock, its versions are known to be those of now
		voids atomic.Uint64 // of the epochs, how many ended what is known to have been invalidated
		_     [40]byte      // a cache line each
	}
}

// Now is the version of the keys of range r with this stable hash.
func (v *Versions) Now(r uint8, stable uint64) uint64 {
	return v.stripes[stable%stripes].Load() + v.ranges[r%conn.Ranges].epoch.Load()
}

// Bump ends all values of the keys with this stable hash that were read before.
func (v *Versions) Bump(stable uint64) {
	v.stripes[stable%stripes].Add(1)
}

// Clear ends all values of range r that were read before.
func (v *Versions) Clear(r int) { v.ranges[r].epoch.Add(1) }

// Void is Clear for what has been invalidated, not only may have been.
func (v *Versions) Void(r int) {
	v.ranges[r].epoch.Add(1) // first: see firm
	v.ranges[r].voids.Add(1)
}

// firm tells whether nothing that is known has invalidated the keys of range r with this stripe
// since their version was that one, when so many epochs had ended what may have been
// invalidated, only: doubts.
func (v *Versions) firm(r uint8, stripe uint16, version uint64, doubts uint32) bool {
	voids := v.ranges[r%conn.Ranges].voids.Load()
	return doubts != doubtful && version-uint64(doubts) == v.stripes[stripe].Load()+voids
}

// doubts counts the epochs of range r that ended what may have been invalidated, and was not known
// to have been; doubtful if the version of the keys with this stripe is not that one any more,
// or may not be.
func (v *Versions) doubts(r uint8, stripe uint16, version uint64) uint32 {
	of := &v.ranges[r%conn.Ranges]
	voids := of.voids.Load() // before the epoch, which moves first
	epoch := of.epoch.Load()
	if v.stripes[stripe].Load()+epoch != version {
		return doubtful
	}
	return uint32(epoch - voids)
}

// doubtful is what there are never so many of.
const doubtful = math.MaxUint32

// Stripe is which counter keys with this stable hash have.
func Stripe(stable uint64) uint16 { return uint16(stable % stripes) }

// Advance is Bump for a value that was read since the version was from: it answers the
// version that the value may be stored under, unless there was another invalidation meanwhile.
func (v *Versions) Advance(r uint8, stable, from uint64) (uint64, bool) {
	stripe := from - v.ranges[r%conn.Ranges].epoch.Load() // not that of any time if the epoch has moved
	return from + 1, v.stripes[stable%stripes].CompareAndSwap(stripe, stripe+1)
}

// Holds are the keys that a process without Redis has put on hold: what is loaded of them for a
// time may be from before their invalidation, and is not to be remembered. As versions they are
// kept by stripes, so that their memory is bounded and nothing has to be swept: a key that shares
// the stripe of another is on hold with it.
type Holds struct {
	lag   time.Duration
	start time.Time             // of the clock
	until [stripes]atomic.Int64 // on it
	taken [stripes]atomic.Int32 // by how many writers that have not left them
}

// NewHolds makes holds of this length.
func NewHolds(lag time.Duration) *Holds { return &Holds{lag: lag, start: time.Now()} }

// Set puts the keys with these stable hashes on hold. Nil holds do nothing.
func (h *Holds) Set(stable []uint64) {
	if h == nil {
		return
	}
	h.set(stable, h.lag)
}

func (h *Holds) set(stable []uint64, life time.Duration) {
	end := int64(time.Since(h.start) + life)
	for _, s := range stable {
		until := &h.until[s%stripes]
		for old := until.Load(); old < end && !until.CompareAndSwap(old, end); old = until.Load() {
		}
	}
}

// Take puts keys on hold until they are left. The same key may be taken more than once.
func (h *Holds) Take(stable []uint64) {
	for _, s := range stable {
		h.taken[s%stripes].Add(1)
	}
}

// Leave ends a Take of keys, after life.
func (h *Holds) Leave(stable []uint64, life time.Duration) {
	h.set(stable, life)
	for _, s := range stable {
		h.taken[s%stripes].Add(-1)
	}
}

// Held tells whether a key is on hold.
func (h *Holds) Held(stable uint64) bool {
	return h.taken[stable%stripes].Load() > 0 || int64(time.Since(h.start)) < h.until[stable%stripes].Load()
}

package memory

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/internal/conn"
)

// stripes is the number of counters. With so many, two keys rarely share one. Sharing costs only
// a reload.
const stripes = 1 << 16

// Versions counts the invalidations of keys. A process takes the version of a key before it reads
// the value from Redis or the database. While the version is unchanged, no invalidation known to
// this process has come in between, and the value may be served from memory. So correctness does
// not depend on when, in what order, or whether the memory tier applies a Set.
//
// Keys share striped counters. A stable hash of the loader and the encoded key, the same in every
// process, selects the stripe. In addition, each range has an epoch, a counter that outdates all
// items of the range. A key's version is the sum of both. Both only grow, so the sum is unchanged
// only if neither has changed.
type Versions struct {
	stripes [stripes]atomic.Uint64
	ranges  [conn.Ranges]struct {
		epoch atomic.Uint64
		trust atomic.Int64  // the end of trust on the tier's clock: until then the versions include every invalidation
		voids atomic.Uint64 // number of epochs that were ended by Void
		_     [40]byte      // one cache line each
	}
}

// Now returns the version of the keys of range r with this stable hash.
func (v *Versions) Now(r uint8, stable uint64) uint64 {
	return v.stripes[stable%stripes].Load() + v.ranges[r%conn.Ranges].epoch.Load()
}

// Bump outdates all values of the keys with this stable hash that were read before. Tier.Forget
// calls it.
func (v *Versions) Bump(stable uint64) {
	v.stripes[stable%stripes].Add(1)
}

// Clear outdates all values of range r that were read before, as a precaution: no invalidation is
// known.
func (v *Versions) Clear(r int) { v.ranges[r].epoch.Add(1) }

// Void outdates all values of range r that were read before, because some have been invalidated.
// It differs from Clear for unchangedSince, and so for GetStale.
func (v *Versions) Void(r int) {
	v.ranges[r].epoch.Add(1) // first: see precautions
	v.ranges[r].voids.Add(1)
}

// unchangedSince reports whether no known invalidation has touched the stripe since version was
// taken. precautions is the number of Clears of range r at that time. Clears do not count,
// because they are only a precaution.
func (v *Versions) unchangedSince(r uint8, stripe uint16, version uint64, precautions uint32) bool {
	voids := v.ranges[r%conn.Ranges].voids.Load()
	return precautions != unknownCount && version-uint64(precautions) == v.stripes[stripe].Load()+voids
}

// precautions returns how often range r had been cleared as a precaution when version was taken.
// It returns unknownCount if the version of the stripe has changed since, or may have changed.
func (v *Versions) precautions(r uint8, stripe uint16, version uint64) uint32 {
	ranged := &v.ranges[r%conn.Ranges]
	voids := ranged.voids.Load() // before the epoch, which Void increments first
	epoch := ranged.epoch.Load()
	if v.stripes[stripe].Load()+epoch != version {
		return unknownCount
	}
	return uint32(epoch - voids)
}

// unknownCount marks an item whose number of precautions cannot be determined.
const unknownCount = math.MaxUint32

// Stripe returns the stripe of keys with this stable hash.
func Stripe(stable uint64) uint16 { return uint16(stable % stripes) }

// Advance is like Bump, for a value that was read after the version from was taken. It returns
// the version under which the value may be stored. It reports false if another invalidation came
// in between.
func (v *Versions) Advance(r uint8, stable, from uint64) (uint64, bool) {
	stripe := from - v.ranges[r%conn.Ranges].epoch.Load() // matches no stripe if the epoch has changed
	return from + 1, v.stripes[stable%stripes].CompareAndSwap(stripe, stripe+1)
}

// Holds are the holds of a process without Redis. A value that is loaded while its key is on hold
// may be from before the invalidation, so it is not stored. Like versions, holds are kept per
// stripe. So their memory is bounded, and they need no sweeping. A key is also on hold if another
// key of its stripe is.
type Holds struct {
	lag   time.Duration
	start time.Time             // origin of the clock
	until [stripes]atomic.Int64 // end of the hold on that clock
	taken [stripes]atomic.Int32 // number of Takes without a Leave
}

// NewHolds returns holds whose Set lasts for lag.
func NewHolds(lag time.Duration) *Holds { return &Holds{lag: lag, start: time.Now()} }

// Set puts the keys with these stable hashes on hold for the lag. It does nothing if h is nil.
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

// Take puts keys on hold until Leave. A key may be taken several times.
func (h *Holds) Take(stable []uint64) {
	for _, s := range stable {
		h.taken[s%stripes].Add(1)
	}
}

// Leave ends one Take of the keys. Their hold ends after life.
func (h *Holds) Leave(stable []uint64, life time.Duration) {
	h.set(stable, life)
	for _, s := range stable {
		h.taken[s%stripes].Add(-1)
	}
}

// HeldAt reports whether a key was on hold at a time of this process, as far as is known now.
func (h *Holds) HeldAt(stable uint64, t time.Time) bool {
	return int64(t.Sub(h.start)) < h.until[stable%stripes].Load()
}

// Held reports whether a key is on hold.
func (h *Holds) Held(stable uint64) bool {
	return h.taken[stable%stripes].Load() > 0 || int64(time.Since(h.start)) < h.until[stable%stripes].Load()
}

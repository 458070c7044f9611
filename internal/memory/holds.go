package memory

import (
	"sync/atomic"
	"time"
)

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

package bloom

import (
	"time"
)

// ear is what the bus of a filter tells of: it goes to the filter's Replica, if there is one. A
// filter without one never listens.
type ear struct{ f *Redis }

// Told adds keys that others have added.
func (e ear) Told(body []byte) {
	if r := e.f.copy.Load(); r != nil {
		decodeHashes(body, r.add)
	}
}

// Clear has the copy made again, since keys may have been added that were not heard of.
func (e ear) Clear(int) {
	if r := e.f.copy.Load(); r != nil {
		r.epoch.Add(1)
		r.look()
	}
}

// Void is Clear where some were.
func (e ear) Void(rng int) { e.Clear(rng) }

// Trust has the copy say "no" until then. Told and Clear come before the Trust that counts on them,
// and a lookup reads in the other order.
func (e ear) Trust(_ int, until time.Time) {
	if r := e.f.copy.Load(); r != nil {
		r.trust.Store(int64(until.Sub(r.start)))
	}
}

// Forget is for keys that are invalidated, which no filter announces.
func (e ear) Forget(uint64) {}

package sqloutbox

import (
	"math"
	"sync"
	"time"
)

const (
	// floorAge is how long a transaction may stay open after PutIn without its items being found
	// late.
	floorAge = 10 * time.Second

	// floorInterval is the minimum time between two readings from the first row on. They take at
	// most one part in floorShare of the time.
	floorInterval = 10 * time.Second
	floorShare    = 20

	noFloor = math.MinInt64
)

// A floor is the due time from which the index is read in PostgreSQL. As long as any transaction is
// open, PostgreSQL keeps the index entries of the rows that were removed after it began: for hours
// next to a backup. These entries are at the beginning of the index, so each query would have to
// skip all of them.
//
// When the index was last read from its beginning, there was no row below the floor. A
// transaction may commit a row there later, if it has put the row more than floorAge before. Such
// a row is found when the index is read from its beginning again.
//
// That reading may take longer than its caller can wait. Other rows are still claimed, but rows
// below the floor wait. So unread contains the error until a reading succeeds.
type floor struct {
	mu     sync.Mutex
	raised bool
	due    int64
	expiry time.Time // when to read from the beginning again
	skip   bool      // a claim has taken too long: skip to the rows of the last time
	unread error     // why the last reading from the beginning has failed; nil: it has not
}

// get returns the due time from which to read.
func (f *floor) get() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.raised {
		return noFloor
	}
	return f.due
}

// skips reports whether a claim must call skipTo instead of get.
func (f *floor) skips() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.skip
}

// skipTo raises the floor to floorAge before the time now of the database, and returns it. The next
// reading from the beginning finds the rows that were skipped. That reading is due immediately,
// unless the last one has failed.
func (f *floor) skipTo(now int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.raised, f.due, f.skip = true, now-micros(floorAge), false
	if f.unread == nil {
		f.expiry = time.Time{}
	}
	return f.due
}

// claimTimedOut records that a claim has taken too long.
func (f *floor) claimTimedOut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.skip = true
}

// readingTimedOut records that a reading from the beginning has failed with err, because it took
// too long. The next reading from the beginning is so much later that a Relay reads from the floor
// at least once before it, which raises the floor.
func (f *floor) readingTimedOut(err error, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unread, f.expiry = err, time.Now().Add(max(floorInterval, 2*floorShare*took))
}

// failure returns unread.
func (f *floor) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unread
}

// expire lowers the floor if it is time to read from the beginning, and returns the due time from
// which to read.
func (f *floor) expire() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.raised || time.Now().After(f.expiry) {
		return noFloor
	}
	return f.due
}

// observe updates the floor after a query that has read the index from the due time from. first
// is the due time of the first row, now is the time of the database, and took is the duration of
// the query. If the clock of the database has gone back, the floor goes back with it.
func (f *floor) observe(from, first, now int64, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if from == noFloor {
		f.unread, f.expiry = nil, time.Now().Add(max(floorInterval, floorShare*took))
	}
	if from == noFloor || f.unread != nil { // otherwise the next reading from the beginning raises it
		f.raised, f.due = true, first
	}
	f.due = min(f.due, now-micros(floorAge))
}

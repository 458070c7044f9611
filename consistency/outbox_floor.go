package consistency

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

// A floor is the due time from which the index is read in PostgreSQL. As long as any transaction
// is open, PostgreSQL keeps the index entries of the rows that were removed after it began: for
// hours next to a backup. They are those due first, so each query would pass all of them.
//
// When the index was last read from its beginning, there was no row below the floor. A
// transaction may commit a row there later, if it has put the row more than floorAge before. Such
// a row is found when the index is read from its beginning again.
type floor struct {
	mu     sync.Mutex
	raised bool
	due    int64
	expiry time.Time // when to read from the beginning again
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
		f.raised, f.due = true, first
		f.expiry = time.Now().Add(max(floorInterval, floorShare*took))
	}
	f.due = min(f.due, now-micros(floorAge))
}

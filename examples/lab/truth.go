package main

import (
	"sync"
	"time"
)

// maxRemembered is the maximum number of recorded changes per row, which give the age of a read
// value.
const maxRemembered = 256

// truth records which changes are finished: committed, and invalidated as far as their writer
// tries.
type truth struct {
	mu      sync.Mutex
	changes map[int64][]change
}

type change struct {
	version int64
	over    time.Time
}

func newTruth() *truth { return &truth{changes: map[int64][]change{}} }

// settle records that the writer of a version has finished.
func (t *truth) settle(id, version int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.changes[id]
	c = append(c, change{version, time.Now()})
	if len(c) > maxRemembered {
		c = append(c[:0], c[len(c)-maxRemembered:]...)
	}
	t.changes[id] = c
}

// staleFor returns how long version had been outdated at the time start. A version is outdated when
// the first writer of a newer version has finished. 0 means that it was not outdated.
func (t *truth) staleFor(id, version int64, start time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	var longest time.Duration
	for _, c := range t.changes[id] {
		if c.version > version {
			longest = max(longest, start.Sub(c.over))
		}
	}
	return longest
}

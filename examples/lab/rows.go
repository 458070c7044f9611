package main

import "iter"

// The rows of a system's database. Experiments that need cold rows have their own rows, and use
// another one each time.
const (
	trafficRows    = 200 // 1 to 200; the first ones are read most
	firstStampede  = 2001
	firstRace      = 3001
	experimentRows = 500 // of each kind, used in turn
	firstAbsent    = 1_000_000
)

// allRows yields the ids of all rows.
func allRows() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for _, r := range []struct{ first, rows int64 }{{1, trafficRows}, {firstStampede, experimentRows},
			{firstRace, experimentRows}} {
			for id := r.first; id < r.first+r.rows; id++ {
				if !yield(id) {
					return
				}
			}
		}
	}
}

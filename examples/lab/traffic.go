package main

import (
	"math/rand/v2"
	"time"
)

const (
	usualWrites = 5 // per second, in each system
	mostReads   = 2000
	mostWrites  = 100
	hotRows     = 10 // the first rows, which get half of the writes
)

// traffic makes the same reads and writes in both systems until the lab ends. It does not wait for
// them, as users do not wait for each other.
func (l *lab) traffic() {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	rank := rand.NewZipf(random, 1.1, 1, trafficRows-1)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	last := time.Now()
	var reads, writes float64 // that are due
	for {
		var now time.Time
		select {
		case now = <-ticker.C:
		case <-l.life.Done():
			return
		}
		// after a pause of the machine, missed requests are not made up for
		passed := min(now.Sub(last), time.Second/5).Seconds()
		last = now
		l.mu.Lock()
		reads, writes = reads+passed*float64(l.state.Reads), writes+passed*float64(l.state.Writes)
		l.mu.Unlock()
		for ; reads >= 1; reads-- {
			p, id := random.IntN(processes), int64(rank.Uint64())+1
			for _, w := range l.worlds() {
				w.goRead(p, id)
			}
		}
		for ; writes >= 1; writes-- {
			p, id := random.IntN(processes), random.Int64N(trafficRows)+1
			if random.IntN(2) == 0 {
				id = random.Int64N(hotRows) + 1
			}
			for _, w := range l.worlds() {
				w.goWrite(p, id)
			}
		}
	}
}

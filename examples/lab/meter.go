package main

import (
	"fmt"
	"maps"
	"math/bits"
	"strings"
	"sync"
	"time"
)

// tally has the counts of a period.
type tally struct {
	Reads, Loads, Errors int
	Stale                int           // reads of a value older than a change whose writer had finished
	Overdue              int           // stale reads that were stale for longer than MaxStaleness
	Oldest               time.Duration // greatest staleness, since the writer had finished
	AtOnce               int           // maximum of concurrent loads, including those that wait for a connection
	Took                 latencies     // latencies of all reads

	begun time.Time
}

// meter counts the events of one system in all open tallies.
type meter struct {
	mu      sync.Mutex
	running int // loads
	total   *tally
	open    map[*tally]bool
}

func newMeter() *meter {
	m := &meter{open: map[*tally]bool{}}
	m.total = m.begin()
	return m
}

// begin opens a tally.
func (m *meter) begin() *tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &tally{AtOnce: m.running, begun: time.Now()}
	m.open[t] = true
	return t
}

// end closes t. The caller owns it afterwards.
func (m *meter) end(t *tally) *tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, t)
	return t
}

// sum returns the counts since the start.
func (m *meter) sum() tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *m.total
}

func (m *meter) loadBegins() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running++
	for t := range maps.Keys(m.open) {
		t.Loads++
		t.AtOnce = max(t.AtOnce, m.running)
	}
}

func (m *meter) loadEnds() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
}

// read counts a read with its latency and its staleness at its start.
func (m *meter) read(took time.Duration, failed bool, stale time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for t := range maps.Keys(m.open) {
		t.Reads++
		t.Took.add(took)
		if failed {
			t.Errors++
		}
		if stale > 0 {
			t.Stale++
			t.Oldest = max(t.Oldest, stale)
		}
		if stale > maxStaleness {
			t.Overdue++
		}
	}
}

// add adds the counts of another period to t.
func (t *tally) add(o *tally) {
	t.Reads, t.Loads, t.Errors = t.Reads+o.Reads, t.Loads+o.Loads, t.Errors+o.Errors
	t.Stale, t.Overdue = t.Stale+o.Stale, t.Overdue+o.Overdue
	t.Oldest, t.AtOnce = max(t.Oldest, o.Oldest), max(t.AtOnce, o.AtOnce)
	for i, n := range o.Took {
		t.Took[i] += n
	}
}

// hits returns the share of reads without a load.
func (t *tally) hits() float64 {
	if t.Reads == 0 {
		return 1
	}
	return max(0, 1-float64(t.Loads)/float64(t.Reads))
}

// String describes the tally for the log of events.
func (t *tally) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s, p99 %s; %s", count(t.Reads, "read"), milliseconds(t.Took.quantile(0.99)),
		count(t.Loads, "load"))
	if t.AtOnce > 1 {
		fmt.Fprintf(&s, ", at most %d at once", t.AtOnce)
	}
	fmt.Fprintf(&s, "; %s; %s", count(t.Errors, "error"), count(t.Stale, "stale value"))
	if t.Stale > 0 {
		fmt.Fprintf(&s, ", the oldest by %s", milliseconds(t.Oldest))
	}
	return s.String()
}

// latencies is a histogram with four buckets per power of two, in microseconds.
type latencies [128]int

func (l *latencies) add(d time.Duration) {
	us := uint64(max(1, d.Microseconds()))
	n := bits.Len64(us)
	quarter := us << (64 - n) >> 61 & 3
	l[min(n*4+int(quarter), len(l)-1)]++
}

// quantile returns the upper end of the bucket that contains the quantile.
func (l *latencies) quantile(q float64) time.Duration {
	all := 0
	for _, n := range l {
		all += n
	}
	if all == 0 {
		return 0
	}
	rest := max(1, all-int(q*float64(all)))
	for i := len(l) - 1; i >= 0; i-- {
		if rest -= l[i]; rest <= 0 {
			n, quarter := i/4, i%4
			return time.Duration(float64(uint64(1)<<n)*(5+float64(quarter))/8*1000) * time.Nanosecond
		}
	}
	return 0
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(n) + " " + noun + "s"
}

func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func milliseconds(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 10_000:
		return thousands(int(ms+0.5)) + " ms"
	default:
		return fmt.Sprintf("%.1f s", ms/1000)
	}
}

// Package check tells whether what the processes of a torture run saw is what the library promises.
// It knows nothing of how the run was made: it is given the operations, and when which faults could
// excuse them.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// Window is a stretch of time on the clock of history.Now.
type Window struct{ From, To int64 }

func (w Window) overlaps(from, to int64) bool { return from <= w.To && to >= w.From }

// Suspension is a stretch of time in which a process was stopped by a signal.
type Suspension struct {
	Process int
	Window
}

// Input is a run.
type Input struct {
	Ops       []history.Op
	Began     int64         // when all rows had version 1 and nothing was cached
	Bound     time.Duration // what memory may serve this long after an invalidation was acknowledged, and no longer
	Grace     time.Duration // how late an operation may end after its deadline
	Failovers []Window      // in which acknowledged deletes may have been lost
	LostTTL   time.Duration // and how long after such a delete the value may still be served
	Suspended []Suspension
}

// Rule is what a violation violates.
type Rule string

// The rules.
const (
	Stale  Rule = "stale: something newer had been acknowledged before this read began"
	Back   Rule = "went back: a read that had ended before this one began saw something newer"
	Future Rule = "from the future: read before its write had begun"
	Bound  Rule = "out of bounds: the memory tier served it later than MaxStaleness after something newer was acknowledged"
	Own    Rule = "own: this process had itself been told that something newer is acknowledged"
	Lost   Rule = "lost for too long: a failover lost the delete, but the TTL had passed"
	Late   Rule = "late: it ended after its deadline"
	Order  Rule = "not linearizable, says porcupine"
)

// Violation is one operation that broke a rule.
type Violation struct {
	Rule  Rule
	Op    history.Op
	Newer int64 // the version that should have been seen
	Known int64 // since when
}

func (v Violation) String() string {
	return fmt.Sprintf("%s of key %d in process %d: %s", v.Op.Kind, v.Op.Key, v.Op.Process, v.Rule)
}

// Report is what was found.
type Report struct {
	Violations     []Violation
	LostByFailover int           // reads that would be violations but for a failover
	Unvalidated    int           // fresh reads that Redis may not have confirmed, which are left out of the linearizable history
	Linearizable   int           // reads and writes in it
	Unchecked      int           // parts of it that porcupine could not decide in time: only the rules of fresh, which are exact, have
	began          time.Time     // of checking
	Reads          int           // through memory, of which
	Worst, P99     time.Duration // are the staleness
	StaleReads     int           // and how many had any
	Late           int           // operations that ended after their deadlines
}

// Run checks everything.
func Run(in Input) *Report {
	r := &Report{began: time.Now()}
	keys := split(&in)
	var staleness []int64
	for _, k := range keys {
		staleness = k.memory(&in, r, staleness)
		k.fresh(&in, r)
		k.order(&in, r)
	}
	r.late(&in)
	slices.SortFunc(r.Violations, func(a, b Violation) int { // porcupine cannot tell which read it was
		return cmp.Or(cmp.Compare(order(a.Rule), order(b.Rule)), cmp.Compare(a.Op.Start, b.Op.Start))
	})
	slices.Sort(staleness)
	if n := len(staleness); n > 0 {
		r.Worst = time.Duration(staleness[n-1])
	}
	r.StaleReads = len(staleness)
	// The percentile is of all reads, of which most are not stale at all.
	if i := len(staleness) - 1 - r.Reads/100; i >= 0 {
		r.P99 = time.Duration(staleness[i])
	}
	return r
}

func order(rule Rule) int {
	if rule == Order {
		return 1
	}
	return 0
}

func (r *Report) violation(rule Rule, op *history.Op, newer, known int64) {
	r.Violations = append(r.Violations, Violation{Rule: rule, Op: *op, Newer: newer, Known: known})
}

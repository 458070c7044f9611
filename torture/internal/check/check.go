// Package check checks whether the operations of a torture run keep the promises of the library. It
// does not depend on how the run was made. Its input is the operations, and the times of faults
// that excuse some of them.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// Window is a period on the clock of history.Now.
type Window struct{ From, To int64 }

func (w Window) overlaps(from, to int64) bool { return from <= w.To && to >= w.From }

// Suspension is a period during which a signal had stopped a process.
type Suspension struct {
	Process int
	Window
}

// Input describes a run.
type Input struct {
	Ops       []history.Op
	Began     int64         // when all rows had version 1 and the cache was empty
	Bound     time.Duration // how long memory may serve a value after its invalidation was acknowledged
	Grace     time.Duration // how long after its deadline an operation may end
	Failovers []Window      // periods when acknowledged deletes may have been lost
	LostTTL   time.Duration // how long after such a delete the value may still be served
	Suspended []Suspension

	// Groups returns the groups to which a version of a row belongs; nil if rows have none.
	Groups func(key uint32, version int64) []uint32
}

// Rule is a rule that a violation breaks.
type Rule string

// The rules.
const (
	Stale  Rule = "stale: something newer had been acknowledged before this read began"
	Back   Rule = "went back: a read that had ended before this one began saw something newer"
	Future Rule = "from the future: read before its write had begun"
	Bound  Rule = "out of bounds: the memory tier served it later than MaxStaleness after something newer was " +
		"acknowledged"
	Token Rule = "behind its token: it is older than the write that was invalidated before the token was made"
	Own   Rule = "own: an Invalidate in this process had already acknowledged something newer"
	Lost  Rule = "lost for too long: a failover lost the delete, but the TTL had passed"
	Late  Rule = "late: it ended after its deadline"
	Order Rule = "not linearizable, says porcupine"
)

// Violation is an operation that broke a rule.
type Violation struct {
	Rule  Rule
	Op    history.Op
	Newer int64 // the oldest version that was allowed
	Known int64 // since when this version was known
}

func (v Violation) String() string {
	return fmt.Sprintf("%s of key %d in process %d: %s", v.Op.Kind, v.Op.Key, v.Op.Process, v.Rule)
}

// Report is the result of Run.
type Report struct {
	Violations     []Violation
	LostByFailover int // reads that a failover excuses
	// fresh reads that Redis may not have confirmed, which are excluded from the linearizable
	// history
	Unvalidated  int
	Linearizable int // reads and writes in the linearizable history
	// parts of it that porcupine could not decide in time; the rules of fresh, which are exact,
	// have checked them
	Unchecked  int
	began      time.Time     // start of the check
	Reads      int           // reads through memory
	Worst, P99 time.Duration // staleness of these reads
	StaleReads int           // reads through memory that were stale
	Late       int           // operations that ended after their deadlines
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
	slices.SortFunc(r.Violations, func(a, b Violation) int { // porcupine does not report which read it was
		return cmp.Or(cmp.Compare(order(a.Rule), order(b.Rule)), cmp.Compare(a.Op.Start, b.Op.Start))
	})
	slices.Sort(staleness)
	if n := len(staleness); n > 0 {
		r.Worst = time.Duration(staleness[n-1])
	}
	r.StaleReads = len(staleness)
	// The percentile covers all reads. Most of them are not stale.
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

package torture

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/torture/internal/check"
	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// summary summarizes a run.
type summary struct {
	seed        uint64
	topology    string
	lasted      time.Duration
	began, sick int64 // sick is the time of the first fault
	checking    time.Duration
	in          *check.Input
	found       *check.Report
	reports     []workerReport
	injector    *injector
	others      *listeners
}

// shownViolations is the number of violations that are printed in full. shownOps is the number of
// related operations printed with each.
const (
	shownViolations = 10
	shownOps        = 50
)

// print prints the table, and fails the test for violations, hanging goroutines and leaks.
func (s summary) print(t *testing.T) {
	t.Helper()
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-20s ", name)
		fmt.Fprintf(&b, format+"\n", args...)
	}
	hung, leaked := 0, 0
	sums := map[string]int64{}
	for _, r := range s.reports {
		hung += r.Hung
		if r.Leaked != "" {
			leaked++
			t.Errorf("goroutines have leaked:\n%s", r.Leaked)
		}
		for name, n := range r.Sums {
			sums[name] += n
		}
	}
	fmt.Fprintf(&b, "\nseed %d, %s, %v\n", s.seed, s.topology, s.lasted.Round(time.Millisecond))
	line("operations", "%s", s.operations())
	line("faults", "%s", s.faults())
	line("loads, all", "%d", s.count(history.Load, 0, s.lasted.Nanoseconds()))
	line("loads, healthy", "%s", s.healthy())
	line("linearizable", "%d reads and writes that porcupine has put in order; %d parts that it could not decide in "+
		"time, but the rules did", s.found.Linearizable, s.found.Unchecked)
	line("unvalidated", "%d fresh reads, left out there", s.found.Unvalidated)
	line("lost by failover", "%d reads; deletes could be lost in %.1f s", s.found.LostByFailover, s.lossy().Seconds())
	line("staleness", "worst %v, p99 %v, of %d reads through memory; %d were stale at all; the bound is %v",
		s.found.Worst.Round(time.Millisecond), s.found.P99.Round(time.Millisecond), s.found.Reads, s.found.StaleReads,
		s.in.Bound)
	line("announcements", "%d in %d messages, of which %d had several, as %d other listeners received them",
		s.others.announcements.Load(), s.others.messages.Load(), s.others.gathered.Load(), s.others.n)
	line("tokens", "%s", s.tokens())
	line("stats", "%s", counts(sums))
	line("late", "%d operations", s.found.Late)
	line("hung", "%d goroutines; %d processes left some behind", hung, leaked)
	line("violations", "%d %s", len(s.found.Violations), s.kinds())
	line("checked in", "%v", s.checking.Round(time.Millisecond))
	t.Log(b.String())
	// In a short run on a cluster, few invalidations of a range follow each other closely enough.
	if s.others.n > 0 && s.others.gathered.Load() == 0 && (long() || s.topology != "cluster") {
		t.Error("no announcements were gathered")
	}
	if hung > 0 {
		t.Errorf("%d goroutines hang", hung)
	}
	for n, v := range s.found.Violations {
		if n == shownViolations {
			t.Errorf("and %d more violations", len(s.found.Violations)-n)
			break
		}
		t.Error(s.describe(v))
	}
}

// describe returns all details of a violation.
func (s summary) describe(v check.Violation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "VIOLATION %v\n  it read version %d, from %.6f s to %.6f s", v, v.Op.Version,
		seconds(v.Op.Start-s.began), seconds(v.Op.End-s.began))
	if v.Op.Kind == history.After {
		fmt.Fprintf(&b, ", with the token of version %d, which was acknowledged at %.6f s", v.Op.Least,
			seconds(v.Op.Acked-s.began))
	}
	if v.Known != 0 && v.Rule != check.Order {
		fmt.Fprintf(&b, "; version %d was known at %.6f s, %v before", v.Newer, seconds(v.Known-s.began),
			time.Duration(v.Op.Start-v.Known))
	}
	from, to := min(v.Known, v.Op.Start)-int64(time.Second), v.Op.End
	for _, f := range s.injector.during(from, to, s.began) {
		fmt.Fprintf(&b, "\n  fault: %s", f)
	}
	// Operations on this key around that time.
	var about []history.Op
	for _, op := range s.in.Ops {
		if s.concerns(op, v) && op.End >= min(v.Known, v.Op.Start)-int64(100*time.Millisecond) &&
			op.Start <= v.Op.End && op.Kind != history.Get && op.Kind != history.After && !op.Has(history.Failed) {
			about = append(about, op)
		}
	}
	slices.SortFunc(about, func(a, b history.Op) int { return int(a.Start - b.Start) })
	for _, op := range about[max(0, len(about)-shownOps):] {
		fmt.Fprintf(&b, "\n  %.6f-%.6f process %d.%d %s v%d flags %b", seconds(op.Start-s.began),
			seconds(op.End-s.began), op.Process, op.Goroutine, op.Kind, op.Version, op.Flags)
		if op.Kind == history.InvalidateGroup {
			fmt.Fprintf(&b, " group %d", op.Key)
		}
	}
	return b.String()
}

// concerns reports whether an operation involves the key of a violation, or a group of the version
// that was read.
func (s summary) concerns(op history.Op, v check.Violation) bool {
	if op.Kind != history.InvalidateGroup {
		return op.Key == v.Op.Key
	}
	return slices.Contains(s.in.Groups(v.Op.Key, v.Op.Version), op.Key)
}

func (s summary) operations() string {
	n := map[string]int64{}
	failed := int64(0)
	for i := range s.in.Ops {
		op := &s.in.Ops[i]
		switch {
		case op.Kind == history.Begin || op.Kind == history.Load:
			continue
		case op.Has(history.Failed):
			failed++
			n[op.Kind.String()+" failed"]++
		default:
			n[op.Kind.String()]++
		}
	}
	return fmt.Sprintf("%s (%d a second)", counts(n), int64(float64(len(s.in.Ops))/s.lasted.Seconds()))
}

// tokens counts the reads with a token, and those that began soon after the token's invalidation.
func (s summary) tokens() string {
	const soon = 15 * time.Millisecond
	reads, early := 0, 0
	for i := range s.in.Ops {
		if op := &s.in.Ops[i]; op.Kind == history.After && !op.Has(history.Failed) {
			reads++
			if op.Start-op.Acked < int64(soon) {
				early++
			}
		}
	}
	return fmt.Sprintf("%d reads, %d of them within %v", reads, early, soon)
}

func (s summary) faults() string {
	n := map[string]int64{}
	for _, f := range s.injector.faults {
		n[f.name]++
	}
	return counts(n)
}

func (s summary) kinds() string {
	n := map[string]int64{}
	for _, v := range s.found.Violations {
		rule, _, _ := strings.Cut(string(v.Rule), ":")
		n[rule]++
	}
	return counts(n)
}

// healthy compares the loads before the first fault with the loads that are necessary.
func (s summary) healthy() string {
	cold := map[uint32]bool{}
	for i := range s.in.Ops {
		if op := &s.in.Ops[i]; op.Start < s.sick && op.Kind != history.InvalidateGroup {
			cold[op.Key] = true
		}
	}
	to := s.sick - s.began
	return fmt.Sprintf("%d, with %d invalidations of keys and %d of groups, %d refreshes and %d cold keys",
		s.count(history.Load, 0, to), s.count(history.Invalidate, 0, to), s.count(history.InvalidateGroup, 0,
			to), s.count(history.Refresh, 0, to), len(cold))
}

// lossy returns the total time in which a failover could lose deletes.
func (s summary) lossy() (sum time.Duration) {
	windows := slices.SortedFunc(slices.Values(s.in.Failovers),
		func(a, b check.Window) int { return cmp.Compare(a.From, b.From) })
	end := int64(0)
	for _, w := range windows {
		sum += time.Duration(max(0, w.To-max(w.From, end)))
		end = max(end, w.To)
	}
	return sum
}

func (s summary) count(kind history.Kind, from, to int64) (n int) {
	for i := range s.in.Ops {
		if op := &s.in.Ops[i]; op.Kind == kind && op.Start >= s.began+from && op.Start < s.began+to {
			n++
		}
	}
	return n
}

func counts(n map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, n[name]))
	}
	return strings.Join(parts, ", ")
}

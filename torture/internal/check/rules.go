package check

import (
	"slices"
	"time"

	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// memory checks the reads through the memory tier, and records the staleness of stale reads.
func (k *keyOf) memory(in *Input, r *Report, staleness []int64) []int64 {
	for _, op := range k.memoryReads {
		r.Reads++
		if begun := k.begunAt(op.Version); begun > op.End {
			r.violation(Future, op, op.Version, begun)
		}
		if op.Kind == history.After && op.Version < op.Least {
			// A later acknowledgement proves nothing, because its announcement may be late.
			if p := k.ackedSafe.after(op.Version); p.at <= op.Acked {
				r.violation(Token, op, p.version, p.at)
			} else {
				k.lose(in, r, op)
			}
			continue
		}
		if p := k.own[op.Process].after(op.Version); p.at < op.Start {
			if k.ownSafe[op.Process].after(op.Version).at < op.Start {
				r.violation(Own, op, p.version, p.at)
			} else {
				k.lose(in, r, op)
			}
			continue
		}
		p := k.bounded.after(op.Version)
		if p.at >= op.Start {
			continue
		}
		switch stale := op.Start - p.at; {
		case stale <= int64(in.Bound):
			staleness = append(staleness, stale)
		case op.Start-k.boundSafe.after(op.Version).at > int64(in.Bound):
			staleness = append(staleness, stale)
			r.violation(Bound, op, p.version, p.at)
		default:
			k.lose(in, r, op)
		}
	}
	return staleness
}

// lose counts a read that a failover excuses. A read that came too long after the failover is not
// excused.
func (k *keyOf) lose(in *Input, r *Report, op *history.Op) {
	r.LostByFailover++
	k.lost[op] = true
	if p := k.acked.after(op.Version); p.at != never && op.Start-p.at > int64(in.LostTTL) {
		r.violation(Lost, op, p.version, p.at)
	}
}

// fresh checks the reads without the memory tier. The order of the writes is known. Therefore the
// reads are linearizable if and only if each of them meets three conditions. The read did not end
// before its write and all earlier writes had begun. It is not older than a version acknowledged
// before it began. It is not older than a version read before it began. Proof: for any two
// versions, the earliest time at which the older can become current is before the latest such time
// of the newer.
func (k *keyOf) fresh(in *Input, r *Report) {
	var seen, seenSafe []point
	for _, op := range k.freshReads {
		if op.Has(history.Unvalidated) {
			continue
		}
		seen = append(seen, point{op.End, op.Version})
		if !in.mayBeLost(op) {
			seenSafe = append(seenSafe, point{op.End, op.Version})
		}
	}
	read, readSafe := newFrontier(seen), newFrontier(seenSafe)
	for _, op := range slices.Concat(k.freshReads, k.refreshes) {
		if begun := k.begunAt(op.Version); begun > op.End {
			r.violation(Future, op, op.Version, begun)
		}
		if p := k.acked.after(op.Version); p.at < op.Start {
			if k.ackedSafe.after(op.Version).at < op.Start {
				r.violation(Stale, op, p.version, p.at)
			} else {
				k.lose(in, r, op)
			}
			continue
		}
		if op.Kind == history.Refresh {
			continue // its value may not have been stored
		}
		if op.Has(history.Unvalidated) {
			r.Unvalidated++
			continue
		}
		if p := read.after(op.Version); p.at < op.Start {
			if readSafe.after(op.Version).at < op.Start {
				r.violation(Back, op, p.version, p.at)
			} else {
				k.lose(in, r, op)
			}
		}
	}
}

// late finds operations that ended after their deadlines. Deadlines during a suspension of the
// process do not count.
func (r *Report) late(in *Input) {
	suspended := map[int][]Window{}
	for _, s := range in.Suspended {
		suspended[s.Process] = append(suspended[s.Process], s.Window)
	}
	for i := range in.Ops {
		op := &in.Ops[i]
		if op.Timeout == 0 {
			continue
		}
		deadline := op.Start + int64(op.Timeout)*int64(time.Microsecond)
		late := op.End - deadline - int64(in.Grace)
		if late <= 0 {
			continue
		}
		for _, w := range suspended[op.Process] {
			late -= max(0, min(w.To, op.End)-max(w.From, op.Start))
		}
		if late > 0 {
			r.Late++
			r.violation(Late, op, 0, deadline)
		}
	}
}

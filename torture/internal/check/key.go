package check

import (
	"cmp"
	"slices"

	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// keyOf is the history of one key, with data derived from it.
//
// The rows are written by UPDATE … SET v = v + 1, so the database determines the order of the
// writes. An invalidation that began after a version was known to be committed acknowledges that
// version when it returns nil, independent of the process that has written it.
type keyOf struct {
	memoryReads []*history.Op
	freshReads  []*history.Op // validated and unvalidated
	refreshes   []*history.Op
	begun       []int64 // by version - 1: when its write and all earlier ones had begun
	unknown     int64   // the earliest start of a write with an unknown version

	acked     frontier // by any process's Invalidate
	ackedSafe frontier // without acknowledgements that a failover may have lost
	bounded   frontier // for reads from memory: includes InvalidateAll
	boundSafe frontier
	own       map[int]frontier // by each process's own Invalidate
	ownSafe   map[int]frontier

	lost map[*history.Op]bool // reads that a failover excuses
}

// raw has the operations of a key by kind.
type raw struct {
	keyOf
	commits     []*history.Op
	invalidates []*history.Op
}

// split returns the histories of the keys, in the order of the keys.
func split(in *Input) []*keyOf {
	raws := map[uint32]*raw{}
	of := func(key uint32) *raw {
		k := raws[key]
		if k == nil {
			k = &raw{keyOf: keyOf{unknown: never}}
			raws[key] = k
		}
		return k
	}
	type place struct{ process, goroutine int }
	open := map[place]*history.Op{}
	var all []*history.Op
	for i := range in.Ops {
		op := &in.Ops[i]
		here := place{op.Process, int(op.Goroutine)}
		switch op.Kind {
		case history.Begin:
			if before := open[here]; before != nil { // its UPDATE failed, and may have been executed
				of(before.Key).unknown = min(of(before.Key).unknown, before.Start)
			}
			open[here] = op
			continue
		case history.Commit:
			delete(open, here)
		}
		if op.Has(history.Failed) {
			continue
		}
		switch op.Kind {
		case history.Get:
			of(op.Key).memoryReads = append(of(op.Key).memoryReads, op)
		case history.Fresh:
			of(op.Key).freshReads = append(of(op.Key).freshReads, op)
		case history.Refresh:
			of(op.Key).refreshes = append(of(op.Key).refreshes, op)
		case history.Commit:
			of(op.Key).commits = append(of(op.Key).commits, op)
		case history.Invalidate:
			of(op.Key).invalidates = append(of(op.Key).invalidates, op)
		case history.InvalidateAll:
			all = append(all, op)
		}
	}
	for _, op := range open {
		of(op.Key).unknown = min(of(op.Key).unknown, op.Start)
	}
	numbers := make([]uint32, 0, len(raws))
	for key := range raws {
		numbers = append(numbers, key)
	}
	slices.Sort(numbers)
	keys := make([]*keyOf, 0, len(raws))
	for _, key := range numbers {
		keys = append(keys, raws[key].finish(in, all))
	}
	return keys
}

func (r *raw) finish(in *Input, all []*history.Op) *keyOf {
	committed := []point{{in.Began, 1}}
	last := int64(1)
	for _, c := range r.commits {
		last = max(last, c.Version)
		committed = append(committed, point{c.End, c.Version})
	}
	for _, op := range slices.Concat(r.memoryReads, r.freshReads, r.refreshes) {
		last = max(last, op.Version) // its write may not be recorded
	}
	r.begun = make([]int64, last)
	for i := range r.begun {
		r.begun[i] = r.unknown
	}
	r.begun[0] = in.Began
	for _, c := range r.commits {
		r.begun[c.Version-1] = c.Start
	}
	for i := range r.begun[1:] { // a version cannot exist before earlier versions
		r.begun[i+1] = max(r.begun[i], r.begun[i+1])
	}

	commits := newFrontier(committed)
	first := point{in.Began, 1}
	acked, safe := []point{first}, []point{first}
	own, ownSafe := map[int][]point{}, map[int][]point{}
	for _, op := range r.invalidates {
		p := point{op.End, commits.before(op.Start + 1)}
		acked = append(acked, p)
		own[op.Process] = append(own[op.Process], p)
		if !in.mayBeLost(op) {
			safe = append(safe, p)
			ownSafe[op.Process] = append(ownSafe[op.Process], p)
		}
	}
	bounded, boundSafe := slices.Clone(acked), slices.Clone(safe)
	for _, op := range all {
		p := point{op.End, commits.before(op.Start + 1)}
		bounded = append(bounded, p)
		if !in.mayBeLost(op) {
			boundSafe = append(boundSafe, p)
		}
	}
	r.acked, r.ackedSafe = newFrontier(acked), newFrontier(safe)
	r.bounded, r.boundSafe = newFrontier(bounded), newFrontier(boundSafe)
	r.own, r.ownSafe = frontiers(own), frontiers(ownSafe)
	r.lost = map[*history.Op]bool{}
	byStart := func(a, b *history.Op) int { return cmp.Compare(a.Start, b.Start) }
	slices.SortFunc(r.freshReads, byStart)
	return &r.keyOf
}

func frontiers(points map[int][]point) map[int]frontier {
	f := make(map[int]frontier, len(points))
	for process, p := range points {
		f[process] = newFrontier(p)
	}
	return f
}

// mayBeLost reports whether a failover may have undone the effect of op in Redis.
func (i *Input) mayBeLost(op *history.Op) bool {
	return slices.ContainsFunc(i.Failovers, func(w Window) bool { return w.overlaps(op.Start, op.End) })
}

// begunAt returns when the write of a version began. A write that is not recorded was made by a
// process that was killed.
func (k *keyOf) begunAt(version int64) int64 {
	if version < 1 {
		return 0
	}
	return k.begun[version-1]
}

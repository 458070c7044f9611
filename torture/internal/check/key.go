package check

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// keyOf is the history of one key, with data derived from it.
//
// The rows are written by UPDATE … SET v = v + 1, so the database determines the order of the
// writes. An invalidation that began after a version was known to be committed acknowledges that
// version when it returns nil, independent of the process that has written it. An invalidation of a
// group does so only for the readers of an older version that belongs to the group.
type keyOf struct {
	memoryReads []*history.Op
	freshReads  []*history.Op // validated and unvalidated
	refreshes   []*history.Op
	begun       []int64 // by version - 1: when its write and all earlier ones had begun
	unknown     int64   // the earliest start of a write with an unknown version

	acked     acks // by any process's Invalidate or InvalidateGroup
	ackedSafe acks // without acknowledgements that a failover may have lost
	bounded   acks // for reads from memory: includes InvalidateAll
	boundSafe acks
	own       map[int]acks // by each process's own Invalidate or InvalidateGroup
	ownSafe   map[int]acks
	settled   []point // by version - 1: when all older versions had been outdated

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
	rawOf := func(key uint32) *raw {
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
	groups := map[uint32][]*history.Op{}
	for i := range in.Ops {
		op := &in.Ops[i]
		here := place{op.Process, int(op.Goroutine)}
		switch op.Kind {
		case history.Begin:
			if before := open[here]; before != nil { // its UPDATE failed, and may have been executed
				rawOf(before.Key).unknown = min(rawOf(before.Key).unknown, before.Start)
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
		case history.Get, history.After:
			rawOf(op.Key).memoryReads = append(rawOf(op.Key).memoryReads, op)
		case history.Fresh:
			rawOf(op.Key).freshReads = append(rawOf(op.Key).freshReads, op)
		case history.Refresh:
			rawOf(op.Key).refreshes = append(rawOf(op.Key).refreshes, op)
		case history.Commit:
			rawOf(op.Key).commits = append(rawOf(op.Key).commits, op)
		case history.Invalidate:
			rawOf(op.Key).invalidates = append(rawOf(op.Key).invalidates, op)
		case history.InvalidateAll:
			all = append(all, op)
		case history.InvalidateGroup:
			groups[op.Key] = append(groups[op.Key], op)
		}
	}
	for _, op := range open {
		rawOf(op.Key).unknown = min(rawOf(op.Key).unknown, op.Start)
	}
	keys := make([]*keyOf, 0, len(raws))
	for _, key := range slices.Sorted(maps.Keys(raws)) {
		keys = append(keys, raws[key].finish(in, key, all, groups))
	}
	return keys
}

func (r *raw) finish(in *Input, key uint32, all []*history.Op, groups map[uint32][]*history.Op) *keyOf {
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

	k := &acker{in: in, key: key, commits: newFrontier(committed)}
	first := point{in.Began, 1}
	acked := slices.Concat(r.invalidates, k.groups(last, groups))
	bounded := slices.Concat(acked, all)
	r.acked, r.ackedSafe = k.acks(acked, first), k.acks(in.safe(acked), first)
	r.bounded, r.boundSafe = k.acks(bounded, first), k.acks(in.safe(bounded), first)
	r.own, r.ownSafe = k.byProcess(acked), k.byProcess(in.safe(acked))
	r.settled = []point{first}
	for version := int64(2); version <= last; version++ {
		r.settled = append(r.settled, point{max(r.settled[version-2].at, r.acked.after(version-1).at), version})
	}
	r.lost = map[*history.Op]bool{}
	byStart := func(a, b *history.Op) int { return cmp.Compare(a.Start, b.Start) }
	slices.SortFunc(r.freshReads, byStart)
	return &r.keyOf
}

// begunAt returns when the write of a version began. A write that is not recorded was made by a
// process that was killed.
func (k *keyOf) begunAt(version int64) int64 {
	if version < 1 {
		return 0
	}
	return k.begun[version-1]
}

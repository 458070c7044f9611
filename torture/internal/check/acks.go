package check

import (
	"slices"

	"github.com/cacheaside/cacheaside/torture/internal/history"
)

// acks has the versions of a row that invalidations have acknowledged.
type acks struct {
	all      frontier                     // to readers of any older version
	groups   map[uint32]frontier          // to readers of an older version that belongs to the group
	groupsOf func(version int64) []uint32 // nil if groups is empty
}

// after returns the earliest time at which a newer version than the one that a reader has was
// acknowledged to that reader, or never.
func (a acks) after(version int64) point {
	p := a.all.after(version)
	if len(a.groups) == 0 {
		return p
	}
	for _, group := range a.groupsOf(version) {
		if g := a.groups[group].after(version); g.at < p.at {
			p = g
		}
	}
	return p
}

// acker makes the acks of a row.
type acker struct {
	in      *Input
	key     uint32
	commits frontier
}

func (a *acker) groupsOf(version int64) []uint32 { return a.in.Groups(a.key, version) }

// groups returns the invalidations of groups to which one of the versions up to last belongs.
func (a *acker) groups(last int64, groups map[uint32][]*history.Op) (ops []*history.Op) {
	if a.in.Groups == nil {
		return nil
	}
	done := map[uint32]bool{}
	for version := int64(1); version <= last; version++ {
		for _, group := range a.groupsOf(version) {
			if !done[group] {
				done[group] = true
				ops = append(ops, groups[group]...)
			}
		}
	}
	return ops
}

// acks returns what these invalidations have acknowledged, in addition to first.
func (a *acker) acks(invalidations []*history.Op, first ...point) acks {
	groups := map[uint32][]point{}
	for _, op := range invalidations {
		p := point{op.End, a.commits.before(op.Start + 1)}
		if op.Kind == history.InvalidateGroup {
			groups[op.Key] = append(groups[op.Key], p)
		} else {
			first = append(first, p)
		}
	}
	made := acks{newFrontier(first), map[uint32]frontier{}, a.groupsOf}
	for group, points := range groups {
		made.groups[group] = newFrontier(points)
	}
	return made
}

// byProcess returns what each process has acknowledged.
func (a *acker) byProcess(invalidations []*history.Op) map[int]acks {
	ops := map[int][]*history.Op{}
	for _, op := range invalidations {
		ops[op.Process] = append(ops[op.Process], op)
	}
	made := make(map[int]acks, len(ops))
	for process, acked := range ops {
		made[process] = a.acks(acked)
	}
	return made
}

// safe returns those of ops whose effect no failover may have undone.
func (i *Input) safe(ops []*history.Op) []*history.Op {
	return slices.DeleteFunc(slices.Clone(ops), i.mayBeLost)
}

// mayBeLost reports whether a failover may have undone the effect of op in Redis.
func (i *Input) mayBeLost(op *history.Op) bool {
	return slices.ContainsFunc(i.Failovers, func(w Window) bool { return w.overlaps(op.Start, op.End) })
}

package check

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// never is the time of an event that has not happened.
const never = math.MaxInt64

// point is a version and a time at which it was known: acknowledged or read.
type point struct{ at, version int64 }

// frontier has the newest version known at each time: points whose versions and times both grow.
type frontier []point

// newFrontier returns the frontier of points, and sorts points.
func newFrontier(points []point) frontier {
	slices.SortFunc(points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(b.version, a.version))
	})
	var f frontier
	for _, p := range points {
		if len(f) == 0 || p.version > f[len(f)-1].version {
			f = append(f, p)
		}
	}
	return f
}

// after returns the earliest time at which a newer version was known, or never.
func (f frontier) after(version int64) point {
	i := sort.Search(len(f), func(i int) bool { return f[i].version > version })
	if i == len(f) {
		return point{at: never}
	}
	return f[i]
}

// before returns the newest version that was known before the time at, or 0.
func (f frontier) before(moment int64) int64 {
	i := sort.Search(len(f), func(i int) bool { return f[i].at >= moment })
	if i == 0 {
		return 0
	}
	return f[i-1].version
}

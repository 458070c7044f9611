package consistency

import (
	"fmt"
	"testing"

	"github.com/cacheaside/cacheaside"
)

// pages returns a loader of rows that puts each row in its own group.
func (x *world) pages(c *cacheaside.Cache) *cacheaside.Loader[int, string] {
	x.t.Helper()
	l, err := cacheaside.NewLoader(c, "page", x.load,
		&cacheaside.LoaderOptions{EarlyRefresh: -1, Groups: cacheaside.GroupsOf(func(id int, _ string) []string {
			return []string{fmt.Sprint("group:", id)}
		})})
	x.check(err)
	return l
}

// wantPage fails unless a read of a page gives want.
func wantPage(t *testing.T, l *cacheaside.Loader[int, string], id int, want string) {
	t.Helper()
	if v, err := l.Get(t.Context(), id); v != want || err != nil {
		t.Fatalf("page %d is %q, %v; want %q", id, v, err, want)
	}
}

// TestGroups: a write at each level invalidates its groups, in all processes, and no other groups.
func TestGroups(t *testing.T) {
	x := start(t, setup{})
	own, other := x.pages(x.cache), x.pages(x.newCache(x.server.Client(t), cacheaside.Options{MemoryBytes: -1}))
	for _, level := range levels {
		for _, keys := range [][]cacheaside.Key{{own.GroupKey("group:1")}, {x.rows.Key(1), own.GroupKey("group:1")}} {
			x.reset()
			x.check(own.InvalidateAll(t.Context()))
			for _, l := range []*cacheaside.Loader[int, string]{own, other} {
				x.eventually("the old pages", func() bool {
					v, err := l.Get(t.Context(), 1)
					return v == "old" && err == nil
				})
				wantPage(t, l, 2, "old")
			}
			x.exec("UPDATE item SET v = 'unnoticed' WHERE id = 2")
			x.check(x.At(level).Update(t.Context(), set(1, "new"), keys...))
			if level == Async {
				x.invalidated()
			}
			x.eventually("the group is invalidated in all processes", func() bool {
				v, err := other.Get(t.Context(), 1)
				return v == "new" && err == nil
			})
			wantPage(t, own, 1, "new")
			wantPage(t, own, 2, "old")
			if level != Inline {
				x.eventually("the outbox is empty", func() bool { return x.intents() == 0 })
			}
		}
	}
}

// TestGroupsWithoutRedis: a group that could not be invalidated after the commit is, as soon as
// Redis is back. A Strict write without keys does not fail, because it has nothing to hold.
func TestGroupsWithoutRedis(t *testing.T) {
	x := start(t, setup{cache: quick})
	own, other := x.pages(x.cache), x.pages(x.newCache(x.server.Client(t), cacheaside.Options{MemoryBytes: -1}))
	for _, level := range []Level{Async, Outbox, Strict} {
		x.reset()
		x.check(other.InvalidateAll(t.Context()))
		x.eventually("the old page",
			func() bool { v, err := other.Get(t.Context(), 1); return v == "old" && err == nil })
		back := x.away("cut")
		x.check(x.At(level).Update(t.Context(), set(1, "new"), own.GroupKey("group:1")))
		wantPage(t, other, 1, "old")
		back()
		x.invalidated()
		x.eventually("the group is invalidated",
			func() bool { v, err := other.Get(t.Context(), 1); return v == "new" && err == nil })
	}
}

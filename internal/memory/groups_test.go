package memory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/groups"
)

const members = 5 // groups of an item

// An item of several groups is served until one of them is invalidated: also by those who serve
// stale items.
func TestItemOfGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for group := range uint64(members + 1) {
			tier := newTier(t, 1<<20)
			versions := tier.Groups(groups.SetOf(100, 101, 102, 103, 104))
			item := &Item[string, int]{Header: Header{Stripe: Stripe(2), Version: tier.Version(0, 2), Groups: versions},
				Key: "a"}
			put(tier, 1, item, 8, time.Minute, time.Minute)
			tier.Wait()
			check := func(want bool) {
				t.Helper()
				_, _, live := Get[string, int](tier, 1, &noEras, "a")
				h, _ := tier.Get(1, &noEras)
				_, _, stale := tier.GetStale(1, &noEras)
				if live != want || (h != nil) != want || stale != want || tier.GroupsCurrent(versions) != want {
					t.Errorf("group %d: live %v and %v, stale %v, current %v, want %v", group, live, h != nil, stale,
						tier.GroupsCurrent(versions), want)
				}
			}
			check(true)
			tier.Clear(0) // a precaution, and no invalidation
			if _, _, stale := tier.GetStale(1, &noEras); !stale || !tier.GroupsCurrent(versions) {
				t.Error("a precaution ends it")
			}
			again := &Item[string, int]{Header: Header{Stripe: Stripe(2), Version: tier.Version(0, 2),
				Groups: versions}, Key: "a"}
			put(tier, 1, again, 8, time.Minute, time.Minute)
			tier.Wait()
			check(true)
			tier.Forget(100 + group)
			check(group == members) // that is another one
		}
	})
}

func TestVersionsOfGroups(t *testing.T) {
	tier := newTier(t, 1<<20)
	if g := tier.Groups(nil); g != nil || !tier.GroupsCurrent(g) || g.size() != 0 {
		t.Error("a value without groups")
	}
	before := tier.GroupVersion(7)
	tier.Forget(7 + stripes) // of the same stripe
	if tier.GroupVersion(7) == before {
		t.Error("the version has not changed")
	}
	if g := tier.Groups(groups.SetOf(7)); !tier.GroupsCurrent(g) {
		t.Error("outdated by an earlier invalidation")
	}
}

// An item that Expire makes stale keeps its groups.
func TestExpireKeepsGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := newTier(t, 1<<20)
		item := &Item[string, int]{Header: Header{Stripe: Stripe(2), Version: tier.Version(0, 2),
			Groups: tier.Groups(groups.SetOf(100))}, Key: "a"}
		put(tier, 1, item, 8, time.Minute, time.Minute)
		tier.Wait()
		again := &Item[string, int]{Key: "a"}
		again.Whole()
		tier.Expire(&item.Header, &again.Header, 2, 8)
		tier.Wait()
		if h, _, ok := tier.GetStale(1, &noEras); !ok || !h.Expired() {
			t.Fatal("it is not stale")
		}
		tier.Forget(100)
		if _, _, ok := tier.GetStale(1, &noEras); ok {
			t.Error("an item of an invalidated group is served")
		}
	})
}

// What Keep stores is served until a group of it is invalidated, trusted or not.
func TestKeepWithGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := newTier(t, 1<<20)
		tier.Trust(0, time.Time{})
		item := &Item[string, int]{Header: Header{Stripe: Stripe(2), Version: tier.Version(0, 2),
			Groups: tier.Groups(groups.SetOf(100))}, Key: "a"}
		tier.Keep(1, item.Whole(), Read{}, 8, time.Now().Add(time.Minute))
		tier.Wait()
		if h, _ := tier.Get(1, &noEras); h == nil {
			t.Fatal("it is not kept")
		}
		tier.Forget(100)
		if h, _ := tier.Get(1, &noEras); h != nil {
			t.Error("an item of an invalidated group is served")
		}
	})
}

// The budget counts the groups of items.
func TestGroupsHaveAWeight(t *testing.T) {
	tier := newTier(t, 1<<20)
	hashes := make([]uint64, 64)
	cost := func(g *Groups) int64 {
		item := &Item[string, int]{Header: Header{Groups: g}, Key: "a"}
		put(tier, 1, item, 8, time.Minute, time.Minute)
		return item.cost
	}
	if none, many := cost(nil), cost(tier.Groups(groups.SetOf(hashes...))); many < none+64*10 {
		t.Errorf("%d without groups, %d with 64", none, many)
	}
}

// The expiry of a group outdates the items in memory that have the group.
func TestExpiryOfAGroupOutdatesItems(t *testing.T) {
	tier := newTier(t, 1<<20)
	versions := tier.Groups(groups.SetOf(100, 1<<63+201))
	tier.Forget(groups.SetOf(102).Expiry().Hash(0))
	if !tier.GroupsCurrent(versions) {
		t.Error("another group has expired")
	}
	tier.Forget(groups.SetOf(1<<63 + 201).Expiry().Hash(0))
	if tier.GroupsCurrent(versions) {
		t.Error("the item is current")
	}
}

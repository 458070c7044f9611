package memory

import (
	"unsafe"

	"github.com/cacheaside/cacheaside/internal/groups"
)

// Groups are the versions that the groups of an item had when it was put into memory. A version is
// the counter of the stripe of the group's stable hash. An invalidation of the group raises it, so
// the item may be served while all versions are unchanged.
type Groups struct {
	versions []groupVersion
}

type groupVersion struct {
	stripe  uint16
	version uint64
}

// Groups returns the current versions of groups, or nil if there are none. The caller takes them
// before it checks that the value is current (groups.Log.Current).
func (t *Tier) Groups(set groups.Set) *Groups {
	if set.Len() == 0 {
		return nil
	}
	g := &Groups{make([]groupVersion, set.Len())}
	for i := range g.versions {
		stripe := Stripe(set.Hash(i))
		g.versions[i] = groupVersion{stripe, t.GroupVersion(set.Hash(i))}
	}
	return g
}

// GroupVersion returns the current version of a group.
func (t *Tier) GroupVersion(stable uint64) uint64 {
	return t.versions.stripes[stable%stripes].Load()
}

// GroupsCurrent reports whether no group has been invalidated since g was taken. A nil g has no
// groups.
func (t *Tier) GroupsCurrent(g *Groups) bool { return g == nil || g.current(&t.versions) }

func (g *Groups) current(v *Versions) bool {
	for _, taken := range g.versions {
		if v.stripes[taken.stripe].Load() != taken.version {
			return false
		}
	}
	return true
}

// size returns the bytes that g takes.
func (g *Groups) size() int64 {
	if g == nil {
		return 0
	}
	return block(int64(unsafe.Sizeof(Groups{}))) + block(int64(len(g.versions))*int64(unsafe.Sizeof(groupVersion{})))
}

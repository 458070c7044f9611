package main

import (
	"context"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/groups"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/lease"
)

// shownGroups describes the groups of an entry.
type shownGroups struct {
	Groups          *int   `json:"groups,omitempty"` // nil: it was stored without LoaderOptions.Groups
	AllGroups       bool   `json:"all_groups,omitempty"`
	OutdatedByGroup string `json:"outdated_by_group,omitempty"` // why no loader with groups serves it

	entry *lease.Entry
}

func groupsOf(e *lease.Entry) shownGroups {
	s := shownGroups{entry: e}
	if e.Grouped {
		n := e.Groups.Len()
		s.Groups = &n
	}
	return s
}

// readGroups compares the groups of an entry with the set of its loader's invalidated groups. The
// set is read after the entry, which contains the hashes of the groups.
func (g *getting) readGroups(ctx context.Context, rdb redis.UniversalClient, s *shown) error {
	if s.Entry == nil {
		return nil
	}
	e := s.Entry.entry
	members := []string{""} // the floor
	for i := range e.Groups.Len() {
		members = append(members, string(groups.SetOf(e.Groups.Hash(i))))
	}
	set := keys.Groups(g.prefix, s.Loader, conn.Tag(s.rng))
	pipe := rdb.Pipeline()
	newest, numbers := pipe.ZRangeWithScores(ctx, set, -1, -1), pipe.ZMScore(ctx, set, members...)
	if _, err := pipe.Exec(ctx); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		// a reader deletes a key of another type
		return err
	}
	s.Entry.AllGroups = e.Groups.Len() == 1 && e.Groups.Hash(0) == keys.GroupHash(s.Loader, "")
	s.Entry.OutdatedByGroup = s.Entry.outdatedByGroup(newest.Val(), numbers.Val())
	return nil
}

// outdatedByGroup returns why no loader with groups serves an entry, or "" if one does, as far as
// the set says; a process can know more. newest is the member of the set with the greatest number,
// if there is one. numbers are those of the floor and of the entry's groups; 0 if there is none.
func (s *shownGroups) outdatedByGroup(newest []redis.Z, numbers []float64) string {
	e := s.entry
	later := func(number float64) bool { return number > float64(e.Known) }
	switch {
	case !e.Grouped && len(newest) == 0:
		return ""
	case !e.Grouped:
		return "it has no groups, and its loader has"
	case len(newest) == 0:
		return "Redis has lost the invalidated groups of the loader"
	case later(numbers[0]):
		return "it is older than the invalidated groups that Redis has kept"
	case s.AllGroups && later(newest[0].Score), slices.ContainsFunc(numbers[1:], later):
		return "one of its groups was invalidated since"
	}
	return ""
}

func (s *shownGroups) row(row func(cells ...any)) {
	number, outdated := "none", s.OutdatedByGroup
	switch {
	case s.AllGroups:
		number = "all"
	case s.Groups != nil:
		number = strconv.Itoa(*s.Groups)
	}
	if outdated != "" {
		outdated = "outdated: " + outdated
	}
	if s.Groups != nil || outdated != "" {
		row("groups", number, outdated)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/keys"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// groupsOfKey returns the groups of a key: as many as the number in the key, and one that all keys
// share.
func groupsOfKey(key, _ string) []string {
	var n int
	_, _ = fmt.Sscanf(key, "%d", &n) // 0 without a number
	names := []string{"every"}
	for i := range n {
		names = append(names, fmt.Sprint(key, "-", i))
	}
	return names
}

func TestGetGroups(t *testing.T) {
	w, rdb := onServer(t)
	getsGroups(w, rdb, []string{keys.Groups("cacheaside", "user", conn.Tag(0))})
}

func TestGetGroupsOnCluster(t *testing.T) {
	c := testenv.SharedCluster(t)
	var sets []string
	for r := range conn.Ranges {
		sets = append(sets, keys.Groups("cacheaside", "user", conn.Tag(r)))
	}
	getsGroups(&world{t, map[string]string{"CACHEASIDE_REDIS": strings.Join(c.Addrs, ",")}}, c.Client(t), sets)
}

// getsGroups tests that an entry with groups is shown like other entries, with the number of its
// groups, and whether one of them was invalidated.
func getsGroups(w *world, rdb redis.UniversalClient, sets []string) {
	w.Helper()
	ctx := w.Context()
	c, users := loading(w, rdb, &cacheaside.Options{MemoryBytes: -1},
		&cacheaside.LoaderOptions{Groups: cacheaside.GroupsOf(groupsOfKey)},
		func(_ context.Context, key string) (string, error) {
			if key == "none" {
				return "", cacheaside.ErrNotFound
			}
			return "value of " + key, nil
		})
	read := func(key string) {
		w.Helper()
		if _, err := users.Get(ctx, key, cacheaside.Fresh); err != nil && !errors.Is(err, cacheaside.ErrNotFound) {
			w.Fatal(err)
		}
	}
	shows := func(key, kind string, groups int, all bool, outdated string) {
		w.Helper()
		s := parsed[shown](w, exitOK, "get", "--show-value", "user", key)
		e := s.Entry
		if s.Kind != kind || e == nil || e.Groups == nil || *e.Groups != groups || e.AllGroups != all || e.Outdated ||
			(e.OutdatedByGroup == "") != (outdated == "") || !strings.Contains(e.OutdatedByGroup, outdated) {
			w.Fatalf("for %.10q it shows %+v, %+v; want %d groups, %q", key, s, e, groups, outdated)
		}
		if kind == "entry" && (e.Payload != int64(len("value of "+key)) || s.Value == nil || s.Value.Text == nil ||
			*s.Value.Text != "value of "+key) {
			w.Errorf("for %.10q it shows %+v, %+v", key, e, s.Value)
		}
	}
	long := "3" + strings.Repeat("k", 300)
	for _, key := range []string{"0", "2", "63", "64", "none", long} {
		read(key)
	}
	shows("0", "entry", 1, false, "")
	shows("2", "entry", 3, false, "")
	shows("63", "entry", 64, false, "")
	shows("64", "entry", 1, true, "")
	shows("none", "null", 1, false, "")
	shows(long, "entry", 4, false, "")
	short := parsed[shown](w, exitOK, "get", "user", "2")
	if short.Entry == nil || short.Value != nil || *short.Entry.Groups != 3 {
		w.Errorf("without the value it shows %+v", short)
	}
	if s := parsed[shown](w, exitOK, "get", "--show-value", "--max-value", "5", "user", "2"); s.Value.Hidden == "" ||
		s.Value.Text != nil {
		w.Errorf("for a value that is too long it shows %+v", s.Value)
	}
	w.says(w.ok("get", "user", "2"), "groups", "3")
	w.says(w.ok("get", "user", "64"), "groups", "all")

	w.check(users.InvalidateGroup(ctx, "2-1"))
	shows("0", "entry", 1, false, "")
	shows("2", "entry", 3, false, "was invalidated since")
	shows("64", "entry", 1, true, "was invalidated since")
	w.says(w.ok("get", "user", "2"), "outdated: one of its groups was invalidated since")
	read("2")
	shows("2", "entry", 3, false, "")

	_, plain := loading(w, rdb, &cacheaside.Options{MemoryBytes: -1, Prefix: "plain"}, nil,
		func(context.Context, string) (string, error) { return "x", nil })
	if _, err := plain.Get(ctx, "2"); err != nil {
		w.Fatal(err)
	}
	s := parsed[shown](w, exitOK, "--prefix", "plain", "get", "user", "2")
	if s.Entry == nil || s.Entry.Groups != nil || s.Entry.OutdatedByGroup != "" {
		w.Errorf("for a loader without groups it shows %+v", s.Entry)
	}
	w.check(c.Close()) // so that no process creates the sets again
	for r, set := range sets {
		plainSet := keys.Groups("plain", "user", conn.Tag(r))
		w.check(rdb.ZAdd(ctx, plainSet, redis.Z{Score: 1}).Err())
		w.check(rdb.ZAdd(ctx, set, redis.Z{Score: 1 << 51}).Err())
	}
	w.says(w.ok("--prefix", "plain", "get", "user", "2"), "none", "outdated: it has no groups")
	shows("0", "entry", 1, false, "older than")
	for _, set := range sets {
		w.check(rdb.Del(ctx, set).Err())
	}
	shows("0", "entry", 1, false, "lost")
	for _, set := range sets {
		w.check(rdb.Set(ctx, set, "x", 0).Err())
	}
	shows("0", "entry", 1, false, "lost")
}

package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestInvalidateGroups: exactly the keys of the named groups are loaded again.
func TestInvalidateGroups(t *testing.T) {
	w, rdb := onServer(t)
	loads := make(map[string]int)
	_, users := loading(w, rdb, nil,
		&cacheaside.LoaderOptions{EarlyRefresh: -1,
			Groups: cacheaside.GroupsOf(func(key, _ string) []string { return []string{"g:" + key} })}, func(
			_ context.Context, key string) (string, error) {
			loads[key]++
			return fmt.Sprint(loads[key]), nil
		})
	comes := func(want ...string) {
		t.Helper()
		for i, key := range []string{"a", "b", "c"} {
			testenv.Eventually(t, key,
				func() bool { v, err := users.Get(t.Context(), key); return v == want[i] && err == nil })
		}
	}
	comes("1", "1", "1")
	o := w.ok("invalidate", "--yes", "--group", "user", "g:a", "g:b")
	w.says(o, "invalidated 2 groups of user")
	comes("2", "2", "1")
	stdin := w.with(strings.NewReader("g:a\ng:c"), "invalidate", "--yes", "--group", "user", "-")
	if stdin.code != exitOK || !strings.Contains(stdin.out, "2 groups") {
		t.Errorf("exit code %d: %s%s", stdin.code, stdin.out, stdin.err)
	}
	comes("3", "2", "2")
	w.failed(w.with(types("n\n"), "invalidate", "--group", "user", "g:a"), exitFailed,
		"1 group of the loader user, of all versions", []string{"invalidate"})
	w.failed(w.with(strings.NewReader(""), "invalidate", "--yes", "--group", "user", ""), exitUsage,
		"name of a group is empty", []string{"invalidate"})
	comes("3", "2", "2")
}

// An invalidation of a group by the tool reaches programs whose loader has no Groups: they reload
// all values. The tool warns that the loader has no groups.
func TestInvalidateGroupOfProgramsWithoutGroups(t *testing.T) {
	w, rdb := onServer(t)
	var row atomic.Value
	row.Store("old")
	_, users := loading(w, rdb, &cacheaside.Options{MemoryBytes: -1}, &cacheaside.LoaderOptions{EarlyRefresh: -1},
		func(context.Context, string) (string, error) {
			return row.Load().(string), nil
		})
	if v, err := users.Get(t.Context(), "a"); v != "old" || err != nil {
		t.Fatal(v, err)
	}
	row.Store("new")
	o := w.with(strings.NewReader(""), "invalidate", "--yes", "--group", "user", "g:a")
	if o.code != exitOK || !strings.Contains(o.err, "has no groups") {
		t.Errorf("exit code %d: %s%s", o.code, o.out, o.err)
	}
	testenv.Eventually(t, "the new row",
		func() bool { v, err := users.Get(t.Context(), "a"); return v == "new" && err == nil })
}

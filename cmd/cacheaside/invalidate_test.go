package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestInvalidate(t *testing.T) {
	w, rdb := onServer(t)
	invalidates(w, rdb)
}

func TestInvalidateOnCluster(t *testing.T) {
	c := testenv.SharedCluster(t)
	invalidates(&world{t, map[string]string{"CACHEASIDE_REDIS": strings.Join(c.Addrs, ",")}}, c.Client(t))
}

// invalidates tests that the invalidation is announced, so that other processes drop the key from
// memory.
func invalidates(w *world, rdb redis.UniversalClient) {
	w.Helper()
	loads := make(map[string]int)
	_, users := loading(w, rdb, nil, nil, func(_ context.Context, key string) (string, error) {
		loads[key]++
		return fmt.Sprint(loads[key]), nil
	})
	get := func(key string) string {
		w.Helper()
		v, err := users.Get(w.Context(), key)
		w.check(err)
		return v
	}
	comes := func(key, want string) {
		w.Helper()
		testenv.Eventually(w, fmt.Sprintf("%q of %q", want, key), func() bool { return get(key) == want })
	}
	keys := []string{"a", "b", "-", "", "c d}"}
	for _, k := range keys {
		comes(k, "1")
	}
	type result struct {
		Loader string
		All    bool
		Group  bool
		Keys   int
	}
	if r := parsed[result](w, exitOK, "invalidate", "--yes", "user", "a", "",
		"c d}"); r != (result{"user", false, false, 3}) {
		w.Errorf("it says %+v", r)
	}
	comes("a", "2")
	comes("", "2")
	comes("c d}", "2")
	comes("b", "1")
	o := w.with(strings.NewReader("a\r\nb\n-"), "invalidate", "--yes", "user", "-")
	if o.code != exitOK || !strings.Contains(o.out, "3 keys") {
		w.Errorf("from standard input: exit code %d: %s%s", o.code, o.out, o.err)
	}
	comes("a", "3")
	comes("b", "2")
	comes("-", "2")
	w.says(w.ok("invalidate", "--yes", "--all", "user"), "all keys of user")
	comes("a", "4")
	comes("-", "3")
	w.ok("invalidate", "--yes", "--version", "7", "user", "a")
	w.ok("--prefix", "other", "invalidate", "--yes", "user", "a")
	if got := get("a"); got != "4" {
		w.Errorf("another version, another prefix: %s", got)
	}
}

// TestInvalidateReportsLineErrors: an error in a line is reported with its number. The lines before
// it are executed and counted.
func TestInvalidateReportsLineErrors(t *testing.T) {
	w, rdb := onServer(t)
	fill := func() {
		for _, k := range []string{"a", "b", "c"} {
			w.check(rdb.Set(t.Context(), "cacheaside:user:1:{"+k+"}", "x", 0).Err())
		}
	}
	left := func() int64 {
		return rdb.Exists(t.Context(), "cacheaside:user:1:{a}", "cacheaside:user:1:{b}", "cacheaside:user:1:{c}").Val()
	}
	for _, c := range []struct {
		lines, says string
		left        int64
	}{
		{"a\n\nc\n", "line 2 is empty", 2},
		{"a\nb\n" + strings.Repeat("x", longestLine+1) + "\nc\n", "line 3 is longer", 1},
		{"a\nb\n" + strings.Repeat("x", 1<<20), "line 3 is longer", 1},
	} {
		fill()
		o := w.with(strings.NewReader(c.lines), "invalidate", "--yes", "user", "-")
		w.failed(o, exitUsage, c.says, []string{"invalidate"})
		w.says(o.err, fmt.Sprint(3-c.left, " key"))
		if got := left(); got != c.left {
			t.Errorf("%d keys are left, want %d", got, c.left)
		}
	}
	fill()
	if o := w.with(strings.NewReader(""), "invalidate", "--yes", "user", "-"); o.code != exitOK || left() != 3 {
		t.Errorf("without lines: exit code %d: %s%s", o.code, o.out, o.err)
	}
	many := strings.Builder{}
	for i := range 2*keysAtOnce + 1 {
		fmt.Fprintln(&many, i)
	}
	if o := w.with(strings.NewReader(many.String()+strings.Repeat("y", longestLine)), "invalidate", "--yes", "user",
		"-"); o.code != exitOK || !strings.Contains(o.out, fmt.Sprint(2*keysAtOnce+2)) {
		t.Errorf("with many lines: exit code %d: %s%s", o.code, o.out, o.err)
	}
}

// TestInvalidateHolds: --replica-lag puts keys on hold, like the caches' Options.ReplicaLag.
func TestInvalidateHolds(t *testing.T) {
	w, _ := onServer(t)
	w.ok("invalidate", "--yes", "--replica-lag", "10s", "user", "a")
	if s := parsed[shown](w, exitAbsent, "get", "user", "a"); s.Hold == nil || !s.Hold.Replicas {
		t.Errorf("it shows %+v", s)
	}
	w.ok("invalidate", "--yes", "user", "b")
	if s := parsed[shown](w, exitAbsent, "get", "user", "b"); s.Hold != nil {
		t.Errorf("without it shows %+v", s.Hold)
	}
}

// One address is enough: the tool asks the server whether it belongs to a cluster.
func TestInvalidateOnAClusterByOneAddress(t *testing.T) {
	shard := testenv.StartShard(t)
	w := &world{t, map[string]string{"CACHEASIDE_REDIS": shard.Addr}}
	rdb := shard.ClusterClient(t)
	c, err := cacheaside.New(rdb, &cacheaside.Options{RedisTimeout: testenv.Hang})
	w.check(err)
	defer c.Close()
	var version atomic.Int64
	l, err := cacheaside.NewLoader(c, "row",
		func(context.Context, int) (int64, error) { return version.Load(), nil }, nil)
	w.check(err)
	stale := func() (n int) {
		for key := range 100 {
			v, err := l.Get(t.Context(), key, cacheaside.Fresh)
			w.check(err)
			if v != version.Load() {
				n++
			}
		}
		return n
	}
	for _, where := range []string{shard.Addr, "redis://" + shard.Addr + "/0"} {
		w.env["CACHEASIDE_REDIS"] = where
		stale()
		version.Add(1)
		w.ok("invalidate", "--yes", "--all", "row")
		testenv.Eventually(t, "the news", func() bool { return stale() == 0 })
	}
	w.fails(exitUsage, "a cluster", "--db", "3", "--redis", shard.Addr, "invalidate", "--yes", "row", "1")
}

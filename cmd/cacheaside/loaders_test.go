package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestInvalidateUnknownLoader(t *testing.T) {
	w, rdb := onServer(t)
	warnsOfUnknown(w, rdb)

	w.check(rdb.Set(t.Context(), "broken::announced:{"+tagOf(w, rdb)+"}", "not a hash", 0).Err())
	o := w.with(strings.NewReader(""), "--prefix", "broken", "invalidate", "--yes", "user", "1")
	if o.code != exitOK || !strings.Contains(o.err,
		"warning: whether Redis knows the loader user is not known: reading broken::announced") {
		w.Errorf("without a registry: exit code %d: %s%s", o.code, o.out, o.err)
	}
}

func TestInvalidateUnknownLoaderOnCluster(t *testing.T) {
	c := testenv.SharedCluster(t)
	warnsOfUnknown(&world{t, map[string]string{"CACHEASIDE_REDIS": strings.Join(c.Addrs, ",")}}, c.Client(t))
}

// tagOf returns the hash tag of the registry, from its name in Redis.
func tagOf(w *world, rdb redis.UniversalClient) string {
	w.Helper()
	names, err := rdb.Keys(w.Context(), "cacheaside::announced:*").Result()
	w.check(err)
	if len(names) != 1 {
		w.Fatalf("the registries are %q", names)
	}
	_, tag, _ := strings.Cut(strings.TrimSuffix(names[0], "}"), "{")
	return tag
}

// warnsOfUnknown checks that the tool warns of a loader exactly if Redis does not know it.
func warnsOfUnknown(w *world, rdb redis.UniversalClient) {
	w.Helper()
	load := func(_ context.Context, key string) (string, error) { return key, nil }
	options := map[string]*cacheaside.LoaderOptions{ // Redis has one more field for a loader with groups
		"order": {Groups: cacheaside.GroupsOf(func(string, string) []string { return []string{"all"} })},
	}
	for _, c := range []struct{ prefix, loader string }{{"cacheaside", "user"}, {"cacheaside", "order"},
		{"shop", "cart"}} {
		cache, err := cacheaside.New(rdb, &cacheaside.Options{Prefix: c.prefix, RedisTimeout: testenv.Hang,
			MemoryBytes: -1})
		w.check(err)
		l, err := cacheaside.NewLoader(cache, c.loader, load, options[c.loader])
		w.check(err)
		_, err = l.Get(w.Context(), "1")
		w.check(err)
		cache.Close() // Redis keeps the names
	}
	knows := func(want string, args ...string) {
		w.Helper()
		o := w.call(args...)
		if o.code != exitOK {
			w.Errorf("%q: exit code %d: %s%s", args, o.code, o.out, o.err)
		}
		_, warning, warned := strings.Cut(o.err, "cacheaside: warning: ")
		if warned != (want != "") || !strings.Contains(warning, want) {
			w.Errorf("%q warns %q, want %q", args, warning, want)
		}
	}
	knows("", "invalidate", "--yes", "user", "1")
	knows("", "invalidate", "--yes", "--all", "order")
	knows("", "--prefix", "shop", "invalidate", "--yes", "cart", "1")
	knows("Redis does not know a loader usr under the prefix cacheaside (field usr of the hash cacheaside::announced:{",
		"invalidate", "--yes", "usr", "1")
	knows("Redis knows: order, user\n", "invalidate", "--yes", "--all", "usr")
	knows("Redis knows: cart\n", "--prefix", "shop", "invalidate", "--yes", "user", "1")
	knows("Redis knows: no loader at all\n", "--prefix", "shopp", "invalidate", "--yes", "cart", "1")

	// Only order has groups.
	knows("", "invalidate", "--yes", "--group", "order", "g")
	knows("the loader user has no groups under the prefix cacheaside (field user:groups of the hash "+
		"cacheaside::announced:{", "invalidate", "--yes", "--group", "user", "g")
	knows("Redis knows: order, user\n", "invalidate", "--yes", "--group", "usr", "g")

	// A declined confirmation comes after the warning.
	o := w.with(types("n\n"), "invalidate", "usr", "1")
	if before, _, _ := strings.Cut(o.err, "Continue?"); !strings.Contains(before, "does not know a loader usr") {
		w.Errorf("before it asks it prints %s", o.err)
	}

	// The invalidations of unknown loaders have not registered them.
	type loader = struct{ Name, Since string }
	names := func(code int, args ...string) (all []string) {
		w.Helper()
		for _, l := range parsed[[]loader](w, code, args...) {
			if l.Since == "" {
				w.Errorf("%q shows %+v", args, l)
			}
			all = append(all, l.Name)
		}
		return all
	}
	if got := fmt.Sprint(names(exitOK, "loader", "ls")); got != "[order user]" {
		w.Errorf("the loaders are %s", got)
	}
	if got := names(exitAbsent, "--prefix", "shopp", "loader", "ls"); len(got) != 0 {
		w.Errorf("under an unknown prefix there are %q", got)
	}
	w.says(w.ok("loader", "ls"), "LOADER", "order", "user", " ago)")

	w.env["CACHEASIDE_PREFIX"] = "shop"
	knows("", "invalidate", "--yes", "cart", "1")
	knows("", "--prefix", "cacheaside", "invalidate", "--yes", "user", "1")
	if got := fmt.Sprint(names(exitOK, "loader", "ls")); got != "[cart]" {
		w.Errorf("with the environment's prefix the loaders are %s", got)
	}
	w.env["CACHEASIDE_PREFIX"] = "sh:op"
	w.fails(exitUsage, "CACHEASIDE_PREFIX", "loader", "ls")
}

// TestUnknownLoaderListsFew checks that the list in a warning is bounded and contains no control
// characters.
func TestUnknownLoaderListsFew(t *testing.T) {
	w, rdb := onServer(t)
	w.ok("invalidate", "--yes", "user", "1") // creates the registry
	registry := "cacheaside::announced:{" + tagOf(w, rdb) + "}"
	for i := range maxListed + 3 {
		w.check(rdb.HSet(t.Context(), registry, fmt.Sprintf("l%02d", i), 1).Err())
	}
	w.check(rdb.HSet(t.Context(), registry, "a\x1b[31m", "?").Err())
	o := w.call("invalidate", "--yes", "user", "1")
	w.says(o.err, "\\x1b[31m", "l18 and 4 more\n")
	if strings.Contains(o.err, "\x1b") {
		t.Errorf("it prints %q", o.err)
	}
	w.says(w.ok("loader", "ls"), "unreadable")
}

// TestManyLoaders checks that the tool reads a bounded number of loaders, and none at all if Redis
// knows the named one. A warning is short even if the names are long.
func TestManyLoaders(t *testing.T) {
	s := testenv.SharedRedis(t)
	w, rdb := &world{t, map[string]string{"CACHEASIDE_REDIS": s.Addr}}, s.Client(t)
	pages := func() int { return s.CommandCalls(t)["hscan"] }
	w.ok("invalidate", "--yes", "user", "1") // creates the registry
	registry := "cacheaside::announced:{" + tagOf(w, rdb) + "}"
	long := strings.Repeat("n", 1<<20)
	for i := range maxListed + 1 {
		w.check(rdb.HSet(t.Context(), registry, fmt.Sprintf("a%02d%s", i, long), 1).Err())
	}
	o := w.call("invalidate", "--yes", "user", "1")
	w.says(o.err, "Redis knows: a00nnn", "n…", " and 1 more\n")
	if len(o.err) > 10_000 {
		t.Errorf("a warning of %d bytes", len(o.err))
	}

	var fields []any
	for i := range 5 * maxLoaders {
		fields = append(fields, fmt.Sprintf("l%04d", i), 1)
	}
	w.check(rdb.Del(t.Context(), registry).Err())
	w.check(rdb.HSet(t.Context(), registry, fields...).Err())
	before := pages()
	o = w.call("--json", "loader", "ls")
	if n := strings.Count(o.out, `"name"`); n != maxLoaders || o.code != exitOK {
		t.Errorf("exit code %d, and %d loaders: %s", o.code, n, o.err)
	}
	w.says(o.err, "more than 1000 loaders under the prefix cacheaside: the list is not complete")
	if n := pages() - before; n == 0 || n > 2*maxLoaders/scanCount {
		t.Errorf("it reads %d pages", n)
	}
	w.says(w.call("invalidate", "--yes", "user", "1").err, " and more than 980 more\n")

	before = pages()
	if o := w.call("invalidate", "--yes", "l4999", "1"); strings.Contains(o.err, "warning") {
		t.Errorf("it warns of a loader that Redis knows: %s", o.err)
	}
	if n := pages() - before; n != 0 {
		t.Errorf("it reads %d pages for a loader that Redis knows", n)
	}
}

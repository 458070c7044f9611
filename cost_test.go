package cacheaside

import (
	"context"
	"maps"
	"slices"
	"testing"
)

// What a hit costs.

func TestMemoryHitAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates by itself: run without it by make test")
	}
	c, err := New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	type row struct{ A, B int }
	ints, err := NewLoader(c, "ints", func(_ context.Context, key int64) (row, error) { return row{1, 2}, nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	strings, err := NewLoader(c, "strings", func(_ context.Context, key string) (*row, error) {
		if key == "none" {
			return nil, ErrNotFound
		}
		return &row{1, 2}, nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, get := range map[string]func(){
		"int64":  func() { ints.Get(t.Context(), 123456789) },
		"string": func() { strings.Get(t.Context(), "some key of a usual length") },
		"null":   func() { strings.Get(t.Context(), "none") },
	} {
		get()
		c.memory.Wait()
		before := c.Stats()
		n := testing.AllocsPerRun(1000, get)
		if hits := c.Stats().MemoryHits - before.MemoryHits; hits != 1001 {
			t.Errorf("%s: %d hits", name, hits)
		}
		if n != 0 && !raceEnabled {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// A hit in Redis is one GET; a miss the GET, the lease and the fill; an invalidation one DEL; and nothing else is ever used but what the
// package comment lists.
func TestCommands(t *testing.T) {
	b := realBackend(t)
	d := newTable(map[int]string{1: "one"})
	p := start(t, b, d, noMemory, nil)
	p.want(t, 0, "", ErrNotFound) // the scripts are known from now on
	if _, err := p.Refresh(t.Context(), 0); err != ErrNotFound {
		t.Fatal(err)
	}
	did := func(what string, f func(), want map[string]int) {
		t.Helper()
		before := b.calls(t)
		f()
		got := b.calls(t)
		for name, n := range before {
			if got[name] -= n; got[name] == 0 {
				delete(got, name)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	did("a miss", func() { p.want(t, 1, "one", nil) }, map[string]int{"get": 2, "evalsha": 2, "set": 2, "getrange": 1})
	did("a hit", func() { p.want(t, 1, "one", nil) }, map[string]int{"get": 1})
	did("a null hit", func() { p.want(t, 0, "", ErrNotFound) }, map[string]int{"get": 1})
	did("100 hits", func() {
		for range 100 {
			p.want(t, 1, "one", nil)
		}
	}, map[string]int{"get": 100})
	did("a refresh", func() { p.Refresh(t.Context(), 1) }, map[string]int{"evalsha": 2, "getrange": 2, "time": 1, "pttl": 1, "setrange": 1, "set": 1})
	did("an invalidation", func() { p.Invalidate(t.Context(), 1) }, map[string]int{"del": 1})
	names := slices.Sorted(maps.Keys(b.calls(t)))
	for _, name := range names {
		if !slices.Contains(documentedACL, "+"+name) && name != "flushall" && name != "script|flush" && name != "function|flush" && name != "client|unpause" {
			t.Errorf("%s is used, but not documented", name)
		}
	}
}

// A hit in Redis leaves nothing to be done in the background, and allocates no more than it did.
func TestRedisHitAllocations(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates by itself: run without it by make test")
	}
	b := realBackend(t)
	d := newTable(map[int]string{1: "one"})
	p := start(t, b, d, noMemory, nil)
	p.want(t, 1, "one", nil)
	rdb := b.client(t)
	raw := testing.AllocsPerRun(200, func() { rdb.Get(t.Context(), redisKey(1)).Bytes() })
	own := testing.AllocsPerRun(200, func() { p.Get(t.Context(), 1) })
	t.Logf("a hit: %v allocations, a raw GET: %v", own, raw)
	if own > raw+24 && !raceEnabled {
		t.Errorf("a hit: %v allocations, a raw GET: %v", own, raw)
	}
}

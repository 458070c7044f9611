package cacheasidetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/cacheasidetest"
)

// Names reads the names of users through a cache. These examples test it.
type Names struct {
	rows   map[int]string // stands in for a table
	loader *cacheaside.Loader[int, string]
}

func NewNames(rows map[int]string, cache *cacheaside.Cache) *Names {
	n := &Names{rows: rows}
	var err error
	n.loader, err = cacheaside.NewLoader(cache, "name", func(_ context.Context, id int) (string, error) {
		if rows == nil {
			return "", errors.New("the database is gone")
		}
		name, ok := n.rows[id]
		if !ok {
			return "", cacheaside.ErrNotFound
		}
		return name, nil
	}, nil)
	if err != nil {
		panic(err)
	}
	return n
}

func (n *Names) Get(ctx context.Context, id int) (string, error) { return n.loader.Get(ctx, id) }

func (n *Names) Rename(ctx context.Context, id int, name string) error {
	n.rows[id] = name
	return n.loader.Invalidate(ctx, id)
}

// test stands in for the *testing.T of a test.
type test struct {
	testing.TB
	cleanups []func()
}

func (t *test) Helper()                  {}
func (t *test) Context() context.Context { return context.Background() }
func (t *test) Cleanup(f func())         { t.cleanups = append(t.cleanups, f) }
func (t *test) end() {
	for i := range t.cleanups {
		t.cleanups[len(t.cleanups)-1-i]()
	}
}

// Tests that a write invalidates its key, and that other processes receive the invalidation.
func Example() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	ctx := t.Context()

	table := map[int]string{1: "Ada"}
	c := cacheasidetest.New(t, nil)
	here, there := NewNames(table, c.Cache), NewNames(table, c.Process(t).Cache)
	fmt.Println(here.Get(ctx, 1))
	fmt.Println(there.Get(ctx, 1))

	fmt.Println(here.Rename(ctx, 1, "Grace"))
	c.Redis.Settle(t)
	fmt.Println(here.Get(ctx, 1))
	fmt.Println(there.Get(ctx, 1))
	// Output:
	// Ada <nil>
	// Ada <nil>
	// <nil>
	// Grace <nil>
	// Grace <nil>
}

// Pass the options of the program; here without memory tiers.
func ExampleNew() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, &cacheaside.Options{Prefix: "shop", MemoryBytes: -1})
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	for range 3 {
		names.Get(t.Context(), 1)
	}
	s := c.Cache.Stats()
	fmt.Println(s.Loads, "load,", s.RedisHits, "hits in Redis,", s.MemoryHits, "in memory")
	// Output: 1 load, 2 hits in Redis, 0 in memory
}

// Another process has its own memory and shares the data in Redis.
func ExampleProcess_Process() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	other := c.Process(t)
	NewNames(map[int]string{1: "Ada"}, c.Cache).Get(t.Context(), 1)
	NewNames(map[int]string{1: "Ada"}, other.Cache).Get(t.Context(), 1)
	fmt.Println(c.Cache.Stats().Loads, other.Cache.Stats().Loads)
	// Output: 1 0
}

// For a test of the memory tier: values that the process reads before it receives invalidations are
// not kept in memory.
func ExampleProcess_AwaitInvalidations() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	names.Get(t.Context(), 1)
	c.AwaitInvalidations(t)
	for c.Cache.Stats().MemoryHits == 0 {
		names.Get(t.Context(), 1)
	}
	fmt.Println(c.Cache.Stats().Loads)
	// Output: 1
}

// Values in memory hide those in Redis, until they are forgotten.
func ExampleProcess_Forget() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	names.Get(t.Context(), 1)
	c.AwaitInvalidations(t)
	for c.Cache.Stats().MemoryHits == 0 {
		names.Get(t.Context(), 1)
	}
	before := c.Cache.Stats().RedisHits
	c.Forget(t)
	fmt.Println(names.Get(t.Context(), 1))
	fmt.Println(c.Cache.Stats().RedisHits - before)
	// Output:
	// Ada <nil>
	// 1
}

// A disconnected process continues with the database.
func ExampleProcess_Cut() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	c.Cut()
	fmt.Println(names.Get(t.Context(), 1))
	fmt.Println(c.Cache.Stats().Unvalidated > 0)
	// Output:
	// Ada <nil>
	// true
}

// A write must notice that its invalidation has failed.
func ExampleProcess_Hang() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, &cacheaside.Options{RedisTimeout: 200 * time.Millisecond})
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	names.Get(t.Context(), 1)
	c.Hang()
	fmt.Println(errors.Is(names.Rename(t.Context(), 1, "Grace"), cacheaside.ErrRedis))
	c.Join(t)
	fmt.Println(names.Rename(t.Context(), 1, "Grace"))
	// Output:
	// true
	// <nil>
}

func ExampleProcess_Join() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	c.Cut()
	names.Get(t.Context(), 1)
	c.Join(t) // Redis works again for the process
	before := c.Cache.Stats().Unvalidated
	fmt.Println(names.Get(t.Context(), 1))
	fmt.Println(c.Cache.Stats().Unvalidated - before)
	// Output:
	// Ada <nil>
	// 0
}

// After Settle, no process serves values that were invalidated before.
func ExampleRedis_Settle() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	other := c.Process(t)
	table := map[int]string{1: "Ada"}
	here, there := NewNames(table, c.Cache), NewNames(table, other.Cache)
	there.Get(t.Context(), 1)
	other.AwaitInvalidations(t)
	for other.Cache.Stats().MemoryHits == 0 {
		there.Get(t.Context(), 1)
	}
	here.Rename(t.Context(), 1, "Grace")
	c.Redis.Settle(t)
	fmt.Println(there.Get(t.Context(), 1))
	// Output: Grace <nil>
}

// Known rows are served through an outage of the database that begins just after their TTL.
func ExampleRedis_EndTTL() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	names.Get(t.Context(), 1)

	down := NewNames(nil, c.Process(t).Cache) // in another process, whose database is down
	c.Redis.EndTTL(t)
	fmt.Println(down.Get(t.Context(), 1))
	// Output: Ada <nil>
}

// A value that has not been read for a long time is loaded again.
func ExampleRedis_EndLife() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	table := map[int]string{1: "Ada"}
	names := NewNames(table, c.Cache)
	names.Get(t.Context(), 1)
	table[1] = "Grace" // without an invalidation
	c.Redis.EndLife(t)
	fmt.Println(names.Get(t.Context(), 1))
	// Output: Grace <nil>
}

// Redis is restarted without its data.
func ExampleRedis_Empty() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	names.Get(t.Context(), 1)
	c.Redis.Kill()
	c.Redis.Empty(t)
	c.Redis.Restore(t)
	fmt.Println(names.loader.Get(t.Context(), 1, cacheaside.Fresh))
	fmt.Println(c.Cache.Stats().Loads)
	// Output:
	// Ada <nil>
	// 2
}

// Without Redis a loader follows its policy: by default it loads.
func ExampleRedis_Kill() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	c.Redis.Kill()
	fmt.Println(names.Get(t.Context(), 1))
	fmt.Println(errors.Is(names.Rename(t.Context(), 1, "Grace"), cacheaside.ErrRedis))
	// Output:
	// Ada <nil>
	// true
}

// Callers keep their deadlines while Redis hangs.
func ExampleRedis_Hang() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	c.Redis.Hang()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := names.Get(ctx, 1)
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}

func ExampleRedis_Fail() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	c.Redis.Fail("LOADING Redis is loading the dataset in memory")
	fmt.Println(names.Get(t.Context(), 1))
	fmt.Println(c.Cache.Stats().RedisDown > 0)
	// Output:
	// Ada <nil>
	// true
}

func ExampleRedis_Restore() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	names := NewNames(map[int]string{1: "Ada"}, c.Cache)
	c.Redis.Kill()
	fmt.Println(errors.Is(names.Rename(t.Context(), 1, "Grace"), cacheaside.ErrRedis))
	c.Redis.Restore(t)
	fmt.Println(names.Rename(t.Context(), 1, "Grace"))
	// Output:
	// true
	// <nil>
}

// Another use of the same Redis by the program.
func ExampleRedis_Client() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	rdb := c.Redis.Client(t)
	rdb.Set(t.Context(), "visits", 41, 0)
	fmt.Println(rdb.Incr(t.Context(), "visits").Val())
	// Output: 42
}

// The test inspects the stored keys.
func ExampleRedis_Server() {
	t := new(test) // in a test: the *testing.T
	defer t.end()
	c := cacheasidetest.New(t, nil)
	NewNames(map[int]string{1: "Ada"}, c.Cache).Get(t.Context(), 1)
	fmt.Println(c.Redis.Server().TTL("cacheaside:name:1:{1}") > 10*time.Minute)
	// Output: true
}

package promises

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/audit"
	"github.com/cacheaside/cacheaside/internal/measure"
)

// TestPeek: Peek returns values from memory and Redis, including absences and stale values, and
// loads nothing.
func TestPeek(t *testing.T) {
	inBubbles(t, func(t *testing.T, rdb redis.UniversalClient) {
		d := newTable(map[int]string{1: "a"})
		lo := &cacheaside.LoaderOptions{TTL: time.Minute, NullTTL: time.Minute, StaleFor: time.Hour, EarlyRefresh: -1,
			Jitter: -1}
		p := startOn(t, rdb, d, cacheaside.Options{}, lo)
		hear(t, p.Loader)
		peek := func(key int, row string, ok bool, wantErr error) {
			t.Helper()
			gets := p.Stats().Gets
			got, is, err := p.Peek(t.Context(), key)
			if got != row || is != ok || !errors.Is(err, wantErr) || err != nil && wantErr == nil {
				t.Errorf("Peek(%d) = %q, %v, %v; want %q, %v, %v", key, got, is, err, row, ok, wantErr)
			}
			if n := p.Stats().Gets; n != gets {
				t.Errorf("%d Gets are counted", n-gets)
			}
		}
		peek(1, "", false, nil)
		p.want(t, 1, "a", nil)
		p.want(t, 2, "", cacheaside.ErrNotFound)
		peek(1, "a", true, nil)
		peek(2, "", true, cacheaside.ErrNotFound)
		if rdb != nil {
			partsOf(p.cache).memory.Clear(0)
			peek(1, "a", true, nil)
			peek(2, "", true, cacheaside.ErrNotFound)
		}
		time.Sleep(2 * time.Minute)
		peek(1, "a", true, nil) // stale
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		peek(1, "", false, nil)
		p.want(t, 1, "a", nil)
		p.Bypass(true)
		peek(1, "", false, nil)
		p.Bypass(false)
		if n := d.loads.Load(); n != 3 {
			t.Errorf("%d loads", n)
		}
		p.cache.Close()
	})
}

// TestPeekFailsWithoutRedis: if Redis does not reply, Peek returns an error.
func TestPeekFailsWithoutRedis(t *testing.T) {
	m, b := embedded(t)
	p := start(t, b, newTable(nil), noMemory, nil)
	m.SetError("ERR out of order")
	if _, ok, err := p.Peek(t.Context(), 1); ok || !errors.Is(err, cacheaside.ErrRedis) ||
		!strings.Contains(err.Error(), "peek row key#") {
		t.Errorf("%v, %v", ok, err)
	}
	p.cache.Close()
	if _, ok, err := p.Peek(t.Context(), 1); ok || !errors.Is(err, cacheaside.ErrClosed) {
		t.Errorf("closed: %v, %v", ok, err)
	}
}

// lockerFunc is a Locker whose locks are free.
type lockerFunc func()

func (f lockerFunc) Lock(context.Context, string, time.Duration) (func() error, error) {
	f()
	return func() error { return nil }, nil
}

// While Redis is known to be down, Peek, comparisons, and loads that have waited for their lock
// send it no commands.
func TestDownRedisReceivesNoCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := embedded(t)
		rdb := b.client(t)
		var asked atomic.Int64
		rdb.AddHook(hooked{before: func(cmd redis.Cmder) {
			// The lease is released in the background, and no caller waits for that.
			if cmd.Name() == "getrange" {
				asked.Add(1)
			}
		}, after: func(redis.Cmder) {}})
		fail := func() {}
		p := startOn(t, rdb, newTable(map[int]string{1: "a"}), noMemory,
			&cacheaside.LoaderOptions{TTL: time.Minute, Locker: lockerFunc(func() { fail() })})
		defer p.cache.Close()
		p.want(t, 1, "a", nil)
		noError(t, p.Invalidate(t.Context(), 1))
		down := func() {
			m.SetError("LOADING Redis is loading")
			for range 3 {
				partsOf(p.cache).conn.Failed(t.Context(), "cacheaside:row:1:{1}", errors.New("no reply"))
			}
			asked.Store(0)
		}
		fail = down // after the lease was acquired
		p.want(t, 1, "a", nil)
		if n := asked.Load(); n != 0 {
			t.Errorf("a load that has its lock sends %d commands", n)
		}
		if _, ok, err := p.Peek(t.Context(), 1); ok || !errors.Is(err, cacheaside.ErrRedis) ||
			p.Stats().RedisErrors == 0 {
			t.Errorf("%v, %v", ok, err)
		}
		if n := asked.Load(); n != 0 {
			t.Errorf("Peek sends %d commands", n)
		}
		lone, err := readerOf(p.Loader).Lone(1)
		noError(t, err)
		if _, v := readerOf(p.Loader).Fetch.Copy(t.Context(), lone, audit.Undecided); v != measure.Unknown ||
			asked.Load() != 0 {
			t.Errorf("a comparison: %v, %d commands", v, asked.Load())
		}
	})
}

// TestEach: Each yields values and errors in the order of the keys, including duplicates.
func TestEach(t *testing.T) {
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "row", func(_ context.Context, key int) (string, error) {
		switch key {
		case 2:
			return "", cacheaside.ErrNotFound
		case 3:
			return "", errBroken
		}
		return fmt.Sprint("row ", key), nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for v, err := range l.Each(t.Context(), []int{4, 2, 3, 4, 1}) {
		switch {
		case errors.Is(err, cacheaside.ErrNotFound):
			v = "none"
		case errors.Is(err, errBroken):
			v = "broken"
		case err != nil:
			t.Fatal(err)
		}
		got = append(got, v)
	}
	if want := []string{"row 4", "none", "broken", "row 4", "row 1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for range l.Each(t.Context(), []int{1, 2}) {
		break
	}
}

// New requires a client, and its error names the function that needs none.
func TestNewWithoutClient(t *testing.T) {
	var none *redis.Client
	for _, rdb := range []redis.UniversalClient{nil, none} {
		if _, err := cacheaside.New(rdb, nil); err == nil || !strings.Contains(err.Error(), "NewLocal") {
			t.Errorf("%T: %v", rdb, err)
		}
	}
	if _, err := cacheaside.NewLocal(&cacheaside.Options{MemoryBytes: 1}); err == nil ||
		!strings.Contains(err.Error(), "Options.MemoryBytes") {
		t.Errorf("NewLocal does not check its options: %v", err)
	}
}

// logs returns the log of a cache after f has run and the cache is closed.
func logs(t *testing.T, rdb redis.UniversalClient, f func(c *cacheaside.Cache)) string {
	t.Helper()
	var text bytes.Buffer
	c, err := cacheaside.New(rdb, &cacheaside.Options{Logger: slog.New(slog.NewTextHandler(&text, nil))})
	if err != nil {
		t.Fatal(err)
	}
	f(c)
	c.Close()
	return text.String()
}

// TestClientThatIgnoresContexts: New names the setting that the client lacks.
func TestClientThatIgnoresContexts(t *testing.T) {
	for _, set := range []bool{false, true} {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: set})
		text := logs(t, rdb, func(*cacheaside.Cache) {})
		if strings.Count(text, "ContextTimeoutEnabled is not set") != map[bool]int{false: 1}[set] {
			t.Errorf("set: %v; it logs %q", set, text)
		}
		rdb.Close()
	}
}

// TestUnknownLoaderIsLoggedOnce: a process with loaders logs keys of an unknown loader once.
func TestUnknownLoaderIsLoggedOnce(t *testing.T) {
	_, b := embedded(t)
	const told = "keys of a loader that this process does not have"
	invalidate := func(c *cacheaside.Cache) {
		for range 3 {
			if err := c.InvalidateKeys(t.Context(), cacheaside.Key{Loader: "usr", Text: "1"}); err != nil {
				t.Error(err)
			}
		}
	}
	if text := logs(t, b.client(t), invalidate); strings.Contains(text, told) {
		t.Errorf("a program without loaders logs %q", text)
	}
	text := logs(t, b.client(t), func(c *cacheaside.Cache) {
		if _, err := cacheaside.NewLoader(c, "user", newTable(nil).load, nil); err != nil {
			t.Fatal(err)
		}
		invalidate(c)
		for i := range 200 {
			_ = c.InvalidateKeys(t.Context(), cacheaside.Key{Loader: fmt.Sprint("other", i), Text: "1"})
		}
	})
	if n := strings.Count(text, told); n != 100 {
		t.Errorf("%d unknown names are logged, not 100", n)
	}
	if !strings.Contains(text, told) || !strings.Contains(text, "loader=usr") {
		t.Errorf("it logs %q", text)
	}
}

// TestHitRatio: the ratio of reads that a cache served.
func TestHitRatio(t *testing.T) {
	if r := (cacheaside.Stats{}).HitRatio(); r != 0 {
		t.Errorf("without reads: %v", r)
	}
	if r := (cacheaside.Stats{MemoryHits: 60, RedisHits: 30, Loads: 20, BackgroundRefreshes: 8,
		CompareLoads: 2}).HitRatio(); r != 0.9 {
		t.Errorf("%v", r)
	}
}

// TestHookOfAnotherType: the error names both types.
func TestHookOfAnotherType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := cacheaside.NewLocal(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		load := func(context.Context, int) (string, error) { return "", nil }
		for want, o := range map[string]*cacheaside.LoaderOptions{
			"LoaderOptions.Key: the function given to KeyOf is a func(string) string, and this loader needs a func(int) string": {Key: cacheaside.KeyOf(func(s string) string { return s })},
			"LoaderOptions.Clone: the function given to CloneOf is nil":                                                         {Clone: cacheaside.CloneOf[string](nil)},
		} {
			if _, err := cacheaside.NewLoader(c, "row", load, o); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	})
}

package promises

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The behaviour of a Loader on every kind of Redis.
func TestBehaviour(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		for _, c := range []struct {
			name string
			run  func(*testing.T, backend)
		}{
			{"a value is loaded once, and then found in Redis and in memory", testTiers},
			{"a missing row is remembered, until it is inserted", testNull},
			{"an invalidation is seen by all processes", testInvalidate},
			{"a refresh loads, whatever is cached", testRefresh},
			{"a failed load is not tried again at once", testRecentFailure},
			{"what cannot be decoded is a miss", testUndecodable},
			{"any key is itself only", testKeys},
			{"bypass goes to the database", testBypass},
		} {
			t.Run(c.name, func(t *testing.T) {
				flushAll(t, b)
				c.run(t, b)
			})
		}
	})
}

// flushAll empties each server of the Redis.
func flushAll(t testing.TB, b backend) {
	t.Helper()
	if err := forEachMaster(t.Context(), b.admin,
		func(ctx context.Context, r *redis.Client) error { return r.FlushAll(ctx).Err() }); err != nil {
		t.Fatal(err)
	}
}

func forEachMaster(ctx context.Context, rdb redis.UniversalClient, f func(context.Context, *redis.Client) error) error {
	if c, ok := rdb.(*redis.ClusterClient); ok {
		return c.ForEachMaster(ctx, f)
	}
	return f(ctx, rdb.(*redis.Client))
}

func testTiers(t *testing.T, b backend) {
	d := newTable(map[int]string{1: "one"})
	p, q := start(t, b, d, patient, nil), start(t, b, d, patient, nil)
	for range 3 {
		p.want(t, 1, "one", nil)
		p.settle()
		q.want(t, 1, "one", nil)
		q.settle()
	}
	if n := d.loads.Load(); n != 1 {
		t.Errorf("%d loads", n)
	}
	if s := p.Stats(); s.Loads != 1 || s.RedisHits != 0 || s.MemoryHits != 2 {
		t.Errorf("the process that loaded: %+v", s)
	}
	if s := q.cache.Stats(); s.Loads != 0 || s.RedisHits != 1 || s.MemoryHits != 2 {
		t.Errorf("the other process: %+v", s)
	}
}

func testNull(t *testing.T, b backend) {
	d := newTable(map[int]string{})
	p, q := start(t, b, d, patient, nil), start(t, b, d, noMemory, nil)
	for range 3 {
		p.want(t, 1, "", cacheaside.ErrNotFound)
		p.settle()
		q.want(t, 1, "", cacheaside.ErrNotFound)
	}
	if n := d.loads.Load(); n != 1 {
		t.Errorf("%d loads", n)
	}
	if s := p.Stats(); s.NullHits != 2 || s.LoadErrors != 0 {
		t.Errorf("%+v", s)
	}
	d.write(1, "inserted")
	if err := p.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	p.want(t, 1, "inserted", nil)
	q.want(t, 1, "inserted", nil)
}

func testInvalidate(t *testing.T, b backend) {
	d := newTable(map[int]string{})
	p, q := start(t, b, d, patient, nil), start(t, b, d, noMemory, nil)
	var keys []int
	for key := range 50 {
		d.write(key, "old")
		p.want(t, key, "old", nil)
		q.want(t, key, "old", nil)
		d.write(key, "new")
		keys = append(keys, key)
	}
	p.settle()
	if err := p.Invalidate(t.Context(), keys...); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		p.want(t, key, "new", nil)
		q.want(t, key, "new", nil)
	}
	if n := d.loads.Load(); n != 100 {
		t.Errorf("%d loads", n)
	}
	if s := p.Stats(); s.Invalidated != 50 || s.InvalidateErrors != 0 {
		t.Errorf("%+v", s)
	}
	if err := p.Invalidate(t.Context()); err != nil {
		t.Errorf("no keys: %v", err)
	}
}

func testRefresh(t *testing.T, b backend) {
	d := newTable(map[int]string{1: "a"})
	p, q := start(t, b, d, patient, nil), start(t, b, d, noMemory, nil)
	refresh := func(want string, wantErr error) {
		t.Helper()
		if got, err := p.Refresh(t.Context(), 1); got != want || !sameError(err, wantErr) {
			t.Fatalf("Refresh = %q, %v", got, err)
		}
		p.settle()
		p.want(t, 1, want, wantErr)
		q.want(t, 1, want, wantErr)
	}
	refresh("a", nil) // no entry
	d.write(1, "b")
	refresh("b", nil)
	delete(d.rows, 1)
	refresh("", cacheaside.ErrNotFound)
	d.write(1, "c")
	refresh("c", nil) // replaces a null
	if s := p.Stats(); s.Loads != 4 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}

	broken := errors.New("broken")
	d.read = func(context.Context, int64) error { return broken }
	if _, err := p.Refresh(t.Context(), 1); !errors.Is(err, broken) {
		t.Fatalf("a failing Refresh: %v", err)
	}
	d.read = nil
	d.write(1, "d")
	q.want(t, 1, "c", nil) // the cached value stays
	refresh("d", nil)
}

func testRecentFailure(t *testing.T, b backend) {
	broken := errors.New("broken")
	d := newTable(nil)
	d.read = func(context.Context, int64) error { return broken }
	p, q := start(t, b, d, patient, &cacheaside.LoaderOptions{ErrorTTL: time.Hour}), start(t, b, d, patient, nil)
	p.want(t, 1, "", broken)
	for range 5 {
		p.want(t, 1, "", cacheaside.ErrLoadFailed)
		q.want(t, 1, "", cacheaside.ErrLoadFailed)
	}
	if n := d.loads.Load(); n != 1 {
		t.Errorf("%d loads", n)
	}
	if s := p.Stats(); s.LoadErrors != 1 || s.FailedByMark != 5 {
		t.Errorf("%+v", s)
	}
	d.mu.Lock()
	d.read, d.rows = nil, map[int]string{1: "mended", 2: "two"}
	d.mu.Unlock()
	if err := q.Invalidate(t.Context(), 1); err != nil { // ends the window
		t.Fatal(err)
	}
	p.want(t, 1, "mended", nil)
	if _, err := q.Refresh(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
}

func testUndecodable(t *testing.T, b backend) {
	d := newTable(map[int]string{1: "one"})
	p := start(t, b, d, noMemory, &cacheaside.LoaderOptions{Codec: cacheaside.JSON})
	p.want(t, 1, "one", nil)
	entry, err := b.admin.Get(t.Context(), redisKey(1)).Result()
	if err != nil {
		t.Fatal(err)
	}
	for i, bad := range []string{
		// Not an entry; another version; not compressed; without a key.
		"x", "*", "null", entry[:23], entry[:1], "\xe2" + entry[1:],
		entry[:1] + "\x14" + entry[2:], entry[:1] + "\x18" + entry[2:],
		// Another codec; invalid JSON; another type.
		entry[:1] + "\xf0" + entry[2:], entry[:24] + "{", entry[:24] + "3", entry + "x", entry[:24],
		"\xa1\x00", "\xf1\x00",
	} {
		if err := b.admin.Set(t.Context(), redisKey(1), bad, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "one", nil)
		p.want(t, 1, "one", nil) // replaced: a hit
		if s := p.Stats(); s.Loads != int64(i)+2 || s.Undecodable != int64(i)+1 || s.RedisHits != int64(i)+1 {
			t.Fatalf("%q: %+v", bad, s)
		}
	}
	if err := b.admin.Set(t.Context(), redisKey(1), "", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	before := p.Stats()
	p.want(t, 1, "one", nil) // an empty string counts as missing
	p.want(t, 1, "one", nil)
	if s := p.Stats(); s.Loads != before.Loads+1 || s.Undecodable != before.Undecodable ||
		s.RedisHits != before.RedisHits+1 {
		t.Errorf("an empty string: %+v", s)
	}
}

func testKeys(t *testing.T, b backend) {
	c, err := cacheaside.New(b.client(t), &noMemory)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "text",
		func(_ context.Context, key string) (string, error) { return fmt.Sprintf("row of %x", key), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{"", "a", "A", "{a}", "}", "}{", "{}", "a}b", "%", "%7D", "%257D", "a\x00b", "\xff\xfe", "ключ",
		"a:b", strings.Repeat("k", 3000), "*", "\r\n"}
	for range 2 {
		for _, key := range keys {
			if v, err := l.Get(t.Context(), key); err != nil || v != fmt.Sprintf("row of %x", key) {
				t.Errorf("%q: %q, %v", key, v, err)
			}
		}
	}
	if s := l.Stats(); s.Loads != int64(len(keys)) || s.RedisHits != int64(len(keys)) || s.Unvalidated != 0 {
		t.Errorf("%+v", s)
	}
	if err := l.Invalidate(t.Context(), keys...); err != nil {
		t.Error(err)
	}
	if err := forEachMaster(t.Context(), b.admin, func(ctx context.Context, r *redis.Client) error {
		for _, key := range r.Keys(ctx, "*").Val() {
			if !strings.HasPrefix(key, "cacheaside::announced:") {
				return errors.New("Redis still has a key")
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func testBypass(t *testing.T, b backend) {
	d := newTable(map[int]string{1: "a", 2: "x"})
	p := start(t, b, d, patient, nil)
	p.want(t, 1, "a", nil)
	p.want(t, 2, "x", nil)
	p.settle()
	p.Bypass(true)
	d.write(1, "b")
	p.want(t, 1, "b", nil)
	if err := p.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	d.write(1, "c")
	p.want(t, 1, "c", nil)
	if v, err := p.Refresh(t.Context(), 1); err != nil || v != "c" {
		t.Fatal(v, err)
	}
	d.write(1, "d")
	d.write(2, "y")
	p.Bypass(false)
	p.want(t, 1, "d", nil) // nothing was stored
	p.want(t, 2, "x", nil) // and nothing removed
	if s := p.Stats(); s.Bypassed != 3 || s.Unvalidated != 3 {
		t.Errorf("%+v", s)
	}
}

// Without Redis, the memory tier and shared rounds work.
func TestWithoutRedis(t *testing.T) {
	d := newTable(map[int]string{1: "a"})
	p := startOn(t, nil, d, patient, nil)
	for range 3 {
		p.want(t, 1, "a", nil)
		p.want(t, 2, "", cacheaside.ErrNotFound)
		p.settle()
	}
	if n := d.loads.Load(); n != 2 {
		t.Errorf("%d loads", n)
	}
	d.write(1, "b")
	d.write(2, "inserted")
	if err := p.Invalidate(t.Context(), 1, 2); err != nil {
		t.Fatal(err)
	}
	p.want(t, 1, "b", nil)
	p.want(t, 2, "inserted", nil)
	p.settle()
	d.write(1, "c")
	if v, err := p.Refresh(t.Context(), 1); err != nil || v != "c" {
		t.Fatal(v, err)
	}
	p.settle()
	p.want(t, 1, "c", nil)

	off := startOn(t, nil, d, cacheaside.Options{MemoryBytes: -1}, nil)
	off.want(t, 1, "c", nil)
	off.want(t, 1, "c", nil)
	if s := off.Stats(); s.Loads != 2 || s.Unvalidated != 0 {
		t.Errorf("%+v", s)
	}
}

// A value in memory does not outlive its entry in Redis: a value promoted shortly before the
// entry's end expires with it.
func TestMemoryDoesNotOutliveEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "a"})
		lo := &cacheaside.LoaderOptions{TTL: time.Minute, MemoryTTL: time.Minute, Jitter: -1, StaleFor: -1}
		p, q := start(t, b, d, patient, lo), start(t, b, d, patient, lo)
		defer p.cache.Close()
		defer q.cache.Close()
		p.want(t, 1, "a", nil)
		time.Sleep(59 * time.Second)
		q.want(t, 1, "a", nil)
		d.write(1, "b")
		time.Sleep(990 * time.Millisecond)
		q.settle()
		q.want(t, 1, "a", nil)
		time.Sleep(20 * time.Millisecond)
		q.want(t, 1, "b", nil)
		if n := d.loads.Load(); n != 2 {
			t.Errorf("%d loads", n)
		}
	})
}

// MemoryTTL bounds how long memory serves a value that was deleted without the library.
func TestMemoryTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "a"})
		lo := &cacheaside.LoaderOptions{MemoryTTL: time.Minute, Jitter: -1}
		p, q := start(t, b, d, patient, lo), start(t, b, d, patient, lo)
		defer p.cache.Close()
		defer q.cache.Close()
		q.want(t, 1, "a", nil)
		q.settle()
		d.write(1, "b")
		if err := b.admin.Del(t.Context(), redisKey(1)).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		q.want(t, 1, "a", nil)
		time.Sleep(time.Second)
		q.want(t, 1, "b", nil)
	})
}

// By default memory serves a value as long as its entry lives in Redis, also if the load function
// has set a longer TTL.
func TestMemoryLivesAsLongAsTheEntry(t *testing.T) {
	for name, ttl := range map[string]time.Duration{"TTL": 0, "SetTTL": 40 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, b := embedded(t)
				d := newTable(map[int]string{1: "a"})
				d.read = func(ctx context.Context, _ int64) error {
					if ttl != 0 {
						cacheaside.SetTTL(ctx, ttl)
					}
					return nil
				}
				lo := &cacheaside.LoaderOptions{TTL: 20 * time.Minute, Jitter: -1, StaleFor: -1}
				o := patient
				o.MaxStaleness = time.Minute // few polls
				p, q := start(t, b, d, o, lo), start(t, b, d, o, lo)
				defer p.cache.Close()
				defer q.cache.Close()
				p.want(t, 1, "a", nil)
				q.settle()
				q.want(t, 1, "a", nil)
				q.settle()
				reads := q.Stats().RedisHits
				time.Sleep(cmp.Or(ttl, lo.TTL) - time.Minute)
				q.want(t, 1, "a", nil)
				if n := q.Stats().RedisHits - reads; n != 0 {
					t.Errorf("%d reads of Redis", n)
				}
				d.write(1, "b")
				time.Sleep(time.Minute)
				q.want(t, 1, "b", nil)
			})
		})
	}
}

// A process that reads a key every 20 seconds finds it in memory most of the time if memory keeps
// copies as long as their entries, and less often with a MemoryTTL of a minute.
func TestMemoryHitsOfARareKey(t *testing.T) {
	share := func(memoryTTL time.Duration) (share float64) {
		synctest.Test(t, func(t *testing.T) {
			_, b := embedded(t)
			o := patient
			o.MaxStaleness = time.Minute // few polls
			p := start(t, b, newTable(map[int]string{1: "a"}), o, &cacheaside.LoaderOptions{MemoryTTL: memoryTTL})
			defer p.cache.Close()
			const reads = 450 // two and a half hours
			for range reads {
				p.want(t, 1, "a", nil)
				time.Sleep(20 * time.Second)
			}
			share = float64(p.Stats().MemoryHits) / reads
		})
		return share
	}
	minute, entry := share(time.Minute), share(0)
	t.Logf("in memory: %.0f %% with a MemoryTTL of a minute, %.0f %% without", 100*minute, 100*entry)
	if minute > 0.75 || entry < 0.9 {
		t.Error("unexpected shares")
	}
}

// TTLs end by Redis' clock, whatever the clocks of processes show.
func TestTTLsEndByRedisClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := embedded(t)
		ahead := time.Now().Add(time.Hour)
		m.SetTime(ahead)
		d := newTable(map[int]string{1: "a"})
		lo := &cacheaside.LoaderOptions{TTL: time.Minute, Jitter: -1, EarlyRefresh: -1}
		p, q := start(t, b, d, patient, lo), start(t, b, d, patient, lo)
		defer p.cache.Close()
		defer q.cache.Close()
		p.want(t, 1, "a", nil)
		raw, err := b.admin.Get(t.Context(), redisKey(1)).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		var end int64
		for _, b := range raw[14:20] {
			end = end<<8 | int64(b)
		}
		if d := time.UnixMilli(end).Sub(ahead); d < time.Minute || d > time.Minute+2*time.Second {
			t.Errorf("the TTL ends %v after Redis' time, expected 1m0s", d)
		}
		q.want(t, 1, "a", nil)
		q.settle()
		if s := q.Stats(); s.Stale != 0 {
			t.Errorf("%d stale values", s.Stale)
		}
		m.SetTime(ahead.Add(90 * time.Second))
		time.Sleep(2 * time.Second) // a poll
		r := start(t, b, d, patient, lo)
		defer r.cache.Close()
		r.want(t, 1, "a", nil)
		if s := r.Stats(); s.Stale != 1 {
			t.Errorf("%d stale values, expected 1: by Redis' clock the TTL has ended", s.Stale)
		}
	})
}

// A Refresh reaches the memory of other processes.
func TestRefreshIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newTable(map[int]string{1: "a"})
		p, q := start(t, b, d, patient, nil), start(t, b, d, patient, nil)
		defer p.cache.Close()
		defer q.cache.Close()
		p.want(t, 1, "a", nil)
		q.settle()
		q.want(t, 1, "a", nil)
		d.write(1, "b")
		if got, err := p.Refresh(t.Context(), 1); got != "b" || err != nil {
			t.Fatalf("Refresh = %q, %v", got, err)
		}
		synctest.Wait() // for the announcement
		q.want(t, 1, "b", nil)
		p.want(t, 1, "b", nil)
		if n := d.loads.Load(); n != 2 {
			t.Errorf("%d loads", n)
		}
	})
}

// Every TTL is within its documented range, for all options and all TTLs that a load sets.
func TestTTLsAreInDocumentedRanges(t *testing.T) {
	ranges := []struct {
		ttl, own time.Duration
		jitter   float64
		lo, hi   time.Duration
	}{
		{time.Minute, 0, 0, 54 * time.Second, time.Minute},
		{time.Minute, 0, -1, time.Minute, time.Minute},
		{time.Minute, 0, 0.9, 6 * time.Second, time.Minute},
		{cacheaside.MinTTL, 0, 0.9, time.Millisecond, cacheaside.MinTTL},
		{cacheaside.MaxTTL, 0, 0.5, cacheaside.MaxTTL / 2, cacheaside.MaxTTL},
		{time.Minute, time.Hour, -1, time.Hour, time.Hour},
		{time.Minute, -time.Hour, -1, cacheaside.MinTTL, cacheaside.MinTTL},
		{time.Minute, 1, -1, cacheaside.MinTTL, cacheaside.MinTTL},
		{time.Minute, math.MaxInt64, -1, cacheaside.MaxTTL, cacheaside.MaxTTL},
	}
	each(t, func(t *testing.T, b backend) {
		keys := 20
		// The TTLs are the same on every server.
		if !accepting && !strings.HasSuffix(t.Name(), "/embedded") {
			keys = 2
		}
		for i, c := range ranges {
			for _, null := range []bool{false, true} {
				ch, err := cacheaside.New(b.client(t), &noMemory)
				if err != nil {
					t.Fatal(err)
				}
				defer ch.Close()
				name := fmt.Sprintf("lives-%d-%v", i, null)
				l, err := cacheaside.NewLoader(ch, name, func(ctx context.Context, key int) (int, error) {
					if c.own != 0 {
						cacheaside.SetTTL(ctx, c.own)
					}
					if null {
						return 0, sql.ErrNoRows
					}
					return key, nil
				}, &cacheaside.LoaderOptions{TTL: c.ttl, NullTTL: c.ttl, Jitter: c.jitter, StaleFor: -1,
					LoadTimeout: testenv.Hang})
				if err != nil {
					t.Fatal(err)
				}
				for key := range keys {
					began := time.Now()
					if _, err := l.Get(t.Context(), key); err != nil && !errors.Is(err, cacheaside.ErrNotFound) {
						t.Fatal(err)
					}
					ttl, err := b.admin.PTTL(t.Context(), fmt.Sprintf("cacheaside:%s:1:{%d}", name, key)).Result()
					// A life of a few milliseconds may have ended.
					late := time.Since(began) + 2*time.Millisecond
					if err != nil || ttl > c.hi || ttl < c.lo-late || (ttl < 0 && (ttl == -1 || c.lo > late)) {
						t.Fatalf("%+v null %v: life %v, %v", c, null, ttl, err)
					}
				}
			}
		}
	})
	cacheaside.SetTTL(context.Background(), time.Hour) // outside of a load: no effect
}

func TestOptionsAreChecked(t *testing.T) {
	type bad struct {
		field string
		o     cacheaside.Options
	}
	for _, c := range []bad{
		{"Prefix", cacheaside.Options{Prefix: "a{b"}}, {"Prefix", cacheaside.Options{Prefix: "a b"}}, {"Prefix", cacheaside.Options{Prefix: "ключ"}},
		{"MemoryBytes", cacheaside.Options{MemoryBytes: 5}}, {"RedisTimeout", cacheaside.Options{RedisTimeout: -1}},
		{"LeaseTTL", cacheaside.Options{LeaseTTL: time.Millisecond}}, {"LeaseTTL", cacheaside.Options{LeaseTTL: time.Hour}},
		{"ReadTimeout", cacheaside.Options{ReadTimeout: -1}}, {"ReadTimeout", cacheaside.Options{ReadTimeout: time.Second}}, {"QueueTimeout", cacheaside.Options{QueueTimeout: -1}},
		{"LoadRate", cacheaside.Options{LoadRate: -1}}, {"LoadRate", cacheaside.Options{LoadRate: math.NaN()}}, {"ReplicaLag", cacheaside.Options{ReplicaLag: -1}}, {"ReplicaLag", cacheaside.Options{ReplicaLag: time.Hour}},
	} {
		if _, err := cacheaside.NewLocal(&c.o); err == nil || !strings.Contains(err.Error(), "Options."+c.field) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
	ch, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	load := func(context.Context, int) (int, error) { return 0, nil }
	for _, c := range []struct {
		field string
		o     cacheaside.LoaderOptions
	}{
		{"Version", cacheaside.LoaderOptions{Version: "1:2"}}, {"TTL", cacheaside.LoaderOptions{TTL: 1}}, {"TTL", cacheaside.LoaderOptions{TTL: -1}}, {"TTL", cacheaside.LoaderOptions{TTL: 2 * cacheaside.MaxTTL}},
		{"Jitter", cacheaside.LoaderOptions{Jitter: 1}}, {"Jitter", cacheaside.LoaderOptions{Jitter: math.NaN()}}, {"NullTTL", cacheaside.LoaderOptions{NullTTL: -1}},
		{"MemoryTTL", cacheaside.LoaderOptions{MemoryTTL: 1}}, {"LoadTimeout", cacheaside.LoaderOptions{LoadTimeout: -1}}, {"ErrorTTL", cacheaside.LoaderOptions{ErrorTTL: 1}},
		{"StaleFor", cacheaside.LoaderOptions{StaleFor: 1}}, {"StaleFor", cacheaside.LoaderOptions{StaleFor: 2 * cacheaside.MaxTTL}}, {"SoftTimeout", cacheaside.LoaderOptions{SoftTimeout: -1}},
		{"EarlyRefresh", cacheaside.LoaderOptions{EarlyRefresh: math.NaN()}}, {"EarlyRefresh", cacheaside.LoaderOptions{EarlyRefresh: 101}},
		{"BreakAt", cacheaside.LoaderOptions{BreakAt: 1.1}}, {"Shadow", cacheaside.LoaderOptions{Shadow: 1.1}}, {"Shadow", cacheaside.LoaderOptions{Shadow: math.NaN()}}, {"BreakFor", cacheaside.LoaderOptions{BreakFor: -1}}, {"RedisDown", cacheaside.LoaderOptions{RedisDown: 3}},
	} {
		if _, err := cacheaside.NewLoader(ch, "x", load, &c.o); err == nil ||
			!strings.Contains(err.Error(), "LoaderOptions."+c.field) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
	if _, err := cacheaside.NewLoader(ch, "a:b", load, nil); err == nil || !strings.Contains(err.Error(), `"a:b"`) {
		t.Error(err)
	}
	if _, err := cacheaside.NewLoader[int, int](ch, "x", nil, nil); err == nil ||
		!strings.Contains(err.Error(), "load function") {
		t.Error(err)
	}
	if _, err := cacheaside.NewLoader(nil, "x", load, nil); err == nil ||
		!strings.Contains(err.Error(), "cache is nil") {
		t.Error(err)
	}
	o := &cacheaside.LoaderOptions{}
	if _, err := cacheaside.NewLoader(ch, "x", load, o); err != nil ||
		!reflect.DeepEqual(*o, cacheaside.LoaderOptions{}) {
		t.Error("NewLoader must not change its input:", err, *o)
	}
	if _, err := cacheaside.NewLoader(ch, "x", load, nil); err == nil || !strings.Contains(err.Error(), "already") {
		t.Error(err)
	}
}

func TestRefusedClients(t *testing.T) {
	cluster := func(o redis.ClusterOptions) redis.UniversalClient {
		o.Addrs = []string{"127.0.0.1:1"}
		return redis.NewClusterClient(&o)
	}
	for _, c := range []struct {
		why string
		rdb redis.UniversalClient
	}{
		{"Ring", redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, HeartbeatFrequency: time.Hour})},
		{"replicas", cluster(redis.ClusterOptions{ReadOnly: true})},
		{"replicas", cluster(redis.ClusterOptions{RouteByLatency: true})},
		{"replicas", cluster(redis.ClusterOptions{RouteRandomly: true})},
		{"the Redis client is nil", (*redis.Client)(nil)},
		{"may break the protocol", struct{ redis.UniversalClient }{}},
	} {
		if _, err := cacheaside.New(c.rdb, nil); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%T: %v", c.rdb, err)
		}
		switch r := c.rdb.(type) {
		case *redis.Ring:
			r.Close()
		case *redis.ClusterClient:
			r.Close()
		}
	}
}

type textKey struct{ a, b int }

func (t textKey) MarshalText() ([]byte, error) {
	if t.a < 0 {
		return nil, errors.New("negative")
	}
	return fmt.Appendf(nil, "%d/%d", t.a, t.b), nil
}

func TestKeysThatCannotBeEncoded(t *testing.T) {
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "text", func(context.Context, textKey) (int, error) { return 7, nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Get(t.Context(), textKey{a: -1}); err == nil || !strings.Contains(err.Error(), "negative") {
		t.Error(err)
	}
	if err := l.Invalidate(t.Context(), textKey{a: -1}, textKey{1, 2}); err == nil || l.Stats().Invalidated != 1 {
		t.Error(err, l.Stats())
	}
}

// Errors contain neither keys nor values.
func TestErrorsArePrivate(t *testing.T) {
	const secret = "alice@example.com"
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "mail",
		func(_ context.Context, key string) (string, error) { panic("the value of " + key) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Get(t.Context(), secret)
	e, ok := errors.AsType[*cacheaside.Error](err)
	if !ok || strings.Contains(err.Error(), "alice") || e.Key != secret || e.Loader != "mail" || e.Op != "get" {
		t.Fatalf("%v: %+v", err, e)
	}
	if p, ok := errors.AsType[*cacheaside.PanicError](err); !ok || p.Value != "the value of "+secret ||
		!strings.Contains(string(p.Stack), "TestErrorsArePrivate") {
		t.Errorf("%+v", p)
	}
}

// A value that cannot be encoded is an error for its callers, and is not loaded again immediately.
func TestUnencodableValue(t *testing.T) {
	_, b := embedded(t)
	c, err := cacheaside.New(b.client(t), &patient)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	loads := 0
	l, err := cacheaside.NewLoader(c, "x", func(context.Context, string) (float64,
		error) {
		loads++
		return math.NaN(), nil
	}, &cacheaside.LoaderOptions{ErrorTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Get(t.Context(), "1")
	if _, ok := errors.AsType[*cacheaside.Error](err); !ok || !strings.Contains(err.Error(), "encode") ||
		strings.Contains(err.Error(), "NaN") {
		t.Error(err)
	}
	if _, err := l.Get(t.Context(), "1"); !errors.Is(err, cacheaside.ErrLoadFailed) || loads != 1 {
		t.Error(err, loads)
	}
}

// Clients of different processes share entries of one name. Other prefixes, names and versions are
// separate.
func TestNamespaces(t *testing.T) {
	_, b := embedded(t)
	loads := 0
	for _, n := range []struct{ prefix, name, version string }{{"a", "x", "1"}, {"b", "x", "1"}, {"a", "y", "1"},
		{"a", "x", "2"}} {
		for range 2 {
			o := noMemory
			o.Prefix = n.prefix
			c, err := cacheaside.New(b.client(t), &o)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			l, err := cacheaside.NewLoader(c, n.name, func(context.Context, int) (int,
				error) {
				loads++
				return loads, nil
			}, &cacheaside.LoaderOptions{Version: n.version})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Get(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	if loads != 4 {
		t.Error(loads, "loads")
	}
}

// Two keys with the same 64-bit hash are different.
func TestMemoryComparesKeys(t *testing.T) {
	d := newTable(map[int]string{1: "one", 2: "two"})
	p := startOn(t, nil, d, patient, nil)
	p.want(t, 1, "one", nil)
	p.settle()
	// As if the hash of 2 were that of 1: the slot contains the item of 1.
	item, ok := readerOf(p.Loader).Remembered(1)
	if !ok {
		t.Fatal("the item is not in memory")
	}
	if _, ok := readerOf(p.Loader).Remembered(2); ok {
		t.Error("found the item of another key", item)
	}
}

func TestManyLoaders(t *testing.T) {
	_, b := embedded(t)
	c, err := cacheaside.New(b.client(t), &patient)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var wg sync.WaitGroup
	for i := range 20 {
		l, err := cacheaside.NewLoader(c, fmt.Sprint("l", i),
			func(_ context.Context, key int) (string, error) { return fmt.Sprint(i, key), nil }, nil)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for key := range 100 {
				if v, err := l.Get(t.Context(), key%10); err != nil || v != fmt.Sprint(i, key%10) {
					t.Error(v, err)
				}
			}
		})
	}
	wg.Wait()
	if s := c.Stats(); s.Loads != 200 {
		t.Errorf("%+v", s)
	}
}

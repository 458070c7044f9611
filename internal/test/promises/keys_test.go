package promises

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Keys are invalidated, inserted and refreshed by a process that does not know their types.

// rowKey returns a key of the test table, as a program without the loader writes it.
func rowKey(key int) cacheaside.Key { return cacheaside.Key{Loader: "row", Text: fmt.Sprint(key)} }

// stranger returns the cache of a process without loaders.
func stranger(t testing.TB, b backend, o cacheaside.Options) *cacheaside.Cache {
	t.Helper()
	c, err := cacheaside.New(b.client(t), &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// wantFailed fails unless err has an *Error of op with the cause for exactly these keys.
func wantFailed(t testing.TB, err error, op string, cause error, keys ...cacheaside.Key) {
	t.Helper()
	batch, ok := err.(*cacheaside.BatchError[cacheaside.Key])
	if !ok || len(batch.Errs) != len(keys) {
		t.Fatalf("%#v", err)
	}
	for _, k := range keys {
		e, ok := errors.AsType[*cacheaside.Error](batch.Errs[k])
		if !ok || e.Op != op || e.Loader != k.Loader || e.Hash != k.Hash() || !errors.Is(e, cause) {
			t.Errorf("%v: %#v", k, batch.Errs[k])
		}
	}
}

// Operations on keys without types, on every kind of Redis.
func TestKeysWithoutTypes(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		for _, c := range []struct {
			name string
			run  func(*testing.T, backend)
		}{
			{"an invalidation is seen by all processes", testInvalidateKeys},
			{"whole loaders are invalidated beside single keys", testInvalidateWholeLoaders},
			{"each version has its own entries", testInvalidateVersions},
			{"a row that was admitted is found by all processes", testAdmitKeys},
			{"what is refreshed is seen by all processes", testRefreshKeys},
			{"what cannot be refreshed is invalidated", testRefreshKeysOfOthers},
		} {
			t.Run(c.name, func(t *testing.T) {
				flushAll(t, b)
				c.run(t, b)
			})
		}
	})
}

func testInvalidateKeys(t *testing.T, b backend) {
	rows := make(map[int]string)
	for i := range 40 { // in all ranges of a cluster
		rows[i] = "old"
	}
	d := newTable(rows)
	p, q, bare := start(t, b, d, steady, nil), start(t, b, d, steady, nil), start(t, b, d, steadyNoMemory, nil)
	for row, by := range map[string]*cacheaside.Cache{"by one who has the loader": p.cache,
		"by one who has not": stranger(t, b, steadyNoMemory)} {
		var all []cacheaside.Key
		for key := range 40 {
			for _, of := range []process{p, q, bare} {
				of.want(t, key, d.row(key), nil)
			}
			d.write(key, row)
			all = append(all, p.Key(key))
		}
		p.settle()
		q.settle()
		if err := by.InvalidateKeys(t.Context(), all...); err != nil {
			t.Fatal(err)
		}
		for key := range 40 {
			bare.want(t, key, row, nil)
			if by == p.cache {
				p.want(t, key, row, nil) // its own memory is invalidated immediately
			}
			p.sees(t, key, row, testenv.Hang)
			q.sees(t, key, row, testenv.Hang)
		}
	}
	if s := p.Stats(); s.Invalidated != 40 || s.InvalidateErrors != 0 {
		t.Errorf("%+v", s)
	}
	if n := d.loads.Load(); n != 120 {
		t.Errorf("%d loads", n)
	}
}

func (t *table) row(key int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rows[key]
}

func testInvalidateWholeLoaders(t *testing.T, b backend) {
	d := newTable(map[int]string{1: "old", 2: "old", 3: "old"})
	p, q := start(t, b, d, steady, nil), start(t, b, d, steady, nil)
	other, err := cacheaside.NewLoader(p.cache, "other", d.load, nil)
	if err != nil {
		t.Fatal(err)
	}
	for round, by := range []*cacheaside.Cache{p.cache, stranger(t, b, steadyNoMemory)} {
		for key := 1; key <= 3; key++ {
			p.want(t, key, d.row(key), nil)
			q.want(t, key, d.row(key), nil)
			if _, err := other.Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		p.settle()
		loads, row := d.loads.Load(), fmt.Sprint("new ", round)
		for key := 1; key <= 3; key++ {
			d.write(key, row)
		}
		if err := by.InvalidateKeys(t.Context(), p.AllKeys(), cacheaside.Key{Loader: "other", Text: "1"},
			cacheaside.Key{Loader: "row", All: true, Version: "!", Text: "7"}); err != nil {
			t.Fatal(err)
		}
		for key := 1; key <= 3; key++ {
			if by == p.cache {
				p.want(t, key, row, nil)
			}
			p.sees(t, key, row, testenv.Hang)
			q.sees(t, key, row, testenv.Hang)
		}
		if v, err := other.Get(t.Context(), 1, cacheaside.Fresh); v != row || err != nil {
			t.Errorf("a single key next to it: %q, %v", v, err)
		}
		if v, err := other.Get(t.Context(), 2, cacheaside.Fresh); v == row || err != nil {
			t.Errorf("a key that was not given: %q, %v", v, err)
		}
		// A process without the message may load an entry that is outdated by then.
		if n := d.loads.Load() - loads; n < 4 || n > 7 {
			t.Errorf("%d loads", n)
		}
		d.write(2, "old")
		d.write(3, "old")
		if err := other.InvalidateAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.InvalidateAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		hear(t, p.Loader)
		for key := 1; key <= 3; key++ {
			q.sees(t, key, d.row(key), testenv.Hang)
		}
	}
}

func testInvalidateVersions(t *testing.T, b backend) {
	d := newTable(map[int]string{1: "old"})
	one, two := start(t, b, d, steady, nil), start(t, b, d, steady, &cacheaside.LoaderOptions{Version: "2"})
	for _, of := range []process{one, two} {
		of.want(t, 1, "old", nil)
		of.settle()
	}
	d.write(1, "new")
	if k := two.Key(1); k != (cacheaside.Key{Loader: "row", Version: "2", Text: "1"}) {
		t.Errorf("%#v", k)
	}
	if err := one.cache.InvalidateKeys(t.Context(), two.Key(1)); err != nil {
		t.Fatal(err)
	}
	two.sees(t, 1, "new", testenv.Hang)
	one.want(t, 1, "old", nil) // from Redis: its own memory was outdated, which is harmless
	if s := one.Stats(); s.Loads != 1 || s.RedisHits != 1 {
		t.Errorf("%+v", s)
	}
	if err := two.cache.InvalidateKeys(t.Context(), rowKey(1)); err != nil { // version "1"
		t.Fatal(err)
	}
	one.sees(t, 1, "new", testenv.Hang)
}

// testAdmitKeys inserts rows of two loaders in one transaction. One of them is cached as absent.
func testAdmitKeys(t *testing.T, b backend) {
	d, s := newTable(map[int]string{}), newSieve()
	o := &cacheaside.LoaderOptions{Filter: s, NullTTL: time.Hour, TTL: time.Hour, MemoryTTL: time.Hour}
	p, q := start(t, b, d, steady, o), start(t, b, d, steady, o)
	bare, err := cacheaside.NewLoader(p.cache, "bare", d.load, nil)
	if err != nil {
		t.Fatal(err)
	}
	absent := func(err error) {
		t.Helper()
		if !errors.Is(err, cacheaside.ErrNotFound) {
			t.Fatal(err)
		}
	}
	for _, of := range []process{p, q} {
		of.want(t, 1, "", cacheaside.ErrNotFound)
	}
	for range 2 {
		_, err := bare.Get(t.Context(), 1)
		absent(err)
		p.settle()
	}
	if st := p.cache.Stats(); st.Filtered != 1 || st.NullHits != 1 {
		t.Fatalf("%+v", st)
	}
	committed, err := p.cache.InsertingKeys(t.Context(), p.Key(1), p.Key(2), bare.Key(1),
		cacheaside.Key{Loader: "unknown", Text: "1"})
	if err != nil {
		t.Fatal(err)
	}
	// Not committed: the filter allows the lookup, and the absence is cached.
	p.want(t, 2, "", cacheaside.ErrNotFound)
	q.want(t, 2, "", cacheaside.ErrNotFound)
	p.settle()
	q.settle()
	d.write(1, "one")
	d.write(2, "two")
	_, err = bare.Get(t.Context(), 1)
	absent(err) // cached
	if err := committed(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.want(t, 1, "one", nil)
	p.want(t, 2, "two", nil)
	q.sees(t, 2, "two", testenv.Hang)
	if v, err := q.Get(t.Context(), 1, cacheaside.Fresh); v != "one" || err != nil {
		t.Errorf("another process: %q, %v", v, err)
	}
	if v, err := bare.Get(t.Context(), 1); v != "one" || err != nil {
		t.Errorf("the other loader: %q, %v", v, err)
	}
	if s.committed != 1 {
		t.Errorf("the filter's committed was called %d times", s.committed)
	}
}

func testRefreshKeys(t *testing.T, b backend) {
	rows := make(map[int]string)
	var all []cacheaside.Key
	for key := range 40 { // in all ranges of a cluster
		rows[key] = "old"
		all = append(all, rowKey(key))
	}
	d := newTable(rows)
	p, q := start(t, b, d, steady, nil), start(t, b, d, steady, nil)
	for key := range 40 {
		p.want(t, key, "old", nil)
		q.want(t, key, "old", nil)
	}
	p.settle()
	q.settle()
	loads := d.loads.Load()
	for key := range 40 {
		d.write(key, "new")
	}
	d.mu.Lock()
	delete(d.rows, 7)
	d.mu.Unlock()
	for key := range 40 {
		all = append(all, rowKey(key), p.Key(key)) // again, and with the default version
	}
	if err := p.cache.RefreshKeys(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	for key := range 40 {
		if key == 7 {
			p.want(t, key, "", cacheaside.ErrNotFound)
			testenv.Eventually(t, "the absence",
				func() bool { _, err := q.Get(t.Context(), key); return errors.Is(err, cacheaside.ErrNotFound) })
			continue
		}
		p.want(t, key, "new", nil)
		q.sees(t, key, "new", testenv.Hang) // its memory was invalidated
	}
	if n := d.loads.Load() - loads; n != 40 {
		t.Errorf("%d loads", n)
	}
	if s := p.Stats(); s.Invalidated != 0 || s.Unvalidated != 0 {
		t.Errorf("%+v", s)
	}
}

// testRefreshKeysOfOthers refreshes keys that only other processes have, or that the process cannot
// load.
func testRefreshKeysOfOthers(t *testing.T, b backend) {
	d := newTable(map[int]string{1: "old"})
	o := steadyNoMemory
	o.MaxStaleness = 200 * time.Millisecond // processes without memory do not subscribe
	p, other, version := start(t, b, d, o, nil), start(t, b, d, o, nil), start(t, b, d, o,
		&cacheaside.LoaderOptions{Version: "2"})
	custom, err := cacheaside.NewLoader(p.cache, "custom", d.load,
		&cacheaside.LoaderOptions{Key: cacheaside.KeyOf(func(key int) string { return fmt.Sprint(key) })})
	if err != nil {
		t.Fatal(err)
	}
	// In a program whose keys are texts.
	load := func(context.Context, string) (string, error) { return d.row(1), nil }
	texts, err := cacheaside.NewLoader(stranger(t, b, o), "row", load, nil)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := cacheaside.NewLoader(stranger(t, b, o), "foreign", d.load, nil)
	if err != nil {
		t.Fatal(err)
	}
	see := func(want string) {
		t.Helper()
		other.want(t, 1, want, nil)
		version.want(t, 1, want, nil)
		for name, l := range map[string]*cacheaside.Loader[int, string]{"custom": custom, "foreign": foreign} {
			if v, err := l.Get(t.Context(), 1); v != want || err != nil {
				t.Errorf("%s: %q, %v; want %q", name, v, err, want)
			}
		}
		if v, err := texts.Get(t.Context(), "001"); v != want || err != nil {
			t.Errorf("a text other than a number's: %q, %v; want %q", v, err, want)
		}
	}
	see("old")
	d.write(1, "new")
	loads := d.loads.Load()
	keys := []cacheaside.Key{rowKey(1), version.Key(1), custom.Key(1), foreign.Key(1), texts.Key("001"),
		{Loader: "nobodys", Text: "1"}}
	if err := p.cache.RefreshKeys(t.Context(), keys...); err != nil {
		t.Fatal(err)
	}
	if n := d.loads.Load() - loads; n != 1 {
		t.Errorf("%d loads", n)
	}
	see("new")
	d.write(1, "newer")
	if err := p.cache.RefreshKeys(t.Context(), p.AllKeys(), version.Key(1), custom.AllKeys(),
		foreign.Key(1)); err != nil {
		t.Fatal(err)
	}
	for _, of := range []process{other, version} {
		of.sees(t, 1, "newer", testenv.Hang)
	}
}

// An invalidation by keys during a load wins, in both tiers, from any process.
func TestStaleSetKeys(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		for name, writer := range map[string]func(*race) *cacheaside.Cache{
			"own process":   func(r *race) *cacheaside.Cache { return r.p.cache },
			"other process": func(r *race) *cacheaside.Cache { return r.q.cache },
			"no loader":     func(r *race) *cacheaside.Cache { return stranger(r.t, r.b, steadyNoMemory) },
		} {
			for _, refresh := range []bool{false, true} {
				t.Run(fmt.Sprint(name, ", refresh ", refresh), func(t *testing.T) {
					r := newRace(t, b)
					b.admin.Del(t.Context(), redisKey(1))
					reached, resume := r.d.pause(1)
					defer resume()
					reads := r.gets
					if refresh {
						reads = r.refreshes
					}
					first := reads(r.p)
					reach(t, reached, "the load")
					r.d.write(1, "new")
					if err := writer(r).InvalidateKeys(t.Context(), rowKey(1)); err != nil {
						t.Fatal(err)
					}
					second := reads(r.p) // does not get the first read's value
					group := readerOf(r.p.Loader).Flights.Plain
					if refresh {
						group = readerOf(r.p.Loader).Flights.Refreshes
					}
					testenv.Eventually(t, "the second reader", func() bool { return group.Waiting("1") == 1 })
					resume()
					wantResult(t, first, "new")
					wantResult(t, second, "new")
					r.allSee("new")
					if s := r.p.Stats(); s.Refused != 1 || s.Unvalidated != 0 {
						t.Errorf("%+v", s)
					}
				})
			}
		}
	})
}

// A value that was read before an invalidation by keys is not kept in memory after it, nor given to
// late callers.
func TestInvalidateKeysRaisesTheGeneration(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, _ *miniredis.Miniredis, b backend) {
		d := newTable(map[int]string{1: "old"})
		start(t, b, d, steadyNoMemory, nil).want(t, 1, "old", nil)
		p := start(t, b, d, steady, nil)
		r := p.looks(t, b, 1, func() {
			d.write(1, "new")
			if err := p.cache.InvalidateKeys(t.Context(), p.Key(1)); err != nil {
				t.Error(err)
			}
		})
		if readerOf(p.Loader).Fetch.Current(r) {
			t.Error("late callers get the old value")
		}
		p.settle()
		p.want(t, 1, "new", nil)
	})
}

// Keys are removed from memory after Redis, by InvalidateKeys as by Invalidate.
func TestInvalidateKeysClearsMemoryAfterRedis(t *testing.T) {
	rdb, late := withLateRequest(t, testenv.SharedRedis(t), "del\r\n", false)
	d := newTable(map[int]string{1: "old"})
	p := startOn(t, rdb, d, steady, nil)
	hear(t, p.Loader)
	p.remembers(t, 1, "old")
	d.write(1, "new")
	done := later(func() (any, error) { return nil, p.cache.InvalidateKeys(context.Background(), p.Key(1)) })
	testenv.Receive(t, "the delete", late.sent)
	for range 100 { // from memory, or from Redis into it
		p.want(t, 1, "old", nil)
		p.settle()
	}
	late.deliver()
	if _, err := done(t); err != nil {
		t.Fatal(err)
	}
	p.want(t, 1, "new", nil)
}

// Thousands of keys, of known and unknown loaders, take as many trips as one Invalidate of the same
// number. No keys take none. A duplicate counts once.
func TestInvalidateKeysCosts(t *testing.T) {
	b := realBackend(t)
	rdb := b.client(t)
	count := &tally{}
	count.take()
	rdb.(interface{ AddHook(redis.Hook) }).AddHook(count)
	p := startOn(t, rdb, newTable(nil), steadyNoMemory, nil)
	var ints []int
	var keys []cacheaside.Key
	for key := range 3000 {
		ints = append(ints, key)
		k := rowKey(key)
		if key%2 == 0 {
			k.Loader = "unknown"
		}
		keys = append(keys, k, k)
	}
	p.want(t, 1, "", cacheaside.ErrNotFound)
	if err := p.Invalidate(t.Context(), 1); err != nil { // loads the script
		t.Fatal(err)
	}
	for what, f := range map[string]func() error{
		"Invalidate":     func() error { return p.Invalidate(t.Context(), ints...) },
		"InvalidateKeys": func() error { return p.cache.InvalidateKeys(t.Context(), keys...) },
	} {
		count.take()
		before := b.calls(t)
		if err := f(); err != nil {
			t.Fatal(err)
		}
		got := b.calls(t)
		n, sent := count.take()
		// One at the end of each pipeline.
		if deletes, announced := got["del"]-before["del"], sent["evalsha"]; deletes != 3000 || announced != 4 {
			t.Errorf("%s: %d deletes, %d announcements", what, deletes, announced)
		}
		if n > 20 {
			t.Errorf("%s: %d trips", what, n)
		}
	}
	if s := p.Stats(); s.Invalidated != 1+3000+1500 {
		t.Errorf("%+v", s)
	}
	for what, f := range map[string]func(context.Context,
		...cacheaside.Key) error{"invalidate": p.cache.InvalidateKeys, "refresh": p.cache.RefreshKeys,
		"inserting": func(ctx context.Context, keys ...cacheaside.Key) error {
			committed, err := p.cache.InsertingKeys(ctx, keys...)
			if err != nil {
				return err
			}
			return committed(ctx)
		}} {
		count.take()
		err := f(t.Context())
		if n, _ := count.take(); err != nil || n != 0 {
			t.Errorf("%s of no keys: %v, %d trips", what, err, n)
		}
	}
}

// Statistics count operations by keys like a loader's own methods. Those of unknown loaders are not
// counted, but all errors are returned.
func TestErrorsOfUntypedKeys(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, m *miniredis.Miniredis, b backend) {
		d, s := newTable(map[int]string{1: "old"}), newSieve("1")
		p := start(t, b, d, steadyNoMemory, &cacheaside.LoaderOptions{Filter: s})
		unknown, all := cacheaside.Key{Loader: "unknown", Text: "1"}, p.AllKeys()
		p.want(t, 1, "old", nil)
		d.write(1, "new")

		m.SetError("ERR out of order")
		wantFailed(t, p.cache.InvalidateKeys(t.Context(), rowKey(1), unknown, all), "invalidate", cacheaside.ErrRedis,
			rowKey(1), unknown, all)
		if st := p.Stats(); st.InvalidateErrors != 2 || st.RedisErrors < 2 || st.Invalidated != 0 {
			t.Errorf("%+v", st)
		}
		committed, err := p.cache.InsertingKeys(t.Context(), rowKey(1), unknown)
		if err != nil {
			t.Fatal(err)
		}
		wantFailed(t, committed(t.Context()), "inserting", cacheaside.ErrRedis, rowKey(1), unknown)
		wantFailed(t, p.cache.RefreshKeys(t.Context(), rowKey(1), unknown, all), "refresh", cacheaside.ErrRedis,
			rowKey(1), unknown, all)
		m.SetError("")
		if err := p.cache.InvalidateKeys(t.Context(), rowKey(1), unknown, all); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "new", nil)

		d.fail(errBroken)
		d.write(1, "newer")
		wantFailed(t, p.cache.RefreshKeys(t.Context(), rowKey(1), unknown), "refresh", errBroken, rowKey(1))
		d.fail(nil)
		p.want(t, 1, "new", nil) // the cached value stays
		if err := p.cache.RefreshKeys(t.Context(), rowKey(1)); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "newer", nil)

		s.admitErr = errBroken
		filterErrors := p.Stats().FilterErrors
		committed, err = p.cache.InsertingKeys(t.Context(), unknown, rowKey(1), rowKey(2))
		if wantFailed(t, err, "inserting", errBroken, rowKey(1), rowKey(2)); committed != nil {
			t.Error("InsertingKeys returns a function after an error")
		}
		s.admitErr, s.commitErr = nil, errBroken
		if committed, err = p.cache.InsertingKeys(t.Context(), unknown, rowKey(1)); err != nil {
			t.Fatal(err)
		}
		d.write(1, "newest")
		wantFailed(t, committed(t.Context()), "inserting", errBroken, rowKey(1))
		p.want(t, 1, "newest", nil) // it was invalidated anyway
		if n := p.Stats().FilterErrors - filterErrors; n != 2 {
			t.Errorf("%d filter errors", n)
		}
		m.SetError("ERR out of order")
		// Both are tried and reported.
		batch, _ := errors.AsType[*cacheaside.BatchError[cacheaside.Key]](committed(t.Context()))
		if err := batch.Errs[rowKey(1)]; !errors.Is(err, errBroken) || !errors.Is(err, cacheaside.ErrRedis) {
			t.Error(err)
		} else if e, ok := err.(*cacheaside.Error); !ok || e.Op != "inserting" { // one *Error for both
			t.Errorf("%#v", err)
		}
		if err := batch.Errs[unknown]; errors.Is(err, errBroken) || !errors.Is(err, cacheaside.ErrRedis) {
			t.Error(err)
		}
	})
}

// An invalid key fails alone, except that nothing is inserted in that case.
func TestInvalidUntypedKeysFailAlone(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, _ *miniredis.Miniredis, b backend) {
		c := stranger(t, b, steady)
		s := newSieve()
		var row atomic.Value
		row.Store("old")
		l, err := cacheaside.NewLoader(c, "row", func(context.Context, badKey) (string,
			error) {
			return row.Load().(string), nil
		}, &cacheaside.LoaderOptions{Filter: s, Version: "7"})
		if err != nil {
			t.Fatal(err)
		}
		s.AddMany(t.Context(), []string{"b"})
		get := func() string { v, _ := l.Get(t.Context(), 1); return v }
		if get() != "old" {
			t.Fatal("the row is not loaded")
		}
		row.Store("new")
		bad := []cacheaside.Key{l.Key(-1), {Text: "1"}, {Loader: "a b", Text: "1"},
			{Loader: "row", Version: "{", Text: "1"}}
		flaws := []string{"no text", "Key.Loader", "Key.Loader", "Key.Version"}
		for i, field := range flaws {
			if err := bad[i].Check(); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("%v: %v", bad[i], err)
			}
		}
		failed := func(err error, op string) {
			t.Helper()
			batch, ok := err.(*cacheaside.BatchError[cacheaside.Key])
			if !ok || len(batch.Errs) != len(bad) {
				t.Fatalf("%#v", err)
			}
			for i, k := range bad {
				if e, ok := errors.AsType[*cacheaside.Error](batch.Errs[k]); !ok || e.Op != op ||
					!strings.Contains(e.Error(), flaws[i]) {
					t.Errorf("%v: %v", k, batch.Errs[k])
				}
			}
		}
		keys := append([]cacheaside.Key{l.Key(1), l.Key(2)}, bad...)
		committed, err := c.InsertingKeys(t.Context(), keys...)
		if failed(err, "inserting"); committed != nil || s.keys["c"] {
			t.Error("InsertingKeys adds some keys")
		}
		failed(c.InvalidateKeys(t.Context(), keys...), "invalidate")
		if v := get(); v != "new" {
			t.Errorf("the others: %q", v)
		}
		if st := l.Stats(); st.Invalidated != 2 || st.InvalidateErrors != 2 {
			t.Errorf("%+v", st)
		}
		row.Store("newer")
		// BadKeys have no UnmarshalText, and are invalidated.
		failed(c.RefreshKeys(t.Context(), keys...), "refresh")
		if v := get(); v != "newer" {
			t.Errorf("the others: %q", v)
		}
		if k := l.Key(1); k.Check() != nil || l.AllKeys().Check() != nil || k != l.Key(1) || k == l.Key(2) {
			t.Errorf("%#v", k)
		}
	})
}

// After Close each key fails, with and without Redis.
func TestKeysOfAClosedCache(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, _ *miniredis.Miniredis, b backend) {
		for _, rdb := range []redis.UniversalClient{nil, b.client(t)} {
			p := startOn(t, rdb, newTable(nil), steady, nil)
			committed, err := p.cache.InsertingKeys(t.Context(), rowKey(1))
			if err != nil {
				t.Fatal(err)
			}
			p.cache.Close()
			keys := []cacheaside.Key{rowKey(1), {Loader: "unknown", Text: "1"}, p.AllKeys()}
			wantFailed(t, p.cache.InvalidateKeys(t.Context(), keys...), "invalidate", cacheaside.ErrClosed, keys...)
			wantFailed(t, p.cache.RefreshKeys(t.Context(), keys...), "refresh", cacheaside.ErrClosed, keys...)
			_, err = p.cache.InsertingKeys(t.Context(), keys...)
			wantFailed(t, err, "inserting", cacheaside.ErrClosed, keys...)
			wantFailed(t, committed(t.Context()), "inserting", cacheaside.ErrClosed, rowKey(1))
			if err := p.cache.InvalidateKeys(t.Context()); err != nil {
				t.Error("no keys:", err)
			}
			if committed, err := p.cache.InsertingKeys(t.Context()); err != nil || committed(t.Context()) != nil {
				t.Error("no keys:", err)
			}
			if s := p.Stats(); s.InvalidateErrors != 0 {
				t.Errorf("%+v", s)
			}
		}
	})
}

// Without Redis, only this process counts.
func TestKeysWithoutRedis(t *testing.T) {
	d := newTable(map[int]string{1: "a", 2: "a"})
	p := startOn(t, nil, d, steady, nil)
	unknown := cacheaside.Key{Loader: "unknown", Text: "1"}
	p.remembers(t, 1, "a")
	p.remembers(t, 2, "a")
	d.write(1, "b")
	d.write(2, "b")
	if err := p.cache.InvalidateKeys(t.Context(), rowKey(1), unknown); err != nil {
		t.Fatal(err)
	}
	p.remembers(t, 1, "b")
	p.want(t, 2, "a", nil)
	d.write(1, "c")
	if err := p.cache.RefreshKeys(t.Context(), rowKey(1), unknown); err != nil {
		t.Fatal(err)
	}
	p.settle()
	loads := d.loads.Load()
	p.want(t, 1, "c", nil)
	if n := d.loads.Load() - loads; n != 0 {
		t.Errorf("%d loads", n)
	}
	if err := p.cache.InvalidateKeys(t.Context(), p.AllKeys(),
		cacheaside.Key{Loader: "unknown", All: true}); err != nil {
		t.Fatal(err)
	}
	p.want(t, 2, "b", nil)
	if s := p.Stats(); s.Invalidated != 2 { // a row and the whole loader
		t.Errorf("%+v", s)
	}
}

// An invalidation by keys ends a remembered failure, also for a load in progress.
func TestInvalidateKeysEndsRecentFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, b := startBrittle(t, nil)
		defer p.cache.Close()
		p.want(t, 1, "", errBroken)
		p.want(t, 1, "", cacheaside.ErrLoadFailed)
		b.set(mended)
		if err := p.cache.InvalidateKeys(t.Context(), rowKey(1)); err != nil {
			t.Fatal(err)
		}
		p.want(t, 1, "1", nil)
		b.set(func(context.Context) error { time.Sleep(time.Millisecond); return errBroken })
		got := later(func() (string, error) { return p.Get(t.Context(), 2) })
		synctest.Wait()
		if err := p.cache.InvalidateKeys(t.Context(), rowKey(2)); err != nil {
			t.Fatal(err)
		}
		if _, err := got(t); !sameError(err, errBroken) {
			t.Error(err)
		}
		b.set(mended)
		p.want(t, 2, "2", nil)
	})
}

// An invalidation by keys puts them on hold for ReplicaLag, with and without Redis. During the hold
// a refresh stores nothing.
func TestInvalidateKeysHolds(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, _ *miniredis.Miniredis, b backend) {
		inUse(t, b, time.Hour)
		for _, rdb := range []redis.UniversalClient{nil, b.client(t)} {
			d := newTable(map[int]string{1: "old"})
			p := startOn(t, rdb, d, lagging, nil)
			hear(t, p.Loader)
			p.want(t, 1, "old", nil)
			if err := p.cache.InvalidateKeys(t.Context(), rowKey(1)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				p.want(t, 1, "old", nil) // for example from a replica
				p.settle()
			}
			if err := p.cache.RefreshKeys(t.Context(), rowKey(1)); err != nil {
				t.Fatal(err)
			}
			d.write(1, "new")
			p.want(t, 1, "new", nil)
			if s := p.Stats(); s.Held != 4 {
				t.Errorf("%+v", s)
			}
		}
	})
}

// If a refresh has loaded a value but not stored it, the previous value is removed from the cache.
func TestUnstoredRefreshRemovesOldValue(t *testing.T) {
	for what, prepare := range map[string]func(process){
		"Bypass":    func(p process) { p.Bypass(true) },
		"too large": func(p process) {},
	} {
		t.Run(what, func(t *testing.T) {
			_, b := embedded(t)
			d := newTable(map[int]string{1: "old"})
			p, q := start(t, b, d, steady, &cacheaside.LoaderOptions{MaxValueBytes: 10}), start(t, b, d, steady, nil)
			q.remembers(t, 1, "old")
			row := strings.Repeat("new", 10)
			d.write(1, row)
			prepare(p)
			if err := p.cache.RefreshKeys(t.Context(), rowKey(1)); err != nil {
				t.Fatal(err)
			}
			q.sees(t, 1, row, testenv.Hang)
			if s := p.Stats(); s.Invalidated != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// RefreshKeys returns an error if the other processes cannot be notified.
func TestRefreshKeysFailsWithoutAnnouncement(t *testing.T) {
	embeddedBubble(t, func(t *testing.T, _ *miniredis.Miniredis, b backend) {
		options := *b.admin.(*redis.Client).Options()
		rdb := redis.NewClient(&options)
		defer rdb.Close()
		var deaf atomic.Bool
		rdb.AddHook(hooked{before: func(cmd redis.Cmder) {
			if deaf.Load() && len(cmd.Args()) > 3 && strings.Contains(fmt.Sprint(cmd.Args()[3]), "::announced") {
				cmd.Args()[3] = 5 // an invalid number of keys
				cmd.Args()[2] = "x"
			}
		}, after: func(redis.Cmder) {}})
		d := newTable(map[int]string{1: "old"})
		p := startOn(t, rdb, d, steadyNoMemory, nil)
		p.want(t, 1, "old", nil)
		d.write(1, "new")
		deaf.Store(true)
		wantFailed(t, p.cache.RefreshKeys(t.Context(), rowKey(1)), "refresh", cacheaside.ErrRedis, rowKey(1))
		deaf.Store(false)
		if s := p.Stats(); s.RedisErrors == 0 {
			t.Errorf("%+v", s)
		}
	})
}

// If Redis hangs, callers wait until their contexts end, or for the timeouts of an Invalidate.
func TestKeysWhenRedisHangs(t *testing.T) {
	keys := []cacheaside.Key{rowKey(1), {Loader: "row", All: true}, {Loader: "other", All: true}}
	hang := func(t *testing.T, c *cacheaside.Cache) (early, late time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		began := time.Now()
		wantFailed(t, c.InvalidateKeys(ctx, keys...), "invalidate", context.DeadlineExceeded, keys...)
		early = time.Since(began)
		began = time.Now()
		wantFailed(t, c.InvalidateKeys(t.Context(), keys...), "invalidate", cacheaside.ErrRedis, keys...)
		return early, time.Since(began)
	}
	t.Run("redis", func(t *testing.T) {
		server := testenv.StartRedis(t)
		c, err := cacheaside.New(server.Client(t), &cacheaside.Options{RedisTimeout: 100 * time.Millisecond})
		noError(t, err)
		defer c.Close()
		testenv.Eventually(t, "an invalidation", func() bool { return c.InvalidateKeys(t.Context(), keys...) == nil })
		server.Pause()
		defer server.Resume()
		early, late := hang(t, c)
		t.Logf("the calls take %v and %v", early, late)
		// The client's own timeouts, for each of its tries, are as long.
		if accepting && (early > 3*time.Second || late > 3*time.Second) {
			t.Error("the calls take longer than 3s")
		}
	})
	t.Run("embedded", func(t *testing.T) {
		embeddedBubble(t, func(t *testing.T, _ *miniredis.Miniredis, b backend) {
			rdb, gate := b.client(t), make(chan struct{})
			var hangs atomic.Bool
			rdb.AddHook(hooked{before: func(redis.Cmder) {
				if hangs.Load() {
					<-gate
				}
			}, after: func(redis.Cmder) {}})
			c, err := newCache(rdb, &cacheaside.Options{RedisTimeout: 100 * time.Millisecond})
			noError(t, err)
			defer c.Close()
			noError(t, c.InvalidateKeys(t.Context(), keys...))
			hangs.Store(true)
			defer close(gate)
			early, late := hang(t, c)
			if early != 10*time.Millisecond || late > time.Second {
				t.Errorf("the calls take %v and %v", early, late)
			}
		})
	})
}

// As text, and in errors, a key shows only a hash.
func TestKeysArePrivate(t *testing.T) {
	const secret = "alice@example.com"
	k := cacheaside.Key{Loader: "mail", Text: secret}
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	failed := c.InvalidateKeys(t.Context(), k)
	for _, s := range []string{fmt.Sprint(k), fmt.Sprintf("%#v", k), fmt.Sprintf("%+v", k), k.LogValue().String(),
		fmt.Sprint(failed), fmt.Sprintf("%v", cacheaside.Key{Loader: "mail", Version: "a b", Text: secret}.Check())} {
		if strings.Contains(s, "alice") || !strings.Contains(s, "mail key#") {
			t.Error(s)
		}
	}
	if e, ok := errors.AsType[*cacheaside.Error](failed); !ok || e.Key != secret {
		t.Errorf("%#v", failed)
	}
	group := cacheaside.Key{Loader: "mail", Text: secret, Group: true}
	if s := fmt.Sprint(group, c.InvalidateKeys(t.Context(), group)); strings.Contains(s, "alice") ||
		strings.Count(s, fmt.Sprintf("mail group#%016x", group.Hash())) != 2 || group.Hash() == k.Hash() {
		t.Error(s)
	}
	all := cacheaside.Key{Loader: "mail", All: true, Text: secret}
	if s := fmt.Sprint(all, c.InvalidateKeys(t.Context(),
		all)); s != "mail all keys cacheaside: invalidate all of mail: the cache is closed" {
		t.Error(s)
	}
}

func TestGroupKey(t *testing.T) {
	p := startOn(t, nil, newTable(nil), steady,
		&cacheaside.LoaderOptions{Groups: cacheaside.GroupsOf(func(int, string) []string { return nil })})
	if k := p.GroupKey("a"); k != (cacheaside.Key{Loader: "row", Text: "a", Group: true}) || k.Check() != nil {
		t.Errorf("%#v: %v", k, k.Check())
	}
	if err := (cacheaside.Key{Loader: "row", Version: "a b", Text: "a", Group: true}).Check(); err != nil {
		t.Errorf("the version of a group is not ignored: %v", err)
	}
	for field, k := range map[string]cacheaside.Key{"Key.Text": p.GroupKey(""), "Key.Group": {Loader: "row", Text: "a",
		All: true, Group: true}, "Key.Loader": {Loader: "a b", Text: "a", Group: true}} {
		if err := k.Check(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A group of a loader without groups is an error before anything is done, because nothing would be
// invalidated.
func TestGroupKeyWithoutGroups(t *testing.T) {
	d := newTable(map[int]string{1: "old"})
	p := startOn(t, nil, d, steady, nil)
	p.remembers(t, 1, "old")
	d.write(1, "new")
	k := p.GroupKey("a")
	_, err := p.cache.InsertingKeys(t.Context(), p.Key(1), k)
	for _, err := range []error{k.Check(), p.cache.InvalidateKeys(t.Context(), k),
		p.InvalidateGroup(t.Context(), "a"), err} {
		if err == nil || !strings.Contains(err.Error(), "LoaderOptions.Groups") {
			t.Error(err)
		}
	}
	p.remembers(t, 1, "old")
}

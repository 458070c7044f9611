// Package spelling_test reads rows that several keys name: spellings of a text, zones of a time,
// pointers to equal numbers.
package spelling_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

var errBroken = errors.New("the database is broken")

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newCache makes a cache with a Redis of its own, which does not count as down on a busy machine.
func newCache(t *testing.T, o *cacheaside.Options) *cacheaside.Cache {
	t.Helper()
	o.RedisTimeout, o.ReadTimeout, o.QueueTimeout = testenv.Hang, testenv.Hang, testenv.Hang
	o.LeaseTTL, o.MaxStaleness = 20*time.Second, time.Minute
	_, rdb := testenv.Mini(t)
	c, err := cacheaside.New(rdb, o)
	noError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// newLocal makes a cache without Redis.
func newLocal(t *testing.T) *cacheaside.Cache {
	t.Helper()
	c, err := cacheaside.NewLocal(nil)
	noError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// calls are the keys that a load function was called with.
type calls[K any] struct {
	mu   sync.Mutex
	keys []K
}

func (c *calls[K]) add(keys ...K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys = append(c.keys, keys...)
}

func (c *calls[K]) take() []K {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := c.keys
	c.keys = nil
	return keys
}

// ways are caches on which keys are matched in different code.
func ways(t *testing.T, run func(t *testing.T, c *cacheaside.Cache, o cacheaside.LoaderOptions)) {
	for name, options := range map[string]cacheaside.LoaderOptions{"plain": {}, "no memory": {MemoryTTL: -1},
		"shadow": {Shadow: 1}, "one by one": {BatchSize: 1}} {
		t.Run(name, func(t *testing.T) {
			run(t, newCache(t, &cacheaside.Options{}), options)
		})
	}
	t.Run("no Redis", func(t *testing.T) {
		run(t, newLocal(t), cacheaside.LoaderOptions{})
	})
}

// withoutRedis reports whether this test of ways has no Redis.
func withoutRedis(t *testing.T) bool { return strings.HasSuffix(t.Name(), "no_Redis") }

// wantRow fails unless l has this row for each of keys, one by one and together.
func wantRow[K comparable](t *testing.T, l *cacheaside.Loader[K, string], want string, keys ...K) {
	t.Helper()
	for _, key := range keys {
		for _, o := range [][]cacheaside.ReadOption{nil, {cacheaside.Fresh}} {
			if v, err := l.Get(t.Context(), key, o...); v != want || err != nil {
				t.Errorf("%v: %q, %v; want %q", key, v, err, want)
			}
		}
	}
	m, err := l.GetMany(t.Context(), keys)
	if err != nil {
		t.Error(err)
	}
	for _, key := range keys {
		if v, ok := m[key]; v != want || !ok {
			t.Errorf("%v: %q, %t; want %q", key, v, ok, want)
		}
	}
	for v, err := range l.Each(t.Context(), keys) {
		if v != want || err != nil {
			t.Errorf("%q, %v; want %q", v, err, want)
		}
	}
}

// A row that a batch load returns under another spelling of a key is that key's row.
func TestBatchRowsOfOtherSpellings(t *testing.T) {
	ways(t, func(t *testing.T, c *cacheaside.Cache, o cacheaside.LoaderOptions) {
		o.Key = cacheaside.KeyOf(strings.ToLower)
		rows := map[string]string{"foo": "row", "BAR": "bar's", "Other": "unasked"}
		l, err := cacheaside.NewBatchLoader(c, "names",
			func(_ context.Context, keys []string) (map[string]string, error) {
				if slices.ContainsFunc(keys, func(key string) bool { return strings.EqualFold(key, "part") }) {
					return rows, &cacheaside.BatchError[string]{Errs: map[string]error{"PART": errBroken,
						"gone": cacheaside.ErrNotFound}}
				}
				return rows, nil
			}, &o)
		noError(t, err)
		wantRow(t, l, "row", "Foo", "foo", "FOO")
		wantRow(t, l, "bar's", "bar", "BAR")
		if m, err := l.GetMany(t.Context(), []string{"fOO", "FoO", "Bar", "none"}, cacheaside.Fresh); len(m) != 3 ||
			err != nil {
			t.Errorf("%v, %v", m, err)
		}
		if _, err := l.Get(t.Context(), "none"); !errors.Is(err, cacheaside.ErrNotFound) {
			t.Error(err)
		}
		if _, err := l.Get(t.Context(), "part"); !errors.Is(err, errBroken) {
			t.Error(err)
		}
		m, err := l.GetMany(t.Context(), []string{"Part", "Gone", "foo"}, cacheaside.Fresh)
		failed, _ := errors.AsType[*cacheaside.BatchError[string]](err)
		if m["foo"] != "row" || failed == nil || failed.Errs["Part"] == nil || failed.Errs["foo"] != nil {
			t.Errorf("%v, %v", m, err)
		}
		if s := l.Stats(); s.Unasked == 0 {
			t.Error("unrequested rows are not counted")
		}
	})
}

// Which of several rows is a key's: that under the key itself; else that under a key with its text,
// if there is one such row only.
func TestBatchRowsOfOneText(t *testing.T) {
	ways(t, func(t *testing.T, c *cacheaside.Cache, o cacheaside.LoaderOptions) {
		o.Key = cacheaside.KeyOf(func(key string) string {
			if key == "bad" {
				panic(key)
			}
			return strings.ToLower(key)
		})
		rows := map[string]map[string]string{
			"foo":  {"FOO": "one", "foo": "two"},
			"bar":  {"BAR": "same", "bar": "same"},
			"none": {"bad": "whose?"}, // it may be none's
		}
		load := func(_ context.Context, keys []string) (map[string]string, error) {
			found := make(map[string]string)
			for _, key := range keys {
				maps.Copy(found, rows[strings.ToLower(key)])
			}
			return found, nil
		}
		l, err := cacheaside.NewBatchLoader(c, "names", load, &o)
		noError(t, err)
		wantRow(t, l, "one", "FOO")
		noError(t, l.Invalidate(t.Context(), "FOO"))
		_, err = l.Get(t.Context(), "Foo")
		if err == nil || errors.Is(err, cacheaside.ErrNotFound) ||
			!strings.Contains(err.Error(), "different rows for this key") {
			t.Error(err)
		}
		wantRow(t, l, "same", "Bar")
		if _, err := l.Get(t.Context(), "none"); err == nil || errors.Is(err, cacheaside.ErrNotFound) {
			t.Error(err)
		}
	})
}

// With Normalize everything sees the normalised key, except the callers, who find rows and errors
// under their own.
func TestNormalize(t *testing.T) {
	ways(t, func(t *testing.T, c *cacheaside.Cache, o cacheaside.LoaderOptions) {
		o.Normalize = cacheaside.NormalizeOf(func(key string) string {
			if key == "bad" {
				panic("it has no spelling")
			}
			return strings.ToLower(key)
		})
		var loaded calls[string]
		var rows sync.Map // a shadow reads in the background
		rows.Store("ada", "Ada's")
		var l *cacheaside.Loader[string, string]
		load := func(_ context.Context, keys []string) (map[string]string, error) {
			loaded.add(keys...)
			found := make(map[string]string)
			for _, key := range keys {
				switch {
				case strings.HasPrefix(key, "fail"):
					return nil, errBroken
				default:
					if row, ok := rows.Load(key); ok {
						found[strings.ToUpper(key)] = row.(string) // as a database may spell it
					}
				}
			}
			return found, nil
		}
		var err error
		if o.BatchSize == 1 {
			l, err = cacheaside.NewLoader(c, "names", func(ctx context.Context, key string) (string, error) {
				m, err := load(ctx, []string{key})
				if v, ok := m[strings.ToUpper(key)]; ok || err != nil {
					return v, err
				}
				return "", cacheaside.ErrNotFound
			}, &o)
		} else {
			l, err = cacheaside.NewBatchLoader(c, "names", load, &o)
		}
		noError(t, err)
		wantRow(t, l, "Ada's", "ADA", "Ada", "ada")
		for _, key := range []string{"None", "NONE", "none"} {
			if _, err := l.Get(t.Context(), key); !errors.Is(err, cacheaside.ErrNotFound) {
				t.Error(err)
			}
		}
		if keys := loaded.take(); slices.ContainsFunc(keys,
			func(key string) bool { return key != "ada" && key != "none" }) || o.Shadow == 0 && !withoutRedis(t) &&
			len(keys) != 2 {
			t.Errorf("loaded %q", keys)
		}
		m, err := l.GetMany(t.Context(), []string{"Ada", "ADA", "Fail1", "bad"}, cacheaside.Fresh)
		failed, _ := errors.AsType[*cacheaside.BatchError[string]](err)
		switch {
		case failed == nil || failed.Errs["Fail1"] == nil:
			t.Errorf("%v, %v", m, err)
		case o.BatchSize == 1 && (m["Ada"] != "Ada's" || m["ADA"] != "Ada's"):
			t.Errorf("%v, %v", m, err)
		}
		if e, ok := errors.AsType[*cacheaside.Error](failed.Errs["Fail1"]); !ok || e.Key != "fail1" {
			t.Errorf("%#v", failed.Errs["Fail1"])
		}
		if k := l.Key("ADA"); k.Text != "ada" || k.Check() != nil {
			t.Errorf("%#v", k)
		}
		wantPanic(t, l, failed.Errs["bad"])

		rows.Store("ada", "new")
		noError(t, l.Invalidate(t.Context(), "aDA"))
		wantRow(t, l, "new", "ADA", "ada")
		if o.Shadow == 0 {
			if v, ok, err := l.Peek(t.Context(), "adA"); v != "new" || !ok || err != nil {
				t.Error(v, ok, err)
			}
		}
		rows.Store("ada", "newer")
		if v, err := l.Refresh(t.Context(), "ADA"); v != "newer" || err != nil {
			t.Error(v, err)
		}
		rows.Store("ada", "newest")
		noError(t, c.RefreshKeys(t.Context(), l.Key("ADA"), cacheaside.Key{Loader: "names", Text: "ADA"}))
		wantRow(t, l, "newest", "Ada")
		testWarmSpellings(t, l, &rows)
	})
}

// testWarmSpellings warms rows under several spellings, and inserts one.
func testWarmSpellings(t *testing.T, l *cacheaside.Loader[string, string], rows *sync.Map) {
	t.Helper()
	rows.Store("eve", "Eve's")
	warmed := make(map[string]error)
	err := l.Warm(t.Context(), slices.Values([]string{"Eve", "EVE", "bad"}), 0,
		func(key string, err error) { warmed[key] = err })
	if err == nil || len(warmed) != 3 || warmed["bad"] == nil || warmed["Eve"] != nil {
		t.Errorf("%v, %v", warmed, err)
	}
	wantRow(t, l, "Eve's", "eve")
	if _, err := l.Get(t.Context(), "Bob"); !errors.Is(err, cacheaside.ErrNotFound) {
		t.Error(err)
	}
	committed, err := l.Inserting(t.Context(), "BOB")
	noError(t, err)
	rows.Store("bob", "Bob's")
	noError(t, committed(t.Context()))
	wantRow(t, l, "Bob's", "bob", "Bob")
	noError(t, l.Expire(t.Context(), "BOB"))
}

// wantPanic fails unless each method returns the panic of a hook as an error.
func wantPanic(t *testing.T, l *cacheaside.Loader[string, string], err error) {
	t.Helper()
	ctx := t.Context()
	_, get := l.Get(ctx, "bad")
	_, _, peek := l.Peek(ctx, "bad")
	_, refresh := l.Refresh(ctx, "bad")
	_, inserting := l.Inserting(ctx, "bad", "ada")
	for op, err := range map[string]error{
		"get": get, "peek": peek, "refresh": refresh, "inserting": inserting, "GetMany": err, "invalidate": l.Invalidate(ctx, "bad", "ada"),
		"expire": l.Expire(ctx, "bad"), "Key": l.Key("bad").Check(),
	} {
		e, ok := errors.AsType[*cacheaside.Error](err)
		if _, panicked := errors.AsType[*cacheaside.PanicError](err); !ok || !panicked || e.Loader != "names" ||
			e.Key != "" {
			t.Errorf("%s: %#v", op, err)
		}
	}
}

// sieve is a filter.
type sieve struct {
	mu    sync.Mutex
	texts map[string]bool
}

func (s *sieve) MightContain(_ context.Context, key string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.texts[key], nil
}

func (s *sieve) MightContainMany(ctx context.Context, keys []string) (may []bool, err error) {
	for _, key := range keys {
		is, _ := s.MightContain(ctx, key)
		may = append(may, is)
	}
	return may, nil
}

func (s *sieve) AddMany(_ context.Context, keys []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		s.texts[key] = true
	}
	return nil
}

func (s *sieve) Inserting(ctx context.Context, keys []string) (func(context.Context) error, error) {
	return nil, s.AddMany(ctx, keys)
}

func (s *sieve) NotFound(int) {}

// A filter and a Binding's keys get the normalised text, and a function that is not idempotent is
// applied once.
func TestNormalizeOnce(t *testing.T) {
	c := newCache(t, &cacheaside.Options{})
	s := &sieve{texts: make(map[string]bool)}
	var loaded calls[string]
	l, err := cacheaside.NewBatchLoader(c, "names", func(_ context.Context, keys []string) (map[string]string, error) {
		loaded.add(keys...)
		found := make(map[string]string)
		for _, key := range keys {
			found[key] = "row of " + key
		}
		return found, nil
	}, &cacheaside.LoaderOptions{Normalize: cacheaside.NormalizeOf(func(key string) string { return key + "." }),
		Filter: s})
	noError(t, err)
	committed, err := l.Inserting(t.Context(), "a", "b")
	noError(t, err)
	noError(t, committed(t.Context()))
	wantRow(t, l, "row of a.", "a")
	noError(t, l.Warm(t.Context(), slices.Values([]string{"b"}), 0, nil))
	wantRow(t, l, "row of b.", "b")
	if got := loaded.take(); !slices.Equal(got, []string{"a.", "b."}) {
		t.Errorf("loaded %q", got)
	}
	if may, err := s.MightContainMany(t.Context(), []string{"a", "a.", "a.."}); err != nil ||
		!slices.Equal(may, []bool{false, true, false}) {
		t.Error(may, err)
	}
	if l.Key("a").Text != "a." {
		t.Error(l.Key("a").Text)
	}
}

// inZone returns t in a location of its own.
func inZone(t time.Time) time.Time { return t.In(time.FixedZone("elsewhere", 3600)) }

// A time stands for its instant: in the rows of a batch, in memory, in Redis, and for Invalidate.
func TestTimesAsKeys(t *testing.T) {
	moment := time.Now().Add(-time.Hour)
	same := []time.Time{moment, moment.Round(0), moment.UTC(), inZone(moment), inZone(moment)}
	ways(t, func(t *testing.T, c *cacheaside.Cache, o cacheaside.LoaderOptions) {
		var row atomic.Pointer[string] // a shadow reads in the background
		write := func(text string) { row.Store(&text) }
		write("old")
		var loads atomic.Int64
		l, err := cacheaside.NewBatchLoader(c, "days", func(_ context.Context, keys []time.Time) (map[time.Time]string,
			error) {
			loads.Add(1)
			found := make(map[time.Time]string)
			for _, key := range keys {
				if key.Equal(moment) {
					found[inZone(key)] = *row.Load()
				}
				if key.Location() != time.UTC {
					t.Errorf("the load function got %v", key)
				}
			}
			return found, nil
		}, &o)
		noError(t, err)
		wantRow(t, l, "old", same...)
		if _, err := l.Get(t.Context(), moment.Add(1)); !errors.Is(err, cacheaside.ErrNotFound) {
			t.Error(err)
		}
		for i, key := range same {
			write(fmt.Sprint("new ", i))
			noError(t, l.Invalidate(t.Context(), key))
			wantRow(t, l, *row.Load(), same...)
			if l.Key(key) != l.Key(moment) {
				t.Errorf("%v, %v", l.Key(key).Text, l.Key(moment).Text)
			}
		}
		if o.Shadow == 0 && !withoutRedis(t) && loads.Load() != int64(2+len(same)) {
			t.Errorf("%d loads", loads.Load())
		}
	})
}

// Memory hits a time in each of its forms.
func TestTimesInMemory(t *testing.T) {
	c := newLocal(t)
	var loads atomic.Int64
	load := func(context.Context, time.Time) (string, error) { loads.Add(1); return "row", nil }
	moment := time.Now()
	for name, o := range map[string]*cacheaside.LoaderOptions{"instants": nil,
		"by-key": {Key: cacheaside.KeyOf(func(t time.Time) string { return t.UTC().String() })}} {
		l, err := cacheaside.NewLoader(c, name, load, o)
		noError(t, err)
		loads.Store(0)
		for _, key := range []time.Time{moment, inZone(moment), moment.UTC(), moment.Round(0), inZone(moment)} {
			wantRow(t, l, "row", key)
		}
		if n := loads.Load(); n != 6 { // the first, and one for each Fresh
			t.Errorf("%s: %d loads", name, n)
		}
	}
}

// Two instants that RFC 3339 cannot distinguish by their zone are two keys.
func TestTimesOfOddZones(t *testing.T) {
	l, err := cacheaside.NewLoader(newCache(t, &cacheaside.Options{}), "days",
		func(_ context.Context, key time.Time) (string, error) { return fmt.Sprint(key.Unix()), nil }, nil)
	noError(t, err)
	for s := range 60 {
		moment := time.Date(1880, 1, 1, 0, 0, 0, 0, time.FixedZone("LMT", -(4*3600+56*60+s)))
		wantRow(t, l, fmt.Sprint(moment.Unix()), moment)
	}
}

// With Key, pointers are compared by their texts, and what a caller makes of its pointer afterwards
// changes nothing that is cached.
func TestPointersAsKeys(t *testing.T) {
	ways(t, func(t *testing.T, c *cacheaside.Cache, o cacheaside.LoaderOptions) {
		o.Key = cacheaside.KeyOf((*big.Int).String)
		var loads atomic.Int64
		rows := map[int64]string{1: "one", 2: "two", 3: "three"}
		l, err := cacheaside.NewBatchLoader(c, "numbers", func(_ context.Context, keys []*big.Int) (map[*big.Int]string,
			error) {
			loads.Add(int64(len(keys)))
			found := make(map[*big.Int]string)
			for _, key := range keys {
				if row := rows[key.Int64()]; row != "" {
					found[new(big.Int).Set(key)] = row
				}
			}
			return found, nil
		}, &o)
		noError(t, err)
		key := big.NewInt(1)
		wantRow(t, l, "one", key, big.NewInt(1))
		if o.Shadow > 0 { // it may still read the key, in the background
			return
		}
		key.SetInt64(2)
		wantRow(t, l, "two", key, big.NewInt(2))
		wantRow(t, l, "one", big.NewInt(1))
		if _, err := l.Get(t.Context(), big.NewInt(4)); !errors.Is(err, cacheaside.ErrNotFound) {
			t.Error(err)
		}
		rows[2] = "new"
		noError(t, l.Invalidate(t.Context(), big.NewInt(2)))
		wantRow(t, l, "new", key, big.NewInt(2))
		key.SetInt64(3)
		noError(t, l.Expire(t.Context(), big.NewInt(2)))
		wantRow(t, l, "three", key)
		if !withoutRedis(t) && o.Shadow == 0 && loads.Load() > 7 {
			t.Errorf("%d loads", loads.Load())
		}
	})
}

// A key that is changed while its load runs fails: its row may be that of another key.
func TestKeyChangedDuringItsLoad(t *testing.T) {
	c := newCache(t, &cacheaside.Options{})
	began, resume := make(chan struct{}), make(chan struct{})
	l, err := cacheaside.NewLoader(c, "numbers", func(_ context.Context, key *big.Int) (string, error) {
		if key.Int64() == 1 {
			began <- struct{}{}
			<-resume
		}
		return "row " + key.String(), nil
	}, &cacheaside.LoaderOptions{Key: cacheaside.KeyOf((*big.Int).String)})
	noError(t, err)
	key := big.NewInt(1)
	failed := make(chan error)
	go func() {
		_, err := l.Get(context.Background(), key)
		failed <- err
	}()
	testenv.Receive(t, "the load", began)
	key.SetInt64(2)
	close(resume)
	if err := testenv.Receive(t, "the error", failed); err == nil ||
		!strings.Contains(err.Error(), "changed while it was being loaded") {
		t.Error(err)
	}
	if v, ok, err := l.Peek(t.Context(), big.NewInt(1)); ok {
		t.Errorf("%q is cached, %v", v, err)
	}
}

// Keys whose == and text disagree are refused, with what to set.
func TestKeysThatAreRefused(t *testing.T) {
	c := newLocal(t)
	_, err := cacheaside.NewLoader(c, "refused",
		func(context.Context, *big.Int) (string, error) { return "", nil }, nil)
	want := `cacheaside: loader "refused": keys of type *big.Int are pointers: equal keys need not be ==, and a caller could change a cached one: use a type without pointers, such as a string, or set LoaderOptions.Key`
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	for want, o := range map[string]*cacheaside.LoaderOptions{
		"LoaderOptions.Normalize: the function given to NormalizeOf is a func(int) int, and this loader needs a func(string) string": {Normalize: cacheaside.NormalizeOf(func(k int) int { return k })},
		"LoaderOptions.Normalize: the function given to NormalizeOf is nil":                                                          {Normalize: cacheaside.NormalizeOf[string](nil)},
	} {
		if _, err := cacheaside.NewLoader(c, "wrong", func(context.Context, string) (string, error) { return "", nil },
			o); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

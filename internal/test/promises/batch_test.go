package promises

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/fetch"
)

// batchTable stands in for a database with batch reads.
type batchTable struct {
	mu    sync.Mutex
	rows  map[int]string
	calls [][]int // the keys of each call, in order
	loads map[int]int

	// during, if set, is called by each load after it has read its rows, with the number of the
	// call.
	during func(ctx context.Context, call int, keys []int) error
	// answer, if set, changes the result of a load.
	answer func(keys []int, rows map[int]string) (map[int]string, error)
}

func newShelf(n int) *batchTable {
	d := &batchTable{rows: make(map[int]string), loads: make(map[int]int)}
	for i := range n {
		d.rows[i] = fmt.Sprint("row ", i)
	}
	return d
}

func (s *batchTable) load(ctx context.Context, keys []int) (map[int]string, error) {
	s.mu.Lock()
	s.calls = append(s.calls, slices.Clone(keys))
	call, during, answer := len(s.calls), s.during, s.answer
	rows := make(map[int]string)
	for _, key := range keys {
		s.loads[key]++
		if row, ok := s.rows[key]; ok {
			rows[key] = row
		}
	}
	s.mu.Unlock()
	if during != nil {
		if err := during(ctx, call, keys); err != nil {
			return nil, err
		}
	}
	if answer != nil {
		return answer(keys, rows)
	}
	return rows, nil
}

func (s *batchTable) write(key int, row string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[key] = row
}

// loaded returns the number of loads of each key, and the number of calls.
func (s *batchTable) loaded() (keys map[int]int, calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.loads), len(s.calls)
}

// pauseCall makes the n-th call wait after it has read its rows.
func (s *batchTable) pauseCall(n int) (reached <-chan struct{}, resume func()) {
	at, gone := make(chan struct{}), make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.during
	s.during = func(ctx context.Context, call int, keys []int) error {
		if before != nil {
			if err := before(ctx, call, keys); err != nil {
				return err
			}
		}
		if call == n {
			close(at)
			<-gone
		}
		return nil
	}
	return at, sync.OnceFunc(func() { close(gone) })
}

// many is a process with a batch loader.
type many struct {
	*cacheaside.Loader[int, string]
	cache *cacheaside.Cache
}

func startMany(
	t testing.TB, rdb redis.UniversalClient, d *batchTable, o cacheaside.Options, lo *cacheaside.LoaderOptions,
) many {
	t.Helper()
	o, lo = unhurried(o, lo)
	c, err := newCache(rdb, &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := cacheaside.NewBatchLoader(c, "row", d.load, lo)
	if err != nil {
		t.Fatal(err)
	}
	return many{l, c}
}

// wantMany fails unless GetMany finds exactly these rows and no error.
func (m many) wantMany(t testing.TB, keys []int, rows map[int]string) {
	t.Helper()
	got, err := m.GetMany(t.Context(), keys)
	if err != nil || got == nil || !maps.Equal(got, rows) {
		t.Fatalf("GetMany(%v) = %v, %v; want %v", keys, got, err, rows)
	}
}

func upTo(n int) (keys []int) {
	for i := range n {
		keys = append(keys, i)
	}
	return keys
}

func TestGetMany(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		for _, o := range []cacheaside.Options{patient, noMemory} {
			flushAll(t, b)
			d := newShelf(10)
			p := startMany(t, b.client(t), d, o, &cacheaside.LoaderOptions{BatchSize: 4})
			p.wantMany(t, nil, map[int]string{})
			// 99 has no row, 3 is requested twice.
			p.wantMany(t, []int{3, 99, 3, 4}, map[int]string{3: "row 3", 4: "row 4"})
			if loads, calls := d.loaded(); calls != 1 || !maps.Equal(loads, map[int]int{3: 1, 4: 1, 99: 1}) {
				t.Errorf("%d calls, loads %v", calls, loads)
			}
			// Cached, including the missing row.
			p.wantMany(t, []int{99, 4, 3}, map[int]string{3: "row 3", 4: "row 4"})
			if _, calls := d.loaded(); calls != 1 {
				t.Errorf("%d calls", calls)
			}
			if v, err := p.Get(t.Context(), 4); v != "row 4" || err != nil {
				t.Error(v, err)
			}
			if _, err := p.Get(t.Context(), 99); !errors.Is(err, cacheaside.ErrNotFound) {
				t.Error(err)
			}
			p.wantMany(t, upTo(10), d.rows) // 8 are new: two calls of 4
			loads, calls := d.loaded()
			if calls != 3 {
				t.Errorf("%d calls", calls)
			}
			for key, n := range loads {
				if n != 1 {
					t.Errorf("key %d is loaded %d times", key, n)
				}
			}
			if err := p.Invalidate(t.Context(), 3, 4, 99); err != nil {
				t.Fatal(err)
			}
			d.write(3, "new")
			d.write(99, "inserted")
			p.wantMany(t, []int{3, 4, 5, 99}, map[int]string{3: "new", 4: "row 4", 5: "row 5", 99: "inserted"})
			another := startMany(t, b.client(t), newShelf(0), o, nil)
			another.wantMany(t, []int{3, 4, 5, 99}, map[int]string{3: "new", 4: "row 4", 5: "row 5", 99: "inserted"})
			if s := p.Stats(); s.RedisErrors != 0 || s.Undecodable != 0 || s.Refused != 0 || s.Unvalidated != 0 ||
				s.Loads != 14 || s.LoadCalls != 4 {
				t.Errorf("%+v", s)
			}
		}
	})
}

// Each kind of failure of a batch load gives callers an error for exactly the failed keys.
func TestBatchLoadFails(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		answer func(keys []int, rows map[int]string) (map[int]string, error)
		failed []int // of 0, 1, 2 and 77, which has no row
		found  []int
		cause  error
		loads  int // rows of the second call; the failed keys are within their error window
	}{
		"all":     {func(_ []int, rows map[int]string) (map[int]string, error) { return rows, broken }, []int{0, 1, 2, 77}, nil, broken, 0},
		"nothing": {func([]int, map[int]string) (map[int]string, error) { return nil, nil }, nil, nil, nil, 0},
		"one": {func(_ []int, rows map[int]string) (map[int]string, error) {
			delete(rows, 1)
			return rows, fmt.Errorf("wrapped: %w",
				&cacheaside.BatchError[int]{Errs: map[int]error{1: broken, 77: cacheaside.ErrNotFound}})
		}, []int{1}, []int{0, 2}, broken, 0},
		"one, and nothing is said of others": {func(_ []int, rows map[int]string) (map[int]string, error) {
			delete(rows, 1)
			// So 1 and 77 may have rows.
			return rows, &cacheaside.BatchError[int]{Errs: map[int]error{2: broken}}
		}, []int{1, 2, 77}, []int{0}, broken, 0},
		"one that it has a value for": {func(_ []int, rows map[int]string) (map[int]string, error) {
			return rows, &cacheaside.BatchError[int]{Errs: map[int]error{2: broken, 77: cacheaside.ErrNotFound}}
		}, []int{2}, []int{0, 1}, broken, 0},
		"another loader's error, passed on": {func([]int, map[int]string) (map[int]string, error) {
			return nil, &cacheaside.BatchError[int]{Errs: map[int]error{2: broken}}
		}, []int{0, 1, 2, 77}, nil, broken, 0},
		"a nil error of its own type": {func(_ []int, rows map[int]string) (map[int]string, error) {
			var failed *cacheaside.BatchError[int]
			return rows, failed
		}, []int{0, 1, 2, 77}, nil, nil, 0},
		"no rows, as an error": {func([]int, map[int]string) (map[int]string, error) { return nil, cacheaside.ErrNotFound }, []int{0, 1, 2, 77}, nil, nil, 0},
		"panic":                {func([]int, map[int]string) (map[int]string, error) { panic("secret") }, []int{0, 1, 2, 77}, nil, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, b := embedded(t)
			d := newShelf(10)
			p := startMany(t, b.client(t), d, patient, nil)
			p.wantMany(t, []int{8, 9}, map[int]string{8: "row 8", 9: "row 9"})
			d.answer = c.answer
			keys := []int{9, 0, 1, 2, 77, 8} // 8 and 9 succeed in spite of the failures
			for again := range 2 {
				found, err := p.GetMany(t.Context(), keys)
				want := map[int]string{8: "row 8", 9: "row 9"}
				for _, key := range c.found {
					want[key] = fmt.Sprint("row ", key)
				}
				if !maps.Equal(found, want) {
					t.Errorf("found %v, want %v", found, want)
				}
				if len(c.failed) == 0 {
					if err != nil {
						t.Error(err)
					}
					continue
				}
				failed, ok := err.(*cacheaside.BatchError[int])
				if !ok {
					t.Fatalf("%T: %v", err, err)
				}
				if got := slices.Sorted(maps.Keys(failed.Errs)); !slices.Equal(got, c.failed) {
					t.Errorf("failed %v, want %v", got, c.failed)
				}
				for key, err := range failed.Errs {
					one, ok := err.(*cacheaside.Error)
					if !ok || one.Key != fmt.Sprint(key) || one.Op != "get" || strings.Contains(err.Error(), "secret") {
						t.Errorf("%d: %v", key, err)
					}
					if again == 1 && !errors.Is(err, cacheaside.ErrLoadFailed) {
						t.Errorf("%d: %v", key, err)
					}
					if _, panicked := errors.AsType[*cacheaside.PanicError](err); again == 0 && name == "panic" &&
						!panicked {
						t.Errorf("%d: %v", key, err)
					}
				}
				if again == 0 && c.cause != nil && !errors.Is(err, c.cause) || errors.Is(err, cacheaside.ErrNotFound) {
					t.Error(err)
				}
			}
			if _, calls := d.loaded(); calls != 2 { // the second GetMany finds markers
				t.Errorf("%d calls", calls)
			}
			d.answer = nil
			if err := p.Invalidate(t.Context(), keys...); err != nil {
				t.Fatal(err)
			}
			// No key is blocked, no wrong value is cached.
			p.wantMany(t, keys, map[int]string{9: "row 9", 0: "row 0", 1: "row 1", 2: "row 2", 8: "row 8"})
		})
	}
}

// A load function may change the slice of keys.
func TestBatchLoadMayChangeItsSlice(t *testing.T) {
	_, b := embedded(t)
	c, err := cacheaside.New(b.client(t), &noMemory)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewBatchLoader(c, "sorts", func(_ context.Context, keys []int) (map[int]string, error) {
		rows := make(map[int]string)
		for _, key := range keys {
			rows[key] = fmt.Sprint("row ", key)
		}
		slices.Sort(keys)
		clear(keys[:len(keys)/2])
		return rows, nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if m, err := l.GetMany(t.Context(), []int{3, 1, 2}); err != nil ||
			!maps.Equal(m, map[int]string{1: "row 1", 2: "row 2", 3: "row 3"}) {
			t.Error(m, err)
		}
	}
}

// badError panics when it is inspected, as a nil error of a user's type may.
type badError struct{}

func (badError) Error() string   { return "bad" }
func (badError) Is(error) bool   { panic("is") }
func (badError) Unwrap() []error { panic("unwrap") }

// An error that panics when it is inspected is handled like any other error. Its key is not
// blocked.
func TestPanickingErrorIsHandled(t *testing.T) {
	_, b := embedded(t)
	d := newShelf(10)
	p := startMany(t, b.client(t), d, noMemory, nil)
	d.answer = func([]int, map[int]string) (map[int]string, error) { return nil, badError{} }
	if _, err := p.Get(t.Context(), 1); err == nil {
		t.Error("no error")
	}
	d.answer = nil
	if err := p.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	get := later(func() (string, error) { return p.Get(t.Context(), 1) })
	if v, err := get(t); v != "row 1" || err != nil {
		t.Error(v, err)
	}
}

// A large batch leases only the keys that it loads at once. Another process gets the rest without
// waiting for their turn.
func TestLargeBatchLeasesInChunks(t *testing.T) {
	_, b := embedded(t)
	d := newShelf(100)
	reached, resume := d.pauseCall(1)
	defer resume()
	large, other := startMany(t, b.client(t), d, noMemory, &cacheaside.LoaderOptions{BatchSize: 2}), startMany(t,
		b.client(t), d, noMemory, nil)
	before := d.during
	d.during = func(ctx context.Context, call int, keys []int) error {
		if call > 1 && call <= fetch.MaxCalls { // these take as long as the first
			<-ctx.Done()
			return ctx.Err()
		}
		return before(ctx, call, keys)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	batch := later(func() (map[int]string, error) { return large.GetMany(ctx, upTo(100)) })
	reach(t, reached, "the first load")
	waitFor(t, func() bool { _, calls := d.loaded(); return calls == fetch.MaxCalls })
	get := later(func() (string, error) { return other.Get(t.Context(), 99) })
	if v, err := get(t); v != "row 99" || err != nil {
		t.Error(v, err)
	}
	cancel()
	resume()
	if _, err := batch(t); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A key of an interface type that cannot be hashed panics in the caller's goroutine, and blocks no
// other key.
func TestUnhashableKeyPanics(t *testing.T) {
	_, b := embedded(t)
	c, err := cacheaside.New(b.client(t), &noMemory)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := cacheaside.NewLoader(c, "any",
		func(_ context.Context, key any) (string,
			error) {
			return fmt.Sprint(key), nil
		}, &cacheaside.LoaderOptions{Key: cacheaside.KeyOf(func(k any) string { return fmt.Sprint(k) })})
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("an unhashable key does not panic")
			}
		}()
		l.GetMany(t.Context(), []any{1, "two", []int{3}})
	}()
	if m, err := l.GetMany(t.Context(), []any{1, "two"}); len(m) != 2 || err != nil {
		t.Error(m, err)
	}
}

// A returned key that was not requested is ignored and not cached.
func TestUnrequestedBatchKeyIsIgnored(t *testing.T) {
	_, b := embedded(t)
	d := newShelf(10)
	p := startMany(t, b.client(t), d, patient, nil)
	d.answer = func(_ []int, rows map[int]string) (map[int]string, error) {
		rows[5] = "made up"
		return rows, nil
	}
	p.wantMany(t, []int{1, 2}, map[int]string{1: "row 1", 2: "row 2"})
	d.answer = nil
	p.wantMany(t, []int{5}, map[int]string{5: "row 5"})
	if s := p.Stats(); s.Unasked != 1 || s.Loads != 3 {
		t.Errorf("%+v", s)
	}
}

// Overlapping batches share each common key, also with single Gets.
func TestBatchesShareKeys(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		d := newShelf(40)
		one, two := startMany(t, b.client(t), d, noMemory, nil), startMany(t, b.client(t), d, noMemory, nil)
		reached, resume := d.pauseCall(1)
		defer resume()
		first := later(func() (map[int]string, error) { return one.GetMany(t.Context(), upTo(20)) })
		reach(t, reached, "the first load")
		var rest []func(testing.TB) (map[int]string, error)
		for from := 5; from < 15; from++ {
			keys := upTo(40)[from : from+20]
			p := one
			if from%2 == 0 {
				p = two
			}
			rest = append(rest, later(func() (map[int]string, error) { return p.GetMany(t.Context(), keys) }))
		}
		single := later(func() (string, error) { return two.Get(t.Context(), 7) })
		// The other keys are loaded at the same time as the paused load.
		waitFor(t, func() bool { loads, _ := d.loaded(); return len(loads) == 34 })
		resume()
		if v, err := single(t); v != "row 7" || err != nil {
			t.Error(v, err)
		}
		for _, get := range append(rest, first) {
			if m, err := get(t); len(m) != 20 || err != nil {
				t.Errorf("%d found, %v", len(m), err)
			}
		}
		loads, _ := d.loaded()
		for key, n := range loads {
			if n != 1 {
				t.Errorf("key %d is loaded %d times", key, n)
			}
		}
	})
}

// Promises 1 and 2 in a batch: exactly the keys that were invalidated during the load are loaded
// again, and the old values are neither returned nor stored.
func TestStaleSetBatch(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		d := newShelf(20)
		writer := startMany(t, b.client(t), d, noMemory, nil)
		reader := startMany(t, b.client(t), d, patient, nil)
		reached, resume := d.pauseCall(1)
		defer resume()
		get := later(func() (map[int]string, error) { return reader.GetMany(t.Context(), upTo(20)) })
		reach(t, reached, "the load")
		d.write(7, "new")
		d.write(8, "new")
		if err := writer.Invalidate(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		if err := reader.Invalidate(t.Context(), 8); err != nil {
			t.Fatal(err)
		}
		resume()
		m, err := get(t)
		if len(m) != 20 || m[7] != "new" || m[8] != "new" || m[6] != "row 6" || err != nil {
			t.Errorf("%v, %v", m, err)
		}
		for _, p := range []many{writer, reader, startMany(t, b.client(t), d, noMemory, nil)} {
			for _, key := range []int{7, 8} {
				if v, err := p.Get(t.Context(), key); v != "new" || err != nil {
					t.Error(v, err)
				}
			}
		}
		loads, calls := d.loaded()
		if calls != 2 || loads[7] != 2 || loads[8] != 2 || loads[6] != 1 {
			t.Errorf("%d calls, loads %v", calls, loads)
		}
		if s := reader.Stats(); s.Refused != 2 || s.Unvalidated != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A batch loads its leased keys before it waits for other batches, so two that overlap do not
// deadlock.
func TestCrossingBatchesDoNotWaitForEachOther(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		d := newShelf(10)
		one, two, three := startMany(t, b.client(t), d, noMemory, nil), startMany(t, b.client(t), d, noMemory,
			nil), startMany(t, b.client(t), d, noMemory, nil)
		reached, resume := d.pauseCall(1)
		defer resume()
		// Holds the lease of 5 throughout.
		slow := later(func() (string, error) { return three.Get(t.Context(), 5) })
		reach(t, reached, "the slow load")
		first := later(func() (map[int]string, error) { return one.GetMany(t.Context(), []int{5, 1, 2, 3, 4}) })
		second := later(func() (map[int]string, error) { return two.GetMany(t.Context(), []int{4, 3, 2, 1, 5}) })
		// All except 5 are loaded.
		waitFor(t, func() bool { loads, _ := d.loaded(); return len(loads) == 5 })
		for _, key := range []int{1, 2, 3, 4} {
			if v, err := three.Get(t.Context(), key); v == "" || err != nil {
				t.Error(v, err)
			}
		}
		resume()
		for _, get := range []func(testing.TB) (map[int]string, error){first, second} {
			if m, err := get(t); len(m) != 5 || err != nil {
				t.Error(m, err)
			}
		}
		if v, err := slow(t); v != "row 5" || err != nil {
			t.Error(v, err)
		}
		loads, _ := d.loaded()
		for key, n := range loads {
			if n != 1 {
				t.Errorf("key %d is loaded %d times", key, n)
			}
		}
	})
}

// A key that another process loads is returned as soon as it is stored, even if the batch's own
// load takes longer; and the other way round.
func TestBatchKeysDoNotDelayEachOther(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		d := newShelf(10)
		one, other := startMany(t, b.client(t), d, noMemory, nil), startMany(t, b.client(t), d, noMemory, nil)
		reached, resume := d.pauseCall(1)
		defer resume()
		theirs := later(func() (string, error) { return other.Get(t.Context(), 5) })
		reach(t, reached, "the other process's load")
		reachedOwn, resumeOwn := d.pauseCall(2)
		defer resumeOwn()
		batch := later(func() (map[int]string, error) { return one.GetMany(t.Context(), []int{1, 5, 6}) })
		reach(t, reachedOwn, "its own load")
		joined := later(func() (string, error) { return one.Get(t.Context(), 5) })
		waitFor(t, func() bool { return readerOf(one.Loader).Flights.Plain.Waiting("5") == 1 })
		resume()
		// During the batch's own load.
		for _, get := range []func(testing.TB) (string, error){theirs, joined} {
			if v, err := get(t); v != "row 5" || err != nil {
				t.Error(v, err)
			}
		}
		reached, resume = d.pauseCall(3)
		defer resume()
		theirs = later(func() (string, error) { return other.Get(t.Context(), 7) })
		reach(t, reached, "the other process's second load")
		resumeOwn()
		if m, err := batch(t); len(m) != 3 || err != nil {
			t.Error(m, err)
		}
		batch = later(func() (map[int]string, error) { return one.GetMany(t.Context(), []int{7, 8}) })
		waitFor(t, func() bool { loads, _ := d.loaded(); return loads[8] == 1 })
		// While the batch waits for 7.
		if v, err := one.Get(t.Context(), 8); v != "row 8" || err != nil {
			t.Error(v, err)
		}
		resume()
		if m, err := batch(t); len(m) != 2 || err != nil {
			t.Error(m, err)
		}
		if v, err := theirs(t); v != "row 7" || err != nil {
			t.Error(v, err)
		}
		loads, _ := d.loaded()
		for key, n := range loads {
			if n != 1 {
				t.Errorf("key %d is loaded %d times", key, n)
			}
		}
	})
}

// A caller that leaves a batch gets the keys found so far, and its context's error for the rest.
// The load continues for other callers of its keys, and stops when the last has left.
func TestBatchCallerLeaves(t *testing.T) {
	_, b := embedded(t)
	d := newShelf(10)
	stopped := make(chan error, 1)
	d.during = func(ctx context.Context, call int, _ []int) error {
		if call == 2 || call == 3 {
			<-ctx.Done()
			stopped <- context.Cause(ctx)
			return ctx.Err()
		}
		return nil
	}
	p := startMany(t, b.client(t), d, noMemory, nil)
	p.wantMany(t, []int{1}, map[int]string{1: "row 1"})
	ctx, cancel := context.WithCancel(t.Context())
	left := later(func() (map[int]string, error) { return p.GetMany(ctx, []int{1, 2, 3}) })
	waitFor(t, func() bool { _, calls := d.loaded(); return calls == 2 })
	cancel()
	m, err := left(t)
	failed, ok := errors.AsType[*cacheaside.BatchError[int]](err)
	if len(m) != 1 || m[1] != "row 1" || !ok || len(failed.Errs) != 2 || !errors.Is(failed.Errs[2], context.Canceled) ||
		!errors.Is(failed.Errs[3], context.Canceled) {
		t.Errorf("%v, %v", m, err)
	}
	if cause := <-stopped; cause == nil {
		t.Error("the load does not stop")
	}
	// A failed load leaves a marker. A cancelled load does not.
	d.mu.Lock()
	d.during = nil
	d.mu.Unlock()
	p.wantMany(t, []int{1, 2, 3}, map[int]string{1: "row 1", 2: "row 2", 3: "row 3"})

	reached, resume := d.pauseCall(4)
	defer resume()
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	left = later(func() (map[int]string, error) { return p.GetMany(ctx, []int{4, 5}) })
	reach(t, reached, "the fourth load")
	stays := later(func() (string, error) { return p.Get(t.Context(), 5) })
	waitFor(t, func() bool { return readerOf(p.Loader).Flights.Plain.Waiting("5") == 1 })
	cancel()
	if m, err := left(t); len(m) != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", m, err)
	}
	resume()
	if v, err := stays(t); v != "row 5" || err != nil {
		t.Error(v, err)
	}
}

// Without Redis, a batch is still one call of the load function. So are all batches that gather
// during the call.
func TestBatchWithoutRedis(t *testing.T) {
	t.Run("down", func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialTimeout: 50 * time.Millisecond,
			DialerRetries: 1})
		defer rdb.Close()
		d := newShelf(30)
		p := startMany(t, rdb, d, patient, nil)
		reached, resume := d.pauseCall(1)
		defer resume()
		gets := []func(testing.TB) (map[int]string,
			error){later(func() (map[int]string, error) { return p.GetMany(t.Context(), upTo(20)) })}
		reach(t, reached, "the first load")
		for range 10 {
			gets = append(gets, later(func() (map[int]string, error) { return p.GetMany(t.Context(), upTo(20)) }))
		}
		waitFor(t, func() bool {
			return readerOf(p.Loader).Flights.Plain.Waiting("19") == 10 &&
				readerOf(p.Loader).Flights.Plain.Waiting("0") == 10
		})
		resume()
		for _, get := range gets {
			if m, err := get(t); len(m) != 20 || err != nil {
				t.Errorf("%d found, %v", len(m), err)
			}
		}
		if _, calls := d.loaded(); calls != 1 { // gathered callers are served from memory
			t.Errorf("%d calls", calls)
		}
		if s := p.Stats(); s.Unvalidated != 20 || s.HitsWhileDown != 20 || s.RedisErrors == 0 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("none", func(t *testing.T) {
		d := newShelf(30)
		p := startMany(t, nil, d, patient, nil)
		p.wantMany(t, upTo(30), d.rows)
		partsOf(p.cache).memory.Wait()
		p.wantMany(t, upTo(30), d.rows)
		if _, calls := d.loaded(); calls != 1 || p.Stats().MemoryHits != 30 {
			t.Errorf("%d calls, %+v", calls, p.Stats())
		}
	})
	t.Run("bypassed", func(t *testing.T) {
		_, b := embedded(t)
		d := newShelf(30)
		p := startMany(t, b.client(t), d, patient, nil)
		p.Bypass(true)
		p.wantMany(t, upTo(30), d.rows)
		p.wantMany(t, upTo(30), d.rows)
		if _, calls := d.loaded(); calls != 2 || p.Stats().Bypassed != 60 {
			t.Errorf("%d calls, %+v", calls, p.Stats())
		}
	})
}

// A load function for single rows runs concurrently for several keys of a GetMany, at most
// fetch.MaxCalls. The keys keep their leases while they wait.
func TestGetManyWithSingleLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		var now, most, loads atomic.Int64
		o := noMemory
		o.LeaseTTL = 100 * time.Millisecond
		c, err := cacheaside.New(b.client(t), &o)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		failing := errors.New("failing")
		l, err := cacheaside.NewLoader(c, "one", func(_ context.Context, key int) (int, error) {
			most.Store(max(now.Add(1), most.Load()))
			defer now.Add(-1)
			loads.Add(1)
			time.Sleep(time.Second)
			switch key {
			case 7:
				return 0, failing
			case 8:
				return 0, cacheaside.ErrNotFound
			}
			return key * 2, nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		m, err := l.GetMany(t.Context(), upTo(40))
		failed, ok := errors.AsType[*cacheaside.BatchError[int]](err)
		if !ok || len(failed.Errs) != 1 || !errors.Is(failed.Errs[7], failing) || len(m) != 38 || m[39] != 78 {
			t.Error(m, err)
		}
		if most.Load() != fetch.MaxCalls || loads.Load() != 40 {
			t.Errorf("%d concurrent loads, %d in total", most.Load(), loads.Load())
		}
		if s := l.Stats(); s.Refused != 0 || s.RedisErrors != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// SetTTL in a batch load applies to all its keys. A batch that exceeds LoadTimeout fails as a
// whole.
func TestBatchLoadContext(t *testing.T) { synctest.Test(t, testBatchLoadContext) }

func testBatchLoadContext(t *testing.T) {
	_, b := embedded(t)
	d := newShelf(10)
	d.during = func(ctx context.Context, call int, _ []int) error {
		if call == 2 {
			<-ctx.Done()
			return ctx.Err()
		}
		cacheaside.SetTTL(ctx, time.Hour)
		return nil
	}
	p := startMany(t, b.client(t), d, patient,
		&cacheaside.LoaderOptions{Jitter: -1, StaleFor: -1, LoadTimeout: 50 * time.Millisecond})
	defer p.cache.Close()
	p.wantMany(t, []int{1, 99}, map[int]string{1: "row 1"})
	for _, key := range []int{1, 99} {
		if ttl := b.admin.PTTL(t.Context(), redisKey(key)).Val(); ttl < 59*time.Minute || ttl > time.Hour {
			t.Errorf("key %d has a TTL of %v", key, ttl)
		}
	}
	m, err := p.GetMany(t.Context(), []int{1, 2, 3})
	failed, ok := errors.AsType[*cacheaside.BatchError[int]](err)
	if len(m) != 1 || !ok || len(failed.Errs) != 2 || !errors.Is(failed.Errs[2], cacheaside.ErrLoadTimeout) ||
		!errors.Is(failed.Errs[3], cacheaside.ErrLoadTimeout) {
		t.Error(m, err)
	}
}

func TestGetManyAfterClose(t *testing.T) {
	p := startMany(t, nil, newShelf(3), patient, nil)
	p.cache.Close()
	m, err := p.GetMany(t.Context(), []int{1, 2})
	if m == nil || len(m) != 0 || !errors.Is(err, cacheaside.ErrClosed) {
		t.Error(m, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	q := startMany(t, nil, newShelf(3), patient, nil)
	if m, err := q.GetMany(ended, []int{1, 2}); len(m) != 0 || !errors.Is(err, context.Canceled) {
		t.Error(m, err)
	}
}

package promises

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
)

// warmed returns the reports of Warm by key.
func (m many) warmed(ctx context.Context, keys []int, rate float64) map[int]error {
	return maps.Collect(warming(m.Loader, ctx, slices.Values(keys), rate))
}

// warming is Warm as a loop. The end of its context ends it.
func warming[K comparable, V any](
	l *cacheaside.Loader[K, V], ctx context.Context, keys iter.Seq[K], rate float64,
) iter.Seq2[K, error] {
	return func(yield func(K, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		on := true
		_ = l.Warm(ctx, keys, rate, func(key K, err error) {
			if on = on && yield(key, err); !on {
				cancel()
			}
		})
	}
}

func noErrors(keys []int) map[int]error {
	m := make(map[int]error)
	for _, key := range keys {
		m[key] = nil
	}
	return m
}

// Missing keys are loaded in batches, and each key is reported. Cached values are loaded again only
// if less than half of their life is left.
func TestWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := embedded(t)
		d := newShelf(30)
		p := startMany(t, b.client(t), d, rarePolls,
			&cacheaside.LoaderOptions{TTL: time.Hour, NullTTL: 20 * time.Minute, Jitter: -1, BatchSize: 10})
		keys := append(upTo(25), 77, 3, 3) // 77 has no row, 3 comes more often
		if got := p.warmed(t.Context(), keys, 0); !maps.Equal(got, noErrors(keys)) {
			t.Error(got)
		}
		loads, calls := d.loaded()
		if calls != 3 || len(loads) != 26 || loads[3] != 1 {
			t.Errorf("%d calls, loads %v", calls, loads)
		}
		p.wantMany(t, upTo(25), rowsOf(d, 25))
		p.warmed(t.Context(), keys, 0)
		if loads, calls := d.loaded(); calls != 3 || len(loads) != 26 {
			t.Errorf("%d calls, loads %v", calls, loads)
		}

		time.Sleep(15 * time.Minute) // the absent row has less than half of its life left
		d.write(77, "inserted")
		p.warmed(t.Context(), keys, 0)
		if loads, calls := d.loaded(); calls != 4 || loads[77] != 2 || loads[1] != 1 {
			t.Errorf("%d calls, loads %v", calls, loads)
		}
		if v, err := p.Get(t.Context(), 77); v != "inserted" || err != nil {
			t.Error(v, err)
		}

		time.Sleep(20 * time.Minute) // now all have
		d.write(1, "changed without a word")
		another := startMany(t, b.client(t), d, rarePolls, &cacheaside.LoaderOptions{TTL: time.Hour, Jitter: -1})
		if got := another.warmed(t.Context(), upTo(25), 0); !maps.Equal(got, noErrors(upTo(25))) {
			t.Error(got)
		}
		if v, err := p.Get(t.Context(), 1); v != "changed without a word" || err != nil {
			t.Error(v, err)
		}
		remembers := startMany(t, b.client(t), newShelf(0), steady,
			&cacheaside.LoaderOptions{TTL: time.Hour, Jitter: -1, MemoryTTL: time.Hour})
		hear(t, remembers.Loader)
		// Finds all in Redis, and then has them in memory.
		remembers.warmed(t.Context(), upTo(25), 0)
		partsOf(remembers.cache).memory.Wait()
		remembers.wantMany(t, upTo(25), rowsOf(d, 25))
		if s := remembers.Stats(); s.MemoryHits != 25 || s.Loads != 0 {
			t.Errorf("%+v", s)
		}
		loads, calls = d.loaded()
		if calls != 5 || loads[1] != 2 || loads[77] != 2 {
			t.Errorf("%d calls, loads %v", calls, loads)
		}
	})
}

func rowsOf(d *batchTable, n int) map[int]string {
	rows := make(map[int]string)
	for key := range n {
		rows[key] = d.rows[key]
	}
	return rows
}

// From the first second on, the number of loads per second stays within rate. Cached keys take no
// time.
func TestWarmRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := embedded(t)
		m.ClockTTL(false) // nothing expires here, and it looks through all keys at each command
		d := newShelf(1000)
		var times []time.Time
		d.during = func(_ context.Context, _ int, keys []int) error {
			for range keys {
				times = append(times, time.Now())
			}
			return nil
		}
		p := startMany(t, b.client(t), d, noMemory, nil)
		p.warmed(t.Context(), upTo(500), 0)
		times = nil
		began := time.Now()
		p.warmed(t.Context(), upTo(1000), 50)
		if took := time.Since(began); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("500 rows at 50 a second take %v", took)
		}
		for i, at := range times {
			// Those of a second and of one chunk.
			if i+63 < len(times) && times[i+63].Sub(at) < time.Second {
				t.Fatalf("64 rows are loaded within %v", times[i+63].Sub(at))
			}
		}
	})
}

// Failed loads count like others. Keys that are not loaded, because they have just failed or Redis
// is unreachable, take no time.
func TestWarmRateOfFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := embedded(t)
		d := newShelf(10)
		d.during = func(context.Context, int, []int) error { return errBroken }
		p := startMany(t, b.client(t), d, noMemory, &cacheaside.LoaderOptions{ErrorTTL: time.Hour})
		warm := func(keys int, least, most time.Duration, want error) {
			t.Helper()
			began := time.Now()
			for key, err := range p.warmed(t.Context(), upTo(keys), 1) {
				if !errors.Is(err, want) {
					t.Error(key, err)
				}
			}
			if took := time.Since(began); took < least || took > most {
				t.Errorf("Warm takes %v", took)
			}
		}
		warm(10, 9*time.Second, 11*time.Second, errBroken)
		warm(10, 0, time.Second, cacheaside.ErrLoadFailed)
		if _, calls := d.loaded(); calls != 10 {
			t.Errorf("%d calls", calls)
		}
		m.SetError("out of order")
		warm(1000, 0, time.Minute, cacheaside.ErrRedis)
	})
}

// A failure is reported for its key, a cancellation for the keys in progress. The loop may be left
// at any time.
func TestWarmEnds(t *testing.T) {
	_, b := embedded(t)
	d := newShelf(30)
	broken := errors.New("broken")
	d.answer = func(_ []int, rows map[int]string) (map[int]string, error) {
		if _, ok := rows[5]; ok {
			delete(rows, 5)
			return rows, &cacheaside.BatchError[int]{Errs: map[int]error{5: broken}}
		}
		return rows, nil
	}
	p := startMany(t, b.client(t), d, steadyNoMemory, &cacheaside.LoaderOptions{BatchSize: 10})
	got := p.warmed(t.Context(), upTo(20), 0)
	one, ok := errors.AsType[*cacheaside.Error](got[5])
	if !ok || one.Op != "warm" || !errors.Is(one, broken) || len(got) != 20 {
		t.Error(got)
	}
	got[5] = nil
	if !maps.Equal(got, noErrors(upTo(20))) {
		t.Error(got)
	}

	n := 0
	for range warming(p.Loader, t.Context(), slices.Values(upTo(30)), 0) {
		if n++; n == 3 {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n = 0
	for key, err := range warming(p.Loader, ctx, slices.Values(upTo(30)), 0) {
		if n++; n == 10 {
			cancel()
		}
		if n > 10 && !errors.Is(err, context.Canceled) {
			t.Error(key, err)
		}
	}
	if n != 20 { // the first chunk, and the one that would follow
		t.Errorf("%d keys", n)
	}
	p.cache.Close()
	n = 0
	for key, err := range warming(p.Loader, t.Context(), slices.Values(upTo(30)), 0) {
		if n++; !errors.Is(err, cacheaside.ErrClosed) {
			t.Error(key, err)
		}
	}
	if n != 10 {
		t.Errorf("%d keys", n)
	}
}

// If nothing can be stored, the database is not read.
func TestWarmWithoutRedis(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialTimeout: 50 * time.Millisecond,
		DialerRetries: 1})
	defer rdb.Close()
	d := newShelf(30)
	p := startMany(t, rdb, d, steady, nil)
	for key, err := range warming(p.Loader, t.Context(), slices.Values(upTo(3)), 0) {
		if !errors.Is(err, cacheaside.ErrRedis) {
			t.Error(key, err)
		}
	}
	if _, calls := d.loaded(); calls != 0 {
		t.Errorf("%d calls", calls)
	}
	q := startMany(t, nil, d, steady, nil) // memory only
	if got := q.warmed(t.Context(), upTo(10), 0); !maps.Equal(got, noErrors(upTo(10))) {
		t.Error(got)
	}
	partsOf(q.cache).memory.Wait()
	q.wantMany(t, upTo(10), rowsOf(d, 10))
	if _, calls := d.loaded(); calls != 1 {
		t.Errorf("%d calls", calls)
	}
}

// Processes that warm the same keys at the same time share the work.
func TestWarmTogether(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		flushAll(t, b)
		d := newShelf(200)
		one, two := startMany(t, b.client(t), d, steadyNoMemory, nil), startMany(t, b.client(t), d, steadyNoMemory, nil)
		first := later(func() (map[int]error, error) { return one.warmed(t.Context(), upTo(200), 0), nil })
		if got := two.warmed(t.Context(), upTo(200), 0); !maps.Equal(got, noErrors(upTo(200))) {
			t.Error(got)
		}
		if got, _ := first(t); !maps.Equal(got, noErrors(upTo(200))) {
			t.Error(got)
		}
		loads, _ := d.loaded()
		for key, n := range loads {
			if n != 1 {
				t.Errorf("key %d is loaded %d times", key, n)
			}
		}
	})
}

// A failed reload is reported for ErrorTTL, and then retried.
func TestWarmAfterAFailedReload(t *testing.T) {
	for _, o := range []cacheaside.Options{steady, steadyNoMemory} {
		bubble(t, o, livesWith(func(o *cacheaside.LoaderOptions) { o.StaleFor = cacheaside.Forever }),
			func(t *testing.T, _ backend, d *table, p, q process) {
				warm := func(p process) (err error) {
					for _, e := range warming(p.Loader, t.Context(), slices.Values([]int{1}), 0) {
						err = e
					}
					return err
				}
				if err := warm(p); err != nil {
					t.Fatal(err)
				}
				d.fail(errBroken)
				time.Sleep(61 * time.Second)
				if err := warm(p); !errors.Is(err, errBroken) {
					t.Error(err)
				}
				if err := warm(q); !errors.Is(err, cacheaside.ErrLoadFailed) {
					t.Error(err)
				}
				d.fail(nil)
				d.write(1, "b")
				time.Sleep(2 * time.Second)
				if err := warm(q); err != nil {
					t.Error(err)
				}
				p.want(t, 1, "b", nil)
				if s := p.Stats(); s.Stale != 0 {
					t.Errorf("%+v", s)
				}
			})
	}
}

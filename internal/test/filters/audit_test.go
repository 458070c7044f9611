package filters_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// rows are a table, in a process without Redis, whose loader has a filter.
type rows struct {
	*cacheaside.Loader[string, string]
	loads atomic.Int64
	load  func(ctx context.Context, key string) (string, error) // nil: keys that begin with "row" are there
	log   testenv.Log
}

func newRows(t testing.TB, rdb redis.UniversalClient, o cacheaside.Options, lo cacheaside.LoaderOptions) *rows {
	r := &rows{}
	o.Logger = slog.New(slog.NewTextHandler(&r.log, nil))
	cache, err := cacheaside.NewLocal(&o)
	if rdb != nil {
		cache, err = cacheaside.New(rdb, &o)
	}
	must(t, err)
	t.Cleanup(func() { cache.Close() })
	r.Loader, err = cacheaside.NewLoader(cache, "row", func(ctx context.Context, key string) (string, error) {
		r.loads.Add(1)
		if r.load != nil {
			return r.load(ctx, key)
		}
		if !strings.HasPrefix(key, "row") {
			return "", cacheaside.ErrNotFound
		}
		return "of " + key, nil
	}, &lo)
	must(t, err)
	return r
}

// hides reports whether an existing row is not found.
func (r *rows) hides(t testing.TB, key string) bool {
	t.Helper()
	v, err := r.Get(t.Context(), key)
	switch {
	case errors.Is(err, cacheaside.ErrNotFound):
		return true
	case err != nil || v != "of "+key:
		t.Fatal(v, err)
	}
	return false
}

func wrongLocal(t testing.TB) *bloom.Local {
	f, err := bloom.NewLocal(1000, 0.0001)
	must(t, err)
	_, err = f.Rebuild(t.Context(), bloom.Keys(keysOf("another table's:", 1000)...), nil)
	must(t, err)
	return f
}

// TestWrongFilter: the rows that a filter of another table hides are found within a second, and
// until it was built of the right one.
func TestWrongFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := wrongLocal(t)
		r := newRows(t, nil, cacheaside.Options{MemoryBytes: -1}, cacheaside.LoaderOptions{Filter: f})
		for i := range 1000 { // an attacker, so that the first second's check is spent
			if _, err := r.Get(t.Context(), fmt.Sprint("no", i)); !errors.Is(err, cacheaside.ErrNotFound) {
				t.Fatal(err)
			}
		}
		hidden := 0
		for i := range 1000 { // 100 a second
			if r.hides(t, fmt.Sprint("row", i)) {
				hidden++
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("%d of 1000 rows are hidden", hidden)
		if hidden > 100 {
			t.Errorf("%d of 1000 rows are hidden", hidden)
		}
		s, fs := r.Stats(), f.Stats()
		if s.FilterAudits != 2 || s.FilterHidden != 1 || fs.Hidden != 1 || s.Filtered != 1000+int64(hidden) {
			t.Errorf("%+v, %+v", s, fs)
		}
		if log := r.log.String(); strings.Count(log, "refused a key whose row exists") != 1 ||
			strings.Contains(log, "row1") {
			t.Error(log)
		}
		if state, _ := f.State(t.Context()); state.Built {
			t.Error("the filter still counts as built")
		}
		_, err := f.Rebuild(t.Context(), bloom.Keys(keysOf("row", 1000)...), nil)
		must(t, err)
		loads := r.loads.Load()
		for i := range 100 {
			r.Get(t.Context(), fmt.Sprint("no", i)) // the row does not exist
		}
		if n := r.loads.Load() - loads; n > 1 {
			t.Errorf("%d loads of missing rows, when it was built again", n)
		}
	})
}

// TestAttackOnAudits: a client that reads missing keys costs a load a second, and its reads return
// the same.
func TestAttackOnAudits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for every, want := range map[time.Duration]int64{0: 10, 5 * time.Second: 2, -1: 0} {
			r := newRows(t, nil, cacheaside.Options{},
				cacheaside.LoaderOptions{Filter: wrongLocal(t), AuditEvery: every})
			for i := range 1000 {
				found, err := r.GetMany(t.Context(), keysOf(fmt.Sprint("no", i, "/"), 20))
				if len(found) > 0 || err != nil {
					t.Fatal(found, err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if s := r.Stats(); s.Loads != want || s.FilterAudits != want || s.Filtered != 20_000 ||
				s.FilterHidden != 0 || s.Unvalidated != 0 {
				t.Errorf("every %v: %+v", every, s)
			}
		}
	})
}

// TestAuditFails: if the load of an audit fails, the caller gets ErrNotFound, as without an audit.
func TestAuditFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRows(t, nil, cacheaside.Options{}, cacheaside.LoaderOptions{Filter: wrongLocal(t)})
		r.load = func(context.Context, string) (string, error) { return "lost", errors.New("broken") }
		for range 100 {
			if v, err := r.Get(t.Context(), "row1"); v != "" || !errors.Is(err, cacheaside.ErrNotFound) {
				t.Fatal(v, err)
			}
			time.Sleep(time.Second)
		}
		s := r.Stats()
		if s.Filtered != 100 || s.FilterHidden != 0 || s.LoadErrors < 20 {
			t.Errorf("%+v", s)
		}
		if s.Unavailable != 0 {
			t.Errorf("%d loads were asked for while the breaker was open", s.Unavailable)
		}
	})
}

// TestAuditWaitsForOtherLoads: a load that others wait for comes first.
func TestAuditWaitsForOtherLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := wrongLocal(t)
		must(t, f.Add(t.Context(), "row slow"))
		r := newRows(t, nil, cacheaside.Options{MaxLoads: 1}, cacheaside.LoaderOptions{Filter: f})
		gone := make(chan struct{})
		r.load = func(context.Context, string) (string, error) { <-gone; return "of row slow", nil }
		slow := make(chan error, 1)
		go func() { _, err := r.Get(t.Context(), "row slow"); slow <- err }()
		synctest.Wait()
		if !r.hides(t, "row1") || r.loads.Load() != 1 || r.Stats().FilterAudits != 0 {
			t.Error("a refusal was checked though no load could begin")
		}
		close(gone)
		must(t, <-slow)
		r.load = nil
		if r.hides(t, "row1") {
			t.Error("it was not checked when one could")
		}
	})
}

// TestRowInsertedMeanwhile: a row that was inserted between the refusal and the check is no fault
// of the filter.
func TestRowInsertedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := wrongLocal(t)
		r := newRows(t, nil, cacheaside.Options{MemoryBytes: -1}, cacheaside.LoaderOptions{Filter: f})
		r.load = func(ctx context.Context, key string) (string, error) {
			must(t, f.Add(ctx, key))
			return "of " + key, nil
		}
		if r.hides(t, "row1") {
			t.Error("a row that was found is not given to the caller")
		}
		r.load = nil
		time.Sleep(time.Minute)
		if state, _ := f.State(t.Context()); !state.Built || f.Stats().Hidden != 0 || r.log.String() != "" {
			t.Errorf("%+v, %s", state, r.log.String())
		}
		loads := r.loads.Load()
		for range 100 {
			r.Get(t.Context(), "no") // the row does not exist
		}
		if r.loads.Load() > loads+1 {
			t.Error("the filter is not asked any more")
		}
	})
}

// TestHiddenFromAFleet: all processes learn of a filter in Redis that hides rows, when one has
// found out.
func TestHiddenFromAFleet(t *testing.T) {
	server := testenv.SharedRedis(t)
	process := func() (*bloom.Redis, *rows) {
		f := newFilter(t, server.Client(t), "fleet", 1000)
		return f, newRows(t, server.Client(t), cacheaside.Options{MemoryBytes: -1, RedisTimeout: testenv.Hang,
			ReadTimeout: testenv.Hang}, cacheaside.LoaderOptions{Filter: f})
	}
	f, r := process()
	_, err := f.Rebuild(t.Context(), bloom.Keys(keysOf("another table's:", 1000)...), atOnce)
	must(t, err)
	g, _ := process()
	replica, err := bloom.NewReplica(newFilter(t, server.Client(t), "fleet", 1000))
	must(t, err)
	testenv.Eventually(t, "the copy", func() bool { return replica.Stats().Copied })
	refused := 0
	for _, key := range keysOf("row", 20) {
		for _, f := range []bloom.Filter{g, replica} {
			if may, err := f.MightContain(t.Context(), key); !may && err == nil {
				refused++
			}
		}
	}
	if refused < 30 {
		t.Fatal(refused, "rows are hidden: it is not the wrong filter")
	}
	for _, key := range keysOf("row", 20) {
		r.hides(t, key) // the first that is refused is checked
	}
	testenv.Eventually(t, "that no process hides a row", func() bool {
		return hidden(t, f, keysOf("row", 20))+hidden(t, g, keysOf("row", 20))+hidden(t, replica,
			keysOf("row", 20)) == 0
	})
	if s := f.Stats(); s.Hidden != 1 {
		t.Errorf("%+v", s)
	}
	_, err = g.Rebuild(t.Context(), bloom.Keys(keysOf("row", 20)...), atOnce)
	must(t, err)
	testenv.Eventually(t, "that they refuse again", func() bool {
		return hidden(t, f, keysOf("absent", 100)) > 80 && hidden(t, replica, keysOf("absent", 100)) > 80
	})
}

// TestHidingAgainAndAgain: reports of a key that no rebuild brings do not make Maintain build the
// filter again and again, but ever less often.
func TestHidingAgainAndAgain(t *testing.T) {
	newRedis := func(t *testing.T, rdb redis.UniversalClient) *bloom.Redis {
		f, err := bloom.NewRedis(rdb, "again", 1000, 0.0001, nil)
		must(t, err)
		return f
	}
	t.Run("redis", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, rdb := testenv.Mini(t)
			reader, worker := newRedis(t, rdb), newRedis(t, rdb)
			defer reader.Close()
			defer worker.Close()
			again(t, reader, worker)
		})
	})
	t.Run("local", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, err := bloom.NewLocal(1000, 0.0001)
			must(t, err)
			again(t, f, f)
		})
	})
}

type reported interface {
	bloom.Filter
	Hidden(context.Context, string) error
	Maintain(context.Context, bloom.Source, *bloom.MaintainOptions) error
	Rebuild(context.Context, bloom.Source, *bloom.RebuildOptions) (bloom.Report, error)
	Stats() bloom.Stats
}

// again reports a key every ten seconds for a quarter of an hour, while the filter refuses it.
func again(t *testing.T, reader, worker reported) {
	builds := 0
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	source := func(ctx context.Context, after string) iter.Seq2[string, error] {
		builds++
		return bloom.Keys("a")(ctx, after)
	}
	go func() {
		ended <- worker.Maintain(ctx, source,
			&bloom.MaintainOptions{Every: -1, Check: 20 * time.Second, Rebuild: atOnce})
	}()
	refused := 0
	for range 90 {
		time.Sleep(10 * time.Second)
		if may, err := reader.MightContain(ctx, "row"); err == nil && !may {
			must(t, reader.Hidden(ctx, "row"))
			refused++
		}
	}
	cancel()
	<-ended
	if builds < 3 || builds > 5 || refused != builds {
		t.Errorf("the filter was built %d times, and refused the key %d times of 90", builds, refused)
	}
}

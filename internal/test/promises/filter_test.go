package promises

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/bloom"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

var _ cacheaside.Filter = (*bloom.Redis)(nil)

// sieve is a filter that contains exactly the keys that were added.
type sieve struct {
	mu        sync.Mutex
	keys      map[string]bool
	calls     int // lookups
	asked     int // keys in these lookups
	notFound  int
	committed int

	answer    func(ctx context.Context, keys []string) ([]bool, error) // replaces the result
	admitErr  error
	commitErr error
}

func newSieve(keys ...string) *sieve {
	s := &sieve{keys: make(map[string]bool)}
	s.AddMany(context.Background(), keys)
	return s
}

func (s *sieve) MightContain(ctx context.Context, key string) (bool, error) {
	may, err := s.MightContainMany(ctx, []string{key})
	return len(may) == 1 && may[0], err
}

func (s *sieve) MightContainMany(ctx context.Context, keys []string) ([]bool, error) {
	s.mu.Lock()
	s.calls++
	s.asked += len(keys)
	answer := s.answer
	may := s.knows(keys)
	s.mu.Unlock()
	if answer != nil {
		return answer(ctx, keys)
	}
	return may, nil
}

func (s *sieve) knows(keys []string) []bool {
	may := make([]bool, len(keys))
	for i, key := range keys {
		may[i] = s.keys[key]
	}
	return may
}

func (s *sieve) AddMany(_ context.Context, keys []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		s.keys[key] = true
	}
	return nil
}

func (s *sieve) Inserting(ctx context.Context, keys []string) (func(context.Context) error, error) {
	if s.admitErr != nil {
		return nil, s.admitErr
	}
	s.AddMany(ctx, keys)
	return func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.committed++
		return s.commitErr
	}, nil
}

func (s *sieve) NotFound(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notFound += n
}

// counts returns the lookups, the requested keys and the reports of missing rows since the previous
// call.
func (s *sieve) counts() [3]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := [3]int{s.calls, s.asked, s.notFound}
	s.calls, s.asked, s.notFound = 0, 0, 0
	return c
}

// promptSieve has an immediate result except for keys that begin with "9".
type promptSieve struct{ *sieve }

func (p promptSieve) MightContainNow(key string) (may, known bool) {
	if strings.HasPrefix(key, "9") {
		return false, false
	}
	may, _ = p.MightContain(context.Background(), key)
	return may, true
}

// lateSieve sees keys that others have added only in lookups for Fresh.
type lateSieve struct {
	*sieve
	others *sieve
}

func (l lateSieve) MightContainFresh(ctx context.Context, keys []string) ([]bool, error) {
	return l.others.MightContainMany(ctx, keys)
}

// sieves runs f with both kinds of lookup.
func sieves(t *testing.T, f func(t *testing.T, s *sieve, asked cacheaside.Filter)) {
	t.Run("flown", func(t *testing.T) {
		s := newSieve()
		f(t, s, s)
	})
	t.Run("now", func(t *testing.T) {
		s := newSieve()
		f(t, s, promptSieve{s})
	})
}

// The effect of a filter on a Loader, on every kind of Redis.
func TestFilter(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		for _, c := range []struct {
			name string
			run  func(*testing.T, backend)
		}{
			{"what is refused reaches neither Redis nor the database", testRefused},
			{"what it let through in vain is counted", testFalsePositives},
			{"a row that was admitted is found by all processes", testAdmitted},
		} {
			t.Run(c.name, func(t *testing.T) {
				flushAll(t, b)
				c.run(t, b)
			})
		}
	})
}

func testRefused(t *testing.T, b backend) {
	sieves(t, func(t *testing.T, s *sieve, asked cacheaside.Filter) {
		d := newTable(map[int]string{1: "one", 2: "two", 3: "hidden", 93: "hidden"})
		s.AddMany(t.Context(), []string{"1", "2", "92"})
		rdb := b.client(t)
		p := startOn(t, rdb, d, rarePolls, &cacheaside.LoaderOptions{Filter: asked, AuditEvery: -1})
		p.want(t, 1, "one", nil) // opens connections and reads the generation
		p.want(t, 2, "two", nil)
		s.counts()
		count := &trips{}
		rdb.(interface{ AddHook(redis.Hook) }).AddHook(count)
		for _, o := range [][]cacheaside.ReadOption{nil, {cacheaside.Fresh}} {
			for _, key := range []int{3, 93} {
				if v, err := p.Get(t.Context(), key, o...); v != "" || !errors.Is(err, cacheaside.ErrNotFound) {
					t.Fatal(v, err)
				}
			}
			if found, err := p.GetMany(t.Context(), []int{3, 4, 93}, o...); found == nil || len(found) != 0 ||
				err != nil {
				t.Fatal(found, err)
			}
			if got := s.counts(); got[1] != 5 || got[2] != 0 {
				t.Errorf("filter lookups: %v", got)
			}
		}
		if n := count.n.Load(); n != 0 {
			t.Errorf("%d trips to Redis", n)
		}
		found, err := p.GetMany(t.Context(), []int{1, 3, 2, 92, 93, 3})
		if err != nil || !maps.Equal(found, map[int]string{1: "one", 2: "two"}) {
			t.Error(found, err)
		}
		if got := s.counts(); got[1] != 5 || got[2] != 1 {
			t.Errorf("filter lookups: %v", got)
		}
		if st := p.Stats(); st.Loads != 3 || st.Filtered != 12 || st.FalsePositives != 1 || st.FilterErrors != 0 ||
			st.Gets != 18 || st.RedisErrors != 0 {
			t.Errorf("%+v", st)
		}
		flushAll(t, b)
	})
}

func testFalsePositives(t *testing.T, b backend) {
	sieves(t, func(t *testing.T, s *sieve, asked cacheaside.Filter) {
		d := newTable(map[int]string{1: "one"})
		s.AddMany(t.Context(), []string{"1", "2", "3", "4"})
		p, q := start(t, b, d, patient, &cacheaside.LoaderOptions{Filter: asked}), start(t, b, d, noMemory,
			&cacheaside.LoaderOptions{Filter: asked})
		p.want(t, 1, "one", nil)
		p.want(t, 2, "", cacheaside.ErrNotFound)
		p.settle()
		p.want(t, 2, "", cacheaside.ErrNotFound) // from memory, without a lookup
		if got := s.counts(); got != [3]int{2, 2, 1} {
			t.Errorf("after a loaded null: %v", got)
		}
		q.want(t, 2, "", cacheaside.ErrNotFound)
		if got := s.counts(); got != [3]int{1, 1, 1} {
			t.Errorf("after a null in Redis: %v", got)
		}
		q.GetMany(t.Context(), []int{1, 2, 3, 4})
		if got := s.counts(); got[1] != 4 || got[2] != 3 {
			t.Errorf("after a batch: %v", got)
		}
		if a, b := p.Stats(), q.Stats(); a.FalsePositives != 1 || b.FalsePositives != 4 || a.Filtered+b.Filtered != 0 {
			t.Errorf("%+v, %+v", a, b)
		}
		flushAll(t, b)
	})
}

func testAdmitted(t *testing.T, b backend) {
	d, s := newTable(map[int]string{}), newSieve("1")
	o := &cacheaside.LoaderOptions{Filter: s, NullTTL: time.Hour, TTL: time.Hour, MemoryTTL: time.Hour}
	p, q := start(t, b, d, patient, o), start(t, b, d, patient, o)
	for _, p := range []process{p, q} {
		p.want(t, 1, "", cacheaside.ErrNotFound) // a false positive, cached
		p.want(t, 2, "", cacheaside.ErrNotFound) // refused
		p.settle()
	}
	insert(t, p, d, 1, 2)
	for key, row := range map[int]string{1: "row 1", 2: "row 2"} {
		p.want(t, key, row, nil)
		if v, err := q.Get(t.Context(), key, cacheaside.Fresh); v != row || err != nil {
			t.Errorf("another process: %q, %v", v, err)
		}
		testenv.Eventually(t, "what another process' memory learns of", func() bool {
			v, err := q.Get(t.Context(), key)
			if err != nil && !errors.Is(err, cacheaside.ErrNotFound) {
				t.Fatalf("another process' memory: %q, %v", v, err)
			}
			return v == row && err == nil
		})
	}
}

// insert inserts rows as a user of the library does.
func insert(t testing.TB, p process, d *table, keys ...int) {
	t.Helper()
	committed, err := p.Inserting(t.Context(), keys...)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		d.write(key, fmt.Sprint("row ", key))
	}
	if err := committed(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A refusal is not cached, not even for a caller that does not know of the insert.
func TestRefusedIsNotCached(t *testing.T) {
	sieves(t, func(t *testing.T, s *sieve, asked cacheaside.Filter) {
		d := newTable(nil)
		d.rows = map[int]string{}
		p := startOn(t, nil, d, patient, &cacheaside.LoaderOptions{Filter: asked})
		p.want(t, 1, "", cacheaside.ErrNotFound)
		if found, err := p.GetMany(t.Context(), []int{1, 2}); len(found) != 0 || err != nil {
			t.Fatal(found, err)
		}
		p.settle()
		d.write(1, "one")
		s.AddMany(t.Context(), []string{"1"})
		p.want(t, 1, "one", nil)
	})
}

// A caller that comes after the commit of a row does not get an earlier result of the filter, even
// if it joins a waiting round.
func TestRefusalIsNotShared(t *testing.T) {
	sieves(t, func(t *testing.T, s *sieve, asked cacheaside.Filter) {
		d := newTable(map[int]string{})
		p := startOn(t, nil, d, patient, &cacheaside.LoaderOptions{Filter: asked, AuditEvery: -1})
		at, gone := make(chan struct{}), make(chan struct{})
		first := sync.OnceFunc(func() { close(at) })
		s.answer = func(_ context.Context, keys []string) ([]bool, error) {
			s.mu.Lock()
			may := s.knows(keys)
			s.mu.Unlock()
			first()
			<-gone
			return may, nil
		}
		get := func() func(testing.TB) (string, error) {
			return later(func() (string, error) { return p.Get(t.Context(), 1) })
		}
		early := get()
		reach(t, at, "the filter")
		insert(t, p, d, 1)
		const crowd = 20
		var late []func(testing.TB) (string, error)
		for range crowd {
			late = append(late, get())
		}
		gathered(t, p, 1, crowd)
		close(gone)
		if v, err := early(t); !errors.Is(err, cacheaside.ErrNotFound) {
			t.Errorf("a read before the commit: %q, %v", v, err)
		}
		for _, get := range late {
			if v, err := get(t); v != "row 1" || err != nil {
				t.Fatalf("a read after the commit: %q, %v", v, err)
			}
		}
		if got := s.counts(); got[0] != 2 {
			t.Errorf("%d filter lookups, want 2", got[0])
		}
	})
}

func gathered(t testing.TB, p process, key, n int) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("%d who wait", n),
		func() bool { return readerOf(p.Loader).Flights.Plain.Waiting(fmt.Sprint(key)) == n })
}

// A filter that fails in any way hides nothing.
func TestFailingFilterHidesNothing(t *testing.T) {
	broken := errors.New("broken")
	for name, answer := range map[string]func(context.Context, []string) ([]bool, error){
		"no, and an error": func(_ context.Context, keys []string) ([]bool, error) { return make([]bool, len(keys)), broken },
		"nothing":          func(context.Context, []string) ([]bool, error) { return nil, nil },
		"too few":          func(_ context.Context, keys []string) ([]bool, error) { return make([]bool, len(keys)-1), nil },
		"too many":         func(_ context.Context, keys []string) ([]bool, error) { return make([]bool, len(keys)+1), nil },
		"panic":            func(context.Context, []string) ([]bool, error) { panic(broken) },
		"panic(nil)":       func(context.Context, []string) ([]bool, error) { panic(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			d, s := newTable(map[int]string{1: "one", 2: "two", 3: "three"}), newSieve()
			s.answer = answer
			for how, filter := range map[string]cacheaside.Filter{"flown": s, "fresh": lateSieve{newSieve("1"), s}} {
				p := startOn(t, nil, d, cacheaside.Options{MemoryBytes: -1}, &cacheaside.LoaderOptions{Filter: filter})
				if found, err := p.GetMany(t.Context(), []int{1, 2, 3}, cacheaside.Fresh); len(found) != 3 ||
					err != nil {
					t.Error(how, found, err)
				}
				n := int64(3)
				if how == "fresh" || strings.Contains(name, "panic") || strings.Contains(name, "error") {
					if v, err := p.Get(t.Context(), 1, cacheaside.Fresh); v != "one" || err != nil {
						t.Error(how, v, err)
					}
					n = 4
				}
				if s := p.Stats(); s.FilterErrors != n || s.Filtered != 0 || s.FalsePositives != 0 {
					t.Errorf("%s: %+v", how, s)
				}
			}
		})
	}
	t.Run("now", func(t *testing.T) {
		p := startOn(t, nil, newTable(map[int]string{1: "one"}), patient,
			&cacheaside.LoaderOptions{Filter: panics{newSieve()}})
		p.want(t, 1, "one", nil)
		p.want(t, 2, "", cacheaside.ErrNotFound) // NotFound would panic too
		if s := p.Stats(); s.FilterErrors != 2 || s.FalsePositives != 0 {
			t.Errorf("%+v", s)
		}
		if committed, err := p.Inserting(t.Context(), 3); committed != nil || !isPanic(err) {
			t.Error(err)
		}
	})
}

type panics struct{ *sieve }

func (panics) MightContainNow(string) (may, known bool) { panic("broken") }
func (panics) NotFound(int)                             { panic("broken") }
func (panics) Inserting(context.Context, []string) (func(context.Context) error, error) {
	panic("broken")
}

func isPanic(err error) bool {
	_, ok := errors.AsType[*cacheaside.PanicError](err)
	return ok
}

// A hanging filter does not delay a caller past its context.
func TestHangingFilterKeepsDeadlines(t *testing.T) {
	d, s := newTable(map[int]string{1: "one"}), newSieve()
	gone := make(chan struct{})
	s.answer = func(context.Context, []string) ([]bool, error) {
		<-gone
		return nil, nil
	}
	p := startOn(t, nil, d, patient, &cacheaside.LoaderOptions{Filter: promptSieve{s},
		Key: cacheaside.KeyOf(func(key int) string { return fmt.Sprint(900 + key) })})
	t.Cleanup(sync.OnceFunc(func() { close(gone) }))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	one := later(func() (string, error) { return p.Get(ctx, 1) })
	many := later(func() (map[int]string, error) { return p.GetMany(ctx, []int{1, 2, 3}) })
	if _, err := one(t); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := many(t); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if s := p.Stats(); s.FilterErrors != 0 {
		t.Errorf("%+v", s)
	}
}

// The filter's methods for many keys and for Fresh are called once for concurrent requests.
func TestFilterLookupsAreBatched(t *testing.T) {
	d, s := newTable(map[int]string{1: "one"}), newSieve("1")
	p := startOn(t, nil, d, noMemory, &cacheaside.LoaderOptions{Filter: s})
	if found, err := p.GetMany(t.Context(), []int{1, 2, 3, 1}); len(found) != 1 || err != nil {
		t.Error(found, err)
	}
	if got := s.counts(); got != [3]int{1, 3, 0} {
		t.Errorf("filter lookups: %v", got)
	}
	others := newSieve("1", "2")
	d.write(2, "two")
	for _, o := range []cacheaside.Options{patient, noMemory} {
		p = startOn(t, nil, d, o, &cacheaside.LoaderOptions{Filter: lateSieve{s, others}, AuditEvery: -1})
		p.want(t, 2, "", cacheaside.ErrNotFound)
		if v, err := p.Get(t.Context(), 2, cacheaside.Fresh); v != "two" || err != nil {
			t.Error(v, err)
		}
		if found, err := p.GetMany(t.Context(), []int{1, 2, 3}, cacheaside.Fresh); len(found) != 2 || err != nil {
			t.Error(found, err)
		}
		if s, o := s.counts(), others.counts(); s != [3]int{1, 1, 0} || o != [3]int{2, 4, 0} {
			t.Errorf("filter lookups: %v, and %v for Fresh", s, o)
		}
	}
}

// Refresh, Warm and Bypass bypass the filter.
func TestRefreshWarmAndBypassIgnoreFilter(t *testing.T) {
	m, b := embedded(t)
	d, s := newTable(map[int]string{1: "one", 2: "two", 3: "three"}), newSieve()
	p := start(t, b, d, patient, &cacheaside.LoaderOptions{Filter: promptSieve{s}})
	if v, err := p.Refresh(t.Context(), 1); v != "one" || err != nil {
		t.Error(v, err)
	}
	for key, err := range warming(p.Loader, t.Context(), slices.Values([]int{2}), 0) {
		if err != nil {
			t.Error(key, err)
		}
	}
	p.Bypass(true)
	p.want(t, 3, "three", nil)
	if found, err := p.GetMany(t.Context(), []int{1, 2, 3, 4}, cacheaside.Fresh); len(found) != 3 || err != nil {
		t.Error(found, err)
	}
	p.Bypass(false)
	if got := s.counts(); got != [3]int{} {
		t.Errorf("filter lookups: %v", got)
	}
	if !m.Exists(redisKey(2)) || m.Exists(redisKey(3)) {
		t.Error(m.Keys())
	}
	if s := p.Stats(); s.Filtered+s.FilterErrors+s.FalsePositives != 0 {
		t.Errorf("%+v", s)
	}
}

// A refusal needs no Redis, under every policy for a Redis that is down.
func TestRefusedWhileRedisIsDown(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	for _, policy := range []cacheaside.DownPolicy{cacheaside.LoadWhenDown, cacheaside.StaleWhenDown,
		cacheaside.FailWhenDown} {
		d := newTable(map[int]string{1: "one"})
		p := startOn(t, rdb, d, noMemory, &cacheaside.LoaderOptions{RedisDown: policy, Filter: newSieve("1"),
			AuditEvery: -1})
		p.want(t, 2, "", cacheaside.ErrNotFound)
		if _, err := p.Get(t.Context(), 1); (err == nil) != (policy == cacheaside.LoadWhenDown) {
			t.Error(policy, err)
		}
		if s := p.Stats(); s.Filtered != 1 || s.Loads > 1 {
			t.Errorf("%+v", s)
		}
	}
}

// A filter of package bloom that has not been built hides nothing.
func TestUnbuiltFilterHidesNothing(t *testing.T) {
	r := testenv.SharedRedis(t) // with more rights than a loader needs
	b := backend{client: func(t testing.TB) redis.UniversalClient { return r.Client(t) }}
	filter, err := bloom.NewRedis(b.client(t), "rows", 1000, 0.01, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer filter.Close()
	d := newTable(map[int]string{1: "one"})
	p := start(t, b, d, noMemory, &cacheaside.LoaderOptions{Filter: filter})
	defer p.cache.Close()
	p.want(t, 1, "one", nil)
	p.want(t, 2, "", cacheaside.ErrNotFound)
	if found, err := p.GetMany(t.Context(), []int{1, 2}); len(found) != 1 || err != nil {
		t.Error(found, err)
	}
	insert(t, p, d, 2)
	p.want(t, 2, "row 2", nil)
	if s := p.Stats(); s.Filtered+s.FilterErrors != 0 {
		t.Errorf("%+v", s)
	}
}

func TestNilFilter(t *testing.T) {
	c, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	load := func(context.Context, int) (string, error) { return "", cacheaside.ErrNotFound }
	var none *sieve
	if _, err := cacheaside.NewLoader(c, "row", load, &cacheaside.LoaderOptions{Filter: none}); err == nil ||
		!strings.Contains(err.Error(), "LoaderOptions.Filter") {
		t.Error(err)
	}
	if _, err := cacheaside.NewLoader(c, "row", load, &cacheaside.LoaderOptions{Filter: nil}); err != nil {
		t.Error(err)
	}
}

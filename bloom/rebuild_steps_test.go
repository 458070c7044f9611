package bloom

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func hook(rdb redis.UniversalClient, p *tap) { rdb.(interface{ AddHook(redis.Hook) }).AddHook(p) }

// steps runs code before and after each command that a rebuild sends.
type steps struct {
	t            *testing.T
	mu           sync.Mutex
	n            int
	stale, fresh *Redis
	old          *cachedDescriptor // of stale
	rows         *table
	keys         []string // that have been added
	admitted     []string
	committed    []func(context.Context) error
	over         bool // it has failed, or the rebuild is done
}

// step inserts rows and adds their keys, by a process that knows what the filter is, and by one
// that knows only what it was. All must be found, by both.
func (s *steps) step() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.n++
	if err := s.change(); err != nil {
		s.over = true
		s.t.Errorf("step %d: %v", s.n, err)
	}
}

func (s *steps) change() error {
	ctx := s.t.Context()
	for i, f := range []*Redis{s.stale, s.fresh} {
		s.know()
		key := fmt.Sprint("step", s.n, "/", i)
		s.rows.insert(key)
		if err := f.Add(ctx, key); err != nil {
			return err
		}
		s.keys = append(s.keys, key)
	}
	row := fmt.Sprint("row", s.n)
	s.know()
	committed, err := s.stale.Inserting(ctx, []string{row})
	if err != nil {
		return err
	}
	s.admitted, s.committed = append(s.admitted, row), append(s.committed, committed)
	s.know()
	return s.look()
}

func (s *steps) know() {
	s.stale.cached.Store(s.old)
	s.fresh.cached.Store(nil)
}

// end has no step be made any more.
func (s *steps) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

// look asks for all keys at each tenth step, else for the last.
func (s *steps) look() error {
	keys := s.keys
	if s.n%10 != 0 {
		keys = keys[max(0, len(keys)-10):]
	}
	for i, f := range []*Redis{s.stale, s.fresh} {
		maybe, err := f.MightContainMany(s.t.Context(), keys)
		if at := slices.Index(maybe, false); err != nil || at >= 0 {
			return fmt.Errorf("key %d of the last %d is missed by %d: %w", at, len(maybe), i, err)
		}
	}
	return nil
}

// TestEachStepOfARebuild: at each step of a rebuild, an added key is found at once and from then
// on. Rows that were admitted during the rebuild, and committed after it, are found in the end,
// too.
func TestEachStepOfARebuild(t *testing.T) {
	pairs(t, func(t *testing.T, tapped, rdb redis.UniversalClient) {
		capacity := uint64(40_000) // two segments
		if testenv.Accepting {
			capacity = 100_000 // four
		}
		f, stale, fresh := newFilter(t, tapped, capacity), newFilter(t, rdb, capacity), newFilter(t, rdb, capacity)
		built(t, fresh, numbered(20)...)
		old, err := stale.fetchDescriptor(t.Context(), time.Minute)
		must(t, err)
		s := &steps{t: t, stale: stale, fresh: fresh, old: old, rows: &table{rows: numbered(20)}, keys: numbered(20)}
		hook(tapped, &tap{before: func([]redis.Cmder) error { s.step(); return nil },
			after: func([]redis.Cmder) { s.step() }})
		_, err = f.Rebuild(t.Context(), s.rows.read, fewer) // many rows are admitted, but not committed
		must(t, err)
		s.step()
		s.end() // a client may have something to send still
		for _, committed := range s.committed {
			must(t, committed(t.Context()))
		}
		s.know()
		for _, f := range []*Redis{stale, fresh} {
			mustHave(t, f, append(s.keys, s.admitted...), "rebuilt")
		}
		if mustBeWhole(t, fresh); s.n < 20 {
			t.Errorf("%d steps", s.n)
		}
	})
}

// TestRebuildEndsAnywhere: wherever a rebuild is ended, the old generation serves, and the next
// rebuild leaves nothing behind.
func TestRebuildEndsAnywhere(t *testing.T) {
	pairs(t, func(t *testing.T, tapped, rdb redis.UniversalClient) {
		if !testenv.Accepting && !strings.HasSuffix(t.Name(), "/redis") {
			return // each ends a rebuild at each of its commands
		}
		const capacity = 40_000 // two segments
		ended := errors.New("ended here")
		var mu sync.Mutex
		left, end := 1<<30, func(error) {}
		hook(tapped, &tap{before: func([]redis.Cmder) error {
			mu.Lock()
			defer mu.Unlock()
			if left--; left <= 0 { // the process is no more
				end(ended)
				return ended
			}
			return nil
		}})
		other := newFilter(t, rdb, capacity)
		built(t, other, numbered(100)...)
		rows := append(numbered(100), "row")
		for at, reached := 1, false; !reached; at++ {
			f, err := NewRedis(tapped, "users", capacity, 0.01, &Options{Timeout: testenv.Hang / 2, watchInterval: -1})
			must(t, err)
			ctx, cancel := context.WithCancelCause(t.Context())
			mu.Lock()
			left, end = at, cancel
			mu.Unlock()
			_, err = f.Rebuild(ctx, Keys(rows...), none)
			cancel(nil)
			must(t, f.Close())
			mu.Lock()
			reached = left > 0
			left = 1 << 30
			mu.Unlock()
			mustHave(t, other, numbered(100), fmt.Sprint("ended at ", at))
			must(t, other.Add(t.Context(), "row"))
			if reached {
				must(t, err)
				break
			}
			forgotten(t, rdb)
			report, err := other.Rebuild(t.Context(), Keys(rows...), none)
			must(t, err)
			if report.Resumed || report.Keys != uint64(len(rows)) {
				t.Errorf("after the end at %d: %+v", at, report)
			}
			mustHave(t, other, rows, fmt.Sprint("rebuilt after the end at ", at))
			mustBeWhole(t, other)
		}
	})
}

// TestPausedMakerLeavesNothing: a maker that finds that its generation was replaced, and removed,
// while it made the segments deletes what it has made since.
func TestPausedMakerLeavesNothing(t *testing.T) {
	pairs(t, func(t *testing.T, tapped, rdb redis.UniversalClient) {
		f, other := newFilter(t, tapped, 100_000), newFilter(t, rdb, 100_000)
		g, err := f.begin(t.Context(), f.capacity)
		must(t, err)
		var once sync.Once
		hook(tapped, &tap{before: func([]redis.Cmder) error {
			once.Do(func() { built(t, other, "a") })
			return nil
		}})
		if err := f.prepare(t.Context(), g); !errors.Is(err, errReplaced) {
			t.Fatal(err)
		}
		for s := range g.Segments {
			if n, err := rdb.Exists(t.Context(), segmentKey("cacheaside", "users", g.ID, s)).Result(); n != 0 ||
				err != nil {
				t.Errorf("segment %d is left, %v", s, err)
			}
		}
		mustHave(t, other, []string{"a"}, "replaced")
		mustBeWhole(t, other)
	})
}

// TestDescriptorIsLost: the next rebuild removes the segments of the lost descriptor, with any
// other contents of the records.
func TestDescriptorIsLost(t *testing.T) {
	m, rdb := testenv.Mini(t)
	f := newFilter(t, rdb, 100_000)
	for range 3 {
		_, err := f.Rebuild(t.Context(), Keys("a"), none)
		must(t, err)
		g, err := f.begin(t.Context(), f.capacity) // one that is being built, too
		must(t, err)
		must(t, f.prepare(t.Context(), g))
		m.Del(f.key)
		m.HSet(f.records, "0123456789abcdef", "no generation", "x", `{"id":"x"}`)
	}
	_, err := f.Rebuild(t.Context(), Keys("a"), none)
	must(t, err)
	mustBeWhole(t, f)
	if keys := m.Keys(); len(keys) != 4+4 {
		// segments; the descriptor, the records, the number of the last announcement, and the lock
		t.Errorf("%d keys: %s", len(keys), keys)
	}
}

// TestLossIsSeenToUnwatched: a process has noticed that Redis went back, and watches no more. What
// it builds now is not taken away when it watches again.
func TestLossIsSeenToUnwatched(t *testing.T) {
	_, rdb := testenv.Mini(t)
	f := newFilter(t, rdb, 1000)
	f.watch.rolledBack.Store(true)
	_, err := f.Rebuild(t.Context(), Keys("a"), none)
	must(t, err)
	must(t, f.discardRolledBack(t.Context())) // as a watch that begins does
	mustBeWhole(t, f)
	if d, err := f.fetchDescriptor(t.Context(), testenv.Hang); err != nil || d.Active == nil {
		t.Errorf("the new filter is gone: %+v, %v", d, err)
	}
}

// TestOldGenerationsAreBounded: where none can be removed no more are begun, and those that are
// waiting are not forgotten.
func TestOldGenerationsAreBounded(t *testing.T) {
	m, rdb := testenv.Mini(t)
	o := *rdb.Options()
	tapped := redis.NewClient(&o)
	defer tapped.Close()
	refused := errors.New("refused")
	hook(tapped, &tap{before: func(cmds []redis.Cmder) error {
		if cmds[0].Name() == "unlink" {
			return refused
		}
		return nil
	}})
	f := newFilter(t, tapped, 1000)
	for range maxOld + 5 {
		g, err := f.begin(t.Context(), f.capacity)
		if err != nil {
			break
		}
		must(t, f.prepare(t.Context(), g))
		must(t, f.activate(t.Context(), g))
	}
	if d, err := f.fetchDescriptor(t.Context(), time.Minute); err != nil || f.Stats().Malformed != 0 ||
		d.Active == nil || len(d.Old) < maxOld/2 {
		t.Errorf("%+v, %v, malformed: %d", d, err, f.Stats().Malformed)
	}
	must(t, newFilter(t, rdb, 1000).remove(t.Context()))
	mustBeWhole(t, f)
	if keys := m.Keys(); len(keys) > 4 { // a segment, the descriptor, the records, the number of the last announcement
		t.Errorf("%d keys are left", len(keys))
	}
}

func init() { testenv.RegisterChild("rebuild", rebuildInChild) }

// rebuildInChild reads 100 keys, at 100 in a second, and adds them by twenties.
func rebuildInChild() {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("BLOOM_ADDR")})
	f, err := NewRedis(rdb, "users", 100_000, 0.01, &Options{Timeout: testenv.Hang / 2, watchInterval: -1})
	if err != nil {
		panic(err)
	}
	out := bufio.NewWriter(os.Stdout)
	source := &table{rows: numbered(100), at: func(key string) error {
		fmt.Fprintln(out, key)
		return out.Flush()
	}}
	_, err = f.Rebuild(context.Background(), source.read, &RebuildOptions{Settle: -1, Rate: 100, batchSize: 20})
	fmt.Fprintln(out, "done", err)
	out.Flush()
}

// TestRebuildIsKilled: by SIGKILL, when it has added something. The next one reads all.
func TestRebuildIsKilled(t *testing.T) {
	r := testenv.SharedRedis(t)
	rdb := r.Client(t)
	f := newFilter(t, rdb, 100_000)
	built(t, f, numbered(50)...)
	child := testenv.SpawnChild(t, "rebuild", "BLOOM_ADDR="+r.Addr)
	for range 45 { // the first 40 are added then
		if _, err := child.ReadLine(testenv.Hang); err != nil {
			t.Fatal(err)
		}
	}
	mustHave(t, f, numbered(50), "rebuilding")
	must(t, f.Add(t.Context(), "added"))
	child.Kill()
	mustHave(t, f, append(numbered(50), "added"), "killed")
	if maybe := mightContain(t, f, "nobody"); maybe {
		t.Error("the old generation does not serve")
	}
	if _, err := f.Rebuild(t.Context(), Keys(numbered(100)...), none); !errors.Is(err, ErrRebuilding) {
		t.Error("its lock has died with it at once")
	}
	forgotten(t, rdb)
	rows := append(numbered(100), "added")
	report, err := f.Rebuild(t.Context(), Keys(rows...), none)
	must(t, err)
	if report.Resumed || report.Keys != 101 {
		t.Errorf("%+v", report)
	}
	mustHave(t, f, rows, "rebuilt")
	mustBeWhole(t, f)
}

package bloom

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/bloom/internal/fill"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// table is a source whose rows come and go. at is called before each key.
type table struct {
	mu   sync.Mutex
	rows []string // sorted
	at   func(key string) error
}

func (t *table) insert(keys ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, keys...)
	slices.Sort(t.rows)
}

func (t *table) next(after string) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, found := slices.BinarySearch(t.rows, after)
	if found {
		at++
	}
	if at == len(t.rows) {
		return "", false
	}
	return t.rows[at], true
}

func (t *table) read(ctx context.Context, after string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for {
			key, ok := t.next(after)
			if !ok {
				return
			}
			if t.at != nil {
				if err := t.at(key); err != nil {
					yield("", err)
					return
				}
			}
			if !yield(key, nil) {
				return
			}
			after = key
		}
	}
}

// forgotten does away with the lock of a rebuild that was killed.
func forgotten(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	must(t, rdb.Del(t.Context(), "cacheaside::bloom-rebuild:{users}").Err())
}

// TestRebuild: keys that are added during a rebuild are not lost.
func TestRebuild(t *testing.T) {
	oneServer(t, func(t *testing.T, rdb redis.UniversalClient) {
		f, other := newFilter(t, rdb, 60_000), newFilter(t, rdb, 60_000)
		n := sized(20_000, 4000)
		keys := numbered(n)
		for round, resumed := range []bool{false, false} {
			stop, begun := make(chan struct{}), make(chan struct{})
			source, begin := Keys(keys...), sync.OnceFunc(func() { close(begun) })
			reading := func(ctx context.Context, after string) iter.Seq2[string, error] {
				begin()
				return source(ctx, after)
			}
			var added []string
			var all sync.WaitGroup
			all.Go(func() {
				<-begun // what was added before, and is not in the source, is gone
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					key := fmt.Sprint("added", round, "/", i)
					if err := other.Add(t.Context(), key); err != nil {
						t.Error(err)
						return
					}
					added = append(added, key)
				}
			})
			report, err := f.Rebuild(t.Context(), reading, none)
			close(stop)
			all.Wait()
			must(t, err)
			if report.Keys != uint64(n) || report.Resumed != resumed || !report.State.Built || report.State.Building ||
				report.State.Keys < uint64(n)*975/1000 {
				t.Fatalf("%+v", report)
			}
			for _, f := range []*Redis{f, other} {
				mustHave(t, f, append(slices.Clone(keys[:2000]), added...), "rebuilt")
				mustHave(t, f, slices.Clone(keys[n*95/100:]), "rebuilt")
				mustBeWhole(t, f)
			}
			t.Logf("%+v, %d added", report, len(added))
		}
	})
}

// TestRebuildIsOneAtATime: and if the lock that sees to that fails, no harm is done.
func TestRebuildIsOneAtATime(t *testing.T) {
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f, other := newFilter(t, rdb, 1000), newFilter(t, rdb, 1000)
		began, resume := make(chan struct{}), make(chan struct{})
		source := &table{rows: numbered(100)}
		var once sync.Once // it finds that another has taken its place, and begins anew
		source.at = func(key string) error {
			if key == source.rows[50] {
				once.Do(func() {
					close(began)
					<-resume
				})
			}
			return nil
		}
		failed := make(chan error, 1)
		go func() {
			_, err := f.Rebuild(t.Context(), source.read, none)
			failed <- err
		}()
		<-began
		for _, f := range []*Redis{f, other} {
			if _, err := f.Rebuild(t.Context(), Keys(), none); !errors.Is(err, ErrRebuilding) {
				t.Errorf("the second: %v", err)
			}
		}
		forgotten(t, rdb)
		_, err := other.Rebuild(t.Context(), Keys(numbered(100)...), none)
		must(t, err)
		source.insert("added")
		must(t, other.Add(t.Context(), "added"))
		close(resume)
		must(t, <-failed)
		mustHave(t, f, append(numbered(100), "added"), "rebuilt by two")
		mustBeWhole(t, f)
	})
}

// TestRebuildIsReplaced: a process that has lost its lock, and then its generation, does not put it
// in the place of the other's.
func TestRebuildIsReplaced(t *testing.T) {
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f, other := newFilter(t, rdb, 1000), newFilter(t, rdb, 2000)
		source := &table{rows: numbered(100)}
		var once sync.Once
		source.at = func(key string) error {
			once.Do(func() {
				forgotten(t, rdb)
				_, err := other.Rebuild(t.Context(), Keys(numbered(100)...), none)
				must(t, err)
				must(t, other.Add(t.Context(), "added"))
				source.insert("added")
			})
			return nil
		}
		report, err := f.Rebuild(t.Context(), source.read, none)
		must(t, err) // begun anew
		if report.State.Capacity != 1000 {
			t.Errorf("%+v", report)
		}
		mustHave(t, f, append(numbered(100), "added"), "replaced")
		mustBeWhole(t, f)
	})
}

// TestSwapCompares: what another has changed is not overwritten.
func TestSwapCompares(t *testing.T) {
	backends(t, func(t *testing.T, rdb redis.UniversalClient) {
		f, other := newFilter(t, rdb, 1000), newFilter(t, rdb, 1000)
		d, err := f.fetchDescriptor(t.Context(), time.Minute)
		must(t, err)
		built(t, other, "a")
		to := d.copy()
		if done, err := f.swap(t.Context(), d, to); done || err != nil {
			t.Fatal("what another has built is forgotten", err)
		}
		mustHave(t, f, []string{"a"}, "swapped")
	})
}

// TestRebuildLosesASegment: it is begun anew, in the same Rebuild.
func TestRebuildLosesASegment(t *testing.T) {
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 100_000) // four segments
		for name, at := range map[string]int{"before adding": 0, "behind the last": 99} {
			source := &table{rows: numbered(100)}
			var once sync.Once
			source.at = func(key string) error {
				if key == source.rows[at] {
					once.Do(func() { loseSegment(t, f) })
				}
				return nil
			}
			_, err := f.Rebuild(t.Context(), source.read, none)
			must(t, err)
			mustHave(t, f, numbered(100), name)
			mustBeWhole(t, f)
		}
	})
}

func loseSegment(t testing.TB, f *Redis) {
	d, err := f.fetchDescriptor(t.Context(), time.Minute)
	must(t, err)
	must(t, f.rdb.Del(t.Context(), segmentKey(f.options.Prefix, f.name, d.Building.ID, 2)).Err())
}

// TestFlushWhileRebuilding: all is lost, also the lock. Nothing is hidden, neither then nor when it
// is built again.
func TestFlushWhileRebuilding(t *testing.T) {
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f, other := newFilter(t, rdb, 1000), newFilter(t, rdb, 1000)
		built(t, f, numbered(100)...)
		source := &table{rows: numbered(100)}
		var once sync.Once
		source.at = func(key string) error {
			if key == source.rows[50] {
				once.Do(func() {
					flush(t, rdb)
					mustHave(t, other, append(numbered(100), "nobody"), "flushed")
					must(t, other.Add(t.Context(), "added"))
					source.insert("added")
				})
			}
			return nil
		}
		_, err := f.Rebuild(t.Context(), source.read, none)
		must(t, err)
		mustHave(t, other, append(numbered(100), "added"), "rebuilt")
		mustBeWhole(t, f)
	})
}

// TestSourceOfARebuildFails: the error is the source's, the old generation serves, and the next
// Rebuild reads all.
func TestSourceOfARebuildFails(t *testing.T) {
	private := errors.New("the source's own")
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f, next := newFilter(t, rdb, 1000), newFilter(t, rdb, 1000)
		built(t, f, "old")
		source := &table{rows: numbered(100)}
		ctx, cancel := context.WithCancelCause(t.Context()) // so that it is not tried again
		defer cancel(nil)
		source.at = func(key string) error {
			if key == source.rows[30] {
				cancel(private)
				return private
			}
			return nil
		}
		_, err := f.Rebuild(ctx, source.read, &RebuildOptions{Settle: -1, batchSize: 20})
		if !errors.Is(err, private) {
			t.Fatal(err)
		}
		mustHave(t, next, []string{"old"}, "failed")
		source.insert("added")
		must(t, next.Add(t.Context(), "added"))
		first := ""
		source.at = func(key string) error {
			first = cmp.Or(first, key)
			return nil
		}
		report, err := next.Rebuild(t.Context(), source.read, none)
		must(t, err)
		mustHave(t, f, append(numbered(100), "added"), "rebuilt")
		mustBeWhole(t, f)
		if first != source.rows[0] || report.Resumed || report.Keys != 101 {
			t.Errorf("from %s, %+v", first, report)
		}
	})
}

// TestOtherParameters: nothing is left of a rebuild that was begun for another size.
func TestOtherParameters(t *testing.T) {
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 100_000)
		g, err := f.begin(t.Context(), f.capacity)
		must(t, err)
		must(t, f.prepare(t.Context(), g))
		other := newFilter(t, rdb, 1000)
		report, err := other.Rebuild(t.Context(), Keys(numbered(100)...), none)
		must(t, err)
		if report.Resumed || report.State.Capacity != 1000 {
			t.Fatalf("%+v", report)
		}
		mustHave(t, f, numbered(100), "of another size")
		mustBeWhole(t, f)
		if n := rdb.Exists(t.Context(), segmentKey(f.options.Prefix, f.name, g.ID, 1)).Val(); n != 0 {
			t.Error("a segment is left")
		}
		if left := rdb.HKeys(t.Context(), f.records).Val(); len(left) > 1 {
			t.Error(left)
		}
	})
}

// TestGrowth: State has the number of keys also where the filter was made for fewer, and the next
// filter is larger.
func TestGrowth(t *testing.T) {
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 100)
		report, err := f.Rebuild(t.Context(), Keys(numbered(50)...), none)
		must(t, err)
		if report.State.Capacity != 100 || report.State.Keys < 45 || report.State.Keys > 55 {
			t.Fatalf("%+v", report)
		}
		for _, key := range numbered(300) {
			must(t, f.Add(t.Context(), key))
		}
		if s, err := f.State(t.Context()); err != nil || s.Keys < 270 || s.Keys > 330 {
			t.Fatalf("%+v, %v", s, err)
		}
		report, err = f.Rebuild(t.Context(), Keys(numbered(300)...), none)
		must(t, err)
		if report.State.Capacity != 400 {
			t.Fatalf("%+v", report)
		}
		report, err = f.Rebuild(t.Context(), Keys(numbered(10)...),
			&RebuildOptions{Settle: -1, Capacity: 20, AllowFewer: true})
		must(t, err)
		if report.State.Capacity != 20 {
			t.Fatalf("%+v", report)
		}
		mustBeWhole(t, f)
	})
}

// TestCommittedBehindTheReading: a row that was admitted before the rebuild began, and that is
// committed when the table has been read, is found once committed has returned.
func TestCommittedBehindTheReading(t *testing.T) {
	twoServers(t, func(t *testing.T, rdb redis.UniversalClient) {
		f, writer := newFilter(t, rdb, 1000), newFilter(t, rdb, 1000)
		built(t, f)
		committed, err := writer.Inserting(t.Context(), []string{"row"})
		must(t, err)
		_, err = f.Rebuild(t.Context(), Keys(), fewer)
		must(t, err)
		must(t, committed(t.Context()))
		mustHave(t, f, []string{"row"}, "committed")
	})
}

// TestAdmitInParts: many keys are added in parts, which limits the memory that this takes. If a
// rebuild begins between two parts, its filter lacks the keys of the first one until committed has
// added them.
func TestAdmitInParts(t *testing.T) {
	_, rdb := testenv.Mini(t)
	writer, f := newFilter(t, rdb, 1000), newFilter(t, rdb, 1000)
	built(t, f)
	keys := numbered(maxPart + maxOneTripKeys + 1)
	isTouch := func(cmd redis.Cmder) bool { return len(cmd.Args()) > 1 && cmd.Args()[1] == touchScript }
	touches := 0
	var g *generation
	hook(rdb, &tap{after: func(cmds []redis.Cmder) {
		if !slices.ContainsFunc(cmds, isTouch) {
			return
		}
		if touches++; touches > 1 {
			return
		}
		var err error
		if g, err = f.begin(t.Context(), f.capacity); err == nil {
			err = f.prepare(t.Context(), g)
		}
		if err != nil {
			t.Error(err)
		}
	}})
	committed, err := writer.Inserting(t.Context(), keys)
	must(t, err)
	if touches != 3 { // after the first part, and for the second one after each of the generations
		t.Fatalf("the descriptor was read %d times", touches)
	}
	must(t, f.activate(t.Context(), g)) // it has read the table before the rows were committed
	must(t, committed(t.Context()))
	mustHave(t, f, keys[:100], "committed")
}

// TestSettle: a row whose process has died behind its commit, which came soon enough, is found all
// the same.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		f, err := NewRedis(rdb, "users", 1000, 0.01, nil)
		must(t, err)
		defer f.Close()
		built(t, f)
		_, err = f.Inserting(t.Context(), []string{"row"})
		must(t, err)
		source := &table{}
		time.AfterFunc(9*time.Second, func() { source.insert("row") })
		began := time.Now()
		_, err = f.Rebuild(t.Context(), source.read, nil)
		must(t, err)
		if mustHave(t, f, []string{"row"}, "committed in time"); time.Since(began) < 10*time.Second {
			t.Error("it has not waited")
		}
	})
}

// TestCursorIsBehindTheKeys: where Redis fails, only what was added is not read again.
func TestCursorIsBehindTheKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{failAdd: fill.MaxFailures}
		report, err := rebuild(t.Context(), f, Keys(numbered(100)...), &RebuildOptions{Settle: -1, batchSize: 30})
		must(t, err)
		if f.holds(t, 100); report.Keys != 100 {
			t.Errorf("%+v", report)
		}
	})
}

// TestLostSegment: a segment of a filter that serves is deleted: its keys are "maybe", the others'
// are not.
func TestLostSegment(t *testing.T) {
	backends(t, func(t *testing.T, rdb redis.UniversalClient) {
		f := newFilter(t, rdb, 100_000)
		g := built(t, f, numbered(1000)...)
		must(t, rdb.Del(t.Context(), segmentKey(f.options.Prefix, f.name, g.ID, 1)).Err())
		mustHave(t, f, numbered(1000), "lost")
		must(t, f.AddMany(t.Context(), []string{"a", "b", "c", "d", "e", "f", "g", "h"}))
		mustHave(t, f, []string{"a", "b", "c", "d", "e", "f", "g", "h"}, "added")
		if rdb.Exists(t.Context(), segmentKey(f.options.Prefix, f.name, g.ID, 1)).Val() != 0 {
			t.Error("it was made again")
		}
	})
}

// TestSegmentsAreMadeOnce: what makes them is sent again by a network when they have been filled,
// and changes nothing.
func TestSegmentsAreMadeOnce(t *testing.T) {
	pairs(t, func(t *testing.T, tapped, rdb redis.UniversalClient) {
		var sets [][]any
		tapped.(interface{ AddHook(redis.Hook) }).AddHook(&tap{before: func(cmds []redis.Cmder) error {
			for _, cmd := range cmds {
				if cmd.Name() == "set" {
					sets = append(sets, cmd.Args())
				}
			}
			return nil
		}})
		f := newFilter(t, tapped, 100_000)
		_, err := f.Rebuild(t.Context(), Keys(numbered(1000)...), none)
		must(t, err)
		if len(sets) != 4 {
			t.Fatalf("%d segments", len(sets))
		}
		for _, args := range sets {
			if err := rdb.Do(t.Context(), args...).Err(); err != nil && !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
		}
		mustHave(t, f, numbered(1000), "made again")
	})
}

// TestCloseEndsARebuild: and another can begin.
func TestCloseEndsARebuild(t *testing.T) {
	rdb := testenv.SharedRedis(t).Client(t)
	f := newFilter(t, rdb, 1000)
	began := make(chan struct{})
	source := func(ctx context.Context, after string) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			close(began)
			<-ctx.Done()
			yield("", ctx.Err())
		}
	}
	failed := make(chan error, 1)
	go func() {
		_, err := f.Rebuild(t.Context(), source, none)
		failed <- err
	}()
	<-began
	must(t, f.Close())
	if err := <-failed; !errors.Is(err, errClosed) {
		t.Error(err)
	}
	if _, err := f.Rebuild(t.Context(), Keys(), none); !errors.Is(err, errClosed) {
		t.Error(err)
	}
	if err := f.Maintain(t.Context(), Keys(), nil); !errors.Is(err, errClosed) {
		t.Error(err)
	}
	_, err := newFilter(t, rdb, 1000).Rebuild(t.Context(), Keys("a"), none)
	must(t, err)
}

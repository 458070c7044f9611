package bloom

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// counted is a source that counts who reads it from the start.
func counted(of Source, n *atomic.Int64) Source {
	return func(ctx context.Context, after string) iter.Seq2[string, error] {
		if after == "" {
			n.Add(1)
		}
		return of(ctx, after)
	}
}

// TestMaintain: when it builds, by the clock of a bubble.
func TestMaintain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := testenv.Mini(t)
		ctx, cancel := context.WithCancel(t.Context())
		f := bubbled(t, rdb, 4000)
		var built, failed atomic.Int64
		ended := make(chan error, 2)
		o := &MaintainOptions{Every: 3 * time.Hour, Rebuild: fewer, Failed: func(error) { failed.Add(1) }}
		second, leave := context.WithCancel(ctx)
		for f, ctx := range map[*Redis]context.Context{f: ctx, bubbled(t, rdb, 4000): second} {
			go func() { ended <- f.Maintain(ctx, counted(Keys(numbered(2200)...), &built), o) }()
			// in a bubble the first takes no time, and the second may have found that it is due
			// before that
			time.Sleep(time.Second)
		}
		after := func(d time.Duration, want int64, why string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := built.Load(); got != want || failed.Load() != 0 {
				t.Fatalf("built %d times, not %d: %s; %d have failed", got, want, why, failed.Load())
			}
		}
		after(3*time.Minute, 1, "there was none")
		after(170*time.Minute, 1, "nothing was amiss")
		after(20*time.Minute, 2, "it was old")

		must(t, f.Deleted(ctx, 1050))
		after(5*time.Minute, 2, "a few rows were deleted")
		must(t, f.Deleted(ctx, 100))
		after(5*time.Minute, 3, "half of the rows were")
		after(5*time.Minute, 3, "they are forgotten")

		d := f.cached.Load()
		m.Del(segmentKey("cacheaside", "users", d.Active.ID, 0))
		after(5*time.Minute, 4, "a segment is lost")
		mustHave(t, f, numbered(2200), "built again")
		mustBeWhole(t, f)

		must(t, f.AddMany(ctx, numbered(4800)))
		after(5*time.Minute, 5, "it was too full")
		if s, err := f.State(ctx); err != nil || s.Capacity != 8000 {
			t.Fatal(s, err)
		}
		g, err := f.begin(ctx, 8000)
		must(t, err)
		must(t, f.prepare(ctx, g))
		after(5*time.Minute, 6, "a rebuild was left half done")
		leave() // of two, the one that comes later may take the new filter for an older one, and build once more
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		m.FlushAll()
		after(5*time.Minute, 7, "it was lost")
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestMaintainAfterALoss: that Redis has lost everything is seen to before the filter is built
// again, also by a process that has not noticed it until then: it does not take the new filter for
// an older one, and build once more.
func TestMaintainAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := testenv.Mini(t)
		f, err := NewRedis(rdb, "users", 1000, 0.01, &Options{watchInterval: time.Hour})
		must(t, err)
		t.Cleanup(func() { f.Close() })
		ctx, cancel := context.WithCancel(t.Context())
		var built atomic.Int64
		ended := make(chan error, 1)
		go func() { ended <- f.Maintain(ctx, counted(Keys("a"), &built), &MaintainOptions{Rebuild: none}) }()
		for want := range int64(3) {
			time.Sleep(3 * time.Minute) // until the next check, which comes before the watch looks
			synctest.Wait()
			if got := built.Load(); got != want+1 {
				t.Fatalf("after %d losses: built %d times", want, got)
			}
			if got := f.Stats().RolledBack; got != want {
				t.Errorf("%d losses were noticed %d times", want, got)
			}
			mustHave(t, f, []string{"a"}, "built again")
			synctest.Wait() // it has left a mark
			m.FlushAll()
		}
		time.Sleep(3 * time.Hour) // the watch looks
		synctest.Wait()
		if got := built.Load(); got != 4 {
			t.Errorf("after 3 losses: built %d times", got)
		}
		cancel()
		<-ended
	})
}

// TestMaintainOnce: where several processes have found a filter to be due, the first of them builds
// it, and those that come after it has do not do so again.
func TestMaintainOnce(t *testing.T) {
	_, rdb := testenv.Mini(t)
	ctx, first, second := t.Context(), newFilter(t, rdb, 1000), newFilter(t, rdb, 1000)
	var w maintainState
	due, err := second.due(ctx, (&MaintainOptions{Rebuild: none}).withDefaults(), &w)
	if err != nil || !due {
		t.Fatalf("a filter that was never built: due %v, %v", due, err)
	}
	must(t, errorOf(first.Rebuild(ctx, Keys(numbered(100)...), none)))
	late := *none
	late.replaces = &w.activeID
	if _, err := second.Rebuild(ctx, Keys(numbered(100)...), &late); !errors.Is(err, ErrRebuilding) {
		t.Errorf("built again: %v", err)
	}
	d, err := first.fetchDescriptor(ctx, testenv.Hang)
	must(t, err)
	late.replaces = &d.Active.ID
	must(t, errorOf(second.Rebuild(ctx, Keys(numbered(100)...), &late)))
}

func bubbled(t *testing.T, rdb redis.UniversalClient, capacity uint64) *Redis {
	// days pass here, and the checks of the watch would take most of the time
	f, err := NewRedis(rdb, "users", capacity, 0.01, &Options{watchInterval: 10 * time.Second})
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// TestMaintainDoesNotRepeatItself: a filter that would be as small again is not built again and
// again.
func TestMaintainDoesNotRepeatItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		local, err := NewLocal(1000, 0.01)
		must(t, err)
		defer local.Close()
		for name, maintain := range map[string]func(context.Context, Source,
			*MaintainOptions) error{"redis": bubbled(t, rdb, 1000).Maintain, "local": local.Maintain} {
			ctx, cancel := context.WithCancel(t.Context())
			var built atomic.Int64
			ended := make(chan error, 1)
			go func() {
				ended <- maintain(ctx, counted(Keys(numbered(3000)...), &built),
					&MaintainOptions{Rebuild: &RebuildOptions{Settle: -1, Capacity: 1000}})
			}()
			time.Sleep(30 * time.Minute)
			cancel()
			<-ended
			if built.Load() != 1 {
				t.Errorf("%s: built %d times", name, built.Load())
			}
		}
	})
}

// TestMaintainGoesOn: Maintain reports errors and continues.
func TestMaintainGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rdb := testenv.Mini(t)
		ctx, cancel := context.WithCancel(t.Context())
		f := bubbled(t, rdb, 1000)
		var failed atomic.Int64
		ended := make(chan error, 1)
		broken := errors.New("the source's own")
		var fail atomic.Bool
		fail.Store(true)
		source := &table{rows: numbered(10), at: func(string) error {
			if fail.Load() {
				return broken
			}
			return nil
		}}
		go func() {
			ended <- f.Maintain(ctx, source.read, &MaintainOptions{Rebuild: none, Failed: func(err error) {
				if errors.Is(err, broken) {
					failed.Add(1)
				}
			}})
		}()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if failed.Load() < 2 {
			t.Error("no failure was reported")
		}
		fail.Store(false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		mustBeWhole(t, f)
		must(t, m.Set(f.key, `{"format":1,"stamp":7`)) // an unreadable descriptor
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		f.cached.Store(nil)
		mustBeWhole(t, f)
		cancel()
		<-ended
	})
}

// TestMaintainEndsWithTheFilter: a caller that closes it need not end the context, too.
func TestMaintainEndsWithTheFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		f := bubbled(t, rdb, 1000)
		ended := make(chan error, 1)
		go func() { ended <- f.Maintain(t.Context(), Keys("a"), &MaintainOptions{Rebuild: none}) }()
		time.Sleep(time.Minute)
		f.Close()
		if err := <-ended; !errors.Is(err, errClosed) {
			t.Error(err)
		}
	})
}

// staleRedis is a Redis that has a filter, and has saved itself; a key that was added after that is
// lost when it starts again.
func staleRedis(t *testing.T) (r *testenv.Redis, rdb *redis.Client, f *Redis) {
	r = testenv.StartRedis(t)
	rdb = r.Client(t)
	f = newFilter(t, rdb, 100_000)
	_, err := f.Rebuild(t.Context(), Keys(numbered(100)...), none)
	must(t, err)
	must(t, rdb.Save(t.Context()).Err())
	return r, rdb, f
}

func restart(t *testing.T, r *testenv.Redis, rdb *redis.Client) {
	r.Kill()
	r.Restart(t)
	testenv.Eventually(t, "it is back", func() bool { return rdb.Ping(t.Context()).Err() == nil })
}

// TestCountingPauses: Maintain counts the bits again after a hundred times the duration of the last
// count, and after an hour at most. It does not pause after a count that has failed.
func TestCountingPauses(t *testing.T) {
	m, rdb := testenv.Mini(t)
	f := newFilter(t, rdb, 1000)
	g := built(t, f, "a")
	must(t, f.change(t.Context(), func(to *descriptor) error {
		to.Active.RebuildTime = 0 // after a longer rebuild, Maintain would pause first
		return nil
	}))
	m.Del(segmentKey("cacheaside", "users", g.ID, 0)) // a count finds that the filter is due
	o := (*MaintainOptions)(nil).withDefaults()
	now := time.Now()
	for _, c := range []struct {
		since, took time.Duration
		due         bool
	}{
		{time.Second, 30 * time.Second, false},
		{time.Second, 10 * time.Minute, false},
		{101 * time.Second, time.Second, true},
		{61 * time.Minute, 10 * time.Minute, true},
	} {
		w := &maintainState{countedAt: now.Add(-c.since), countTime: c.took}
		if due, err := f.due(t.Context(), o, w); due != c.due || err != nil {
			t.Errorf("%v after a count of %v: %v, %v", c.since, c.took, due, err)
		}
	}
	failed := errors.New("failed")
	var fail atomic.Bool
	fail.Store(true)
	hook(rdb, &tap{before: func(cmds []redis.Cmder) error {
		if len(cmds[0].Args()) > 1 && cmds[0].Args()[1] == countScript.Hash && fail.Load() {
			time.Sleep(10 * time.Millisecond)
			return failed
		}
		return nil
	}})
	w := &maintainState{}
	if _, err := f.due(t.Context(), o, w); !errors.Is(err, failed) || w.countTime != 0 {
		t.Errorf("a failed count of %v: %v", w.countTime, err)
	}
	fail.Store(false)
	if due, err := f.due(t.Context(), o, w); !due || err != nil {
		t.Error("not counted again after a failure", err)
	}
}

// TestRestartIsNoticed: what a server has forgotten is "maybe" from then on, and built again.
func TestRestartIsNoticed(t *testing.T) {
	r, rdb, f := staleRedis(t)
	var w maintainState
	o := (*MaintainOptions)(nil).withDefaults()
	if due, err := f.due(t.Context(), o, &w); due || err != nil {
		t.Fatal("a filter that was just built is due", err)
	}
	must(t, f.Add(t.Context(), "added"))
	restart(t, r, rdb)
	due, err := f.due(t.Context(), o, &w)
	must(t, err)
	if !due {
		t.Fatal("it is not noticed")
	}
	mustHave(t, f, []string{"added"}, "noticed")
	_, err = f.Rebuild(t.Context(), Keys(append(numbered(100), "added")...), none)
	must(t, err)
	mustHave(t, f, append(numbered(100), "added"), "rebuilt")
	mustBeWhole(t, f)
	if due, err := f.due(t.Context(), o, &w); due || err != nil {
		t.Fatal("it is noticed again", err)
	}
}

// TestServersOfAnEarlierVersion: a filter whose descriptor does not name its servers, because an
// earlier version has built it, is rebuilt. Otherwise, no restart would be noticed.
func TestServersOfAnEarlierVersion(t *testing.T) {
	_, _, f := staleRedis(t)
	must(t, f.change(t.Context(), func(to *descriptor) error {
		to.Active.ServerRuns = nil
		return nil
	}))
	w := &maintainState{}
	if due, err := f.due(t.Context(), (*MaintainOptions)(nil).withDefaults(), w); !due || err != nil {
		t.Fatal("the filter is not rebuilt", err)
	}
	if mightContain(t, f, "nobody") {
		t.Error("the filter does not serve until it is rebuilt")
	}
	built := *none
	built.replaces = &w.activeID
	must(t, errorOf(f.Rebuild(t.Context(), Keys(numbered(100)...), &built)))
	if due, err := f.due(t.Context(), (*MaintainOptions)(nil).withDefaults(), w); due || err != nil {
		t.Error("the filter is rebuilt again", err)
	}
	if servers := f.cached.Load().Active.ServerRuns; len(servers) != 1 {
		t.Errorf("its servers are %q", servers)
	}
}

// TestRestartWhileRebuilding: if a server restarts during a rebuild, the new filter is not put in
// place.
func TestRestartWhileRebuilding(t *testing.T) {
	r, rdb, f := staleRedis(t)
	restarts := 0
	source := &table{rows: numbered(100)}
	source.at = func(key string) error {
		if key == source.rows[50] && restarts == 0 {
			restarts++
			must(t, rdb.Save(t.Context()).Err())
			must(t, f.Add(t.Context(), "added"))
			restart(t, r, rdb)
			source.insert("added") // all that is behind the cursor is lost, and so is this; it is before the cursor
		}
		return nil
	}
	_, err := f.Rebuild(t.Context(), source.read, none)
	must(t, err)
	mustHave(t, f, append(numbered(100), "added"), "rebuilt")
	mustBeWhole(t, f)
}

// TestServers: serverRuns returns one ID for each master, and none if the masters return none.
func TestServers(t *testing.T) {
	backends(t, func(t *testing.T, rdb redis.UniversalClient) {
		want := 1
		switch c := rdb.(type) {
		case *redis.ClusterClient:
			if len(c.Options().Addrs) > 1 {
				want = 3
			}
		case *redis.Client:
			if c.Options().Addr == "" || c.Info(t.Context(), "server").Err() != nil {
				want = 0
			}
		}
		ids, err := newFilter(t, rdb, 1000).serverRuns(t.Context())
		if err != nil || len(ids) != want {
			t.Errorf("%v, %v", ids, err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		r := testenv.StartRedis(t)
		must(t, r.Client(t).Do(t.Context(), "acl", "setuser", "app", "on", "nopass", "~*", "&*", "+@all",
			"-info").Err())
		o := r.Options()
		o.Username, o.Password = "app", "x"
		f := newFilter(t, redis.NewClient(o), 1000)
		defer f.rdb.Close()
		_, err := f.Rebuild(t.Context(), Keys("a"), none)
		must(t, err)
		if ids, err := f.serverRuns(t.Context()); len(ids) != 0 || err != nil {
			t.Error(ids, err)
		}
		if due, err := f.due(t.Context(), (*MaintainOptions)(nil).withDefaults(), &maintainState{}); due || err != nil {
			t.Error(due, err)
		}
		mustBeWhole(t, f)
	})
	t.Run("panics", func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		f := newFilter(t, rdb, 1000)
		hook(rdb, &tap{before: func(cmds []redis.Cmder) error { panic("of a hook") }})
		if ids, err := f.serverRuns(t.Context()); err == nil {
			t.Error(ids)
		}
	})
	for info, want := range map[string]string{"# Server\r\nrun_id:0123abcd\r\ntcp_port:1": "0123abcd", "": "",
		"run_id:": "", "run_id:a b": "", fmt.Sprintf("run_id:%0100d", 1): ""} {
		if got := runID(info); got != want {
			t.Errorf("%q: %q", info, got)
		}
	}
}

// TestMaintainOfAnEmptyTable: Maintain takes an empty table for normal if there is no filter. It
// hides no row, and builds the filter when there are rows.
func TestMaintainOfAnEmptyTable(t *testing.T) {
	var log testenv.Log
	_, rdb := testenv.Mini(t)
	shared, err := NewRedis(rdb, "users", 1000, 0.01, &Options{Logger: log.Logger()})
	must(t, err)
	t.Cleanup(func() { shared.Close() })
	local, err := NewLocal(1000, 0.01)
	must(t, err)
	for _, f := range []interface {
		rebuildable
		Maintain(context.Context, Source, *MaintainOptions) error
		Stats() Stats
	}{shared, local} {
		var reads, keys atomic.Int64
		source := func(context.Context, string) iter.Seq2[string, error] {
			reads.Add(1)
			return Keys(numbered(int(keys.Load()))...)(t.Context(), "")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- f.Maintain(ctx, source, &MaintainOptions{Check: 100 * time.Millisecond, Rebuild: none,
				Failed: func(err error) { t.Errorf("Failed: %v", err) }})
		}()
		testenv.Eventually(t, "the table is read again", func() bool { return reads.Load() >= 3 })
		if !mightContain(t, f, "nobody") {
			t.Error("a key is refused")
		}
		keys.Store(10)
		testenv.Eventually(t, "the filter is built", func() bool { return !mightContain(t, f, "nobody") })
		cancel()
		<-ended
		if s := f.Stats(); s.Failures != 0 || s.Rejected != 0 {
			t.Errorf("%+v", s)
		}
	}
	if lines := log.Take(); len(lines) != 1 || !strings.Contains(lines[0], "level=INFO") {
		t.Errorf("logged %q", lines)
	}
}

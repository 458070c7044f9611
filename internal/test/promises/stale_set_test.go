package promises

import (
	"bytes"
	"context"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// In these deterministic races, a reader has loaded the old row and pauses, a writer commits the
// new row and invalidates, and the reader continues. Its result must be neither stored nor
// returned.

// race is a fleet of two processes over a row that is "old" until change.
type race struct {
	t *testing.T
	b backend
	d *table
	p process // with a memory tier
	q process // without a memory tier
}

func newRace(t *testing.T, b backend) *race {
	d := newTable(map[int]string{1: "old"})
	lo := &cacheaside.LoaderOptions{LoadTimeout: time.Minute}
	return &race{t, b, d, start(t, b, d, steady, lo), start(t, b, d, steadyNoMemory, lo)}
}

// change writes the row and invalidates it in process by.
func (r *race) change(by process, row string) {
	r.t.Helper()
	r.d.write(1, row)
	if err := by.Invalidate(r.t.Context(), 1); err != nil {
		r.t.Fatal(err)
	}
}

// allSee asserts that all processes now read row, and that the old row is not stored.
func (r *race) allSee(row string) {
	r.t.Helper()
	for range 2 {
		r.p.want(r.t, 1, row, nil)
		r.p.settle()
		r.q.want(r.t, 1, row, nil)
	}
	if stored, err := r.b.admin.Get(r.t.Context(), redisKey(1)).Bytes(); err == nil &&
		bytes.Contains(stored, []byte("old")) {
		r.t.Errorf("Redis contains the old row: %q", stored)
	}
}

func (r *race) gets(p process) func(testing.TB) (string, error) {
	return later(func() (string, error) { return p.Get(r.t.Context(), 1) })
}

func (r *race) refreshes(p process) func(testing.TB) (string, error) {
	return later(func() (string, error) { return p.Refresh(r.t.Context(), 1) })
}

func wantResult(t testing.TB, result func(testing.TB) (string, error), want string) {
	t.Helper()
	if got, err := result(t); got != want || err != nil {
		t.Errorf("the reader gets %q, %v; want %q", got, err, want)
	}
}

func TestStaleSetMiss(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		for name, writer := range map[string]func(
			*race) process{"own process": func(r *race) process { return r.p },
			"other process": func(r *race) process { return r.q }} {
			t.Run(name, func(t *testing.T) {
				r := newRace(t, b)
				b.admin.Del(t.Context(), redisKey(1))
				reached, resume := r.d.pause(1)
				defer resume()
				got := r.gets(r.p)
				reach(t, reached, "the load")
				r.change(writer(r), "new")
				resume()
				wantResult(t, got, "new") // the old one was refused, and not returned
				r.allSee("new")
				if n := r.d.loads.Load(); n != 2 {
					t.Errorf("%d loads", n)
				}
				if s := r.p.Stats(); s.Refused != 1 || s.Unvalidated != 0 {
					t.Errorf("%+v", s)
				}
			})
		}
	})
}

func TestStaleSetPlainDEL(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		r := newRace(t, b)
		reached, resume := r.d.pause(1)
		defer resume()
		got := r.gets(r.q)
		reach(t, reached, "the load")
		r.d.write(1, "new")
		// An operator or a program in another language.
		if n, err := b.admin.Del(t.Context(), redisKey(1)).Result(); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		resume()
		wantResult(t, got, "new")
		r.allSee("new")
	})
}

func TestStaleSetRefresh(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		r := newRace(t, b)
		r.p.want(t, 1, "old", nil)
		reached, resume := r.d.pause(2)
		defer resume()
		got := r.refreshes(r.p)
		reach(t, reached, "the load")
		r.q.want(t, 1, "old", nil) // readers are served at the same time
		r.change(r.q, "new")
		resume()
		wantResult(t, got, "new")
		r.allSee("new")
	})
}

// The refresh was voided, and the key has a newer entry at its end.
func TestStaleSetRefreshOverNewEntry(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		r := newRace(t, b)
		r.p.want(t, 1, "old", nil)
		reached, resume := r.d.pause(2)
		defer resume()
		got := r.refreshes(r.p)
		reach(t, reached, "the load")
		r.change(r.q, "new")
		r.q.want(t, 1, "new", nil) // another process has loaded and stored it
		r.d.write(1, "newer")      // to recognize the refresh's second load
		resume()
		wantResult(t, got, "newer")
		r.allSee("newer")
	})
}

// A refresh ends while this process's memory has the previous value. A refresh that an invalidation
// overtakes does not restore that value's generation.
func TestRefreshReplacesMemory(t *testing.T) {
	_, b := embedded(t)
	r := newRace(t, b)
	r.p.want(t, 1, "old", nil)
	r.p.settle()
	r.d.write(1, "new")
	if v, err := r.p.Refresh(t.Context(), 1); v != "new" || err != nil {
		t.Fatal(v, err)
	}
	r.p.want(t, 1, "new", nil)
	r.p.settle()
	r.p.want(t, 1, "new", nil)
}

// A Refresh that begins during another one does not get the result of that load.
func TestRefreshLoadsAfterItIsCalled(t *testing.T) {
	for name, rdb := range map[string]redis.UniversalClient{"embedded": embeddedClient(t), "without Redis": nil} {
		t.Run(name, func(t *testing.T) {
			d := newTable(map[int]string{1: "old"})
			p := startOn(t, rdb, d, steady, nil)
			reached, resume := d.pause(1)
			defer resume()
			first := later(func() (string, error) { return p.Refresh(t.Context(), 1) })
			reach(t, reached, "the load")
			d.write(1, "new")
			second := later(func() (string, error) { return p.Refresh(t.Context(), 1) })
			testenv.Eventually(t, "the second one",
				func() bool { return readerOf(p.Loader).Flights.Refreshes.Waiting("1") == 1 })
			resume()
			wantResult(t, first, "old")
			wantResult(t, second, "new")
			p.want(t, 1, "new", nil)
		})
	}
}

func embeddedClient(t testing.TB) redis.UniversalClient {
	_, b := embedded(t)
	return b.client(t)
}

// The lease has expired during the load, the row has changed, and the key is empty.
func TestStaleSetExpiredLease(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		r := newRace(t, b)
		reached, resume := r.d.pause(1)
		defer resume()
		got := r.gets(r.p)
		reach(t, reached, "the load")
		b.admin.PExpire(t.Context(), redisKey(1), time.Millisecond)
		for b.admin.Exists(t.Context(), redisKey(1)).Val() != 0 {
			time.Sleep(time.Millisecond)
		}
		r.change(r.q, "new")
		resume()
		wantResult(t, got, "new")
		r.allSee("new")
	})
}

// When the first load, which is voided, ends, the key has the lease of a second load.
func TestStaleSetWithSecondLease(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		r := newRace(t, b)
		firstReached, resumeFirst := r.d.pause(1)
		defer resumeFirst()
		secondReached, resumeSecond := r.d.pause(2)
		defer resumeSecond()
		first := r.gets(r.p)
		reach(t, firstReached, "the first load")
		r.change(r.q, "new")
		second := r.gets(r.q)
		reach(t, secondReached, "the second load")
		resumeFirst() // its fill finds another load's lease
		testenv.Eventually(t, "the end of the first load",
			func() bool { return r.p.Stats().Refused > 0 || b.holds(t, 1) == anEntry })
		resumeSecond()
		wantResult(t, first, "new")
		wantResult(t, second, "new")
		r.allSee("new")
		if n := r.d.loads.Load(); n != 2 {
			t.Errorf("%d loads: the first reader does not wait for the second", n)
		}
	})
}

// setLoadTimeout changes LoadTimeout of the loader of p between calls.
func setLoadTimeout(p process, d time.Duration) {
	field := reflect.ValueOf(readerOf(p.Loader).Source).Elem().FieldByName("options").FieldByName("LoadTimeout")
	*(*time.Duration)(field.Addr().UnsafePointer()) = d
}

// The same in one process: a load that ignores its context is abandoned at its deadline, and
// returns while the next one runs.
func TestStaleSetSameProcessTwice(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		d := newTable(map[int]string{1: "old"})
		lo := &cacheaside.LoaderOptions{LoadTimeout: 50 * time.Millisecond}
		p, q := start(t, b, d, steady, lo), start(t, b, d, steadyNoMemory, lo)
		r := &race{t, b, d, p, q}
		reached, resume := d.pause(1)
		defer resume()
		first := r.gets(p)
		reach(t, reached, "the first load")
		if _, err := first(t); !sameError(err, cacheaside.ErrLoadTimeout) {
			t.Fatal(err)
		}
		setLoadTimeout(p, time.Minute) // of the loads that follow
		setLoadTimeout(q, time.Minute)
		r.change(q, "new")
		second, resumeSecond := d.pause(2)
		defer resumeSecond()
		got := r.gets(p)
		reach(t, second, "the second load")
		resume() // the old row of the first load is discarded
		resumeSecond()
		wantResult(t, got, "new")
		r.allSee("new")
		if s := p.Stats(); s.LoadsLeft != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// After a refused fill, the round takes the lease again, and that load can be overtaken too. After
// some refusals, its callers get a value that was loaded after their calls. It is counted and not
// stored.
func TestStaleSetReloadAfterRefusedFill(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		r := newRace(t, b)
		type pause struct {
			reached <-chan struct{}
			resume  func()
		}
		var pauses []pause
		for n := range fetch.MaxRefusals + 1 {
			reached, resume := r.d.pause(int64(n) + 1)
			defer resume()
			pauses = append(pauses, pause{reached, resume})
		}
		got := r.gets(r.p)
		for i, p := range pauses {
			reach(t, p.reached, "a load")
			if i == fetch.MaxRefusals {
				r.change(r.q, "new")
			} else {
				r.change(r.q, "old"+string(rune('a'+i)))
			}
			p.resume()
		}
		// The result of its last load.
		wantResult(t, got, "old"+string(rune('a'+fetch.MaxRefusals-1)))
		if s := r.p.Stats(); s.Refused != fetch.MaxRefusals+1 || s.Unvalidated != 1 {
			t.Errorf("%+v", s)
		}
		if n := b.admin.Exists(t.Context(), redisKey(1)).Val(); n != 0 {
			t.Error("a value is stored")
		}
		r.allSee("new")
	})
}

// The command that requests the lease is delayed until after an invalidation, like a lost packet
// that is sent again. If it were sent twice, it would revive a voided token.
func TestStaleSetDelayedLease(t *testing.T) {
	server := testenv.SharedRedis(t)
	admin := server.Client(t)
	b := backend{client: func(t testing.TB) redis.UniversalClient { return server.Client(t) }, admin: admin}
	d := newTable(map[int]string{1: "old", 2: "warm"})
	q := start(t, b, d, steadyNoMemory, nil)
	q.want(t, 2, "warm", nil) // loads the scripts

	rdb, late := withLateRequest(t, server, "\xa1\x00", true)
	p := startOn(t, rdb, d, steadyNoMemory, &cacheaside.LoaderOptions{LoadTimeout: time.Minute})
	reached, resume := d.pause(d.loads.Load() + 1)
	defer resume()
	got := later(func() (string, error) { return p.Get(t.Context(), 1) })
	reach(t, reached, "the load") // with the second lease: the first one is still in flight
	testenv.Receive(t, "the first lease", late.sent)
	d.write(1, "new")
	if err := q.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	late.deliver()
	testenv.Receive(t, "the answer to the delayed command", late.done)
	if n := admin.Exists(t.Context(), redisKey(1)).Val(); n != 1 {
		t.Fatal("the late command does not take the lease")
	}
	resume()
	if row, err := got(t); row != "new" || err != nil {
		t.Errorf("%q, %v", row, err)
	}
	if stored := admin.Get(t.Context(), redisKey(1)).Val(); bytes.Contains([]byte(stored), []byte("old")) {
		t.Errorf("Redis contains %q", stored)
	}
	q.want(t, 1, "new", nil)
}

// A Get that starts after Invalidate has returned does not get the result of an earlier caller's
// round, in the same process or another.
func TestNoStaleJoin(t *testing.T) {
	everywhere(t, func(t *testing.T, b backend) {
		for _, of := range []string{"memory", "no memory"} {
			t.Run(of, func(t *testing.T) {
				d := newTable(map[int]string{1: "old"})
				o := steady
				if of == "no memory" {
					o = steadyNoMemory
				}
				p := start(t, b, d, o, nil)
				q := start(t, b, d, steadyNoMemory, nil)
				b.admin.Del(t.Context(), redisKey(1))
				r := &race{t, b, d, p, q}
				// A round reads the entry, and is paused before it can return it.
				reached, resume := d.pause(1)
				defer resume()
				first := r.gets(p)
				reach(t, reached, "the load")
				r.change(p, "new")
				second := r.gets(p) // begins after the invalidation
				testenv.Eventually(t, "the second one",
					func() bool { return readerOf(p.Loader).Flights.Plain.Waiting("1") == 1 })
				resume()
				wantResult(t, first, "new")
				wantResult(t, second, "new")
			})
		}
	})
}

// Late callers get the value that the memory tier has just received only if no invalidation came in
// between.
func TestLateCallersSeeInvalidation(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "old"})
	start(t, b, d, steadyNoMemory, nil).want(t, 1, "old", nil)
	p := start(t, b, d, steady, nil)
	r := p.looks(t, b, 1, func() {})
	if !readerOf(p.Loader).Fetch.Current(r) {
		t.Fatal("the round is outdated at the start")
	}
	if err := p.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if readerOf(p.Loader).Fetch.Current(r) {
		t.Error("late callers get a value from before an acknowledged invalidation")
	}
	p.settle()
	if _, ok := readerOf(p.Loader).Remembered(1); ok {
		t.Error("memory serves the outdated value")
	}
}

// The generation is taken before the first lookup in Redis: a value that was read before an
// invalidation is not kept in memory after it.
func TestGenerationIsTakenBeforeReading(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "old"})
	start(t, b, d, steadyNoMemory, nil).want(t, 1, "old", nil)
	p := start(t, b, d, steady, nil)
	r := p.looks(t, b, 1, func() {
		d.write(1, "new")
		if err := p.Invalidate(t.Context(), 1); err != nil {
			t.Error(err)
		}
	})
	if v, _ := r.Value.(*string); v == nil || *v != "old" {
		t.Fatal("the lookup does not find the old value")
	}
	p.settle()
	p.want(t, 1, "new", nil)
}

// looks makes the first lookup of a key in Redis. It calls answered after the reply of Redis,
// before the reply is used.
func (p process) looks(t *testing.T, b backend, key int, answered func()) *fetch.Round {
	t.Helper()
	var once sync.Once
	b.client(t).AddHook(hooked{before: func(redis.Cmder) {}, after: func(cmd redis.Cmder) {
		if cmd.Name() == "getrange" {
			once.Do(answered)
		}
	}})
	r, err := readerOf(p.Loader).Lone(key)
	if err != nil {
		t.Fatal(err)
	}
	readerOf(p.Loader).Fetch.ReadInline(t.Context(), fetch.Plain, fetch.Single(r))
	if !r.Ended() || r.Err != nil {
		t.Fatalf("the lookup finds nothing: %v", r.Err)
	}
	return r
}

// The generation of the writing process changes after Redis has acknowledged the delete. If it
// changed before, a reader would refill memory from Redis.
func TestMemoryIsClearedAfterRedis(t *testing.T) {
	rdb, late := withLateRequest(t, testenv.SharedRedis(t), "del\r\n", false)
	d := newTable(map[int]string{1: "old"})
	p := startOn(t, rdb, d, steady, nil)
	hear(t, p.Loader)
	p.remembers(t, 1, "old")
	d.write(1, "new")
	done := later(func() (any, error) { return nil, p.Invalidate(context.Background(), 1) })
	testenv.Receive(t, "the delete", late.sent)
	for range 100 { // readers see the old row until then, from memory or from Redis
		p.want(t, 1, "old", nil)
		p.settle()
	}
	late.deliver()
	if _, err := done(t); err != nil {
		t.Fatal(err)
	}
	p.want(t, 1, "new", nil)
	p.settle()
	p.want(t, 1, "new", nil)
}

// A Refresh that an invalidation has overtaken replaces what memory has received since, because its
// own value is newer.
func TestRefreshReplacesNewerMemory(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "old"})
	p, q := start(t, b, d, steady, nil), start(t, b, d, steady, nil)
	p.want(t, 1, "old", nil)
	reached, resume := d.pause(2)
	defer resume()
	refreshed := later(func() (string, error) { return p.Refresh(t.Context(), 1) })
	reach(t, reached, "the refresh's load")
	if err := p.Invalidate(t.Context(), 1); err != nil { // voids it: it will load again
		t.Fatal(err)
	}
	q.want(t, 1, "old", nil)
	p.want(t, 1, "old", nil) // from Redis into memory, under the new generation
	p.settle()
	d.write(1, "new") // without an announcement
	resume()
	wantResult(t, refreshed, "new")
	p.settle()
	p.want(t, 1, "new", nil)
	p.settle()
	p.want(t, 1, "new", nil)
}

// The same with an invalidation of another key of the stripe in between, so that nothing is
// refused.
func TestRefreshWithInvalidatedStripe(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "old"})
	p := start(t, b, d, steady, nil)
	p.want(t, 1, "old", nil)
	d.write(1, "new")
	reached, resume := d.pause(2)
	defer resume()
	refreshed := later(func() (string, error) { return p.Refresh(t.Context(), 1) })
	reach(t, reached, "the refresh's load")
	readerOf(p.Loader).Forget(1, "1")
	p.want(t, 1, "old", nil) // from Redis into memory, under the new generation
	p.settle()
	resume()
	wantResult(t, refreshed, "new")
	p.settle()
	p.want(t, 1, "new", nil)
}

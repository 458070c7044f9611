package cacheaside

import (
	"bytes"
	"context"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/fetch"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The deterministic races in which a reader has loaded the old row and pauses, a writer commits the
// new one and invalidates, and the reader goes on: what it has read must be stored nowhere, and be
// given to nobody.

// race is a fleet of two processes over a row that is "old" until change.
type race struct {
	t *testing.T
	b backend
	d *table
	p process // with a memory tier
	q process // without
}

func newRace(t *testing.T, b backend) *race {
	d := newTable(map[int]string{1: "old"})
	lo := &LoaderOptions{LoadTimeout: time.Minute}
	return &race{t, b, d, start(t, b, d, steady, lo), start(t, b, d, steadyNoMemory, lo)}
}

// change writes the row and invalidates it, as process by.
func (r *race) change(by process, row string) {
	r.t.Helper()
	r.d.write(1, row)
	if err := by.Invalidate(r.t.Context(), 1); err != nil {
		r.t.Fatal(err)
	}
}

// allSee asserts that everybody now reads row, and that nothing else is stored.
func (r *race) allSee(row string) {
	r.t.Helper()
	for range 2 {
		r.p.want(r.t, 1, row, nil)
		r.p.settle()
		r.q.want(r.t, 1, row, nil)
	}
	if stored, err := r.b.admin.Get(r.t.Context(), redisKey(1)).Bytes(); err == nil && bytes.Contains(stored, []byte("old")) {
		r.t.Errorf("Redis holds the old row: %q", stored)
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
		t.Errorf("the reader got %q, %v; want %q", got, err, want)
	}
}

func TestStaleSetMiss(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		for name, writer := range map[string]func(*race) process{"own process": func(r *race) process { return r.p }, "other process": func(r *race) process { return r.q }} {
			t.Run(name, func(t *testing.T) {
				r := newRace(t, b)
				b.admin.Del(t.Context(), redisKey(1))
				reached, resume := r.d.pause(1)
				defer resume()
				got := r.gets(r.p)
				reach(t, reached, "the load")
				r.change(writer(r), "new")
				resume()
				wantResult(t, got, "new") // the old one was refused, and given to nobody
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
	each(t, func(t *testing.T, b backend) {
		r := newRace(t, b)
		reached, resume := r.d.pause(1)
		defer resume()
		got := r.gets(r.q)
		reach(t, reached, "the load")
		r.d.write(1, "new")
		if n, err := b.admin.Del(t.Context(), redisKey(1)).Result(); n != 1 || err != nil { // an operator, or another language
			t.Fatal(n, err)
		}
		resume()
		wantResult(t, got, "new")
		r.allSee("new")
	})
}

func TestStaleSetRefresh(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		r := newRace(t, b)
		r.p.want(t, 1, "old", nil)
		reached, resume := r.d.pause(2)
		defer resume()
		got := r.refreshes(r.p)
		reach(t, reached, "the load")
		r.q.want(t, 1, "old", nil) // readers are served meanwhile
		r.change(r.q, "new")
		resume()
		wantResult(t, got, "new")
		r.allSee("new")
	})
}

// The refresh was voided, and the key holds a newer entry by the time it ends.
func TestStaleSetRefreshOverNewEntry(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		r := newRace(t, b)
		r.p.want(t, 1, "old", nil)
		reached, resume := r.d.pause(2)
		defer resume()
		got := r.refreshes(r.p)
		reach(t, reached, "the load")
		r.change(r.q, "new")
		r.q.want(t, 1, "new", nil) // another process has loaded and stored it
		r.d.write(1, "newer")      // so that the refresh's second load can be told
		resume()
		wantResult(t, got, "newer")
		r.allSee("newer")
	})
}

// A refresh ends while this process's memory holds the value from before; and one that an
// invalidation overtakes does not bring that value's generation back.
func TestRefreshEndsWhatMemoryHolds(t *testing.T) {
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

// A Refresh that is called while another one's load is under way is not given what that has read.
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
			testenv.Eventually(t, "the second one", func() bool { return p.rows.Groups.Refreshes.Waiting("1") == 1 })
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

// The lease ran out while its load was under way, the row changed, and nothing is there any more.
func TestStaleSetExpiredLease(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
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

// The key holds the lease of a second load when the first one, voided, ends.
func TestStaleSetABA(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
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
		resumeFirst() // its fill finds a lease, which is not its own
		testenv.Eventually(t, "the end of the first load", func() bool { return r.p.Stats().Refused > 0 || b.holds(t, 1) == anEntry })
		resumeSecond()
		wantResult(t, first, "new")
		wantResult(t, second, "new")
		r.allSee("new")
		if n := r.d.loads.Load(); n != 2 {
			t.Errorf("%d loads: the first reader did not wait for the second", n)
		}
	})
}

// setLoadTimeout changes LoadTimeout of the loader of p, while it makes no call.
func setLoadTimeout(p process, d time.Duration) {
	field := reflect.ValueOf(p.rows.Source).Elem().FieldByName("options").FieldByName("LoadTimeout")
	*(*time.Duration)(field.Addr().UnsafePointer()) = d
}

// The same in one process: a load that ignores its context is left behind at its deadline, and
// returns while the next one runs.
func TestStaleSetSameProcessTwice(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
		d := newTable(map[int]string{1: "old"})
		lo := &LoaderOptions{LoadTimeout: 50 * time.Millisecond}
		p, q := start(t, b, d, steady, lo), start(t, b, d, steadyNoMemory, lo)
		r := &race{t, b, d, p, q}
		reached, resume := d.pause(1)
		defer resume()
		first := r.gets(p)
		reach(t, reached, "the first load")
		if _, err := first(t); !sameError(err, ErrLoadTimeout) {
			t.Fatal(err)
		}
		setLoadTimeout(p, time.Minute) // of the loads that follow
		setLoadTimeout(q, time.Minute)
		r.change(q, "new")
		second, resumeSecond := d.pause(2)
		defer resumeSecond()
		got := r.gets(p)
		reach(t, second, "the second load")
		resume() // the first load returns the old row to nobody
		resumeSecond()
		wantResult(t, got, "new")
		r.allSee("new")
		if s := p.Stats(); s.LoadsLeft != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// After a refused fill the round takes the lease again, and that load can be overtaken too. After
// some refusals its callers get a value that was loaded after they asked; it is counted, and not
// stored.
func TestStaleSetReloadAfterRefusedFill(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
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
		wantResult(t, got, "old"+string(rune('a'+fetch.MaxRefusals-1))) // what its last load read
		if s := r.p.Stats(); s.Refused != fetch.MaxRefusals+1 || s.Unvalidated != 1 {
			t.Errorf("%+v", s)
		}
		if n := b.admin.Exists(t.Context(), redisKey(1)).Val(); n != 0 {
			t.Error("something is stored")
		}
		r.allSee("new")
	})
}

// The command that asks for the lease is delayed on its way, as a lost packet that is sent again
// would be, until after an invalidation. Sent twice, it would revive a voided token.
func TestStaleSetDelayedLease(t *testing.T) {
	server := testenv.SharedRedis(t)
	admin := server.Client(t)
	b := backend{client: func(t testing.TB) redis.UniversalClient { return server.Client(t) }, admin: admin}
	d := newTable(map[int]string{1: "old", 2: "warm"})
	q := start(t, b, d, steadyNoMemory, nil)
	q.want(t, 2, "warm", nil) // the server knows the scripts

	rdb, late := withLateRequest(t, server, "\xa1\x00", true)
	p := startOn(t, rdb, d, steadyNoMemory, &LoaderOptions{LoadTimeout: time.Minute})
	reached, resume := d.pause(d.loads.Load() + 1)
	defer resume()
	got := later(func() (string, error) { return p.Get(t.Context(), 1) })
	reach(t, reached, "the load") // with the second lease: the first one is still on its way
	testenv.Receive(t, "the first lease", late.sent)
	d.write(1, "new")
	if err := q.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	late.deliver()
	testenv.Receive(t, "the answer to the delayed command", late.done)
	if n := admin.Exists(t.Context(), redisKey(1)).Val(); n != 1 {
		t.Fatal("it has not taken the lease")
	}
	resume()
	if row, err := got(t); row != "new" || err != nil {
		t.Errorf("%q, %v", row, err)
	}
	if stored := admin.Get(t.Context(), redisKey(1)).Val(); bytes.Contains([]byte(stored), []byte("old")) {
		t.Errorf("Redis holds %q", stored)
	}
	q.want(t, 1, "new", nil)
}

// A Get that starts after Invalidate has returned is not handed what an earlier caller's round has
// read, in the same process or not.
func TestNoStaleJoin(t *testing.T) {
	each(t, func(t *testing.T, b backend) {
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
				// The entry is read by a round, which is stopped before it can hand it out.
				reached, resume := d.pause(1)
				defer resume()
				first := r.gets(p)
				reach(t, reached, "the load")
				r.change(p, "new")
				second := r.gets(p) // asks after the invalidation
				testenv.Eventually(t, "the second one", func() bool { return p.rows.Groups.Plain.Waiting("1") == 1 })
				resume()
				wantResult(t, first, "new")
				wantResult(t, second, "new")
			})
		}
	})
}

// Late callers are served from what the memory tier has just been given only if no invalidation
// came in between.
func TestLateCallersSeeInvalidation(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "old"})
	start(t, b, d, steadyNoMemory, nil).want(t, 1, "old", nil)
	p := start(t, b, d, steady, nil)
	r := p.looks(t, b, 1, func() {})
	if !p.rows.Fetch.Current(r) {
		t.Fatal("not current to begin with")
	}
	if err := p.Invalidate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if p.rows.Fetch.Current(r) {
		t.Error("late callers are given a value from before an acknowledged invalidation")
	}
	p.settle()
	if _, ok := p.rows.Remembered(1); ok {
		t.Error("memory serves it")
	}
}

// The generation is taken before the first look at Redis: what was read before an invalidation is
// not remembered after it.
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
		t.Fatal("the look has not found the old value")
	}
	p.settle()
	p.want(t, 1, "new", nil)
}

// looks is a first look at Redis for a key. It calls answered when Redis has answered, and before
// anything is done with the answer.
func (p process) looks(t *testing.T, b backend, key int, answered func()) *fetch.Round {
	t.Helper()
	var once sync.Once
	b.client(t).AddHook(hooked{before: func(redis.Cmder) {}, after: func(cmd redis.Cmder) {
		if cmd.Name() == "getrange" {
			once.Do(answered)
		}
	}})
	r, err := p.rows.Lone(key)
	if err != nil {
		t.Fatal(err)
	}
	p.rows.Fetch.ReadInline(t.Context(), fetch.Plain, fetch.Single(r))
	if !r.Ended() || r.Err != nil {
		t.Fatalf("the look has found nothing: %v", r.Err)
	}
	return r
}

// Our own generation moves after Redis has acknowledged the delete: moved before, a reader would
// fill memory again from Redis.
func TestMemoryIsForgottenAfterRedis(t *testing.T) {
	rdb, late := withLateRequest(t, testenv.SharedRedis(t), "del\r\n", false)
	d := newTable(map[int]string{1: "old"})
	p := startOn(t, rdb, d, steady, nil)
	hear(t, p.Loader)
	p.remembers(t, 1, "old")
	d.write(1, "new")
	done := later(func() (any, error) { return nil, p.Invalidate(context.Background(), 1) })
	testenv.Receive(t, "the delete", late.sent)
	for range 100 { // readers meanwhile see the old row, from memory or from Redis
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

// A Refresh that an invalidation has overtaken ends what this process's memory has got meanwhile:
// its own value is newer.
func TestRefreshEndsWhatMemoryGotMeanwhile(t *testing.T) {
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
	d.write(1, "new") // announced by nobody
	resume()
	wantResult(t, refreshed, "new")
	p.settle()
	p.want(t, 1, "new", nil)
	p.settle()
	p.want(t, 1, "new", nil)
}

// The same where an invalidation of another key of the stripe comes in between, so that nothing is
// refused.
func TestRefreshBesideAnInvalidationOfItsStripe(t *testing.T) {
	_, b := embedded(t)
	d := newTable(map[int]string{1: "old"})
	p := start(t, b, d, steady, nil)
	p.want(t, 1, "old", nil)
	d.write(1, "new")
	reached, resume := d.pause(2)
	defer resume()
	refreshed := later(func() (string, error) { return p.Refresh(t.Context(), 1) })
	reach(t, reached, "the refresh's load")
	p.rows.Forget(1, "1")
	p.want(t, 1, "old", nil) // from Redis into memory, under the new generation
	p.settle()
	resume()
	wantResult(t, refreshed, "new")
	p.settle()
	p.want(t, 1, "new", nil)
}

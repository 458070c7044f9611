package meter

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// fleet is a writer whose client drops invalidations, two readers, and a meter of the writer, in a
// bubble.
type fleet struct {
	t      *testing.T
	rdb    *redis.Client
	d      *rows
	thief  *thief
	writer member
	r      []member
	m      *Meter
}

func newFleet(t *testing.T, options cacheaside.Options) *fleet {
	_, rdb := testenv.Mini(t)
	f := &fleet{t: t, rdb: rdb, d: newRows(), thief: &thief{deletes: never, announcements: never}}
	f.d.write(1, "old")
	rdb.AddHook(f.thief)
	f.writer = join(t, rdb, f.d, noMemory)
	f.r = []member{join(t, rdb, f.d, options), join(t, rdb, f.d, options)}
	if options.MemoryBytes >= 0 {
		for _, p := range f.r {
			p.hear(t)
		}
	}
	f.measure()
	time.Sleep(time.Second) // all members have received the first question
	return f
}

func (f *fleet) measure() {
	m, err := newMeter(f.writer.cache, &Options{After: []time.Duration{time.Second}}, all)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { m.Close() })
	f.m = m
}

// close closes everything in the bubble.
func (f *fleet) close() {
	f.m.Close()
	f.writer.cache.Close()
	for _, p := range f.r {
		p.cache.Close()
	}
}

func (f *fleet) read(key int, want string) {
	f.t.Helper()
	for _, p := range f.r {
		p.want(f.t, key, want)
	}
	time.Sleep(50 * time.Millisecond) // a read just before a write can pass for a later copy
}

func (f *fleet) lose(deletes, announcements bool) {
	f.thief.deletes = func(string) bool { return deletes }
	f.thief.announcements = func(string) bool { return announcements }
}

func (f *fleet) invalidate(keys ...int) {
	f.t.Helper()
	if err := f.writer.Invalidate(f.t.Context(), keys...); err != nil {
		f.t.Fatal(err)
	}
}

// wait waits until the meter has checked the write.
func (f *fleet) wait() Result {
	time.Sleep(5 * time.Second)
	synctest.Wait()
	l := f.m.Stats().Results[0]
	l.After = 0
	return l
}

func TestMeterFindsStaleCopies(t *testing.T) {
	consistent := func(redis, memory Copies) Result { return Result{Consistent: 1, Redis: redis, Memory: memory} }
	different := func(redis, memory Copies) Result { return Result{Different: 1, Redis: redis, Memory: memory} }
	for name, c := range map[string]struct {
		do   func(f *fleet)
		want Result
	}{
		"no process reads again": {func(f *fleet) {
			f.read(1, "old")
			f.d.write(1, "new")
			f.invalidate(1)
		}, consistent(Copies{None: 1}, Copies{None: 2})},
		"read again": {func(f *fleet) {
			f.read(1, "old")
			f.d.write(1, "new")
			f.invalidate(1)
			time.Sleep(100 * time.Millisecond)
			f.read(1, "new")
		}, consistent(Copies{Same: 1}, Copies{Young: 2})},
		"the invalidation is lost": {func(f *fleet) {
			f.read(1, "old")
			f.lose(true, true)
			f.d.write(1, "new")
			f.invalidate(1)
			f.read(1, "old")
		}, different(Copies{Different: 1}, Copies{Different: 2})},
		"the announcement is lost": {func(f *fleet) {
			f.read(1, "old")
			f.lose(false, true)
			f.d.write(1, "new")
			f.invalidate(1)
			f.read(1, "old")
		}, different(Copies{None: 1}, Copies{Different: 2})},
		"the delete is lost": {func(f *fleet) {
			f.read(1, "old")
			f.lose(true, false)
			f.d.write(1, "new")
			f.invalidate(1)
			time.Sleep(100 * time.Millisecond)
			f.read(1, "old")
		}, different(Copies{Different: 1}, Copies{Young: 2})},
		"a loss without effect": {func(f *fleet) {
			f.read(1, "old")
			f.lose(true, true)
			f.invalidate(1)
		}, consistent(Copies{Same: 1}, Copies{Same: 2})},
		"a deleted row": {func(f *fleet) {
			f.read(1, "old")
			f.lose(true, true)
			f.d.mu.Lock()
			delete(f.d.values, 1)
			f.d.mu.Unlock()
			f.invalidate(1)
		}, different(Copies{Different: 1}, Copies{Different: 2})},
		"a writer who does not invalidate": {func(f *fleet) {
			f.read(1, "old")
			f.d.write(1, "new")
			if err := f.m.Written(f.writer.Key(1)); err != nil {
				f.t.Error(err)
			}
		}, different(Copies{Different: 1}, Copies{Different: 2})},
		"by keys": {func(f *fleet) {
			f.read(1, "old")
			f.lose(true, true)
			f.d.write(1, "new")
			if err := f.writer.cache.InvalidateKeys(f.t.Context(), f.writer.Key(1)); err != nil {
				f.t.Error(err)
			}
		}, different(Copies{Different: 1}, Copies{Different: 2})},
		"expired": {func(f *fleet) { // an expiry, not an invalidation
			f.read(1, "old")
			f.d.write(1, "new")
			if err := f.writer.Expire(f.t.Context(), 1); err != nil {
				f.t.Error(err)
			}
		}, Result{}},
		"invalidated during the check": {func(f *fleet) {
			f.read(1, "old")
			f.lose(true, true)
			f.d.write(1, "new")
			f.invalidate(1)
			time.Sleep(1300 * time.Millisecond) // the first check has run
			f.lose(false, false)
			f.r[0].Invalidate(f.t.Context(), 1)
		}, Result{Undecided: 1, NotKnown: 1, Redis: Copies{NotKnown: 1}, Memory: Copies{NotKnown: 2}}},
		"the row changes during the check": {func(f *fleet) {
			f.read(1, "old")
			f.lose(true, true)
			f.d.write(1, "new")
			f.invalidate(1)
			time.Sleep(1300 * time.Millisecond)
			f.d.write(1, "newer")
		}, Result{Undecided: 1, NotKnown: 1, Redis: Copies{NotKnown: 1}, Memory: Copies{NotKnown: 2}}},
		"written just before the check": {func(f *fleet) { // its invalidation is still in flight
			f.read(1, "old")
			f.d.write(1, "new")
			f.invalidate(1)
			time.Sleep(100 * time.Millisecond)
			f.read(1, "new")
			f.m.Close() // so that the meter ignores the second write
			f.measure()
			f.m.Written(f.writer.Key(1))
			f.d.loading(func(context.Context, int) error { // the first load of the check
				f.d.loading(nil)
				f.d.write(1, "newer")
				time.AfterFunc(50*time.Millisecond, func() {
					f.writer.Invalidate(context.Background(), 1)
				})
				return nil
			})
		}, Result{}}, // see below: no copy is different
		"the database fails": {func(f *fleet) {
			f.read(1, "old")
			f.lose(true, true)
			f.d.write(1, "new")
			f.invalidate(1)
			f.d.loading(func(context.Context, int) error { return errors.New("down") })
		}, Result{Undecided: 1, NotKnown: 1, Redis: Copies{NotKnown: 1}, Memory: Copies{NotKnown: 2}}},
		"switched off in a process": {func(f *fleet) {
			f.read(1, "old")
			f.r[0].Bypass(true)
			f.lose(false, true)
			f.d.write(1, "new")
			f.invalidate(1)
		}, different(Copies{None: 1}, Copies{None: 1, Different: 1})},
		"a process that joins in between": {func(f *fleet) {
			f.read(1, "old")
			f.lose(true, false)
			f.d.write(1, "old")
			f.invalidate(1)
			time.Sleep(100 * time.Millisecond)
			p := join(f.t, f.rdb, f.d, patient).hear(f.t)
			f.r = append(f.r, p)
			p.want(f.t, 1, "old")
		}, consistent(Copies{Same: 1}, Copies{None: 3})},
		"copies from before the first question": {func(f *fleet) {
			f.m.Close()
			f.r = append(f.r, join(f.t, f.rdb, f.d, patient).hear(f.t))
			time.Sleep(2 * time.Minute) // the earlier questions are forgotten
			f.read(1, "old")
			f.lose(false, true)
			f.d.write(1, "new")
			f.measure()
			f.invalidate(1)
		}, Result{Different: 1, Redis: Copies{None: 1}, Memory: Copies{Different: 3}}},
		"a process that does not reply": {func(f *fleet) {
			sub := f.rdb.Subscribe(f.t.Context(), "cacheaside::invalidations")
			f.t.Cleanup(func() { sub.Close() })
			if _, err := sub.Receive(f.t.Context()); err != nil {
				f.t.Fatal(err)
			}
			go func() {
				for range sub.Channel() {
				}
			}()
			f.invalidate(1)
			time.Sleep(4 * time.Second)
			sub.Close()
		}, Result{Undecided: 1, Unanswered: 1, Redis: Copies{None: 1}, Memory: Copies{None: 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, patient)
				defer f.close()
				c.do(f)
				got := f.wait()
				if name == "written just before the check" {
					if got.Different != 0 || got.Consistent+got.Undecided == 0 {
						t.Errorf("%+v", got)
					}
					return
				}
				decided := got.Consistent + got.Different
				if (got.Listening > 0) != (decided > 0) || got.Replied > got.Listening {
					t.Errorf("%d processes, %d replies", got.Listening, got.Replied)
				}
				got.Listening, got.Replied = 0, 0
				if got != c.want {
					t.Errorf("got  %+v\nwant %+v\n%+v", got, c.want, f.m.Stats())
				}
			})
		})
	}
}

package canal

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/canal/event"
	"github.com/cacheaside/cacheaside/canal/parking"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

func (w *world) failSaves(err error) {
	w.checkpoint.mu.Lock()
	defer w.checkpoint.mu.Unlock()
	w.checkpoint.fail = err
}

// A lost position is repaired, also without a checkpoint; so is the start of a Source whose
// positions are not saved.
func TestGapWithoutCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		begins event.Position
		lost   bool
		want   string
	}{
		"a broker":                 {"", false, "old"},
		"a broker that has lost":   {"", true, "new"},
		"positions that none keep": {"0", false, "new"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(x *world) {
				x.source.begins = c.begins
				x.set(int64(1), "old")
				reads(x, x.users, 1, "old")
				x.set(int64(1), "new")
				if c.lost {
					x.source.in <- fmt.Errorf("%w: purged", ErrPositionLost)
				}
				x.startWith(nil)
				time.Sleep(10 * time.Second)
				reads(x, x.users, 1, c.want)
				x.source.in <- errors.New("connection lost")
				time.Sleep(10 * time.Second)
				x.tell("")
				x.set(int64(1), "newer")
				time.Sleep(10 * time.Second)
				reads(x, x.users, 1, c.want) // it is repaired once
			})
		})
	}
}

// startWith starts a Consumer with another checkpoint.
func (w *world) startWith(c Checkpoint) {
	w.Helper()
	var err error
	w.Consumer, err = NewConsumer(w.cache, w.source, c, w.bindings, &w.options)
	w.check(err)
	w.begin()
}

// all are the positions that were saved.
func (i *inMemory) all() []event.Position {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.saves)
}

// A change without the row that its kind has is not skipped in silence.
func TestChangesWithoutRows(t *testing.T) {
	for _, c := range []event.Change{insert(event.Row{}), remove(event.Row{}), update(event.Row{}, row(9, nil)),
		update(row(9, nil), event.Row{}), update(event.Row{}, event.Row{}), {Schema: "shop", Table: "users",
			Kind: event.Read}, {Schema: "shop", Table: "users", After: row(9, nil)}, {Schema: "shop", Table: "users",
			Kind: 77, After: row(9, nil)}} {
		in(t, func(x *world) {
			x.start()
			x.set(int64(1), "old")
			reads(x, x.users, 1, "old")
			x.set(int64(1), "new")
			x.tell("1", c)
			reads(x, x.users, 1, "new")
			if s := x.Stats(); s.Misunderstood != 2 || s.Position != "1" {
				t.Errorf("%v: %+v", c, s)
			}
		})
	}
}

// A malformed message may hold a change of any row, so all keys are invalidated.
func TestMalformedInvalidates(t *testing.T) {
	in(t, func(x *world) {
		x.start()
		x.set(int64(1), "old")
		reads(x, x.users, 1, "old")
		x.set(int64(1), "new")
		x.source.in <- event.Batch{Position: "1",
			Malformed: &event.Malformed{Message: []byte("{"), Err: errors.New("no JSON")}}
		synctest.Wait()
		reads(x, x.users, 1, "new")
		reads(x, x.other, 1, "new")
	})
}

// full is a Parking that keeps nothing.
type full struct{}

func (full) Park(context.Context, parking.Parked) error { return errors.New("disk full") }

// When Parking fails, the caches of the change to be parked are still invalidated.
func TestParkingOut(t *testing.T) {
	in(t, func(x *world) {
		x.bindings = append(x.bindings[:1],
			BindFilter("emails", &knows{}, "shop", "users", TextColumn[string]("email")))
		x.options.OnGap = func(context.Context) error { return nil }
		x.options.Parking = full{}
		x.start()
		x.set(int64(1), "old")
		reads(x, x.users, 1, "old")
		x.set(int64(1), "new")
		x.tell("1", update(row(1, errUnknown), row(1, errUnknown)))
		time.Sleep(time.Minute)
		reads(x, x.users, 1, "new")
		if s := x.Stats(); s.Position != "0" || s.Parked != 0 || len(x.source.acked) > 0 {
			t.Errorf("%+v", s)
		}
		if got := x.alerted(); !slices.Contains(got, "parking ") {
			t.Errorf("%q", got)
		}
	})
}

// A Consumer that has lost the lock, or is to end, gives handlers nothing more: another may be at
// later changes of the same rows.
func TestHandlersEnd(t *testing.T) {
	in(t, func(x *world) {
		var got []string
		begun, goOn := make(chan bool), make(chan bool)
		x.bindings = append(x.bindings, Handle("deaf", "shop", "users", func(_ context.Context, c event.Change) error {
			got = append(got, c.After.Get("id").Text())
			begun <- true
			<-goOn
			return nil
		}))
		x.start()
		x.source.in <- event.Batch{Position: "1", Changes: []event.Change{insert(row(1, nil)), insert(row(2, nil))}}
		<-begun
		x.stop()
		close(goOn)
		select {
		case <-begun:
		case err := <-x.ended:
			x.check(err)
			x.stop = nil
		}
		if !slices.Equal(got, []string{"1"}) || x.checkpoint.last() != "0" {
			t.Errorf("%q, saved %q", got, x.checkpoint.last())
		}
	})
}

// hangs is a Checkpoint that does not reply.
type hangs struct{ *inMemory }

func (hangs) Save(ctx context.Context, _ event.Position, _ int64) error {
	<-ctx.Done()
	return ctx.Err()
}

// A checkpoint that does not reply delays no invalidation.
func TestCheckpointHangs(t *testing.T) {
	in(t, func(x *world) {
		x.set(int64(1), "old")
		x.startWith(hangs{x.checkpoint})
		for n := range 100 {
			x.tell(event.Position(fmt.Sprint(n+1)), update(row(1, nil), row(1, nil)))
			time.Sleep(300 * time.Millisecond)
			if s := x.Stats(); s.Position != event.Position(fmt.Sprint(n+1)) {
				t.Fatalf("%d: %+v", n, s)
			}
		}
		if got := x.alerted(); !slices.Equal(got, []string{"checkpoint "}) {
			t.Errorf("%q", got)
		}
	})
}

// The position is saved each SaveEvery, even while one slow batch takes longer.
func TestPositionsOfSlowHandlersAreSaved(t *testing.T) {
	in(t, func(x *world) {
		x.bindings = append(x.bindings, Handle("slow", "shop", "users", func(context.Context, event.Change) error {
			time.Sleep(400 * time.Millisecond)
			return nil
		}))
		gate := make(chan bool)
		x.source.in <- func() { <-gate }
		x.start()
		for n := range 15 {
			x.source.in <- event.Batch{Position: event.Position(fmt.Sprint(n + 1)),
				Changes: []event.Change{insert(row(n, nil))}}
		}
		close(gate)
		time.Sleep(4 * time.Second)
		if saves := x.checkpoint.all(); len(saves) < 2 || len(saves) > 5 {
			t.Errorf("%q are saved", saves)
		}
	})
}

// panics is a Checkpoint that does.
type panics struct{ *inMemory }

func (panics) Save(context.Context, event.Position, int64) error { panic("private") }

// A panic of what a Consumer calls is one of its failures.
func TestPanics(t *testing.T) {
	in(t, func(x *world) {
		log := &testenv.Log{}
		x.options.Logger = log.Logger()
		x.options.OnAlert = func(Alert) { panic("of OnAlert") }
		x.startWith(panics{x.checkpoint})
		x.source.in <- event.Batch{Position: "1", Changes: []event.Change{insert(row(1, nil))},
			Ack: func() { panic("private") }}
		time.Sleep(time.Minute)
		x.tell("2", insert(row(2, nil)))
		if s := x.Stats(); s.Position != "2" || s.Failures < 2 || x.source.runs() != 2 {
			t.Errorf("%+v, %d runs", s, x.source.runs())
		}
		for _, want := range []string{
			`msg="canal: alert" kind=checkpoint error="the load panicked with a string" panic=private stack="goroutine `,
			`msg="canal: Options.OnAlert panicked" error="Options.OnAlert panicked with a string" panic="of OnAlert" stack="goroutine `,
		} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s is not in %s", want, log)
			}
		}
	})
}

// TestLoggerPanics: a Logger that panics, also on the goroutine that alerts of a handler that
// hangs, ends neither the process nor the Consumer, and alerts reach OnAlert.
func TestLoggerPanics(t *testing.T) {
	in(t, func(x *world) {
		goOn := make(chan bool)
		x.bindings = append(x.bindings,
			Handle("search", "shop", "users", func(context.Context, event.Change) error { <-goOn; return nil }))
		x.options.OnGap = func(context.Context) error { return nil }
		x.options.Logger = testenv.PanickingLogger("private")
		x.start()
		x.tell("1", insert(row(1, nil)))
		time.Sleep(time.Minute)
		if got := x.alerted(); !slices.Contains(got, "hangs handler search") {
			t.Errorf("%q", got)
		}
		close(goOn)
		x.tell("2", insert(row(2, nil)))
		time.Sleep(time.Minute)
		if s := x.Stats(); s.Position != "2" {
			t.Errorf("%+v", s)
		}
	})
}

// A handler that ends its goroutine, as t.FailNow does, leaves no Source running.
func TestHandlerThatExits(t *testing.T) {
	in(t, func(x *world) {
		x.bindings = append(x.bindings, Handle("exits", "shop", "users", func(context.Context, event.Change) error {
			time.Sleep(time.Second) // the next change has been read by then
			runtime.Goexit()
			return nil
		}))
		var err error
		x.Consumer, err = NewConsumer(x.cache, x.source, x.checkpoint, x.bindings, &x.options)
		x.check(err)
		over := make(chan bool)
		go func() {
			defer close(over)
			_ = x.Consumer.Run(context.Background())
		}()
		x.tell("1", insert(row(1, nil)))
		x.tell("2", insert(row(2, nil)))
		<-over
		synctest.Wait()
		if s := x.Stats(); s.Active || s.Position != "0" {
			t.Errorf("%+v", s)
		}
		// the bubble fails if the Source runs on, or the goroutine that reads from it
	})
}

// A Consumer that waits for its lock is healthy, even if it failed while it held the lock. A
// Consumer that does not run is unhealthy.
func TestHealthOfWhoWaits(t *testing.T) {
	in(t, func(x *world) {
		locker, err := lock.NewLocal(nil)
		x.check(err)
		defer locker.Close()
		x.options.Locker = locker
		c, err := NewConsumer(x.cache, x.source, x.checkpoint, x.bindings, &x.options)
		x.check(err)
		if c.Health(time.Second) == nil {
			t.Error("it does not run")
		}
		x.start()
		x.redis.SetError("LOADING")
		x.tell("1", insert(row(1, nil)))
		x.failSaves(errors.New("disk full"))
		time.Sleep(time.Minute)
		if x.Health(time.Second) == nil {
			t.Error("Redis is out")
		}
		x.end()
		x.redis.SetError("")
		lease, err := locker.Acquire(x.Context(), x.Consumer.options.Name, nil)
		x.check(err)
		ctx, stop := context.WithCancel(x.Context())
		ended := make(chan error, 1)
		go func() { ended <- x.Consumer.Run(ctx) }()
		time.Sleep(time.Minute)
		if err := x.Health(time.Second); err != nil || x.Stats().Lag != -1 {
			t.Error(err, x.Stats().Lag)
		}
		stop()
		x.check(<-ended)
		if x.Health(time.Second) == nil {
			t.Error("it does not run any more")
		}
		_ = lease.Release()
	})
}

// deaf is a Checkpoint that ignores even its context, as a file on a lost disk does.
type deaf struct{ *inMemory }

func (d deaf) Save(ctx context.Context, p event.Position, token int64) error {
	time.Sleep(time.Minute)
	return d.inMemory.Save(ctx, p, token)
}

func TestCheckpointIsDeaf(t *testing.T) {
	in(t, func(x *world) {
		x.startWith(deaf{x.checkpoint})
		for n := range 50 {
			x.tell(event.Position(fmt.Sprint(n+1)), update(row(1, nil), row(1, nil)))
			time.Sleep(time.Second)
		}
		if s := x.Stats(); s.Position != "50" || s.Saved != "" || x.Health(time.Hour) == nil {
			t.Errorf("%+v", s)
		}
		if got := x.alerted(); !slices.Equal(got, []string{"checkpoint "}) {
			t.Errorf("%q", got)
		}
		x.end()
		if s := x.Stats(); s.Saved != "50" || len(x.checkpoint.saves) > 2 {
			t.Errorf("%+v, %q are saved", s, x.checkpoint.saves)
		}
	})
}

// A Consumer that loses the lock reports that, stops working, and continues from the checkpoint
// when it has the lock again. A Consumer that waits for the lock is healthy.
func TestLockLost(t *testing.T) {
	in(t, func(x *world) {
		locker, err := lock.NewRedis(x.rdb, nil)
		x.check(err)
		defer locker.Close()
		x.options.Locker = locker
		var handled []string
		held := make(chan bool)
		x.bindings = append(x.bindings, Handle("h", "shop", "users", func(_ context.Context, c event.Change) error {
			id := c.After.Get("id").Text()
			handled = append(handled, id)
			if id == "2" && len(handled) == 2 {
				<-held
			}
			return nil
		}))
		x.start()
		x.tell("1", insert(row(1, nil)))
		x.source.in <- event.Batch{Position: "3", Changes: []event.Change{insert(row(2, nil)), insert(row(3, nil))}}
		synctest.Wait()
		x.redis.SetError("LOADING")
		time.Sleep(5 * time.Minute)
		x.redis.SetError("")
		x.redis.FastForward(5 * time.Minute)
		if s := x.Stats(); !s.Active { // it is in the handler still
			t.Errorf("%+v", s)
		}
		lease, err := locker.Acquire(x.Context(), x.Consumer.options.Name, nil)
		x.check(err)
		close(held)
		synctest.Wait()
		if s := x.Stats(); s.Active || !errors.Is(s.LastError, lock.ErrLost) ||
			!slices.Equal(handled, []string{"1", "2"}) {
			t.Errorf("%+v, handled %q", s, handled)
		}
		if err := x.Health(time.Second); err != nil {
			t.Error(err)
		}
		x.check(lease.Release())
		time.Sleep(10 * time.Second)
		x.tell("4", insert(row(4, nil)))
		time.Sleep(2 * time.Second)
		if need := x.source.needs[x.source.runs()-1]; need.From != "1" || x.checkpoint.last() != "4" ||
			!x.Stats().Active {
			t.Errorf("from %q, saved %q", need.From, x.checkpoint.last())
		}
		x.end()
	})
}

// After an outage of the lock's service, a Consumer that waits for another one is healthy with its
// next attempt, and so is the active one with its Source.
func TestHealthAfterAnOutage(t *testing.T) {
	in(t, func(x *world) {
		locker, err := lock.NewRedis(x.rdb, nil)
		x.check(err)
		defer locker.Close()
		x.options.Locker = locker
		other, err := lock.NewRedis(x.rdb, nil) // of another process
		x.check(err)
		defer other.Close()
		active, err := other.Acquire(x.Context(), "orders", &lock.AcquireOptions{TTL: time.Hour})
		x.check(err)
		x.options.Name = "orders"
		x.redis.SetError("NOPERM")
		x.start()
		time.Sleep(20 * time.Second)
		if err := x.Health(time.Second); err == nil {
			t.Error("without its lock's service, a Consumer is healthy")
		}
		x.redis.SetError("")
		time.Sleep(longPause + time.Second)
		if err := x.Health(time.Second); err != nil || x.Stats().Active {
			t.Errorf("while another Consumer is active: %v", err)
		}
		x.check(active.Release())
		time.Sleep(10 * time.Second)
		x.tell("1", insert(row(1, nil)))
		x.source.in <- errors.New("the database has stopped")
		synctest.Wait()
		if err := x.Health(time.Minute); err == nil {
			t.Error("without its Source, a Consumer is healthy")
		}
		time.Sleep(longPause)
		x.source.in <- event.Batch{Position: "1"} // no changes: the Source may fail again
		time.Sleep(longPause + time.Second)
		if err := x.Health(time.Minute); err != nil {
			t.Errorf("while the Source works again: %v", err)
		}
		x.end()
	})
}

// A process that was suspended, and has been replaced at the source as well as in the lock, notices
// first that the source replaced it. It then waits for the lock again.
func TestReplacedBeforeTheLockIsLost(t *testing.T) {
	in(t, func(x *world) {
		locker, err := lock.NewRedis(x.rdb, &lock.Options{TTL: time.Minute})
		x.check(err)
		defer locker.Close()
		x.options.Locker = locker
		x.start()
		x.redis.SetError("LOADING")
		time.Sleep(56500 * time.Millisecond) // half a second before the holder gives it up
		x.source.in <- fmt.Errorf("%w: another has connected", ErrSetup)
		time.Sleep(2 * time.Second)
		if s := x.Stats(); s.Active {
			t.Fatal("the lock is not lost")
		}
		if got := x.alerted(); slices.Contains(got, "setup ") {
			t.Errorf("the loss of a lock counts as a wrong setup: %q", got)
		}
		x.redis.SetError("")
		x.redis.FastForward(time.Minute)
		time.Sleep(time.Minute)
		x.tell("1", insert(row(1, nil)))
		time.Sleep(time.Second)
		if s := x.Stats(); !s.Active || s.Position != "1" {
			t.Errorf("%+v", s)
		}
		x.end() // before the Locker is closed
	})
}

// Rows that are large are not read together by thousands.
func TestLargeRows(t *testing.T) {
	for _, told := range []int{0, 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			batches, all := make(chan event.Batch), make(chan []event.Batch)
			go collect(t.Context(), batches, all)
			taken := 0
			for full := false; !full; {
				synctest.Wait() // until it takes the next, or none
				select {
				case batches <- event.Batch{Changes: []event.Change{insert(row(1, strings.Repeat("x", 1<<20)))},
					Bytes: told}:
					taken++
				default:
					full = true
				}
			}
			close(batches)
			some := <-all
			if len(some) != taken || taken < 2 || taken > 10 {
				t.Errorf("%d batches of 1 MiB were taken, %d are given", taken, len(some))
			}
			for range all { // to its end
			}
		})
	}
}

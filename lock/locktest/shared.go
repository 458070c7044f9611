package locktest

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// extended reports whether the driver has read-write locks and semaphores. If it has not, extended
// asserts that the constructors, and Inspect, say so.
func (s *suite) extended() bool {
	s.Helper()
	l := s.locker()
	d := s.b.New(s.TB, &lock.Options{TTL: lasting, Timeout: lasting / 4})
	s.Cleanup(func() { _ = d.Close() })
	_, ok := d.(driver.Extended)
	if !ok {
		_, err := lock.NewReadWrite(l)
		s.is(err, errors.ErrUnsupported)
		_, err = lock.NewSemaphore(l, 1)
		s.is(err, errors.ErrUnsupported)
		_, err = l.Inspect(s.within(), s.name)
		s.is(err, errors.ErrUnsupported)
		s.is(l.Break(s.within(), s.name, 1), errors.ErrUnsupported)
		nothing := func(context.Context, int64) error { return nil }
		s.is(l.Once(s.within(), s.name, lasting, nothing), errors.ErrUnsupported)
	}
	return ok
}

func (s *suite) readWrite(l *lock.Locker) *lock.ReadWrite {
	s.Helper()
	rw, err := lock.NewReadWrite(l)
	s.check(err)
	return rw
}

func (s *suite) semaphore(l *lock.Locker, n int) *lock.Semaphore {
	s.Helper()
	sem, err := lock.NewSemaphore(l, n)
	s.check(err)
	return sem
}

// got ends the test unless a lease was acquired.
func (s *suite) got(lease *lock.Lease, err error) *lock.Lease {
	s.Helper()
	s.check(err)
	return lease
}

var (
	tryOnce = &lock.AcquireOptions{Try: true}
	fixedly = &lock.AcquireOptions{Fixed: true}
)

// eventually calls f until it returns true.
func (s *suite) eventually(event string, f func() bool) {
	s.Helper()
	for end := time.Now().Add(hang); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatal("hung, waited for: " + event)
		}
	}
}

// readersAndWriters: readers hold a lock together. A writer excludes all others. While a writer
// waits, no reader is added, in any process. Tokens grow.
func readersAndWriters(s *suite) {
	if !s.extended() {
		return
	}
	l := s.locker()
	a, b := s.readWrite(l), s.readWrite(s.locker())
	ctx := s.within()
	readers := []*lock.Lease{s.got(a.AcquireRead(ctx, s.name, nil)), s.got(a.AcquireRead(ctx, s.name, tryOnce)),
		s.got(b.AcquireRead(ctx, s.name, nil))}
	_, err := b.AcquireWrite(ctx, s.name, tryOnce)
	s.is(err, lock.ErrHeld)
	readers = append(readers, s.got(b.AcquireRead(ctx, s.name, nil))) // a try leaves no mark
	writer := make(chan *lock.Lease, 1)
	go func() {
		lease, err := a.AcquireWrite(ctx, s.name, nil)
		if err != nil {
			s.Error(err)
		}
		writer <- lease
	}()
	s.eventually("the writer waits", func() bool {
		for _, rw := range []*lock.ReadWrite{a, b} {
			lease, err := rw.AcquireRead(ctx, s.name, tryOnce)
			if err == nil {
				s.check(lease.Release())
				return false
			}
			s.is(err, lock.ErrHeld)
		}
		return true
	})
	tokens := make([]int64, 0, 6)
	for _, r := range readers {
		s.lives(r)
		tokens = append(tokens, r.Token())
		s.check(r.Release())
	}
	w := receive(s, "the writer", writer)
	if w == nil {
		s.Fatal("no writer")
	}
	for _, rw := range []*lock.ReadWrite{a, b} {
		_, err := rw.AcquireRead(ctx, s.name, tryOnce)
		s.is(err, lock.ErrHeld)
		_, err = rw.AcquireWrite(ctx, s.name, tryOnce)
		s.is(err, lock.ErrHeld)
	}
	tokens = append(tokens, w.Token())
	s.check(w.Do(func(ctx context.Context, _ int64) error { return ctx.Err() }))
	last := s.got(b.AcquireRead(ctx, s.name, nil))
	if tokens = append(tokens, last.Token()); !slices.IsSorted(tokens) || tokens[0] < 1 ||
		len(slices.Compact(tokens)) != 6 {
		s.Errorf("tokens do not grow: %v", tokens)
	}
	s.check(l.Close())
	s.check(last.Release())
}

// writerLeaves: a writer that stops waiting lets readers in again.
func writerLeaves(s *suite) {
	if !s.extended() {
		return
	}
	a, b := s.readWrite(s.locker()), s.readWrite(s.locker())
	reader := s.got(a.AcquireRead(s.within(), s.name, nil))
	ctx, cancel := context.WithCancel(s.within())
	ended := make(chan error, 1)
	go func() {
		_, err := b.AcquireWrite(ctx, s.name, nil)
		ended <- err
	}()
	s.eventually("the writer waits", func() bool {
		lease, err := a.AcquireRead(s.within(), s.name, tryOnce)
		if err == nil {
			s.check(lease.Release())
		}
		return err != nil
	})
	cancel()
	s.is(receive(s, "the end of the writer", ended), context.Canceled)
	s.check(s.got(a.AcquireRead(s.within(), s.name, nil)).Release()) // long before the TTL of the writer
	s.check(reader.Release())
	s.check(s.got(b.AcquireWrite(s.within(), s.name, nil)).Release())
}

// sharedExpires: a reader, a writer and a holder of a permit that do not extend their leases lose
// them before others get them.
func sharedExpires(s *suite) {
	if !s.extended() {
		return
	}
	a, b := s.brief(), s.locker()
	ar, br, as, bs := s.readWrite(a), s.readWrite(b), s.semaphore(a, 1), s.semaphore(b, 1)
	for name, by := range map[string]func(first bool) (*lock.Lease, error){
		"reader": func(first bool) (*lock.Lease, error) {
			if first {
				return ar.AcquireRead(s.within(), s.name, fixedly)
			}
			return br.AcquireWrite(s.within(), s.name, nil)
		},
		"writer": func(first bool) (*lock.Lease, error) {
			if first {
				return ar.AcquireWrite(s.within(), s.name+"w", fixedly)
			}
			return br.AcquireRead(s.within(), s.name+"w", nil)
		},
		"permit": func(first bool) (*lock.Lease, error) {
			if first {
				return as.Acquire(s.within(), s.name, fixedly)
			}
			return bs.Acquire(s.within(), s.name, nil)
		},
	} {
		old, err := by(true)
		if err != nil {
			s.late("acquire: %v", err)
		}
		next := s.got(by(false))
		if at := time.Now(); !old.Deadline().Before(at) {
			s.Errorf("%s: the deadline was %v after the next acquisition", name, old.Deadline().Sub(at))
		}
		s.ends(old, lock.ErrLost)
		s.is(old.Release(), lock.ErrLost)
		s.lives(next)
		if next.Token() <= old.Token() {
			s.Errorf("%s: token %d after %d", name, next.Token(), old.Token())
		}
		s.check(next.Release())
	}
}

// sharedExtended: leases on read-write locks and permits are extended for several lifetimes.
func sharedExtended(s *suite) {
	if !s.extended() {
		return
	}
	a := s.brief()
	var leases []*lock.Lease
	for _, by := range []func() (*lock.Lease, error){
		func() (*lock.Lease, error) { return s.readWrite(a).AcquireRead(s.within(), s.name, nil) },
		func() (*lock.Lease, error) { return s.readWrite(a).AcquireRead(s.within(), s.name, nil) },
		func() (*lock.Lease, error) { return s.readWrite(a).AcquireWrite(s.within(), s.name+"w", nil) },
		func() (*lock.Lease, error) { return s.semaphore(a, 1).Acquire(s.within(), s.name, nil) },
	} {
		lease, err := by()
		if err != nil {
			s.late("acquire: %v", err)
		}
		defer lease.Release()
		leases = append(leases, lease)
	}
	time.Sleep(5 * s.life / 2)
	s.kept(leases...)
	b := s.locker()
	_, err := s.readWrite(b).AcquireWrite(s.within(), s.name, tryOnce)
	_, err2 := s.readWrite(b).AcquireRead(s.within(), s.name+"w", tryOnce)
	_, err3 := s.semaphore(b, 1).Acquire(s.within(), s.name, tryOnce)
	s.kept(leases...)
	for _, err := range []error{err, err2, err3} {
		s.is(err, lock.ErrHeld)
	}
}

// permits: several processes never have more than n permits at a time, and use all n. The lock and
// the read-write lock with the same name are independent.
func permits(s *suite) {
	if !s.extended() {
		return
	}
	const n = 3
	other := s.locker()
	s.acquire(other, nil)
	s.got(s.readWrite(other).AcquireWrite(s.within(), s.name, nil))
	var inside atomic.Int32
	var all, together sync.WaitGroup
	together.Add(n)
	var tokens sync.Map
	for i := range 2 * n {
		sem := s.semaphore(s.locker(), n)
		all.Go(func() {
			for j := range 3 {
				lease, err := sem.Acquire(s.within(), s.name, nil)
				if err != nil {
					s.Error(err)
					return
				}
				if inside.Add(1) > n {
					s.Errorf("more than %d have a permit", n)
				}
				if i < n && j == 0 {
					together.Done()
				}
				if _, twice := tokens.LoadOrStore(lease.Token(), true); twice || lease.Token() < 1 {
					s.Errorf("token %d twice", lease.Token())
				}
				runtime.Gosched()
				s.lives(lease)
				inside.Add(-1)
				if err := lease.Release(); err != nil {
					s.Error(err)
				}
			}
		})
	}
	all.Wait()
	together.Wait()
	a, b := s.semaphore(s.locker(), 2), s.semaphore(s.locker(), 2)
	one, two := s.got(a.Acquire(s.within(), s.name, tryOnce)), s.got(b.Acquire(s.within(), s.name, tryOnce))
	for _, sem := range []*lock.Semaphore{a, b} {
		_, err := sem.Acquire(s.within(), s.name, tryOnce)
		s.is(err, lock.ErrHeld)
	}
	s.check(one.Release())
	s.check(s.got(b.Acquire(s.within(), s.name, tryOnce)).Release())
	s.check(two.Release())
}

// labelled returns a Locker of another process with a label and locks with a short lifetime.
func (s *suite) labelled(label string) *lock.Locker {
	s.Helper()
	o := &lock.Options{TTL: s.life, Timeout: s.life / 4, Label: label}
	l, err := lock.New(s.b.New(s.TB, o), o)
	s.check(err)
	s.Cleanup(func() { _ = l.Close() })
	return l
}

// kind is a kind of lock with one holder.
type kind struct {
	name     string
	acquire  func(l *lock.Locker) (*lock.Lease, error)
	inspect  func(context.Context, string) (lock.State, error)
	breakOff func(context.Context, string, int64) error
}

// inspected: Inspect shows who holds a lock of any kind. Break takes it away, from this holder
// only, and the holder learns of it at its next extension.
func inspected(s *suite) {
	if !s.extended() {
		return
	}
	a, b := s.labelled("host-1/app@x:17"), s.locker()
	rw, sem := s.readWrite(b), s.semaphore(b, 1)
	for _, k := range []kind{
		{"lock", func(l *lock.Locker) (*lock.Lease, error) { return l.Acquire(s.within(), s.name, nil) },
			b.Inspect, b.Break},
		{"writer", func(l *lock.Locker) (*lock.Lease, error) {
			return s.readWrite(l).AcquireWrite(s.within(), s.name, nil)
		}, rw.Inspect, rw.Break},
		{"permit", func(l *lock.Locker) (*lock.Lease, error) {
			return s.semaphore(l, 1).Acquire(s.within(), s.name, nil)
		}, sem.Inspect, sem.Break},
	} {
		state, err := k.inspect(s.within(), s.name)
		if s.check(err); len(state.Holders) != 0 || state.Waiting != 0 {
			s.Errorf("%s: a free lock: %+v", k.name, state)
		}
		lease, err := k.acquire(a)
		if err != nil {
			s.late("acquire: %v", err)
		}
		state, err = k.inspect(s.within(), s.name)
		s.kept(lease)
		s.check(err)
		s.shows(k, state, lease.Token())
		s.is(k.breakOff(s.within(), s.name, lease.Token()-1), lock.ErrReleased)
		s.broken(k, lease, b)
	}
}

// shows asserts that a state shows a holder with this token.
func (s *suite) shows(k kind, state lock.State, token int64) {
	s.Helper()
	if len(state.Holders) != 1 {
		s.Fatalf("%s: %+v", k.name, state)
	}
	h := state.Holders[0]
	longest := s.life + time.Millisecond // Redis' ends are rounded to milliseconds
	if ago := time.Since(h.Since); ago < -time.Minute || ago > time.Hour || h.Left <= 0 || h.Left > longest ||
		h.Label != "host-1/app@x:17" || h.Token != token || h.Write != (k.name == "writer") {
		s.Errorf("%s: %+v", k.name, state)
	}
}

// broken breaks a lock. A caller of l gets it, and loses it in the same way.
func (s *suite) broken(k kind, lease *lock.Lease, l *lock.Locker) {
	s.Helper()
	next := make(chan *lock.Lease, 1)
	go func() {
		lease, err := k.acquire(l)
		if err != nil {
			s.Error(err)
		}
		next <- lease
	}()
	s.eventually("a caller waits", func() bool {
		state, err := k.inspect(s.within(), s.name)
		s.check(err)
		return state.Waiting == 1
	})
	s.kept(lease)
	token := lease.Token()
	s.check(k.breakOff(s.within(), s.name, token))
	s.ends(lease, lock.ErrLost)
	s.is(lease.Release(), lock.ErrLost)
	got := receive(s, "the next holder", next)
	if got == nil {
		s.Fatal("no next holder")
	}
	s.is(k.breakOff(s.within(), s.name, token), lock.ErrReleased)
	s.lives(got)
	s.check(k.breakOff(s.within(), s.name, got.Token())) // its own process learns of it at once
	s.is(context.Cause(got.Context()), lock.ErrLost)
	s.is(got.Release(), lock.ErrLost)
}

// allOrNone: AcquireAll acquires all locks or none.
func allOrNone(s *suite) {
	a, b := s.locker(), s.locker()
	x, y, z := s.name+"x", s.name+"y", s.name+"z"
	held := s.got(b.Acquire(s.within(), y, nil))
	_, err := a.AcquireAll(s.within(), []string{z, y, x}, tryOnce)
	s.is(err, lock.ErrHeld)
	s.eventually("what was acquired is released", func() bool {
		for _, name := range []string{x, z} {
			lease, err := b.TryAcquire(s.within(), name, nil)
			if err != nil {
				s.is(err, lock.ErrHeld)
				return false
			}
			s.check(lease.Release())
		}
		return true
	})
	got := make(chan *lock.Leases, 1)
	go func() {
		leases, err := a.AcquireAll(s.within(), []string{z, y, x, z}, nil)
		if err != nil {
			s.Error(err)
		}
		got <- leases
	}()
	time.Sleep(20 * time.Millisecond) // it waits for y
	s.check(held.Release())
	leases := receive(s, "all locks", got)
	if leases == nil {
		s.Fatal("not all locks")
	}
	for _, name := range []string{x, y, z} {
		_, err := b.TryAcquire(s.within(), name, nil)
		s.is(err, lock.ErrHeld)
		if leases.Token(name) < 1 {
			s.Error("a lock has no token")
		}
	}
	if leases.Token("other") != 0 || leases.Context().Err() != nil {
		s.Error("the leases of the locks have ended, or another lock has a token")
	}
	s.check(leases.Release())
	s.is(context.Cause(leases.Context()), lock.ErrReleased)
	for _, bad := range [][]string{nil, {""}, make([]string, 101)} {
		if _, err := a.AcquireAll(s.within(), bad, nil); err == nil {
			s.Errorf("%d names are accepted", len(bad))
		}
	}
}

// noDeadlock: processes that want some of the same locks, in any order, all get them.
func noDeadlock(s *suite) {
	a, b := s.locker(), s.locker()
	var inside [3]atomic.Int32
	var all sync.WaitGroup
	for i, l := range []*lock.Locker{a, b, a, b} {
		pair := []int{i % 3, (i + 1) % 3}
		all.Go(func() {
			for range 5 {
				names := []string{s.name + strconv.Itoa(pair[1]), s.name + strconv.Itoa(pair[0])}
				leases, err := l.AcquireAll(s.within(), names, nil)
				if err != nil {
					s.Error(err)
					return
				}
				for _, n := range pair {
					if inside[n].Add(1) != 1 {
						s.Error("two have a lock")
					}
				}
				time.Sleep(time.Millisecond)
				for _, n := range pair {
					inside[n].Add(-1)
				}
				if err := leases.Release(); err != nil {
					s.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// allLost: the context of several locks ends when they are lost, before others get them.
func allLost(s *suite) {
	a, b := s.brief(), s.locker()
	leases, err := a.AcquireAll(s.within(), []string{s.name, s.name + "2"}, fixedly)
	if err != nil {
		s.late("acquire: %v", err)
	}
	first, second := leases.Token(s.name), leases.Token(s.name+"2")
	next, err := b.AcquireAll(s.within(), []string{s.name, s.name + "2"}, nil)
	s.check(err)
	if s.strict() && leases.Context().Err() == nil {
		s.Error("another holder has the locks, and the context has not ended")
	}
	receive(s, "the end of the leases", leases.Context().Done())
	s.is(context.Cause(leases.Context()), lock.ErrLost)
	s.is(leases.Release(), lock.ErrLost)
	if next.Token(s.name) <= first || next.Token(s.name+"2") <= second {
		s.Error("a token does not grow")
	}
	s.check(next.Release())
}

// once: a job runs once in a period, in any process. A job that fails runs again.
func once(s *suite) {
	if !s.extended() {
		return
	}
	a, b, other := s.brief(), s.locker(), s.locker()
	runs := 0
	ok := func(_ context.Context, token int64) error {
		if runs++; token < 1 {
			s.Errorf("token %d", token)
		}
		return nil
	}
	reason := errors.New("why")
	err := b.Once(s.within(), s.name, lasting, func(context.Context, int64) error {
		s.is(other.Once(s.within(), s.name, lasting, ok), lock.ErrHeld) // while it runs
		return reason
	})
	s.is(err, reason)
	func() {
		defer func() {
			if recover() != reason {
				s.Error("Once did not pass the panic on")
			}
		}()
		b.Once(s.within(), s.name, lasting, func(context.Context, int64) error { panic(reason) })
	}()
	ctx := lock.WithOwner(s.within())
	s.check(b.Once(ctx, s.name, 4*lasting, ok))
	for _, l := range []*lock.Locker{a, b, s.locker()} {
		if err := l.Once(ctx, s.name, lasting, ok); !errors.Is(err, lock.ErrHeld) {
			s.late("a second run: %v", err)
		}
	}
	s.check(b.Close()) // does not release it
	state, err := s.locker().Inspect(s.within(), s.name)
	if s.check(err); runs != 1 || len(state.Holders) != 1 || state.Holders[0].Left < 2*lasting {
		s.Errorf("%d runs, %+v", runs, state)
	}
}

// onceAgain: a job runs again in the next period, and if its process dies half-way.
func onceAgain(s *suite) {
	if !s.extended() {
		return
	}
	a, c, name, runs := s.brief(), s.locker(), s.name+"2", 0
	ok := func(context.Context, int64) error { runs++; return nil }
	began := time.Now()
	if err := a.Once(s.within(), name, 3*s.life/2, ok); err != nil {
		s.late("a run in a short period: %v", err)
	}
	err := c.Once(s.within(), name, lasting, ok)
	if err == nil && time.Since(began) >= 3*s.life/2-s.life/20 {
		s.late("the second call came after the period")
	}
	s.is(err, lock.ErrHeld)
	s.eventually("the next period", func() bool {
		err := c.Once(s.within(), name, lasting, ok)
		if err != nil {
			s.is(err, lock.ErrHeld)
		}
		return err == nil
	})
	if took := time.Since(began); took < 3*s.life/2-s.life/20 {
		s.Errorf("a period of %v lasts %v", 3*s.life/2, took)
	}
	// A process that dies half-way: its lock is not extended.
	dead, err := a.Acquire(s.within(), s.name+"3", fixedly)
	if err != nil {
		s.late("acquire: %v", err)
	}
	s.eventually("a run after the death of another", func() bool {
		return c.Once(s.within(), s.name+"3", lasting, ok) == nil
	})
	s.is(dead.Release(), lock.ErrLost)
	if runs != 3 {
		s.Errorf("%d runs", runs)
	}
	if err := c.Once(s.within(), s.name+"4", time.Millisecond, ok); err == nil {
		s.Error("a period shorter than the TTL is accepted")
	}
}

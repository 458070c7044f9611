package locktest

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheaside/cacheaside/lock"
)

// exclusive: several processes, with several goroutines each, hold the lock one at a time. Each
// holder has a greater token than the previous one.
func exclusive(s *suite) {
	var inside atomic.Int32
	var last atomic.Int64
	var all sync.WaitGroup
	rounds := 3
	if s.b.Idle {
		rounds = 20
	}
	for range 3 {
		l := s.locker()
		for range 4 {
			all.Go(func() {
				for range rounds {
					lease, err := l.Acquire(s.within(), s.name, nil)
					if err != nil {
						s.Error(err)
						return
					}
					if inside.Add(1) != 1 {
						s.Error("two have the lock")
					}
					if before := last.Swap(lease.Token()); before >= lease.Token() {
						s.Errorf("token %d after %d", lease.Token(), before)
					}
					if runtime.Gosched(); s.exact {
						time.Sleep(time.Millisecond)
					}
					s.lives(lease)
					inside.Add(-1)
					if err := lease.Release(); err != nil {
						s.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
}

func try(s *suite) {
	a, b := s.locker(), s.locker()
	lease := s.acquire(a, nil)
	s.held(a)
	s.held(b)
	s.check(lease.Release())
	lease, err := b.TryAcquire(s.within(), s.name, nil)
	s.check(err)
	s.held(a)
	s.check(lease.Release())
}

func wait(s *suite) {
	a, b := s.locker(), s.locker()
	lease := s.acquire(a, nil)
	for _, l := range []*lock.Locker{a, b} {
		wait := 50 * time.Millisecond
		began := time.Now()
		_, err := l.Acquire(s.within(), s.name, &lock.AcquireOptions{Wait: wait})
		for ; errors.Is(err, lock.ErrNoReply) && !s.exact && wait < hang; wait *= 2 { // too slow a machine
			began = time.Now()
			_, err = l.Acquire(s.within(), s.name, &lock.AcquireOptions{Wait: wait})
		}
		s.is(err, lock.ErrHeld)
		if took := time.Since(began); took < 50*time.Millisecond || s.exact && took > wait {
			s.Errorf("waited for %v", took)
		}
	}
	_, err := b.Acquire(s.within(), s.name, &lock.AcquireOptions{Try: true})
	s.is(err, lock.ErrHeld)
	s.check(lease.Release())
	s.check(s.acquire(b, nil).Release())
}

// cancelledWaiter: a cancelled waiter, in the holder's or another process, returns the cause, and
// leaves nothing behind.
func cancelledWaiter(s *suite) {
	a, b := s.locker(), s.locker()
	lease := s.acquire(a, nil)
	reason := errors.New("why")
	for _, l := range []*lock.Locker{a, b} {
		var all sync.WaitGroup
		ctx, cancel := context.WithCancelCause(s.within())
		for range 3 {
			all.Go(func() {
				_, err := l.Acquire(ctx, s.name, nil)
				s.is(err, reason)
			})
		}
		time.Sleep(20 * time.Millisecond) // some wait by then
		cancel(reason)
		all.Wait()
		_, err := l.Acquire(ctx, s.name, nil)
		s.is(err, reason)
	}
	s.check(lease.Release())
	s.check(s.acquire(b, nil).Release())
	s.check(s.acquire(a, nil).Release())
	time.Sleep(20 * time.Millisecond) // a request that was cancelled may be late
	s.check(s.acquire(b, nil).Release())
}

func released(s *suite) {
	a, b := s.locker(), s.locker()
	ctx, cancel := context.WithCancel(s.within())
	lease := s.acquireWith(ctx, a, nil)
	if left := time.Until(lease.Deadline()); left <= 0 || left > lasting {
		s.Errorf("%v left", left)
	}
	s.lives(lease)
	cancel() // Release works all the same
	s.check(lease.Release())
	s.ends(lease, context.Canceled)
	lease = s.acquire(a, nil)
	s.check(lease.Release())
	s.ends(lease, lock.ErrReleased)
	s.is(lease.Extend(s.within()), lock.ErrReleased)
	other := s.acquire(b, nil)
	s.check(lease.Release()) // a second call does nothing, and does not release another's lock
	s.held(a)
	s.check(other.Release())
}

func do(s *suite) {
	a, b := s.locker(), s.locker()
	reason := errors.New("why")
	s.is(a.Do(s.within(), s.name, nil, func(ctx context.Context, token int64) error {
		if token <= 0 || ctx.Err() != nil {
			s.Errorf("token %d, context %v", token, ctx.Err())
		}
		s.held(b)
		return reason
	}), reason)
	lease := s.acquire(a, nil)
	for _, o := range []*lock.AcquireOptions{{Try: true}, {Wait: time.Millisecond}} {
		err := b.Do(s.within(), s.name, o, func(context.Context, int64) error { s.Error("it runs"); return nil })
		if o.Wait == 0 || !errors.Is(err, lock.ErrNoReply) {
			s.is(err, lock.ErrHeld)
		}
	}
	s.check(lease.Release())
	s.check(b.Do(s.within(), s.name, nil, func(context.Context, int64) error { return nil }))
	func() {
		defer func() {
			if recover() != reason {
				s.Error("Do did not pass the panic on")
			}
		}()
		a.Do(s.within(), s.name, nil, func(context.Context, int64) error { panic(reason) })
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Do(s.within(), s.name, nil, func(context.Context, int64) error { runtime.Goexit(); return nil })
	}()
	<-done
	lease = s.acquire(b, &lock.AcquireOptions{Try: true})
	s.check(lease.Release())
}

// names: a name may have any bytes, and different names are different locks. Other suites may use
// the same ones on this service, in this order.
func names(s *suite) {
	l := s.locker()
	long := strings.Repeat("x", 1023)
	var leases []*lock.Lease
	for _, name := range []string{
		"a", "A", "a ", " a", "a\x00", "ä", "a\u0308", "a/b", "a%2Fb", "/", "..", ".", "{a}", "a}", "}", "%7D", "%",
		"*", "a'b", `a"b`, "a\nb", "\xff\xfe", "-", "1", "01",
		long + "y", long + "z", long, "zookeeper", "lock:a",
	} {
		lease, err := l.Acquire(s.within(), name, nil)
		if err != nil {
			s.Errorf("name %q: %v", name, err)
			continue
		}
		leases = append(leases, lease)
	}
	for _, lease := range leases {
		s.check(lease.Release())
	}
}

func closing(s *suite) {
	a, b := s.locker(), s.locker()
	lease := s.acquire(a, nil)
	waits := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := a.Acquire(s.within(), s.name, nil)
			waits <- err
		}()
	}
	time.Sleep(20 * time.Millisecond)
	s.check(a.Close())
	for range 2 {
		s.is(receive(s, "the end of a wait", waits), lock.ErrClosed)
	}
	s.ends(lease, lock.ErrReleased)
	other, err := b.TryAcquire(s.within(), s.name, nil)
	s.check(err)
	s.check(lease.Release())
	s.held(b)
	s.check(other.Release())
	_, err = a.Acquire(s.within(), s.name, nil)
	s.is(err, lock.ErrClosed)
	s.check(a.Close())
}

func badInput(s *suite) {
	l := s.locker()
	for _, name := range []string{"", strings.Repeat("x", 1025)} {
		if _, err := l.Acquire(s.within(), name, nil); err == nil {
			s.Errorf("a name of %d bytes is accepted", len(name))
		}
	}
	secret := "a-private-name"
	for field, o := range map[string]*lock.AcquireOptions{
		"AcquireOptions.TTL":     {TTL: time.Millisecond},
		"AcquireOptions.Wait":    {Wait: -1},
		"AcquireOptions.MaxHold": {MaxHold: time.Millisecond},
	} {
		_, err := l.Acquire(s.within(), secret, o)
		var failed *lock.Error
		if !errors.As(err, &failed) || failed.Op != lock.OpAcquire || !strings.HasSuffix(failed.Name, secret) {
			s.Errorf("%s: %#v", field, err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, field) || strings.Contains(text, secret) {
			s.Error(text)
		}
	}
}

package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// Extend of a lost lock returns ErrLost, whichever comes first.
func TestExtendOfALostLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{extend: func(ctx context.Context, _ time.Duration) error { <-ctx.Done(); return ctx.Err() }}
		l := locktest.Closed(t)(lock.New(f, nil))
		lease, err := l.Acquire(t.Context(), "a", &lock.AcquireOptions{Fixed: true})
		locktest.Want(t, "acquire", err, nil)
		under := make(chan error, 1)
		go func() { under <- lease.Extend(context.Background()) }()
		synctest.Wait()
		f.requests[0].Lost(errors.New("the session has ended"))
		locktest.Want(t, "an Extend that was under way", <-under, lock.ErrLost)
		for range 100 {
			locktest.Want(t, "a later one", lease.Extend(t.Context()), lock.ErrLost)
		}
		locktest.Want(t, "release", lease.Release(), lock.ErrLost)
		l.Close()
	})
}

// One call of a process at a time requests a lock, TryAcquire included. So a service that has lost
// its memory grants no lock that this process holds.
func TestTriesDoNotContend(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		answer := make(chan error)
		f.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
			err := <-answer
			return driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: r.TTL}, err
		}
		tried := make(chan *lock.Lease)
		try := func(want error) {
			lease, err := l.TryAcquire(t.Context(), "a", nil)
			if !errors.Is(err, want) {
				t.Errorf("first caller: %v, want %v", err, want)
			}
			tried <- lease
		}
		refused := errors.New("refused")
		for _, want := range []error{refused, nil} { // a failed try does not block later ones
			go try(want)
			synctest.Wait()
			_, err := l.TryAcquire(t.Context(), "a", nil)
			locktest.Want(t, "one while another asks", err, lock.ErrHeld)
			answer <- want
			lease := <-tried
			if want != nil {
				continue
			}
			_, err = l.TryAcquire(t.Context(), "a", nil)
			locktest.Want(t, "one while another has the lock", err, lock.ErrHeld)
			locktest.Want(t, "release", lease.Release(), nil)
		}
		if n := f.asked(); n != 2 {
			t.Errorf("the service received %d requests, want 2", n)
		}
	})
}

// An owner that waits for a lock and gets it by another call does not wait for itself.
func TestOwnerDoesNotWaitForItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newService()
		other, l := locktest.Closed(t)(lock.New(d, nil)), locktest.Closed(t)(lock.New(&tardy{d}, nil))
		held, err := other.Acquire(t.Context(), "a", nil)
		locktest.Want(t, "acquire", err, nil)
		ctx := lock.WithOwner(t.Context())
		waited := make(chan error, 1)
		go func() {
			lease, err := l.Acquire(ctx, "a", &lock.AcquireOptions{Wait: time.Minute})
			if err == nil {
				err = lease.Release()
			}
			waited <- err
		}()
		synctest.Wait()
		locktest.Want(t, "release", held.Release(), nil)
		lease, err := l.TryAcquire(ctx, "a", nil) // before the waiting call has noticed
		if err == nil {
			locktest.Want(t, "the same owner's other Acquire", <-waited, nil)
			locktest.Want(t, "release", lease.Release(), nil)
		} else {
			locktest.Want(t, "try", err, lock.ErrHeld)
			locktest.Want(t, "the same owner's other Acquire", <-waited, nil)
		}
		l.Close()
		other.Close()
	})
}

// tardy is a service in which a waiting caller asks once a second.
type tardy struct{ driver.Driver }

func (t *tardy) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	for {
		once := r
		once.Wait = false
		g, err := t.Driver.Acquire(ctx, once)
		if !r.Wait || !errors.Is(err, driver.ErrHeld) {
			return g, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return g, context.Cause(ctx)
		}
	}
}

// Of two concurrent tries of one owner, one is refused. Once the other has the lock, both can have
// it.
func TestOwnersTryTogether(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		answer := make(chan struct{})
		f.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
			<-answer
			return driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: r.TTL}, nil
		}
		ctx := lock.WithOwner(t.Context())
		tried := make(chan *lock.Lease)
		go func() {
			lease, err := l.TryAcquire(ctx, "a", nil)
			if err != nil {
				t.Error(err)
			}
			tried <- lease
		}()
		synctest.Wait()
		_, err := l.TryAcquire(ctx, "a", nil)
		locktest.Want(t, "the other", err, lock.ErrHeld)
		close(answer)
		first := <-tried
		second, err := l.TryAcquire(ctx, "a", nil)
		locktest.Want(t, "the other, once more", err, nil)
		locktest.Want(t, "release", first.Release(), nil)
		locktest.Want(t, "the second's context", second.Context().Err(), nil)
		locktest.Want(t, "release", second.Release(), nil)
	})
}

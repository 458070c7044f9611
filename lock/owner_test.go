package lock_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// Extend of a lost lock says so, however the loss and the request meet.
func TestExtendOfALostLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{extend: func(ctx context.Context, _ time.Duration) error { <-ctx.Done(); return ctx.Err() }}
		l := locktest.Closed(t)(lock.New(f, nil))
		lease, err := l.Acquire(t.Context(), "a", &lock.Options{Fixed: true})
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

// A service that has lost its memory may grant a lock that this process has: then the older holder
// has lost it.
func TestLockIsGrantedTwice(t *testing.T) {
	for _, late := range []bool{false, true} { // the answer to the first comes after that to the second
		t.Run("late "+strconv.FormatBool(late), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := []chan struct{}{1: make(chan struct{}), 2: make(chan struct{})}
				f := &fake{}
				f.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
					n := f.asked()
					g := driver.Grant{Lock: f, Token: int64(n), Sent: time.Now(), TTL: r.TTL}
					<-answers[n]
					return g, nil
				}
				l := locktest.Closed(t)(lock.New(f, nil))
				leases := make([]*lock.Lease, 3)
				errs := make([]error, 3)
				try := func(i int) {
					leases[i], errs[i] = l.TryAcquire(t.Context(), "a", nil)
				}
				go try(1)
				synctest.Wait()
				go try(2)
				synctest.Wait()
				order := []int{1, 2}
				if late {
					order = []int{2, 1}
				}
				for _, i := range order {
					close(answers[i])
					synctest.Wait()
				}
				locktest.Want(t, "the second", errs[2], nil)
				if errs[1] == nil {
					locktest.Want(t, "the first holder's context", context.Cause(leases[1].Context()), lock.ErrLost)
					locktest.Want(t, "release of the first", leases[1].Release(), lock.ErrLost)
				} else {
					locktest.Want(t, "the first", errs[1], lock.ErrLost)
				}
				locktest.Want(t, "the second holder's context", leases[2].Context().Err(), nil)
				locktest.Want(t, "close", l.Close(), nil) // which releases it
				locktest.Want(t, "the second holder's context", context.Cause(leases[2].Context()), lock.ErrReleased)
			})
		})
	}
}

// An owner who tries, and gets, a lock that he waits for elsewhere does not wait for himself.
func TestOwnerWaitsNotForHimself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := lock.NewLocalDriver()
		other, l := locktest.Closed(t)(lock.New(d, nil)), locktest.Closed(t)(lock.New(&tardy{d}, nil))
		held, err := other.Acquire(t.Context(), "a", nil)
		locktest.Want(t, "acquire", err, nil)
		ctx := lock.WithOwner(t.Context())
		waited := make(chan error, 1)
		go func() {
			lease, err := l.Acquire(ctx, "a", &lock.Options{Wait: time.Minute})
			if err == nil {
				err = lease.Release()
			}
			waited <- err
		}()
		synctest.Wait()
		locktest.Want(t, "release", held.Release(), nil)
		lease, err := l.TryAcquire(ctx, "a", nil) // before the call that waits has noticed
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

// tardy is a service in which a caller that waits asks once a second.
type tardy struct{ driver.Driver }

func (d *tardy) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	for {
		once := r
		once.Wait = false
		g, err := d.Driver.Acquire(ctx, once)
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

// Two of one owner try at the same time: what the service refuses the one since the other has it,
// he has.
func TestOwnersTryTogether(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		refused := make(chan struct{})
		f.acquire = func(context.Context, driver.Request) (driver.Grant, error) {
			if f.asked() == 1 {
				<-refused
				return driver.Grant{}, driver.ErrHeld
			}
			return driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: ttl}, nil
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
		first, err := l.TryAcquire(ctx, "a", nil)
		locktest.Want(t, "the other", err, nil)
		close(refused)
		second := <-tried
		locktest.Want(t, "release", first.Release(), nil)
		if second != nil {
			locktest.Want(t, "the first's context", second.Context().Err(), nil)
			locktest.Want(t, "release", second.Release(), nil)
		}
	})
}

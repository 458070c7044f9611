package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// TestStalledService: a service that does not reply is ErrNoReply, never ErrHeld, also if Wait is
// shorter than the timeout of a request.
func TestStalledService(t *testing.T) {
	with(t, func(t *testing.T, f *fake, l *lock.Locker) {
		f.acquire = func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			limited, cancel := context.WithTimeout(ctx, r.Timeout)
			defer cancel()
			<-limited.Done()
			return driver.Grant{}, limited.Err()
		}
		for _, wait := range []time.Duration{0, 10 * time.Millisecond} {
			_, err := l.Acquire(t.Context(), "a", &lock.AcquireOptions{Wait: wait})
			noReply(t, err)
		}
	})
}

// TestHungRedis: the same for a Redis that hangs, and for each request.
func TestHungRedis(t *testing.T) {
	p, l, _ := throughProxy(t, locktest.Quick(300*time.Millisecond))
	lease, second := locktest.InTheEnd(t, l, "a", nil), locktest.InTheEnd(t, l, "b", nil)
	p.Hang(true)
	for _, o := range []lock.AcquireOptions{{}, {Try: true}, {Wait: 10 * time.Millisecond}} {
		_, err := l.Acquire(t.Context(), "c", &o)
		noReply(t, err)
	}
	noReply(t, lease.Extend(t.Context()))
	noReply(t, second.Release())
	p.Hang(false)
	testenv.Eventually(t, "the lock is extended", func() bool { return lease.Extend(t.Context()) == nil })
}

func noReply(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, lock.ErrNoReply) || errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrLost) ||
		errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, not ErrNoReply", err)
	}
}

package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/lock"
)

// These tests show the gaps of redsync alone, so that a failure says when the code around it has
// become unnecessary. They also show how New closes them.

func (f *five) redsync(bounded bool) *redsync.Redsync {
	var pools []redsyncredis.Pool
	for _, c := range f.clients(bounded) {
		pools = append(pools, goredis.NewPool(c))
	}
	return redsync.New(pools...)
}

func TestRedlockCancelledAcquire(t *testing.T) {
	t.Run("redsync", func(t *testing.T) {
		f := newFive(t)
		f.hang(true, 2, 3, 4)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for t.Context().Err() == nil && f.count("a", 0, 1) < 2 {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		if err := f.redsync(true).NewMutex("a", redsync.WithExpiry(10*time.Minute),
			redsync.WithTimeoutFactor(0.001)).TryLockContext(ctx); err == nil {
			t.Fatal("redsync acquires the lock without a majority")
		}
		time.Sleep(100 * time.Millisecond)
		if n := f.held(0, 1); n != 2 {
			t.Errorf("%d keys are left, want 2: does redsync now free its votes?", n)
		}
	})
	t.Run("lock", func(t *testing.T) {
		f := newFive(t)
		l := f.locker(locktest.Patient())
		f.hang(true, 2, 3, 4)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(40*time.Millisecond, cancel)
		if _, err := l.Acquire(ctx, "a", nil); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		left := f.free(0, 1)
		f.hang(false, 2, 3, 4) // delayed requests arrive
		time.Sleep(20 * time.Millisecond)
		t.Logf("free on those that hung after %v", f.free())
		soon(t, "freeing the nodes that answer", left, 100*time.Millisecond)
	})
}

func TestRedlockNodeHangs(t *testing.T) {
	const patience = 450 * time.Millisecond
	t.Run("redsync", func(t *testing.T) {
		f := newFive(t)
		// A timeout would be a twentieth of this.
		m := f.redsync(true).NewMutex("a", redsync.WithExpiry(6*time.Second), redsync.WithTries(1000))
		f.check(m.Lock())
		f.hang(true, 4)
		for name, op := range map[string]func(context.Context) (bool,
			error){"extend": m.ExtendContext, "unlock": m.UnlockContext} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if d := took(func() { op(ctx) }); d < patience-50*time.Millisecond {
				t.Errorf("%s takes %v: does redsync now have a timeout?", name, d)
			}
		}
		f.hang(false, 4)
	})
	// TestRedlockTimes shows that a hanging node delays no caller.
	t.Run("lock", func(t *testing.T) {
		f := newFive(t)
		l := f.locker(locktest.Patient())
		f.hang(true, 4)
		var lease *lock.Lease
		var err error
		soon(t, "acquire", took(func() { lease, err = l.Acquire(t.Context(), "a", nil) }), 400*time.Millisecond)
		f.check(err)
		soon(t, "extend", took(func() { err = lease.Extend(t.Context()) }), 400*time.Millisecond)
		f.check(err)
		soon(t, "release", took(func() { err = lease.Release() }), 400*time.Millisecond)
		f.check(err)
		f.free(0, 1, 2, 3)
		f.hang(false, 4)
		f.free()
	})
}

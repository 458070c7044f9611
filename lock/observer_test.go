package lock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/driver"
)

// watched is an Observer that records the operations that have ended, and their durations.
type watched struct {
	mu    sync.Mutex
	begun int
	ended []string
}

func (w *watched) Begin(ctx context.Context, op, locker string, n int) (context.Context, func(error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun++
	began := time.Now()
	return ctx, func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		text := op + " " + locker + " " + time.Since(began).String()
		switch {
		case errors.Is(err, lock.ErrLost):
			text += " lost"
		case errors.Is(err, lock.ErrHeld):
			text += " held"
		case err != nil:
			text += " " + err.Error()
		}
		w.ended = append(w.ended, text)
	}
}

// The Observer receives each wait and each hold once.
func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := &watched{}, &fake{}
		l, err := lock.New(f, &lock.Options{Prefix: "shop:", TTL: ttl, Observer: w})
		if err != nil {
			t.Fatal(err)
		}
		f.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
			time.Sleep(time.Second)
			return driver.Grant{Lock: f, Token: 1, Sent: time.Now(), TTL: r.TTL}, nil
		}
		owner := lock.WithOwner(t.Context())
		first, err := l.Acquire(owner, "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := l.Acquire(owner, "a", nil) // a second lease of the same hold
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryAcquire(t.Context(), "a", nil); !errors.Is(err, lock.ErrHeld) {
			t.Error(err)
		}
		time.Sleep(time.Second)
		_ = again.Release()
		_ = first.Release()
		_ = first.Release()
		f.extend = func(context.Context, time.Duration) error { return lock.ErrLost }
		lease, err := l.Acquire(t.Context(), "b", nil)
		if err != nil {
			t.Fatal(err)
		}
		<-lease.Context().Done()
		held, err := l.Acquire(t.Context(), "c", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		_ = held.Release()
		if _, err := l.Acquire(t.Context(), "d", nil); !errors.Is(err, lock.ErrClosed) {
			t.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		want := []string{
			"lock.wait shop: 1s", "lock.wait shop: 0s", "lock.wait shop: 0s held", "lock.hold shop: 1s",
			"lock.wait shop: 1s", "lock.hold shop: 3.333333333s lost",
			"lock.wait shop: 1s", "lock.hold shop: 0s", "lock.wait shop: 0s lock: the locker is closed",
		}
		if !slices.Equal(w.ended, want) || w.begun != len(want) {
			t.Errorf("%d have begun, ended\n%q, want\n%q", w.begun, w.ended, want)
		}
	})
}

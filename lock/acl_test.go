package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// limited is a client whose user may do no more than that.
func limited(t *testing.T, r *testenv.Redis, rules string) *redis.Client {
	t.Helper()
	admin := r.Client(t)
	args := []any{"ACL", "SETUSER", "limited", "reset", "on", "nopass", "-@all"}
	for rule := range strings.FieldsSeq(rules) {
		args = append(args, rule)
	}
	want(t, "a user", admin.Do(t.Context(), args...).Err(), nil)
	t.Cleanup(func() { admin.Do(context.Background(), "ACL", "DELUSER", "limited") })
	o := r.Options()
	o.Username, o.Password, o.ContextTimeoutEnabled = "limited", "any", true
	return clientWith(t, o)
}

// exercise acquires, waits, extends, loses and releases.
func exercise(t *testing.T, a, b *lock.Locker) {
	t.Helper()
	lease := acquired(t, a, nil)
	want(t, "extend", lease.Extend(t.Context()), nil)
	_, err := b.TryAcquire(t.Context(), "a", nil)
	want(t, "try", err, lock.ErrHeld)
	got := make(chan error, 1)
	go func() {
		next, err := b.Acquire(t.Context(), "a", &lock.Options{Wait: testenv.Hang})
		if err == nil {
			err = next.Release()
		}
		got <- err
	}()
	time.Sleep(100 * time.Millisecond) // he waits
	want(t, "release", lease.Release(), nil)
	want(t, "the waiter", <-got, nil) // by a message: the life of the lock is longer than his wait
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if lease, err := a.Acquire(ctx, "a", nil); err == nil {
		lease.Release()
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	acquired(t, b, nil).Release()
}

// TestNeedsNoMoreThanDocumented: with a user of Redis who may do what the doc comments name, and
// nothing else.
func TestNeedsNoMoreThanDocumented(t *testing.T) {
	r := testenv.SharedRedis(t)
	rules := "+eval +evalsha +get +set +time +publish +subscribe +unsubscribe +ping ~lock:* &lock:*"
	exercise(t, closed(t)(lock.NewRedis(limited(t, r, rules), patient())), closed(t)(lock.NewRedis(limited(t, r, rules), patient())))
}

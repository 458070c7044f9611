package locktest

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

// Limited returns a client of r whose user has only the permissions of these ACL rules.
func Limited(t testing.TB, r *testenv.Redis, rules string) *redis.Client {
	t.Helper()
	admin := r.Client(t)
	args := []any{"ACL", "SETUSER", "limited", "reset", "on", "nopass", "-@all"}
	for rule := range strings.FieldsSeq(rules) {
		args = append(args, rule)
	}
	if err := admin.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Do(context.Background(), "ACL", "DELUSER", "limited") })
	o := r.Options()
	o.Username, o.Password, o.ContextTimeoutEnabled = "limited", "any", true
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

// Exercise uses all operations of a lock: a acquires and extends it, b waits for it, a releases it,
// and a waiter times out.
func Exercise(t testing.TB, a, b *lock.Locker) {
	t.Helper()
	check := func(step string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Fatalf("%s: %v, not %v", step, err, want)
		}
	}
	lease, err := a.Acquire(t.Context(), "a", nil)
	check("acquire", err, nil)
	check("extend", lease.Extend(t.Context()), nil)
	_, err = b.TryAcquire(t.Context(), "a", nil)
	check("try", err, lock.ErrHeld)
	got := make(chan error, 1)
	go func() {
		next, err := b.Acquire(t.Context(), "a", &lock.AcquireOptions{Wait: testenv.Hang})
		if err == nil {
			err = next.Release()
		}
		got <- err
	}()
	time.Sleep(100 * time.Millisecond) // until the other goroutine waits
	check("release", lease.Release(), nil)
	check("the waiter", <-got, nil) // woken by a message: the lock's TTL is longer than the wait
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if lease, err := a.Acquire(ctx, "a", nil); err == nil {
		lease.Release()
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	last, err := b.Acquire(t.Context(), "a", &lock.AcquireOptions{Wait: testenv.Hang})
	check("acquire again", err, nil)
	check("release again", last.Release(), nil)
}

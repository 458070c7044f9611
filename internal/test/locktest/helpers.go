// Package locktest helps tests of locks: it records and checks histories under faults. The suite of
// all drivers is package lock/locktest.
package locktest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// Closed returns a function that returns l and closes it when the test ends. It ends the test if
// err is not nil.
func Closed(t testing.TB) func(l *lock.Locker, err error) *lock.Locker {
	return func(l *lock.Locker, err error) *lock.Locker {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
}

// Want ends the test unless got is want.
func Want(t testing.TB, step string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) || want == nil && got != nil {
		t.Fatalf("%s: %v, not %v", step, got, want)
	}
}

// Patient returns options with which no request times out, and no lock ends, while a test waits.
func Patient() *lock.Options {
	return &lock.Options{TTL: 10 * time.Minute, Timeout: testenv.Hang / 2}
}

// Quick returns options for tests that wait until a request times out. The lock itself outlasts the
// test.
func Quick(timeout time.Duration) *lock.Options {
	return &lock.Options{TTL: 10 * time.Minute, Timeout: timeout}
}

// InTheEnd acquires a lock by a Locker whose timeouts are too short for a busy machine. It tries
// until it succeeds.
func InTheEnd(t testing.TB, l *lock.Locker, name string, o *lock.AcquireOptions) (lease *lock.Lease) {
	t.Helper()
	testenv.Eventually(t, "a lock", func() bool {
		var err error
		lease, err = l.Acquire(t.Context(), name, o)
		return err == nil
	})
	return lease
}

// ClientWith returns a client that is closed when the test ends.
func ClientWith(t testing.TB, o *redis.Options) *redis.Client {
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

// Scripted is a client hook through which a test controls the requests for lock "a". Of is called
// for each of them, with the hash of its script; next sends the request and waits for the reply.
type Scripted struct {
	Wrap func(hash string, next func() error) error
}

// DialHook changes nothing.
func (Scripted) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook calls Of.
func (s Scripted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" || !slices.Contains(cmd.Args(), any("lock:{a}")) {
			return next(ctx, cmd)
		}
		return s.Wrap(cmd.Args()[1].(string), func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook changes nothing.
func (Scripted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Is reports whether hash is the hash of one of the scripts.
func Is(hash string, scripts ...conn.Script) bool {
	return slices.ContainsFunc(scripts, func(s conn.Script) bool { return s.Hash == hash })
}

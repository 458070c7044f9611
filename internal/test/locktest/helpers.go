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

// Closed closes a Locker with the test.
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
func Want(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) || want == nil && got != nil {
		t.Fatalf("%s: %v, not %v", what, got, want)
	}
}

// Patient returns options by which nothing is given up, or ends, as long as a test waits.
func Patient() *lock.LockerOptions {
	return &lock.LockerOptions{TTL: 10 * time.Minute, Timeout: testenv.Hang / 2}
}

// Quick returns options for tests that await the end of a request: it is given up after the
// time-out. The lock itself lasts.
func Quick(timeout time.Duration) *lock.LockerOptions {
	return &lock.LockerOptions{TTL: 10 * time.Minute, Timeout: timeout}
}

// InTheEnd acquires a lock by a locker whose time-outs are too short for a busy machine.
func InTheEnd(t testing.TB, l *lock.Locker, name string, o *lock.Options) (lease *lock.Lease) {
	t.Helper()
	testenv.Eventually(t, "a lock", func() bool {
		var err error
		lease, err = l.Acquire(t.Context(), name, o)
		return err == nil
	})
	return lease
}

// ClientWith returns a client that is closed with the test.
func ClientWith(t testing.TB, o *redis.Options) *redis.Client {
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

// Scripted is a hook of a client by which the requests for lock "a" take place, and are answered,
// when a test wants them to. Of is called with the hash of the script.
type Scripted struct {
	Of func(hash string, next func() error) error
}

// DialHook changes nothing.
func (Scripted) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook calls Of.
func (s Scripted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" || !slices.Contains(cmd.Args(), any("lock:{a}")) {
			return next(ctx, cmd)
		}
		return s.Of(cmd.Args()[1].(string), func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook changes nothing.
func (Scripted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Is reports whether a hash is that of one of the scripts.
func Is(hash string, scripts ...conn.Script) bool {
	return slices.ContainsFunc(scripts, func(s conn.Script) bool { return s.Hash == hash })
}

package redlock_test

import (
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

const tokenKey = "lock:{a}:token"

// Tokens grow with any minority of nodes missing, also past a token ahead of all clocks.
func TestRedlockTokensGrow(t *testing.T) {
	f := newFive(t)
	l, w := f.watched(f.clients(false), locktest.Patient())
	// The clocks behind it have been set back since.
	last := time.Now().Add(10 * time.Second).UnixMicro()
	for _, i := range []int{1, 2, 3} {
		f.check(f.direct[i].Set(t.Context(), tokenKey, last, time.Minute).Err())
	}
	for i := range 15 {
		a, b := i%5, (i+1)%5
		f.hang(true, a, b)
		lease, err := l.Acquire(t.Context(), "a", nil)
		f.check(err)
		if lease.Token() <= last {
			t.Errorf("token %d after %d", lease.Token(), last)
		}
		last = lease.Token()
		f.check(lease.Release())
		f.hang(false, a, b)
		f.over(w)
		f.free()
	}
}

// A token that was overtaken since the votes is not used. The round ends, and the next round gets a
// greater one.
func TestRedlockTokenOvertaken(t *testing.T) {
	f := newFive(t)
	l := f.locker(locktest.Patient())
	greater := time.Now().Add(time.Hour).UnixMicro()
	for i := range 3 {
		var once atomic.Bool
		f.disturb(redlock.Token, func() testenv.Action {
			if once.CompareAndSwap(false, true) {
				if err := f.direct[i].Set(t.Context(), tokenKey, greater, time.Minute).Err(); err != nil {
					t.Error(err)
				}
			}
			return testenv.Pass
		}, i)
	}
	lease, err := l.Acquire(t.Context(), "a", nil)
	f.check(err)
	if lease.Token() <= greater {
		t.Errorf("token %d is not greater than the stored %d", lease.Token(), greater)
	}
	stored := 0
	for i, c := range f.direct {
		if got, _ := strconv.ParseInt(c.Get(t.Context(), tokenKey).Val(), 10, 64); got != lease.Token() {
			t.Logf("node %d has %d", i, got) // two nodes may be too late
			continue
		}
		stored++
		if ttl := c.TTL(t.Context(), tokenKey).Val(); ttl < time.Hour {
			t.Errorf("a token that is an hour ahead expires after %v", ttl)
		}
	}
	if stored < 3 {
		t.Errorf("the token is stored on %d nodes", stored)
	}
	f.check(lease.Release())
}

// If a majority does not store the token, Acquire fails and leaves no votes.
func TestRedlockTokenNotStored(t *testing.T) {
	f := newFive(t)
	l := f.locker(locktest.Patient())
	f.disturb(redlock.Token, always(testenv.Drop), 0, 2, 4)
	lease, err := l.Acquire(t.Context(), "a", nil)
	if err == nil {
		lease.Release()
	}
	if err == nil || errors.Is(err, lock.ErrHeld) {
		t.Errorf("%v", err)
	}
	f.free()
	lease, err = l.Acquire(t.Context(), "a", &lock.AcquireOptions{NoToken: true})
	f.check(err)
	if lease.Token() != 0 {
		t.Errorf("%d", lease.Token())
	}
	f.check(lease.Release())
}

// A node without the lock does not store the token: otherwise the order of holders would be
// unknown.
func TestRedlockTokenNeedsTheLock(t *testing.T) {
	f := newFive(t)
	l := f.locker(locktest.Patient())
	for i := range 3 {
		f.disturb(redlock.Token, func() testenv.Action {
			n, err := f.direct[i].Del(t.Context(), "lock:{a}").Result()
			if err != nil {
				t.Error(err)
			}
			if n == 0 { // the request for the lock is late, and arrived in one chunk with this one
				return testenv.Drop
			}
			return testenv.Pass
		}, i)
	}
	if _, err := l.TryAcquire(t.Context(), "a", nil); err == nil {
		t.Error("TryAcquire succeeds without a stored token")
	}
	for i := range 3 {
		if v := f.direct[i].Get(t.Context(), tokenKey).Val(); v != "" {
			t.Errorf("node %d has stored %s", i, v)
		}
	}
	f.free()
}

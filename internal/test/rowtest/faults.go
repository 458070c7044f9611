package rowtest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// LostReply checks that an Acquire succeeds if one reply of any kind is lost.
func LostReply(t *testing.T, w World) {
	p := testenv.NewProxy(t, w.Addr)
	l := w.Locker(t, w.By(t, p), Long)
	for _, text := range []string{w.Read, w.Insert, w.Take} {
		once(p, text, func() testenv.Action { return testenv.LoseReply })
		lease, err := l.Acquire(within(t, testenv.Hang), "a", nil)
		check(t, err)
		p.OnRequest(nil)
		check(t, lease.Extend(within(t, testenv.Hang)))
		check(t, lease.Release())
	}
}

// SlowAnswer checks that an Acquire succeeds if one reply comes after its time-out.
func SlowAnswer(t *testing.T, w World) {
	p := testenv.NewProxy(t, w.Addr)
	for timeout := 300 * time.Millisecond; ; timeout *= 2 {
		l := w.Locker(t, w.By(t, p), &lock.Options{TTL: 10 * time.Minute, Timeout: timeout})
		var slow atomic.Bool
		once(p, w.Take, func() testenv.Action {
			slow.Store(true)
			return testenv.Delay(timeout + timeout/5)
		})
		lease, err := l.Acquire(within(t, testenv.Hang), fmt.Sprint("a", timeout), nil)
		if err == nil {
			err = lease.Release()
		}
		switch {
		case err == nil && slow.Load():
			return
		case timeout > 15*time.Second:
			t.Fatal(err)
		}
		t.Logf("with a time-out of %v other replies may be slow, too: %v", timeout, err)
	}
}

// LostReplyOfRelease checks that Release succeeds if the reply to its first request is lost.
func LostReplyOfRelease(t *testing.T, w World) {
	p := testenv.NewProxy(t, w.Addr)
	l := w.Locker(t, w.By(t, p), Long)
	lease, err := l.Acquire(within(t, testenv.Hang), "a", nil)
	check(t, err)
	once(p, w.Release, func() testenv.Action { return testenv.LoseReply })
	check(t, lease.Release())
	if !w.rowIsFree(t, w.db(t)) {
		t.Error("still locked")
	}
}

// CancelledLeavesNothing checks that a lock is released if its Acquire was cancelled, also if the
// request arrives later.
func CancelledLeavesNothing(t *testing.T, w World) {
	for name, action := range map[string]testenv.Action{"reply lost": testenv.LoseReply,
		"late": testenv.Delay(400 * time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			p := testenv.NewProxy(t, w.Addr)
			a, b := w.Locker(t, w.By(t, p), Long), w.Locker(t, w.db(t), Long)
			ctx, cancel := context.WithCancel(within(t, testenv.Hang))
			once(p, w.Take, func() testenv.Action {
				cancel()
				return action
			})
			_, err := a.Acquire(ctx, "a", nil)
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if name == "late" {
				time.Sleep(time.Second) // until it has come
			}
			lease, err := b.Acquire(within(t, testenv.Hang), "a", nil)
			check(t, err)
			check(t, lease.Release())
		})
	}
}

// LateRequest checks that the server does not carry out a request that arrives after its sender has
// stopped waiting and can no longer undo it.
func LateRequest(t *testing.T, w World) {
	p := testenv.NewProxy(t, w.Addr)
	l := w.Locker(t, w.By(t, p), quick)
	_ = inTheEnd(t, l, "a").Release() // the row is there
	db := w.db(t)
	testenv.Eventually(t, "it is free", func() bool { return w.rowIsFree(t, db) })
	once(p, w.Take, func() testenv.Action {
		p.Hang(true)
		return testenv.Pass
	})
	if _, err := l.Acquire(within(t, testenv.Hang), "a", nil); err == nil {
		t.Fatal("a server that hangs has granted a lock")
	}
	check(t, l.Close())
	time.Sleep(500 * time.Millisecond)
	p.Hang(false)
	time.Sleep(500 * time.Millisecond)
	if !w.rowIsFree(t, db) {
		t.Error("a request was carried out after its sender had stopped waiting")
	}
}

// HungServer checks that requests to a server that hangs time out, and that a lock survives a pause
// that is shorter than its life.
func HungServer(t *testing.T, w World) {
	db := w.db(t)
	l := w.Locker(t, db, quick)
	lease, second := inTheEnd(t, l, "a"), inTheEnd(t, l, "b")
	w.Server.Pause()
	for name, f := range map[string]func() error{
		"Extend":  func() error { return lease.Extend(within(t, testenv.Hang)) },
		"Release": second.Release,
		"Acquire": func() error { _, err := l.Acquire(within(t, testenv.Hang), "c", nil); return err },
		"Wait": func() error {
			_, err := l.Acquire(within(t, testenv.Hang), "d", &lock.AcquireOptions{Wait: quick.Timeout / 4})
			return err
		},
	} {
		began, failed := time.Now(), make(chan error, 1)
		go func() { failed <- f() }()
		err := testenv.Receive(t, "the end of "+name, failed)
		if !errors.Is(err, lock.ErrNoReply) || errors.Is(err, lock.ErrLost) {
			t.Errorf("%s: %v", name, err)
		}
		took := time.Since(began)
		if t.Logf("%s took %v", name, took); testenv.Accepting && took > 5*time.Second {
			t.Error("too late")
		}
	}
	w.Server.Resume()
	testenv.Eventually(t, "extended", func() bool {
		err := lease.Extend(within(t, testenv.Hang))
		if errors.Is(err, lock.ErrLost) {
			t.Fatal(err)
		}
		return err == nil
	})
	if err := lease.Release(); errors.Is(err, lock.ErrLost) { // the reply may not come in so short a time
		t.Error(err)
	}
}

// Restart checks that a lock survives a kill of the server.
func Restart(t *testing.T, w World) {
	db := w.db(t)
	w.Durable(t, db)
	rows, others := w.Locker(t, db, Long), w.Locker(t, w.db(t), Long)
	row, err := rows.Acquire(within(t, testenv.Hang), "a", nil)
	check(t, err)
	w.Server.Restart(t)
	if _, err := others.TryAcquire(within(t, testenv.Hang), "a", nil); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("after a restart: %v", err)
	}
	check(t, row.Extend(within(t, testenv.Hang)))
	check(t, row.Release())
	next, err := others.Acquire(within(t, testenv.Hang), "a", nil)
	check(t, err)
	if next.Token() <= row.Token() {
		t.Errorf("token %d after %d", next.Token(), row.Token())
	}
	check(t, next.Release())
}

// KilledConnection checks that a lock is still held after its connection was cut.
func KilledConnection(t *testing.T, w World) {
	p := testenv.NewProxy(t, w.Addr)
	b := w.Locker(t, w.db(t), Long)
	lease, err := w.Locker(t, w.By(t, p), Long).Acquire(within(t, testenv.Hang), "a", nil)
	check(t, err)
	p.Cut()
	p.Restore()
	if _, err := b.Acquire(within(t, time.Second), "a", nil); err == nil {
		t.Fatal("a lock has passed with a connection")
	}
	check(t, lease.Release())
}

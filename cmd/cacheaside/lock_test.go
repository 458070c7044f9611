package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

func locker(t testing.TB, rdb redis.UniversalClient) *lock.Locker {
	t.Helper()
	l, err := lock.NewRedis(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func acquire(t testing.TB, l *lock.Locker, name string) *lock.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestLockLs(t *testing.T) {
	w, rdb := onServer(t)
	listsLocks(w, rdb)
}

func TestLockLsOnCluster(t *testing.T) {
	c := testenv.SharedCluster(t)
	listsLocks(&world{t, map[string]string{"CACHEASIDE_REDIS": strings.Join(c.Addrs, ",")}}, c.Client(t))
}

func listsLocks(w *world, rdb redis.UniversalClient) {
	w.Helper()
	l := locker(w, rdb)
	tokens := make(map[string]int64)
	names := []string{"plain", "with } and %", "esc\x1b[31m", "lock:twice"}
	for _, name := range names {
		tokens[name] = acquire(w, l, name).Token()
	}
	w.check(acquire(w, l, "released").Release())
	all := parsed[foundLocks](w, exitOK, "lock", "ls")
	if len(all.Locks) != len(names) || all.More {
		w.Fatalf("%+v", all)
	}
	for _, f := range all.Locks {
		if !f.Held || f.Name != nil || f.Holder == "" || f.LeftMs < 5000 || f.LeftMs > 10000 || f.Waited ||
			f.Flaw != "" {
			w.Errorf("%+v", f)
		}
	}
	for _, f := range parsed[foundLocks](w, exitOK, "lock", "ls", "--show-names", "--all").Locks {
		if f.Held && f.Token != tokens[string(*f.Name)] || f.Held == (*f.Name == "released") {
			w.Errorf("%q: %+v", *f.Name, f)
		}
		delete(tokens, string(*f.Name))
	}
	if len(tokens) != 0 {
		w.Errorf("not listed: %v", tokens)
	}
	two := w.call("lock", "ls", "--limit", "2")
	if strings.Count(two.out, "#") != 2 || !strings.Contains(two.out, "--limit") {
		w.Errorf("two of five: %s", two.out)
	}
	o := w.ok("lock", "ls", "--show-names")
	w.says(o, "plain", `"esc\x1b[31m"`)
	if !harmless(o) {
		w.Errorf("%q", o)
	}
	_, err := l.TryAcquire(w.Context(), "plain", nil)
	var told *lock.Error
	if !errors.As(err, &told) {
		w.Fatal(err)
	}
	w.says(w.ok("lock", "ls"), fmt.Sprintf("#%016x", told.Hash)) // the same hash as in errors
}

// TestLockForeign: keys of other types are reported as such and not broken.
func TestLockForeign(t *testing.T) {
	w, rdb := onServer(t)
	ctx := t.Context()
	w.check(rdb.Set(ctx, "lock:{text}", "something else", 0).Err())
	w.check(rdb.Set(ctx, "lock:{big}", strings.Repeat("x", 1<<20), 0).Err())
	w.check(rdb.HSet(ctx, "lock:{hash}", "a", "b").Err())
	w.check(rdb.Set(ctx, "lock:{un%escaped}", "L1 a 1 1 0", 0).Err())
	before := dump(w, rdb)
	for _, f := range parsed[foundLocks](w, exitOK, "lock", "ls", "--show-names").Locks {
		if f.Flaw == "" {
			t.Errorf("%+v", f)
		}
	}
	for _, name := range []string{"text", "big", "hash"} {
		w.fails(exitFailed, "nothing was changed", "lock", "break", "--yes", name)
	}
	w.fails(exitAbsent, "is free", "lock", "break", "--yes", "nobody")
	if dump(w, rdb) != before {
		t.Error("Redis has changed")
	}
}

// TestLockBreak: the holder loses the lock. A waiting process gets it immediately, with a greater
// token.
func TestLockBreak(t *testing.T) {
	server := testenv.SharedRedis(t)
	w := &world{t, map[string]string{"CACHEASIDE_REDIS": server.Addr}}
	rdb, other := server.Client(t), locker(t, server.Client(t))
	first := acquire(t, locker(t, rdb), "report")
	o := w.with(types("n\n"), "lock", "break", "report")
	w.failed(o, exitFailed, "nothing was changed", []string{"lock", "break"})
	w.says(o.err, "will notice only when its next extension fails", fmt.Sprint(first.Token()), "Continue?")
	w.fails(exitUsage, "--yes", "lock", "break", "report")
	if err := first.Context().Err(); err != nil {
		t.Fatal(err)
	}
	got := make(chan *lock.Lease, 1)
	go func() {
		lease, err := other.Acquire(t.Context(), "report", nil)
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	testenv.Eventually(t, "the lock shows a waiter", func() bool {
		l := parsed[foundLocks](w, exitOK, "lock", "ls").Locks
		return len(l) == 1 && l[0].Waited
	})
	// A token ahead of the clock.
	ahead := strings.Replace(
		rdb.Get(t.Context(), "lock:{report}").Val(), fmt.Sprint(first.Token()), "4000000000000000", 1)
	w.check(rdb.Set(t.Context(), "lock:{report}", ahead, time.Minute).Err())
	began := time.Now()
	w.ok("lock", "break", "--yes", "report")
	second := <-got
	if took := time.Since(began); testenv.Accepting && took > 5*time.Second {
		t.Errorf("the waiter gets the lock after %v", took)
	}
	if second.Token() != 4000000000000001 {
		t.Errorf("the next token is %d", second.Token())
	}
	if err := first.Extend(t.Context()); err == nil {
		t.Error("the old holder can still extend it")
	}
}

// TestLockBreakKeepsNewHolder: a process that has acquired the lock after it was shown keeps it.
func TestLockBreakKeepsNewHolder(t *testing.T) {
	w, rdb := onServer(t)
	l := locker(t, rdb)
	first := acquire(t, l, "report")
	answering := &changing{typedTerminal: types("y\n"), before: func() {
		first.Release()
		acquire(t, l, "report")
	}}
	o := w.with(answering, "lock", "break", "report")
	w.failed(o, exitFailed, "nothing was changed", []string{"lock", "break"})
	if all := parsed[foundLocks](w, exitOK, "lock", "ls").Locks; len(all) != 1 || all[0].Token <= first.Token() {
		t.Errorf("%+v", all)
	}
}

// changing runs a function before it replies.
type changing struct {
	*typedTerminal
	before func()
}

func (c *changing) Read(b []byte) (int, error) {
	if c.before != nil {
		c.before()
		c.before = nil
	}
	return c.typedTerminal.Read(b)
}

// TestLockShow: the label, the token and the waiting callers of each kind of lock are shown, and
// one of several holders is broken.
func TestLockShow(t *testing.T) {
	w, rdb := onServer(t)
	l, err := lock.NewRedis(rdb, &lock.Options{Label: "worker-3"})
	w.check(err)
	t.Cleanup(func() { l.Close() })
	lease := acquire(t, l, "report")
	shown := parsed[shownLock](w, exitOK, "lock", "show", "report")
	if len(shown.Holders) != 1 || shown.Waiting != 0 || shown.Holders[0].Label != "worker-3" ||
		shown.Holders[0].Token != lease.Token() || time.Since(shown.Holders[0].Since).Abs() > time.Hour {
		t.Errorf("%+v", shown)
	}
	w.says(w.ok("lock", "show", "report"), "worker-3", "0 wait")
	w.says(w.ok("lock", "ls"), "worker-3")
	w.fails(exitAbsent, "is free", "lock", "show", "--kind", "rw", "report")
	w.fails(exitUsage, "--kind", "lock", "show", "--kind", "none", "report")
	rw, err := lock.NewReadWrite(l)
	w.check(err)
	writer, err := rw.AcquireWrite(t.Context(), "report", nil)
	w.check(err)
	w.says(w.ok("lock", "show", "--kind", "rw", "report"), "writes", fmt.Sprint(writer.Token()))
	sem, err := lock.NewSemaphore(l, 2)
	w.check(err)
	var permits []*lock.Lease
	for range 2 {
		permit, err := sem.Acquire(t.Context(), "report", nil)
		w.check(err)
		permits = append(permits, permit)
	}
	w.fails(exitUsage, "--token", "lock", "break", "--yes", "--kind", "sem", "report")
	w.fails(exitFailed, "no holder", "lock", "break", "--yes", "--kind", "sem", "--token", "5", "report")
	token := fmt.Sprint(permits[1].Token())
	w.ok("lock", "break", "--yes", "--kind", "sem", "--token", token, "report")
	left := parsed[shownLock](w, exitOK, "lock", "show", "--kind", "sem", "report").Holders
	if len(left) != 1 || left[0].Token != permits[0].Token() {
		t.Errorf("%+v", left)
	}
	if err := permits[1].Extend(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the broken holder: %v", err)
	}
}

package redlock_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
)

func TestNewRefuses(t *testing.T) {
	at := func(addrs ...string) (clients []*redis.Client) {
		for _, addr := range addrs {
			clients = append(clients, locktest.ClientWith(t, &redis.Options{Addr: addr}))
		}
		return clients
	}
	other := locktest.ClientWith(t, &redis.Options{Addr: "a:1", DB: 1})
	failover := redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: []string{"a:1"}})
	defer failover.Close()
	for _, c := range []struct {
		clients []*redis.Client
		options *lock.Options
		says    string
	}{
		{nil, nil, "at least 3"},
		{at("a:1", "b:1"), nil, "at least 3"},
		{at("a:1", "b:1", "a:1"), nil, "client 2: same server as client 0"},
		{append(at("a:1", "b:1"), other), nil, "same server as client 0"},
		{append(at("a:1", "b:1"), nil), nil, "client 2: the Redis client is a nil"},
		{append(at("a:1", "b:1"), failover), nil, "sentinels"},
		{at("a:1", "b:1", "c:1"), &lock.Options{TTL: 1}, "Options.TTL"},
	} {
		if l, err := redlock.New(c.clients, c.options); l != nil || err == nil ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want an error that says %q", err, c.says)
		}
	}
	l, err := redlock.New(at("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"), nil) // no I/O
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// A server with several addresses counts once.
func TestRedlockOneServerTwice(t *testing.T) {
	f := newFive(t)
	on := func(addrs ...string) *lock.Locker {
		var clients []*redis.Client
		for _, addr := range addrs {
			clients = append(clients, locktest.ClientWith(t, &redis.Options{Addr: addr}))
		}
		return locktest.Closed(t)(redlock.New(clients, locktest.Patient()))
	}
	one := on(f.nodes[0].Addr, f.proxies[0].Addr, strings.Replace(f.nodes[0].Addr, "127.0.0.1", "localhost", 1))
	if _, err := one.Acquire(t.Context(), "a", nil); err == nil || !strings.Contains(err.Error(), "same server") {
		t.Errorf("%v", err)
	}
	f.free()
	two := on(f.nodes[0].Addr, f.proxies[0].Addr, f.nodes[1].Addr)
	lease, err := two.Acquire(t.Context(), "a", nil)
	f.check(err)
	f.check(lease.Release())
	f.free()
}

// The nodes of one cluster refuse keys of other nodes.
func TestRedlockOverOneCluster(t *testing.T) {
	var clients []*redis.Client
	for _, n := range testenv.SharedCluster(t).Nodes {
		clients = append(clients, n.Client(t))
	}
	l := locktest.Closed(t)(redlock.New(clients, locktest.Patient()))
	if _, err := l.Acquire(t.Context(), "a", nil); err == nil || errors.Is(err, lock.ErrHeld) {
		t.Errorf("%v", err)
	}
}

// Without a majority Acquire returns an error and leaves no votes. TestRedlockTimes shows how soon.
func TestRedlockThreeDown(t *testing.T) {
	f := newFive(t)
	const timeout = 400 * time.Millisecond
	l := f.locker(locktest.Quick(timeout))
	held := locktest.InTheEnd(t, l, "held", &lock.AcquireOptions{Fixed: true})
	f.nodes[2].Kill()
	f.nodes[3].Pause()
	f.hang(true, 4)
	var err error
	d := took(func() { _, err = l.Acquire(t.Context(), "a", nil) })
	if !errors.Is(err, lock.ErrNoReply) || errors.Is(err, lock.ErrHeld) {
		t.Errorf("%v", err)
	}
	testenv.Eventually(t, "nothing is left on those that answer", func() bool { return f.count("a", 0, 1) == 0 })
	soon(t, "acquire with three of five down", d, timeout+50*time.Millisecond)
	d = took(func() { err = held.Extend(t.Context()) })
	if !errors.Is(err, lock.ErrNoReply) || errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
	soon(t, "extend", d, 2*timeout)
	d = took(func() { err = held.Release() })
	if !errors.Is(err, lock.ErrNoReply) || errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
	soon(t, "release", d, 2*timeout+200*time.Millisecond)
	f.nodes[3].Resume()
	f.hang(false, 4)
	f.free(0, 1, 3, 4)
}

// A request for a lock that arrives after its time is refused: no caller would release it.
func TestRedlockLateRequest(t *testing.T) {
	f := newFive(t)
	const timeout = 100 * time.Millisecond
	l := f.locker(locktest.Quick(timeout))
	var arrived atomic.Int32
	for _, p := range f.proxies[2:] {
		p.OnRequest(func(chunk []byte) testenv.Action {
			switch {
			case bytes.Contains(chunk, []byte(redlock.Acquire.Hash)):
				time.AfterFunc(3*timeout, func() { arrived.Add(1) })
				return testenv.Delay(3 * timeout)
			case bytes.Contains(chunk, []byte(redlock.Release.Hash)): // so no such request voids it
				return testenv.Drop
			}
			return testenv.Pass
		})
	}
	if _, err := l.Acquire(t.Context(), "a", nil); err == nil {
		t.Fatal("Acquire succeeds without a majority in time")
	}
	testenv.Eventually(t, "the late requests", func() bool { return arrived.Load() >= 3 })
	f.free(0, 1)
	time.Sleep(3 * timeout) // until the requests have been processed
	if n := f.held(0, 1, 2, 3, 4); n > 0 {
		t.Errorf("%d locks are left without a holder", n)
	}
}

// redsync returns when a majority has replied. If its goroutines are slow to run, some requests are
// sent later. A vote that they get would never be released.
func TestRedlockLateVote(t *testing.T) {
	f := newFive(t)
	l, w := f.watched(f.clients(false), locktest.Patient())
	if yes, err := redlock.NewRound(w, "in time", testenv.Hang).Vote(t.Context(), 0); !yes || err != nil ||
		f.held(0) != 1 {
		t.Errorf("%v, %v", yes, err)
	}
	f.check(f.direct[0].FlushAll(t.Context()).Err())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if yes, err := redlock.NewRound(w, "late", testenv.Hang).Vote(ctx, 0); yes || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", yes, err)
	}
	f.check(l.Close()) // waits for requests in flight
	if f.held(0) != 0 {
		t.Error("the request is sent after the round has ended")
	}
}

// Close right after the end of a caller's context leaves no votes either.
func TestRedlockCancelAndClose(t *testing.T) {
	f := newFive(t)
	l := f.locker(locktest.Patient())
	f.hang(true, 2, 3, 4)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(40*time.Millisecond, cancel)
	if _, err := l.Acquire(ctx, "a", nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	f.hang(false, 2, 3, 4) // delayed requests arrive
	f.check(testenv.Receive(t, "the end of Close", closed))
	if n := f.held(0, 1, 2, 3, 4); n > 0 {
		t.Errorf("%d locks left", n)
	}
}

// A release whose replies are lost is repeated. That does not count as a loss of the lock.
func TestRedlockReleaseRepliesLost(t *testing.T) {
	f := newFive(t)
	l := f.locker(locktest.Patient())
	lease, err := l.Acquire(t.Context(), "a", nil)
	f.check(err)
	for _, i := range []int{0, 1, 2} {
		var n atomic.Int32
		f.disturb(redlock.Release, func() testenv.Action {
			if n.Add(1) == 1 {
				return testenv.LoseReply
			}
			return testenv.Pass
		}, i)
	}
	f.check(lease.Release())
	f.free()
}

// A majority of nodes that has restarted without data grants the lock to another holder. The first
// holder gets ErrLost on its next request, and the token of the second is greater.
func TestRedlockNodesLoseData(t *testing.T) {
	f := newFive(t)
	// Limits the time in which requests on broken connections are undecided.
	a, b := f.locker(locktest.Quick(testenv.Hang/6)), f.locker(locktest.Quick(testenv.Hang/6))
	first, err := a.Acquire(t.Context(), "a", nil)
	f.check(err)
	for _, i := range []int{0, 2, 4} {
		f.nodes[i].Restart(t)
	}
	// The connections to the old servers turn out to be broken.
	second := locktest.InTheEnd(t, b, "a", nil)
	if second.Token() <= first.Token() {
		t.Errorf("token %d after %d", second.Token(), first.Token())
	}
	if err := first.Extend(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("%v", err)
	}
	if err := first.Release(); !errors.Is(err, lock.ErrLost) {
		t.Errorf("%v", err)
	}
	f.check(second.Extend(t.Context()))
	f.check(second.Release())
}

// Of several callers that ask at the same moment one gets the lock, even without waiting.
func TestRedlockSplitVotes(t *testing.T) {
	f := newFive(t)
	var lockers []*lock.Locker
	for range 5 {
		lockers = append(lockers, f.locker(locktest.Patient()))
	}
	const rounds = 20
	won := 0
	for range rounds {
		var winners atomic.Int32
		var all sync.WaitGroup
		release := make(chan struct{})
		var asked sync.WaitGroup
		for _, l := range lockers {
			asked.Add(1)
			all.Go(func() {
				lease, err := l.TryAcquire(t.Context(), "a", nil)
				asked.Done()
				if err != nil {
					if !errors.Is(err, lock.ErrHeld) {
						t.Error(err)
					}
					return
				}
				winners.Add(1)
				<-release
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
			})
		}
		asked.Wait()
		close(release)
		all.Wait()
		if winners.Load() > 1 {
			t.Fatalf("%d callers hold the lock", winners.Load())
		}
		won += int(winners.Load())
		f.free()
	}
	t.Logf("five concurrent callers: in %d rounds, one of them had the lock in %d", rounds, won)
	if won < rounds/2 {
		t.Errorf("a caller gets the lock in %d of %d rounds, want at least half", won, rounds)
	}
}

// While the lock is held on a bare majority, waiting callers do not wake each other when they
// return their votes of the other nodes.
func TestRedlockWaitersDoNotWakeEachOther(t *testing.T) {
	f := newFive(t)
	holder := f.locker(locktest.Patient())
	var lockers []*lock.Locker
	for range 4 {
		lockers = append(lockers, f.locker(locktest.Patient()))
	}
	for _, i := range []int{3, 4} {
		f.check(f.direct[i].Set(t.Context(), "lock:{a}", "another's", 0).Err())
	}
	lease, err := holder.Acquire(t.Context(), "a", nil)
	f.check(err)
	for _, i := range []int{3, 4} {
		f.check(f.direct[i].Del(t.Context(), "lock:{a}").Err())
	}
	var asked atomic.Int32
	f.disturb(redlock.Acquire, func() testenv.Action { asked.Add(1); return testenv.Pass }, 0)
	var all sync.WaitGroup
	for _, l := range lockers {
		all.Go(func() {
			other, err := l.Acquire(t.Context(), "a", nil)
			if err != nil {
				t.Error(err)
				return
			}
			if err := other.Release(); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(300 * time.Millisecond)
	began := time.Now()
	asked.Store(0)
	time.Sleep(700 * time.Millisecond)
	n, seconds := asked.Load(), int32(time.Since(began)/time.Second)
	t.Logf("four waiting callers send %d requests in %v", n, time.Since(began))
	// Each asks once a second, and some twice, because their requests have collided.
	if n > 20*(1+seconds) {
		t.Error("waiting callers wake each other")
	}
	f.check(lease.Release())
	all.Wait()
}

// A node without free memory still frees a vote whose request must be voided.
func TestRedlockFreesInAFullRedis(t *testing.T) {
	f := newFive(t)
	const last = 4
	_, w, _ := f.hooked(locktest.Patient(), func(s string, next func() error) error {
		err := next()
		if locktest.Is(s, redlock.Acquire) && err == nil {
			err = errors.New("the reply is lost")
		}
		return err
	})
	r := redlock.NewRound(w, "a", testenv.Hang)
	if yes, err := r.Vote(t.Context(), last); yes || err == nil || f.held(last) != 1 {
		t.Fatalf("%v, %v", yes, err)
	}
	limit := func(bytes string) {
		f.check(f.direct[last].ConfigSet(context.WithoutCancel(t.Context()), "maxmemory", bytes).Err())
	}
	t.Cleanup(func() { limit("0") })
	limit("1")
	if err := f.direct[last].Set(t.Context(), "lock:{b}", "", 0).Err(); !redis.HasErrorPrefix(err, "OOM") {
		t.Fatalf("the memory is not full: %v", err)
	}
	f.check(r.Free(t.Context(), last))
	if f.held(last) != 0 {
		t.Error("the vote is left")
	}
}

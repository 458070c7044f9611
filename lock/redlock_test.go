package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

func TestNewRedlockRefuses(t *testing.T) {
	at := func(addrs ...string) (clients []*redis.Client) {
		for _, addr := range addrs {
			clients = append(clients, clientWith(t, &redis.Options{Addr: addr}))
		}
		return clients
	}
	other := clientWith(t, &redis.Options{Addr: "a:1", DB: 1})
	failover := redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: []string{"a:1"}})
	defer failover.Close()
	for _, c := range []struct {
		clients []*redis.Client
		options *lock.LockerOptions
		says    string
	}{
		{nil, nil, "at least 3"},
		{at("a:1", "b:1"), nil, "at least 3"},
		{at("a:1", "b:1", "a:1"), nil, "client 2: it leads to the same server as client 0"},
		{append(at("a:1", "b:1"), other), nil, "same server as client 0"},
		{append(at("a:1", "b:1"), nil), nil, "client 2: the Redis client is a nil"},
		{append(at("a:1", "b:1"), failover), nil, "sentinels"},
		{at("a:1", "b:1", "c:1"), &lock.LockerOptions{TTL: 1}, "LockerOptions.TTL"},
	} {
		if l, err := lock.NewRedlock(c.clients, c.options); l != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want an error that says %q", err, c.says)
		}
	}
	l, err := lock.NewRedlock(at("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"), nil) // no I/O
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// What leads to one server by several addresses counts once.
func TestRedlockOneServerTwice(t *testing.T) {
	f := newFive(t)
	on := func(addrs ...string) *lock.Locker {
		var clients []*redis.Client
		for _, addr := range addrs {
			clients = append(clients, clientWith(t, &redis.Options{Addr: addr}))
		}
		return closed(t)(lock.NewRedlock(clients, nil))
	}
	one := on(f.nodes[0].Addr, f.proxies[0].Addr, strings.Replace(f.nodes[0].Addr, "127.0.0.1", "localhost", 1))
	if _, err := one.Acquire(t.Context(), "a", nil); err == nil || !strings.Contains(err.Error(), "same server") {
		t.Errorf("%v", err)
	}
	f.free(2 * time.Second)
	two := on(f.nodes[0].Addr, f.proxies[0].Addr, f.nodes[1].Addr)
	lease, err := two.Acquire(t.Context(), "a", nil)
	f.check(err)
	f.check(lease.Release())
	f.free(2 * time.Second)
}

// The nodes of a cluster refuse what is not theirs.
func TestRedlockOverOneCluster(t *testing.T) {
	var clients []*redis.Client
	for _, n := range testenv.SharedCluster(t).Nodes {
		clients = append(clients, n.Client(t))
	}
	l := closed(t)(lock.NewRedlock(clients, nil))
	if _, err := l.Acquire(t.Context(), "a", nil); err == nil || errors.Is(err, lock.ErrHeld) {
		t.Errorf("%v", err)
	}
}

func TestRedlockThreeDown(t *testing.T) {
	f := newFive(t)
	o := lock.LockerOptions{TTL: 5 * time.Second, Timeout: 400 * time.Millisecond}
	l := f.locker(&o)
	held, err := l.Acquire(t.Context(), "held", &lock.Options{Fixed: true})
	f.check(err)
	f.nodes[2].Kill()
	f.nodes[3].Pause()
	f.hang(true, 4)
	within(t, o.Timeout+50*time.Millisecond, func() time.Duration { // 50 ms for a busy machine
		d := took(func() { _, err = l.Acquire(t.Context(), "a", nil) })
		if err == nil || errors.Is(err, lock.ErrHeld) {
			t.Errorf("%v", err)
		}
		for _, i := range []int{0, 1} { // there is one lock still
			for began := time.Now(); f.held(i) > 1; time.Sleep(time.Millisecond) {
				if time.Since(began) > 100*time.Millisecond {
					t.Logf("node %d has the lock still", i)
				}
				if time.Since(began) > 2*time.Second {
					t.Fatal("it is left there")
				}
			}
		}
		t.Logf("three of five down: acquire fails after %v: %v", d, strings.ReplaceAll(err.Error(), "\n", "; "))
		return d
	})
	d := took(func() { err = held.Extend(t.Context()) })
	t.Logf("extend fails after %v", d)
	if err == nil || errors.Is(err, lock.ErrLost) || d > 2*o.Timeout {
		t.Errorf("%v after %v", err, d)
	}
	d = took(func() { err = held.Release() })
	t.Logf("release fails after %v", d)
	if err == nil || errors.Is(err, lock.ErrLost) || d > 2*o.Timeout+200*time.Millisecond {
		t.Errorf("%v after %v", err, d)
	}
	f.nodes[3].Resume()
	f.hang(false, 4)
	f.free(5*time.Second, 0, 1, 3, 4)
}

// A request for a lock that arrives when its time is over is not carried out: nobody would release it.
func TestRedlockLateRequest(t *testing.T) {
	f := newFive(t)
	const timeout = 250 * time.Millisecond
	l := f.locker(&lock.LockerOptions{TTL: 20 * time.Second, Timeout: timeout})
	var arrived atomic.Int32
	f.disturb(lock.RedlockAcquire, func() testenv.Action {
		time.AfterFunc(3*timeout, func() { arrived.Add(1) })
		return testenv.Delay(3 * timeout)
	}, 2, 3, 4)
	if _, err := l.Acquire(t.Context(), "a", nil); err == nil {
		t.Fatal("acquired")
	}
	for arrived.Load() < 3 {
		time.Sleep(timeout)
	}
	time.Sleep(timeout)
	if n := f.held(0, 1, 2, 3, 4); n > 0 {
		t.Errorf("%d locks, which nobody knows of", n)
	}
}

// redsync returns when a majority has answered: where its goroutines are slow to run, some nodes have not been asked by then. Nobody would release what they then grant.
func TestRedlockLateVote(t *testing.T) {
	f := newFive(t)
	l := f.locker(nil)
	if yes, err := lock.RedlockVote(t.Context(), l, "in time"); !yes || err != nil || f.held(0) != 1 {
		t.Errorf("%v, %v", yes, err)
	}
	f.check(f.direct[0].FlushAll(t.Context()).Err())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if yes, err := lock.RedlockVote(ctx, l, "late"); yes || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", yes, err)
	}
	f.check(l.Close()) // waits for what is under way
	if f.held(0) != 0 {
		t.Error("it has asked")
	}
}

// Who closes right after his context has ended leaves nothing, either.
func TestRedlockCancelAndClose(t *testing.T) {
	f := newFive(t)
	l := f.locker(&lock.LockerOptions{TTL: 20 * time.Second})
	f.disturb(lock.RedlockAcquire, always(testenv.Delay(2*cancelAfter)), 2, 3, 4)
	ctx, cancel := f.cancelled()
	defer cancel()
	if _, err := l.Acquire(ctx, "a", nil); err == nil {
		t.Fatal("acquired")
	}
	f.check(l.Close())
	if n := f.held(0, 1, 2, 3, 4); n > 0 {
		t.Errorf("%d locks left", n)
	}
}

// Where the replies to a release are lost, it is asked again, and is no loss of the lock.
func TestRedlockReleaseRepliesLost(t *testing.T) {
	f := newFive(t)
	l := f.locker(nil)
	lease, err := l.Acquire(t.Context(), "a", nil)
	f.check(err)
	for _, i := range []int{0, 1, 2} {
		var n atomic.Int32
		f.disturb(lock.RedlockRelease, func() testenv.Action {
			if n.Add(1) == 1 {
				return testenv.LoseReply
			}
			return testenv.Pass
		}, i)
	}
	f.check(lease.Release())
	f.free(2 * time.Second)
}

// A majority of nodes that have restarted without their data gives the lock to another. The first is told when he asks, and the other's token is greater.
func TestRedlockNodesForget(t *testing.T) {
	f := newFive(t)
	a, b := f.locker(nil), f.locker(nil)
	first, err := a.Acquire(t.Context(), "a", nil)
	f.check(err)
	for _, i := range []int{0, 2, 4} {
		f.nodes[i].Restart(t)
	}
	second, err := b.Acquire(t.Context(), "a", nil)
	f.check(err)
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

// Of several who ask at the same moment one has the lock, also without waiting.
func TestRedlockSplitVotes(t *testing.T) {
	f := newFive(t)
	var lockers []*lock.Locker
	for range 5 {
		lockers = append(lockers, f.locker(nil))
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
			t.Fatalf("%d have it", winners.Load())
		}
		won += int(winners.Load())
		f.free(2 * time.Second)
	}
	t.Logf("of %d times that five asked at once, one had it in %d", rounds, won)
	if won < rounds/2 {
		t.Errorf("%d of %d", won, rounds)
	}
}

// Where the lock is held on a bare majority, those who wait do not wake each other by giving back their votes of the others.
func TestRedlockWaitersAreQuiet(t *testing.T) {
	f := newFive(t)
	holder := f.locker(nil)
	var lockers []*lock.Locker
	for range 4 {
		lockers = append(lockers, f.locker(nil))
	}
	f.disturb(lock.RedlockAcquire, always(testenv.Drop), 3, 4)
	lease, err := holder.Acquire(t.Context(), "a", nil)
	f.check(err)
	f.disturb(lock.RedlockAcquire, always(testenv.Pass), 3, 4)
	var asked atomic.Int32
	f.disturb(lock.RedlockAcquire, func() testenv.Action { asked.Add(1); return testenv.Pass }, 0)
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
	asked.Store(0)
	time.Sleep(700 * time.Millisecond)
	n := asked.Load()
	t.Logf("four who wait ask %d times in 700 ms", n)
	if n > 20 {
		t.Error("they wake each other")
	}
	f.check(lease.Release())
	all.Wait()
}

package lock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// throughProxy returns a Locker whose connection to Redis a test can disturb, and a patient one
// with a direct connection.
func throughProxy(t *testing.T, o *lock.Options) (*testenv.Proxy, *lock.Locker, *lock.Locker) {
	server := testenv.SharedRedis(t)
	p := testenv.NewProxy(t, server.Addr)
	c := server.Options()
	c.Addr, c.ContextTimeoutEnabled, c.MaxRetries = p.Addr, true, 3
	direct := locktest.Closed(t)(lock.NewRedis(server.Client(t), locktest.Patient()))
	return p, locktest.Closed(t)(lock.NewRedis(locktest.ClientWith(t, c), o)), direct
}

// asksFor reports whether a chunk requests a lock: no other request has this number of arguments.
func asksFor(chunk []byte) bool {
	return bytes.Contains(chunk, []byte("evalsha")) && bytes.HasPrefix(chunk, []byte("*9\r\n"))
}

// TestLostReplyIsAdopted: a process that was granted a lock but lost the reply gets the lock with
// its next request.
func TestLostReplyIsAdopted(t *testing.T) {
	p, l, other := throughProxy(t, locktest.Patient())
	acquired(t, l, nil).Release() // so that the script and the clock are known
	var lost atomic.Int32
	p.OnRequest(func(chunk []byte) testenv.Action {
		if asksFor(chunk) && lost.CompareAndSwap(0, 1) {
			return testenv.LoseReply
		}
		return testenv.Pass
	})
	lease := acquiredWithin(t, testenv.Hang, l, nil) // otherwise the lock would be held for longer
	if lost.Load() == 0 {
		t.Error("no reply was lost")
	}
	if _, err := other.TryAcquire(t.Context(), "a", nil); !errors.Is(err, lock.ErrHeld) {
		t.Error(err)
	}
	if err := lease.Release(); err != nil {
		t.Error(err)
	}
	acquired(t, other, nil).Release()
}

// TestDelayedRequestIsRefused: a delayed request for a lock is refused if its sender has left, or
// has acquired and released the lock by another request. A grant would have no holder to release
// it.
func TestDelayedRequestIsRefused(t *testing.T) {
	for name, then := range map[string]func(t *testing.T, lease *lock.Lease, err error){
		"given up": func(t *testing.T, _ *lock.Lease, err error) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		},
		"released": func(t *testing.T, lease *lock.Lease, err error) {
			if err != nil {
				t.Fatal(err)
			}
			lease.Release()
		},
		// The server does not notice that the sender has left.
		"cut off": func(t *testing.T, _ *lock.Lease, err error) {
			if err == nil {
				t.Error("Acquire succeeds although its request is delayed")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, l, other := throughProxy(t, locktest.Quick(100*time.Millisecond))
			locktest.InTheEnd(t, l, "a", nil).Release()
			var delayed atomic.Int32
			p.OnRequest(func(chunk []byte) testenv.Action {
				switch {
				case asksFor(chunk) && (delayed.CompareAndSwap(0, 1) || name == "given up"):
					return testenv.Delay(250 * time.Millisecond)
				case name == "cut off":
					return testenv.Drop
				}
				return testenv.Pass
			})
			if name == "released" {
				then(t, locktest.InTheEnd(t, l, "a", nil), nil)
			}
			for delayed.Load() == 0 { // a busy machine may not even send the request in this time
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				lease, err := l.Acquire(ctx, "a", nil)
				cancel()
				then(t, lease, err)
			}
			for range 40 {
				time.Sleep(10 * time.Millisecond)
				lease, err := other.TryAcquire(t.Context(), "a", nil)
				if err != nil {
					if errors.Is(err, lock.ErrHeld) {
						t.Fatal("a request whose sender has left gets the lock")
					}
					t.Fatal(err)
				}
				lease.Release()
			}
		})
	}
}

// TestCancelledAcquireLeavesNothing: soon after a cancelled Acquire the lock is free. `make accept`
// asserts 100 ms.
func TestCancelledAcquireLeavesNothing(t *testing.T) {
	p, l, other := throughProxy(t, locktest.Patient())
	acquired(t, l, nil).Release()
	longest := time.Duration(0)
	p.OnRequest(func(chunk []byte) testenv.Action {
		if asksFor(chunk) {
			return testenv.Delay(10 * time.Millisecond)
		}
		return testenv.Pass
	})
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*500*time.Microsecond)
		lease, err := l.Acquire(ctx, "a", nil)
		cancel()
		began := time.Now()
		if err == nil {
			lease.Release()
			continue
		}
		// A lock left behind would be held for longer.
		acquiredWithin(t, testenv.Hang, other, nil).Release()
		longest = max(longest, time.Since(began))
	}
	t.Logf("free after %v at the latest", longest)
	if testenv.Accepting && longest > 100*time.Millisecond {
		t.Errorf("the lock is free after %v, want 100ms", longest)
	}
}

// TestTokensGrow: tokens grow through a flush, a restart without data, and a clock that is set
// back.
func TestTokensGrow(t *testing.T) {
	server := testenv.StartRedis(t)
	l := locktest.Closed(t)(lock.NewRedis(server.Client(t), locktest.Patient()))
	var last int64
	next := func() {
		t.Helper()
		lease := locktest.InTheEnd(t, l, "a", nil) // the server may have just started
		if lease.Token() <= last {
			t.Errorf("token %d after %d", lease.Token(), last)
		}
		last = lease.Token()
		lease.Release()
	}
	for range 50 {
		next()
	}
	server.Client(t).FlushAll(t.Context())
	next()
	server.Kill()
	server.Restart(t)
	next()
}

func TestTokensGrowWhenTheClockGoesBack(t *testing.T) {
	m, client := testenv.Mini(t)
	l := locktest.Closed(t)(lock.NewRedis(client, locktest.Patient()))
	var last int64
	now := time.Now()
	for i := range 20 {
		m.SetTime(now.Add(-time.Duration(i) * 2 * time.Second))
		lease := acquired(t, l, nil)
		if lease.Token() <= last {
			t.Errorf("token %d after %d", lease.Token(), last)
		}
		last = lease.Token()
		lease.Release()
	}
}

// TestTokensAreExact: tokens ahead of the clock are counted one by one too.
func TestTokensAreExact(t *testing.T) {
	client := testenv.SharedRedis(t).Client(t)
	l := locktest.Closed(t)(lock.NewRedis(client, locktest.Patient()))
	ahead := time.Now().Add(time.Hour).UnixMicro()
	client.Set(t.Context(), "lock:{a}", fmt.Sprintf("L1 - %d 0 0", ahead), 0)
	for i := range int64(5) {
		lease := acquired(t, l, nil)
		if lease.Token() != ahead+1+i {
			t.Fatalf("token %d after %d", lease.Token(), ahead+i)
		}
		locktest.Want(t, "release", lease.Release(), nil)
	}
	if left := client.PTTL(t.Context(), "lock:{a}").Val(); left < time.Hour || left > time.Hour+2*time.Minute {
		t.Errorf("the token expires in %v", left)
	}
}

// TestLateRequestsHaveNoEffect: an extension and a release of a holder that was cut off arrive when
// another holds the lock, and have no effect.
func TestLateRequestsHaveNoEffect(t *testing.T) {
	server := testenv.StartRedis(t)
	p := testenv.NewProxy(t, server.Addr)
	l := locktest.Closed(t)(lock.NewRedis(locktest.ClientWith(t, &redis.Options{Addr: p.Addr,
		ContextTimeoutEnabled: true}), &lock.Options{TTL: 500 * time.Millisecond, Timeout: 100 * time.Millisecond}))
	other, third := locktest.Closed(t)(lock.NewRedis(server.Client(t),
		locktest.Patient())), locktest.Closed(t)(lock.NewRedis(server.Client(t), locktest.Patient()))
	lease := acquired(t, other, nil) // so that the scripts are known
	if err := errors.Join(lease.Extend(t.Context()), lease.Release()); err != nil {
		t.Fatal(err)
	}
	lease = locktest.InTheEnd(t, l, "a", nil)
	p.OnRequest(func(chunk []byte) testenv.Action {
		if bytes.Contains(chunk, []byte("evalsha")) {
			return testenv.Delay(800 * time.Millisecond)
		}
		return testenv.Pass
	})
	testenv.Receive(t, "the end of the lock", lease.Context().Done())
	next := acquired(t, other, nil)
	if err := lease.Release(); !errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
	time.Sleep(1200 * time.Millisecond) // the delayed requests have arrived
	if _, err := third.TryAcquire(t.Context(), "a", nil); !errors.Is(err, lock.ErrHeld) {
		t.Error(err)
	}
	if err := next.Release(); err != nil {
		t.Error(err)
	}
}

// TestTokensGrowThroughFailover: tokens grow after a replica is promoted.
func TestTokensGrowThroughFailover(t *testing.T) {
	s := testenv.SharedSentinel(t)
	l := locktest.Closed(t)(lock.NewRedis(s.Client(t), locktest.Patient()))
	first := acquired(t, l, nil)
	first.Release()
	s.Master.Kill()
	lease := locktest.InTheEnd(t, l, "a", nil)
	if lease.Token() <= first.Token() {
		t.Errorf("token %d after %d", lease.Token(), first.Token())
	}
	lease.Release()
}

// TestForeignLockKeyIsKept: a key that is not a lock is neither acquired nor overwritten.
func TestForeignLockKeyIsKept(t *testing.T) {
	server := testenv.SharedRedis(t)
	client := server.Client(t)
	l := locktest.Closed(t)(lock.NewRedis(client, locktest.Patient()))
	for _, value := range []string{"x", "", "L1 - 1", "L1 - 99999999999999999999 1 0", "L1 - -1 1 0", "L1  1 1 0",
		"L2 - 1 1 0", "L1 - 1 1 0 "} {
		client.Set(t.Context(), "lock:{private}", value, 0)
		_, err := l.TryAcquire(t.Context(), "private", nil)
		if err == nil || errors.Is(err, lock.ErrHeld) || strings.Contains(err.Error(), "private") {
			t.Errorf("%q: %v", value, err)
		}
		if got := client.Get(t.Context(), "lock:{private}").Val(); got != value {
			t.Errorf("%q has become %q", value, got)
		}
	}
	client.Del(t.Context(), "lock:{private}")
	client.LPush(t.Context(), "lock:{private}", "x")
	if _, err := l.TryAcquire(t.Context(), "private", nil); err == nil {
		t.Error("TryAcquire accepts a list")
	}
}

// TestUnsuitableClientsAreRefused: New refuses unsuitable clients and says why.
func TestUnsuitableClientsAreRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for name, rdb := range map[string]redis.UniversalClient{
		"nil":        nil,
		"nil client": (*redis.Client)(nil),
		"ring":       ring,
		"replicas":   redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadOnly: true}),
	} {
		if _, err := lock.NewRedis(rdb, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, o := range []*lock.Options{{Prefix: "a b"}, {Prefix: strings.Repeat("x", 65)}, {TTL: 1}, {Timeout: -1}} {
		if _, err := lock.NewLocal(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

// TestReleaseWakesWaiters: each release wakes the next waiter, before the lock's life would end.
func TestReleaseWakesWaiters(t *testing.T) {
	server := testenv.SharedRedis(t)
	var lockers []*lock.Locker
	for range 5 {
		lockers = append(lockers, locktest.Closed(t)(lock.NewRedis(server.Client(t), locktest.Patient())))
	}
	gaps := contention(t, lockers)
	t.Logf("from a release to the next grant, between 5 processes: p50 %v, p99 %v, longest %v", gaps[len(gaps)/2],
		gaps[len(gaps)*99/100], gaps[len(gaps)-1])
	if p50 := gaps[len(gaps)/2]; testenv.Accepting && p50 > 5*time.Millisecond { // TestCostOfContention asserts more
		t.Errorf("the median time from a release to the next grant is %v", p50)
	}
}

// TestReleaseWakesAtOnce: a release wakes the next waiter immediately, tested in a bubble where
// messages take no time.
func TestReleaseWakesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		lockers := []*lock.Locker{locktest.Closed(t)(lock.NewRedis(rdb, nil)),
			locktest.Closed(t)(lock.NewRedis(rdb, nil))}
		gaps := contention(t, lockers)
		if longest := gaps[len(gaps)-1]; longest > time.Millisecond {
			t.Errorf("the longest time from a release to the next grant is %v", longest)
		}
	})
}

// contention lets 50 workers hold the lock 4 times each, for a millisecond. It returns the times
// from the end of a release to the next grant, sorted.
func contention(t *testing.T, lockers []*lock.Locker) []time.Duration {
	var mu sync.Mutex
	var released time.Time
	var gaps []time.Duration
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for range 4 {
				lease, err := lockers[i%len(lockers)].Acquire(t.Context(), "a",
					&lock.AcquireOptions{Wait: testenv.Hang})
				if err != nil {
					t.Error(err)
					return
				}
				now := time.Now()
				mu.Lock()
				if !released.IsZero() {
					gaps = append(gaps, max(0, now.Sub(released)))
				}
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				released = time.Now()
				mu.Unlock()
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	slices.Sort(gaps)
	return gaps
}

// subscriptionDropper is a connection that drops all subscriptions.
type subscriptionDropper struct{ net.Conn }

func (u subscriptionDropper) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("subscribe")) {
		return len(b), nil
	}
	return u.Conn.Write(b)
}

// TestLostWakeUpsDelayWaiters: without any message, a waiting caller gets the lock soon after its
// life has ended.
func TestLostWakeUpsDelayWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, rdb := testenv.Mini(t)
		o := *rdb.Options()
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			return subscriptionDropper{c}, err
		}
		other, l := locktest.Closed(t)(lock.NewRedis(rdb,
			&lock.Options{TTL: time.Second})), locktest.Closed(t)(lock.NewRedis(locktest.ClientWith(t, &o), nil))
		for range 3 {
			lease := acquired(t, other, nil)
			time.AfterFunc(100*time.Millisecond, func() { lease.Release() })
			began := time.Now()
			acquiredWithin(t, testenv.Hang, l, nil).Release()
			if took := time.Since(began); took < 100*time.Millisecond || took > 1100*time.Millisecond {
				t.Errorf("the caller waits for %v", took)
			}
		}
	})
}

// TestCommands: the commands for an uncontended lock and for an unsuccessful wait.
func TestCommands(t *testing.T) {
	server := testenv.StartRedis(t)
	l := locktest.Closed(t)(lock.NewRedis(server.Client(t), locktest.Patient()))
	acquired(t, l, nil).Release()
	before := server.CommandCalls(t)
	for range 10 {
		acquired(t, l, nil).Release()
	}
	after := server.CommandCalls(t)
	for name, want := range map[string]int{"evalsha": 20, "get": 30, "set": 20, "time": 10, "publish": 0,
		"subscribe": 0} {
		if got := after[name] - before[name]; got != want {
			t.Errorf("10 locks take %d %s, want %d", got, name, want)
		}
	}
	lease, began := acquired(t, l, nil), time.Now()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { acquired(t, l, nil).Release() })
	}
	time.Sleep(300 * time.Millisecond)
	got := server.CommandCalls(t)["evalsha"] - after["evalsha"]
	// One caller asks, and the lock may be extended.
	if seconds := int(time.Since(began) / time.Second); got > 5+2*seconds {
		t.Errorf("20 waiting callers send %d requests", got)
	}
	lease.Release()
	all.Wait()
	if got := server.CommandCalls(t)["subscribe"]; got > 1 {
		t.Errorf("%d subscriptions, want at most 1", got)
	}
}

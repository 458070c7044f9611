package lock_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// five are servers behind proxies.
type five struct {
	*testing.T
	nodes   []*testenv.Redis
	proxies []*testenv.Proxy
	direct  []*redis.Client
}

func newFive(t *testing.T) *five {
	f := &five{T: t, nodes: testenv.FiveMasters(t)}
	for _, n := range f.nodes {
		t.Cleanup(n.Resume)
		f.proxies = append(f.proxies, testenv.NewProxy(t, n.Addr))
		f.direct = append(f.direct, n.Client(t))
	}
	return f
}

// clients go by way of the proxies.
func (f *five) clients(bounded bool) (clients []*redis.Client) {
	for i, n := range f.nodes {
		o := n.Options()
		o.Addr, o.ContextTimeoutEnabled = f.proxies[i].Addr, bounded
		clients = append(clients, clientWith(f.T, o))
	}
	return clients
}

// locker has met all nodes: it knows their clocks, and they its scripts.
func (f *five) locker(o *lock.LockerOptions) *lock.Locker {
	f.Helper()
	l := closed(f.T)(lock.NewRedlock(f.clients(false), o))
	f.warm(l)
	return l
}

func (f *five) warm(l *lock.Locker) {
	f.Helper()
	for i := 0; ; i++ { // quorums leave some behind
		lease, err := l.Acquire(f.Context(), "warm", nil)
		if err != nil {
			f.Fatal(err)
		}
		if f.check(lease.Extend(f.Context())); i > 1 {
			f.check(lease.Release())
			break
		}
		f.check(lease.Release())
		f.free(20 * time.Second)
	}
	f.free(20 * time.Second)
}

func (f *five) check(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// held counts the locks on some nodes.
func (f *five) held(nodes ...int) (n int) {
	f.Helper()
	for _, i := range nodes {
		keys, err := f.direct[i].Keys(context.WithoutCancel(f.Context()), "*").Result()
		f.check(err)
		for _, key := range keys {
			if !strings.HasSuffix(key, ":token") {
				n++
			}
		}
	}
	return n
}

// free waits until there is no lock on nodes, all of them if none is named, and answers how long that took.
func (f *five) free(limit time.Duration, nodes ...int) time.Duration {
	f.Helper()
	if nodes == nil {
		nodes = []int{0, 1, 2, 3, 4}
	}
	began := time.Now()
	for f.held(nodes...) > 0 {
		if time.Since(began) > limit {
			f.Fatalf("%d locks left on %v after %v", f.held(nodes...), nodes, limit)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

func (f *five) hang(on bool, nodes ...int) {
	for _, i := range nodes {
		f.proxies[i].Hang(on)
	}
}

// disturb has one kind of request be disturbed on some nodes.
func (f *five) disturb(s conn.Script, action func() testenv.Action, nodes ...int) {
	for _, i := range nodes {
		f.proxies[i].OnRequest(func(chunk []byte) testenv.Action {
			if bytes.Contains(chunk, []byte(s.Hash)) || bytes.Contains(chunk, []byte(s.Source)) {
				return action()
			}
			return testenv.Pass
		})
	}
}

func always(a testenv.Action) func() testenv.Action { return func() testenv.Action { return a } }

// within asserts that what f measures is within a limit, in one of three attempts: on a busy machine each may take longer.
func within(t *testing.T, limit time.Duration, f func() time.Duration) {
	t.Helper()
	var d time.Duration
	for range 3 {
		if d = f(); d <= limit {
			return
		}
	}
	t.Errorf("it takes %v, not %v", d, limit)
}

func took(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

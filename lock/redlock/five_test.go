package redlock_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/conn"
	"github.com/cacheaside/cacheaside/internal/test/locktest"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/redlock"
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

// clients returns clients that connect through the proxies.
func (f *five) clients(bounded bool) (clients []*redis.Client) {
	for i, n := range f.nodes {
		o := n.Options()
		o.Addr, o.ContextTimeoutEnabled = f.proxies[i].Addr, bounded
		clients = append(clients, locktest.ClientWith(f.T, o))
	}
	return clients
}

// locker returns a locker that has contacted all nodes: it knows their clocks, and they have its
// scripts.
func (f *five) locker(o *lock.Options) *lock.Locker {
	f.Helper()
	l, _ := f.watched(f.clients(false), o)
	return l
}

// watched returns a locker that has contacted all nodes, and its driver.
func (f *five) watched(clients []*redis.Client, o *lock.Options) (*lock.Locker, *redlock.Watched) {
	f.Helper()
	l, w, err := redlock.NewWatched(clients, o)
	locktest.Closed(f.T)(l, err)
	f.warm(l)
	return l, w
}

func (f *five) warm(l *lock.Locker) {
	f.Helper()
	for range 3 { // a quorum can leave some nodes without contact
		testenv.Eventually(f.T, "a lock, extended and released", func() bool {
			lease, err := l.Acquire(f.Context(), "warm", nil)
			if err == nil {
				err = errors.Join(lease.Extend(f.Context()), lease.Release())
			}
			return err == nil
		})
		f.free()
	}
}

func (f *five) check(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// held counts the locks on the given nodes.
func (f *five) held(nodes ...int) (n int) {
	f.Helper()
	for _, i := range nodes {
		keys, err := f.direct[i].Keys(context.WithoutCancel(f.Context()), "*").Result()
		f.check(err)
		for _, key := range keys {
			if !strings.Contains(key, "}:") { // neither tokens nor the keys that void a request
				n++
			}
		}
	}
	return n
}

// count counts the keys with this name on the given nodes. It returns -1 if a node is not
// reachable.
func (f *five) count(name string, nodes ...int) (n int) {
	for _, i := range nodes {
		for _, key := range []string{name, "lock:{" + name + "}"} {
			found, err := f.direct[i].Exists(context.WithoutCancel(f.Context()), key).Result()
			if err != nil {
				return -1
			}
			n += int(found)
		}
	}
	return n
}

// free waits until the given nodes, or all nodes, have no lock. It returns the time that took.
func (f *five) free(nodes ...int) time.Duration {
	f.Helper()
	if nodes == nil {
		nodes = []int{0, 1, 2, 3, 4}
	}
	began := time.Now()
	testenv.Eventually(f.T, "no lock is left", func() bool { return f.held(nodes...) == 0 })
	return time.Since(began)
}

// over waits until no request for a lock is in flight: a delayed one would disturb the next
// request.
func (f *five) over(w *redlock.Watched) {
	f.Helper()
	for i := range f.nodes {
		testenv.Eventually(f.T, "the end of a request", func() bool {
			asked, known := w.Known(i)
			return known || !asked
		})
	}
}

func (f *five) hang(on bool, nodes ...int) {
	for _, i := range nodes {
		f.proxies[i].Hang(on)
	}
}

// disturb disturbs one kind of request on the given nodes.
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

// soon asserts a limit in time in acceptance runs.
func soon(t *testing.T, what string, took, limit time.Duration) {
	t.Helper()
	t.Logf("%s took %v", what, took)
	if testenv.Accepting && took > limit {
		t.Errorf("%s takes %v, limit %v", what, took, limit)
	}
}

func took(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

package zklock_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/zklock"
)

const parent = "/cacheaside/locks/lock:a"

// calm returns options for tests whose sessions must not end by themselves.
func calm() *zklock.Options {
	return &zklock.Options{SessionTimeout: 5 * time.Minute, Options: lock.Options{Timeout: testenv.Hang / 2}}
}

func acquire(t testing.TB, l *lock.Locker, o *lock.AcquireOptions) *lock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Hang)
	t.Cleanup(cancel)
	lease, err := l.Acquire(ctx, "a", o)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func release(t testing.TB, s *lock.Lease) {
	t.Helper()
	if err := s.Release(); err != nil {
		t.Error(err)
	}
}

// nodes returns the nodes below the lock's node.
func nodes(t testing.TB, conn *zk.Conn) []string {
	t.Helper()
	return below(t, conn, parent)
}

func below(t testing.TB, conn *zk.Conn, path string) []string {
	t.Helper()
	names, _, err := conn.Children(path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// line starts n waiters for the lock, one after another, and returns their leases.
func line(t testing.TB, z *testenv.ZooKeeper, n int) (<-chan *lock.Lease, []context.CancelFunc) {
	t.Helper()
	conn := client(t, z)
	before := len(nodes(t, conn))
	got := make(chan *lock.Lease, n)
	var cancels []context.CancelFunc
	for i := range n {
		l := locker(t, z.Addr, calm())
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Hang)
		t.Cleanup(cancel)
		cancels = append(cancels, cancel)
		go func() {
			if lease, err := l.Acquire(context.WithValue(ctx, number{}, i), "a", nil); err == nil {
				got <- lease
			}
		}()
		testenv.Eventually(t, "a node", func() bool { return len(nodes(t, conn)) == before+i+1 })
	}
	return got, cancels
}

type number struct{}

func numberOf(s *lock.Lease) int { return s.Context().Value(number{}).(int) }

func TestOrderAndTokens(t *testing.T) {
	z := server(t)
	first := acquire(t, locker(t, z.Addr, calm()), nil)
	got, _ := line(t, z, 4)
	token := first.Token()
	release(t, first)
	for i := range 4 {
		lease := testenv.Receive(t, "the lock", got)
		if n := numberOf(lease); n != i {
			t.Errorf("waiter %d gets the lock at position %d", n, i)
		}
		if lease.Token() <= token {
			t.Errorf("token %d after %d", lease.Token(), token)
		}
		token = lease.Token()
		release(t, lease)
	}
	// Tokens also grow if the parent node is new and its numbers start again.
	conn := client(t, z)
	testenv.Eventually(t, "the parent is deleted", func() bool { return conn.Delete(parent, -1) == nil })
	last := acquire(t, locker(t, z.Addr, calm()), nil)
	if last.Token() <= token {
		t.Errorf("token %d after %d", last.Token(), token)
	}
	release(t, last)
}

// TestCancelledWaiter: a cancelled waiter leaves no node, and the next waiter does not take a held
// lock.
func TestCancelledWaiter(t *testing.T) {
	z := server(t)
	conn := client(t, z)
	first := acquire(t, locker(t, z.Addr, calm()), nil)
	got, cancel := line(t, z, 3)
	cancel[1]()
	testenv.Eventually(t, "its node deleted", func() bool { return len(nodes(t, conn)) == 3 })
	select {
	case lease := <-got:
		t.Fatalf("waiter %d has the lock, want none", numberOf(lease))
	case <-time.After(100 * time.Millisecond):
	}
	release(t, first)
	for _, want := range []int{0, 2} {
		lease := testenv.Receive(t, "the lock", got)
		if n := numberOf(lease); n != want {
			t.Errorf("waiter %d has the lock, want %d", n, want)
		}
		release(t, lease)
	}
	if left := nodes(t, conn); len(left) > 0 {
		t.Errorf("nodes are left: %q", left)
	}
}

// childrenRequests counts the waiters' requests for the nodes of the queue, in a proxy.
func childrenRequests(p *testenv.Proxy) *atomic.Int64 {
	var n atomic.Int64
	p.OnRequest(func(chunk []byte) testenv.Action {
		n.Add(int64(bytes.Count(chunk, append([]byte{0, 0, 0, 12, 0, 0, 0, byte(len(parent))}, parent+"\x00"...))))
		return testenv.Pass
	})
	return &n
}

// TestReleaseWakesOne: a release wakes one waiter. The holder's proofs of life wake none.
func TestReleaseWakesOne(t *testing.T) {
	z := server(t)
	conn := client(t, z)
	p := testenv.NewProxy(t, z.Addr)
	watched, _, _ := watchRequests(p)
	first := acquire(t, locker(t, z.Addr, calm()), nil)
	const waiters = 6
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Hang)
	defer cancel()
	got := make(chan *lock.Lease, waiters)
	var all sync.WaitGroup
	for i := range waiters {
		l := locker(t, p.Addr, calm())
		all.Go(func() {
			if lease, err := l.Acquire(ctx, "a", nil); err == nil {
				got <- lease
			}
		})
		testenv.Eventually(t, "a node", func() bool { return len(nodes(t, conn)) == i+2 })
	}
	testenv.Eventually(t, "their watches", func() bool { return watched.Load() >= waiters })
	asked := childrenRequests(p)
	version := func() int32 { _, stat, _ := conn.Get(parent + "/" + held(t, conn, first)); return stat.Version }
	before := version()
	for range 3 {
		if err := first.Extend(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if version() < before+3 {
		t.Error("the holder sends no proofs of life")
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("waiters list the queue %d times without a release", n)
	}
	release(t, first)
	second := testenv.Receive(t, "the lock", got)
	time.Sleep(100 * time.Millisecond)
	if n := asked.Load(); n != 1 {
		t.Errorf("waiters list the queue %d times after one release, want 1", n)
	}
	cancel()
	all.Wait()
	release(t, second)
}

// held returns the name of a holder's node.
func held(t testing.TB, conn *zk.Conn, s *lock.Lease) string {
	t.Helper()
	for _, name := range nodes(t, conn) {
		if _, stat, err := conn.Get(parent + "/" + name); err == nil && stat.Czxid == s.Token() {
			return name
		}
	}
	t.Fatal("the holder has no node")
	return ""
}

// TestForeignNodes: other nodes below the lock's node have no effect.
func TestForeignNodes(t *testing.T) {
	z := server(t)
	conn := client(t, z)
	release(t, acquire(t, locker(t, z.Addr, calm()), nil))
	foreign := []string{"_c_0123456789abcdef0123456789abcdef-lock-0000000000", "L1-0000000000", "garbage",
		"L1-aaaaaaaaaaaaaaaaaaaaaaaaaa-0000000000"}
	for _, name := range foreign {
		if _, err := conn.Create(parent+"/"+name, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	l := locker(t, z.Addr, calm())
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Hang)
	defer cancel()
	lease, err := l.Acquire(ctx, "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	release(t, lease)
	lease, err = l.TryAcquire(ctx, "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	release(t, lease)
	if left := nodes(t, conn); len(left) != len(foreign) {
		t.Errorf("nodes are left: %q", left)
	}
}

// TestDeletedNode: another client deletes the holder's node and that of a waiter.
func TestDeletedNode(t *testing.T) {
	z := server(t)
	conn := client(t, z)
	l, ttl := locker(t, z.Addr, calm()), time.Second
	var first *lock.Lease
	var got <-chan *lock.Lease
	for {
		first = acquire(t, l, &lock.AcquireOptions{TTL: ttl})
		got, _ = line(t, z, 1)
		if first.Context().Err() == nil {
			break
		}
		t.Logf("the machine is too slow for a life of %v", ttl)
		ttl *= 2
		release(t, testenv.Receive(t, "the lock", got))
	}
	both := nodes(t, conn)
	seq := func(name string) string { return name[strings.LastIndexByte(name, '-')+1:] }
	// The waiter first: otherwise it may get the lock just when its node is deleted.
	slices.SortFunc(both, func(a, b string) int { return strings.Compare(seq(b), seq(a)) })
	for _, name := range both {
		if err := conn.Delete(parent+"/"+name, -1); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Receive(t, "that the watchdog tells", first.Context().Done())
	if err := first.Release(); !errors.Is(err, lock.ErrLost) {
		t.Errorf("release: %v", err)
	}
	release(t, testenv.Receive(t, "the lock", got))
}

func TestACL(t *testing.T) {
	z := server(t)
	o := calm()
	o.Root = "/private/locks"
	o.ACL = zk.DigestACL(zk.PermAll, "user", "password")
	o.Auth = []zklock.Auth{{Scheme: "digest", Credentials: []byte("user:password")}}
	admin := client(t, z)
	t.Cleanup(func() { // no other client may
		if err := errors.Join(admin.AddAuth("digest", []byte("user:password")), remove(admin, "/private")); err != nil {
			t.Error(err)
		}
	})
	p := testenv.NewProxy(t, z.Addr)
	l := locker(t, p.Addr, o)
	lease := acquire(t, l, nil)
	p.Cut() // the next connection authenticates again
	p.Restore()
	testenv.Eventually(t, "an extension", func() bool { return lease.Extend(t.Context()) == nil })
	release(t, lease)
	stranger := locker(t, z.Addr, &zklock.Options{Root: o.Root, Options: lock.Options{Timeout: testenv.Hang / 2}})
	_, err := stranger.Acquire(t.Context(), "a", nil)
	if !errors.Is(err, zk.ErrNoAuth) || strings.Contains(err.Error(), "lock:a") {
		t.Errorf("a client without rights: %v", err)
	}
}

// remove removes a node, and all below it.
func remove(conn *zk.Conn, path string) error {
	names, _, err := conn.Children(path)
	for _, name := range names {
		err = errors.Join(err, remove(conn, path+"/"+name))
	}
	return errors.Join(err, conn.Delete(path, -1))
}

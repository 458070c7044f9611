package zklock_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
	"github.com/cacheaside/cacheaside/lock/zklock"
)

// short are options for tests that wait for the end of a session.
func short(session time.Duration) *zklock.Options {
	return &zklock.Options{SessionTimeout: session}
}

// inTime runs a test with a short life. While f returns false, because the machine is too slow for
// it, it doubles the life.
func inTime(t *testing.T, life time.Duration, f func(life time.Duration) bool) {
	t.Helper()
	for ; !f(life); life *= 2 {
		if t.Logf("the machine is too slow for a life of %v", life); life > 30*time.Second {
			t.Fatal("the lock is lost even with a long life")
		}
	}
}

// TestContextEndsBeforeNextHolder: the context of a disconnected holder ends before another holder
// gets the lock. After the disconnection the holder can continue.
func TestContextEndsBeforeNextHolder(t *testing.T) {
	z := parallel(t)
	for name, way := range map[string]func(p *testenv.Proxy) (break_, fix func()){
		"hang": func(p *testenv.Proxy) (break_, fix func()) { return func() { p.Hang(true) }, func() { p.Hang(false) } },
		"cut":  func(p *testenv.Proxy) (break_, fix func()) { return p.Cut, p.Restore },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testenv.NewProxy(t, z.Addr)
			break_, fix := way(p)
			inTime(t, time.Second, func(
				session time.Duration) bool {
				return told(t, z, p.Addr, session, break_, nil, fix)
			})
		})
	}
}

func TestContextEndsWithoutServers(t *testing.T) {
	z := server(t)
	inTime(t, time.Second, func(session time.Duration) bool {
		return told(t, z, z.Addr, session, z.Pause, z.Resume, func() {})
	})
}

// told makes the holder, which connects to addr, lose the lock to another. It calls lost when the
// holder's context has ended. It returns false if the holder has lost the lock earlier.
func told(t *testing.T, z *testenv.ZooKeeper, addr string, session time.Duration, break_, lost, fix func()) bool {
	o, other := short(session), calm()
	o.Root = "/" + t.Name()[strings.LastIndex(t.Name(), "/")+1:]
	other.Root = o.Root
	a, b := locker(t, addr, o), locker(t, z.Addr, other)
	first := inTheEnd(t, a)
	var told atomic.Pointer[time.Time]
	context.AfterFunc(first.Context(), func() { now := time.Now(); told.Store(&now) })
	conn := client(t, z)
	got := make(chan *lock.Lease, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*testenv.Hang)
	defer cancel()
	go func() {
		for ctx.Err() == nil { // the server may be unreachable for this locker too
			if lease, err := b.Acquire(ctx, "a", nil); err == nil {
				got <- lease
				return
			}
		}
	}()
	testenv.Eventually(t, "one in line", func() bool {
		return len(below(t, conn, o.Root+"/lock:a")) == 2 || first.Context().Err() != nil
	})
	if first.Context().Err() != nil {
		release(t, testenv.Receive(t, "the lock", got))
		return false
	}
	broken := time.Now()
	break_()
	testenv.Receive(t, "that the holder is told", first.Context().Done())
	if cause := context.Cause(first.Context()); !errors.Is(cause, lock.ErrLost) {
		t.Error(cause)
	}
	if lost != nil {
		lost()
	}
	second := testenv.Receive(t, "the lock", got)
	now := time.Now()
	fix()
	if !first.Deadline().Before(now) {
		t.Error("another holder gets the lock before the deadline of the first")
	}
	if ended := told.Load(); ended == nil {
		t.Log("another holder has the lock before the first one's context ends")
	} else {
		t.Logf("the context ends after %v, %v before the next holder has the lock",
			ended.Sub(broken).Round(time.Millisecond), now.Sub(*ended).Round(time.Millisecond))
		if testenv.Accepting && !ended.Before(now) { // otherwise the timer may be late
			t.Error("another holder gets the lock before the first one's context ends")
		}
	}
	if second.Token() <= first.Token() {
		t.Errorf("token %d after %d", second.Token(), first.Token())
	}
	if err := first.Release(); !errors.Is(err, lock.ErrLost) {
		t.Errorf("release: %v", err)
	}
	release(t, second)
	third := inTheEnd(t, a) // in a new session
	// Its sessions are still short.
	if err := third.Release(); err != nil && !errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
	return true
}

// inTheEnd acquires a lock with a locker whose timeouts are too short for a busy machine.
func inTheEnd(t testing.TB, l *lock.Locker) (lease *lock.Lease) {
	t.Helper()
	testenv.Eventually(t, "the lock", func() bool {
		var err error
		lease, err = l.Acquire(t.Context(), "a", nil)
		return err == nil
	})
	return lease
}

// TestReconnect: neither a lost connection nor a restart of the server loses a lock or a place in
// the queue.
func TestReconnect(t *testing.T) {
	z := server(t)
	p := testenv.NewProxy(t, z.Addr)
	o := calm()
	first := acquire(t, locker(t, p.Addr, o), nil)
	conn := client(t, z)
	got := make(chan *lock.Lease, 1)
	waiting := locker(t, p.Addr, o)
	ctx, cancel := context.WithTimeout(t.Context(), 2*testenv.Hang)
	defer cancel()
	go func() {
		lease, err := waiting.Acquire(ctx, "a", nil)
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	testenv.Eventually(t, "one in line", func() bool { return len(nodes(t, conn)) == 2 })
	was := strings.Join(nodes(t, conn), " ")
	p.Cut()
	p.Restore()
	testenv.Eventually(t, "an extension", func() bool { return first.Extend(ctx) == nil })
	z.Restart(t)
	testenv.Eventually(t, "an extension", func() bool { return first.Extend(ctx) == nil })
	if err := context.Cause(first.Context()); err != nil {
		t.Error(err)
	}
	if is := strings.Join(nodes(t, client(t, z)), " "); is != was {
		t.Errorf("nodes %s, were %s", is, was)
	}
	release(t, first)
	second := testenv.Receive(t, "the lock", got)
	if second == nil {
		t.FailNow()
	}
	if second.Token() <= first.Token() {
		t.Errorf("token %d after %d", second.Token(), first.Token())
	}
	release(t, second)
}

// creates reports whether a chunk contains the request for a contender's node.
func creates(chunk []byte) bool {
	return bytes.Contains(chunk, []byte(parent+"/L1-")) && bytes.Contains(chunk, []byte{0, 0, 0, 1, 0, 0, 0})
}

// once applies an action to the first request for a contender's node.
func once(p *testenv.Proxy, what testenv.Action) *atomic.Bool {
	var done atomic.Bool
	p.OnRequest(func(chunk []byte) testenv.Action {
		if creates(chunk) && !done.Swap(true) {
			return what
		}
		return testenv.Pass
	})
	return &done
}

// changes returns the number of changes of the queue.
func changes(t testing.TB, conn *zk.Conn) int32 {
	t.Helper()
	_, stat, err := conn.Get(parent)
	if err != nil {
		t.Fatal(err)
	}
	return stat.Cversion
}

// TestLateNodeIsDeleted: a node is deleted if its request arrives after the caller has left.
func TestLateNodeIsDeleted(t *testing.T) {
	z := server(t)
	conn, p := client(t, z), testenv.NewProxy(t, z.Addr)
	l := locker(t, p.Addr, calm())
	release(t, acquire(t, l, nil))
	before := changes(t, conn)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	var asked atomic.Bool
	p.OnRequest(func(chunk []byte) testenv.Action {
		if creates(chunk) && !asked.Swap(true) {
			cancel()
			<-left // the caller has left: only now does the request proceed
		}
		return testenv.Pass
	})
	_, err := l.Acquire(ctx, "a", nil)
	now := changes(t, conn)
	close(left)
	if !errors.Is(err, context.Canceled) || !asked.Load() {
		t.Fatalf("acquire: %v", err)
	}
	if now != before {
		t.Fatal("the node exists already")
	}
	testenv.Eventually(t, "the node", func() bool { return changes(t, conn) > before })
	testenv.Eventually(t, "no node, while the session lives", func() bool { return len(nodes(t, conn)) == 0 })
}

// TestLostReply: if the reply to the creation of a node is lost, its creator finds the node.
func TestLostReply(t *testing.T) {
	z := server(t)
	conn, p := client(t, z), testenv.NewProxy(t, z.Addr)
	l := locker(t, p.Addr, calm())
	release(t, acquire(t, l, nil))
	before := changes(t, conn)
	lost := once(p, testenv.LoseReply)
	lease := acquire(t, l, nil)
	if n := changes(t, conn) - before; n != 1 || !lost.Load() {
		t.Errorf("%d nodes are created for one lock", n)
	}
	release(t, lease)
	if left := nodes(t, conn); len(left) > 0 {
		t.Errorf("nodes are left: %q", left)
	}
}

// TestUnansweredReleaseContinues: a release continues after the Locker has stopped waiting for it.
func TestUnansweredReleaseContinues(t *testing.T) {
	z := parallel(t)
	conn, p, o := client(t, z), testenv.NewProxy(t, z.Addr), calm()
	o.Root = "/unanswered"
	l := locker(t, p.Addr, o)
	left := func() int { return len(below(t, conn, o.Root+"/lock:a")) }
	inTime(t, 400*time.Millisecond, func(ttl time.Duration) bool {
		lease := acquire(t, l, &lock.AcquireOptions{TTL: ttl})
		p.Cut()
		defer p.Restore()
		switch err := lease.Release(); {
		case errors.Is(err, lock.ErrLost):
			return false
		case err == nil:
			t.Error("Release succeeds without ZooKeeper")
		}
		time.Sleep(3 * ttl) // the Locker retries for the TTL, plus the duration of the last attempt
		if left() == 0 {
			t.Fatal("the session has ended")
		}
		return true
	})
	testenv.Eventually(t, "no node, while the session lives", func() bool { return left() == 0 })
}

// TestOutOfReach: without ZooKeeper an Acquire fails within its timeouts, and Close does not hang.
func TestOutOfReach(t *testing.T) {
	z := parallel(t)
	for _, hang := range []bool{false, true} {
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("hang %v, known %v", hang, known), func(t *testing.T) {
				t.Parallel()
				outOfReach(t, testenv.NewProxy(t, z.Addr), hang, known)
			})
		}
	}
}

func outOfReach(t *testing.T, p *testenv.Proxy, hang, known bool) {
	// The request of a Locker that is closed while disconnected may still be executed, and its node
	// lives as long as the session. So each Locker uses its own lock name.
	lockName := t.Name()
	l := locker(t, p.Addr, &zklock.Options{Options: lock.Options{Timeout: 200 * time.Millisecond}})
	if known {
		testenv.Eventually(t, "a lock", func() bool {
			lease, err := l.Acquire(t.Context(), lockName, nil)
			return err == nil && lease.Release() == nil
		})
	}
	if hang {
		p.Hang(true)
	} else {
		p.Cut()
	}
	failed, closed, began := make(chan error, 1), make(chan error, 1), time.Now()
	go func() {
		_, err := l.Acquire(t.Context(), lockName, nil)
		failed <- err
	}()
	err := testenv.Receive(t, "the end of Acquire", failed)
	if err == nil || errors.Is(err, lock.ErrHeld) {
		t.Error(err)
	}
	// The dial fails with an error that contains the address; a slow machine may need several
	// timeouts.
	if !hang {
		testenv.Eventually(t, "an error with the address", func() bool {
			_, err := l.Acquire(t.Context(), lockName, nil)
			return err != nil && strings.Contains(err.Error(), p.Addr)
		})
	}
	go func() { closed <- l.Close() }()
	_ = testenv.Receive(t, "the end of Close", closed)
	took := time.Since(began)
	if t.Logf("failed and closed after %v", took); testenv.Accepting && took > 5*time.Second {
		t.Error("failure and Close take too long")
	}
}

func init() {
	testenv.RegisterChild("zookeeper holder", func() {
		l, err := zklock.New([]string{os.Getenv("LOCK_ZOOKEEPER")}, short(time.Second))
		if err != nil {
			panic(err)
		}
		var lease *lock.Lease
		// Requests of such a short session have little time.
		for err = errors.New("not yet"); err != nil; {
			lease, err = l.Acquire(context.Background(), "a", nil)
		}
		fmt.Println(lease.Token())
		<-lease.Context().Done()
		fmt.Println(context.Cause(lease.Context()))
		io.ReadAll(os.Stdin)
		l.Close()
	})
}

// TestProcess: a process that holds the lock is suspended or killed. Another gets the lock. The
// suspended process loses its context as soon as it resumes.
func TestProcess(t *testing.T) {
	z := parallel(t)
	l := locker(t, z.Addr, calm())
	for _, killed := range []bool{false, true} {
		c := testenv.SpawnChild(t, "zookeeper holder", "LOCK_ZOOKEEPER="+z.Addr)
		text, err := c.ReadLine(testenv.Hang)
		var token int64
		if _, e := fmt.Sscan(text, &token); err != nil || e != nil {
			t.Fatal(text, err, e)
		}
		began := time.Now()
		if killed {
			c.Kill()
		} else {
			c.Pause()
		}
		lease := acquire(t, l, nil)
		t.Logf("killed %v: the next holder has the lock after %v", killed, time.Since(began).Round(time.Millisecond))
		if lease.Token() <= token {
			t.Errorf("token %d after %d", lease.Token(), token)
		}
		release(t, lease)
		if killed {
			continue
		}
		c.Resume()
		if text, err := c.ReadLine(testenv.Hang); err != nil || !strings.Contains(text, "lost") {
			t.Errorf("the process prints %q, %v; want a lost lock", text, err)
		}
		c.Stdin.Close()
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestWatchesAreSetAgain: a waiting process sets its watches again on a new connection. The watches
// that go-zk transfers are as of transaction 0; with the real number go-zk has a data race.
func TestWatchesAreSetAgain(t *testing.T) {
	z := server(t)
	conn, p := client(t, z), testenv.NewProxy(t, z.Addr)
	first := acquire(t, locker(t, z.Addr, calm()), nil)
	watched, taken, since := watchRequests(p)
	ctx, cancel := context.WithTimeout(t.Context(), 2*testenv.Hang)
	defer cancel()
	waiting := locker(t, p.Addr, calm())
	got := make(chan *lock.Lease, 1)
	go func() {
		lease, err := waiting.Acquire(ctx, "a", nil)
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	for i := range int64(3) {
		testenv.Eventually(t, "a watch", func() bool { return watched.Load() > i })
		time.Sleep(50 * time.Millisecond) // the reply
		before := taken.Load()
		p.Cut()
		p.Restore()
		testenv.Eventually(t, "the watches by another connection",
			func() bool { return watched.Load() > i+1 && taken.Load() > before })
	}
	if n := since.Load(); n != 0 {
		t.Errorf("go-zk transfers watches as of transaction %d", n)
	}
	time.Sleep(50 * time.Millisecond)
	release(t, first)
	select {
	case lease := <-got:
		release(t, lease)
	case <-time.After(testenv.Hang): // earlier than the waiter's own poll
		t.Error("the waiter does not wake up")
	}
	if left := nodes(t, conn); len(left) > 0 {
		t.Errorf("nodes are left: %q", left)
	}
}

// watchRequests counts the requests for one watch and those for all earlier watches of the
// connection. since is the highest transaction number of the latter.
func watchRequests(p *testenv.Proxy) (one, all, since *atomic.Int64) {
	one, all, since = new(atomic.Int64), new(atomic.Int64), new(atomic.Int64)
	p.OnRequest(func(chunk []byte) testenv.Action {
		for len(chunk) >= 12 { // length, number, operation
			length := 4 + int(binary.BigEndian.Uint32(chunk))
			if length > len(chunk) {
				break
			}
			switch op := binary.BigEndian.Uint32(chunk[8:]); {
			case op == 12 && chunk[length-1] == 1:
				one.Add(1)
			case op == 101:
				since.Store(max(since.Load(), int64(binary.BigEndian.Uint64(chunk[12:]))))
				all.Add(1)
			}
			chunk = chunk[length:]
		}
		return testenv.Pass
	})
	return one, all, since
}

// The timeout of a server that accepts connections and never replies is not reported as the
// caller's deadline.
func TestServerThatStalls(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // this program never accepts its connections
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	const timeout = 200 * time.Millisecond
	l := locker(t, silent.Addr().String(), &zklock.Options{Options: lock.Options{Timeout: timeout}})
	_, err = l.Acquire(context.Background(), "a", nil)
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "ZooKeeper") {
		t.Errorf("got %v, want an error that names ZooKeeper and not the caller's deadline", err)
	}
	short, cancel := context.WithTimeout(t.Context(), timeout/4)
	defer cancel()
	if _, err := l.Acquire(short, "b", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the caller's deadline: %v", err)
	}
}

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

// inTime runs a test of a short life, and again with twice as long a one where the machine was too
// slow for it: then f answers false.
func inTime(t *testing.T, life time.Duration, f func(life time.Duration) bool) {
	t.Helper()
	for ; !f(life); life *= 2 {
		if t.Logf("too slow a machine for a life of %v", life); life > 30*time.Second {
			t.Fatal("not kept")
		}
	}
}

// TestToldBeforeTheNext: a holder that is cut off is told before another gets the lock, and can go
// on when it is not any more.
func TestToldBeforeTheNext(t *testing.T) {
	z := parallel(t)
	for name, way := range map[string]func(p *testenv.Proxy) (break_, fix func()){
		"hang": func(p *testenv.Proxy) (break_, fix func()) { return func() { p.Hang(true) }, func() { p.Hang(false) } },
		"cut":  func(p *testenv.Proxy) (break_, fix func()) { return p.Cut, p.Restore },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testenv.NewProxy(t, z.Addr)
			break_, fix := way(p)
			inTime(t, time.Second, func(session time.Duration) bool { return told(t, z, p.Addr, session, break_, nil, fix) })
		})
	}
}

func TestToldByNoServer(t *testing.T) {
	z := server(t)
	inTime(t, time.Second, func(session time.Duration) bool {
		return told(t, z, z.Addr, session, z.Pause, z.Resume, func() {})
	})
}

// told has the holder, who is at addr, lose the lock to another. lost is called when he was told.
// It answers false if he has lost it before.
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
		for ctx.Err() == nil { // the server may be out of reach for him, too
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
		t.Error("another has got the lock before its holder was to be told")
	}
	if ended := told.Load(); ended == nil {
		t.Log("another had the lock before its holder was told")
	} else {
		t.Logf("told after %v, %v before another had it", ended.Sub(broken).Round(time.Millisecond), now.Sub(*ended).Round(time.Millisecond))
		if testenv.Accepting && !ended.Before(now) { // else the timer may be late
			t.Error("another has got the lock before its holder was told")
		}
	}
	if second.Token() <= first.Token() {
		t.Errorf("token %d after %d", second.Token(), first.Token())
	}
	if err := first.Release(); !errors.Is(err, lock.ErrLost) {
		t.Errorf("release: %v", err)
	}
	release(t, second)
	third := inTheEnd(t, a)                                                  // in a new session
	if err := third.Release(); err != nil && !errors.Is(err, lock.ErrLost) { // his sessions are short still
		t.Error(err)
	}
	return true
}

// inTheEnd acquires a lock by a locker whose time-outs are too short for a busy machine.
func inTheEnd(t testing.TB, l *lock.Locker) (lease *lock.Lease) {
	t.Helper()
	testenv.Eventually(t, "the lock", func() bool {
		var err error
		lease, err = l.Acquire(t.Context(), "a", nil)
		return err == nil
	})
	return lease
}

// TestReconnect: a connection that is lost, and one lost with the server, is no lock lost, and no
// place in line.
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

// creates tells whether a chunk has the request for a contender's node.
func creates(chunk []byte) bool {
	return bytes.Contains(chunk, []byte(parent+"/L1-")) && bytes.Contains(chunk, []byte{0, 0, 0, 1, 0, 0, 0})
}

// once does something with the first request for a contender's node.
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

// changes of the line, so far.
func changes(t testing.TB, conn *zk.Conn) int32 {
	t.Helper()
	_, stat, err := conn.Get(parent)
	if err != nil {
		t.Fatal(err)
	}
	return stat.Cversion
}

// TestLateNodeIsDeleted: a request for a node arrives when nobody waits for it any more.
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
			<-left // it has left: the request goes on only now
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
		t.Fatal("the node is there already")
	}
	testenv.Eventually(t, "the node", func() bool { return changes(t, conn) > before })
	testenv.Eventually(t, "no node, while the session lives", func() bool { return len(nodes(t, conn)) == 0 })
}

// TestLostReply: the node is there, but its creator is not told; it finds it.
func TestLostReply(t *testing.T) {
	z := server(t)
	conn, p := client(t, z), testenv.NewProxy(t, z.Addr)
	l := locker(t, p.Addr, calm())
	release(t, acquire(t, l, nil))
	before := changes(t, conn)
	lost := once(p, testenv.LoseReply)
	lease := acquire(t, l, nil)
	if n := changes(t, conn) - before; n != 1 || !lost.Load() {
		t.Errorf("%d nodes for one lock", n)
	}
	release(t, lease)
	if left := nodes(t, conn); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestUnansweredReleaseGoesOn, also when the Locker has given it up.
func TestUnansweredReleaseGoesOn(t *testing.T) {
	z := parallel(t)
	conn, p, o := client(t, z), testenv.NewProxy(t, z.Addr), calm()
	o.Root = "/unanswered"
	l := locker(t, p.Addr, o)
	left := func() int { return len(below(t, conn, o.Root+"/lock:a")) }
	inTime(t, 400*time.Millisecond, func(ttl time.Duration) bool {
		lease := acquire(t, l, &lock.Options{TTL: ttl})
		p.Cut()
		defer p.Restore()
		switch err := lease.Release(); {
		case errors.Is(err, lock.ErrLost):
			return false
		case err == nil:
			t.Error("released without ZooKeeper")
		}
		time.Sleep(3 * ttl) // the Locker tries for the TTL, and the last time as long as that may take
		if left() == 0 {
			t.Fatal("the session has not lived")
		}
		return true
	})
	testenv.Eventually(t, "no node, while the session lives", func() bool { return left() == 0 })
}

// TestOutOfReach: without ZooKeeper an Acquire fails within its time-outs, and Close does not hang.
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
	// What a Locker that is closed while it is cut off has asked for may yet be carried out, and
	// stay for as long as its session: so each has a name of its own.
	lockName := t.Name()
	l := locker(t, p.Addr, &zklock.Options{Timeout: 200 * time.Millisecond})
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
	if !hang { // the dial fails, and its error has the address; a slow machine may need more than one time-out for that
		testenv.Eventually(t, "an error with the address", func() bool {
			_, err := l.Acquire(t.Context(), lockName, nil)
			return err != nil && strings.Contains(err.Error(), p.Addr)
		})
	}
	go func() { closed <- l.Close() }()
	_ = testenv.Receive(t, "the end of Close", closed)
	took := time.Since(began)
	if t.Logf("failed and closed after %v", took); testenv.Accepting && took > 5*time.Second {
		t.Error("too late")
	}
}

func init() {
	testenv.RegisterChild("zookeeper holder", func() {
		l, err := zklock.New([]string{os.Getenv("LOCK_ZOOKEEPER")}, short(time.Second))
		if err != nil {
			panic(err)
		}
		var lease *lock.Lease
		for err = errors.New("not yet"); err != nil; { // requests of so short a session have little time
			lease, err = l.Acquire(context.Background(), "a", nil)
		}
		fmt.Println(lease.Token())
		<-lease.Context().Done()
		fmt.Println(context.Cause(lease.Context()))
		io.ReadAll(os.Stdin)
		l.Close()
	})
}

// TestProcess that holds the lock is stopped, or killed: another gets it, and the one that was only
// stopped is told at once when it goes on.
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
		t.Logf("killed %v: another has the lock after %v", killed, time.Since(began).Round(time.Millisecond))
		if lease.Token() <= token {
			t.Errorf("token %d after %d", lease.Token(), token)
		}
		release(t, lease)
		if killed {
			continue
		}
		c.Resume()
		if text, err := c.ReadLine(testenv.Hang); err != nil || !strings.Contains(text, "lost") {
			t.Errorf("told %q, %v", text, err)
		}
		c.Stdin.Close()
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestWatchesAnew: a process that waits watches anew by the next connection, because the watches
// that go-zk takes along are as of transaction 0: with the real number it has a data race.
func TestWatchesAnew(t *testing.T) {
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
		time.Sleep(50 * time.Millisecond) // its answer
		before := taken.Load()
		p.Cut()
		p.Restore()
		testenv.Eventually(t, "the watches by another connection", func() bool { return watched.Load() > i+1 && taken.Load() > before })
	}
	if n := since.Load(); n != 0 {
		t.Errorf("watches were taken along as of transaction %d", n)
	}
	time.Sleep(50 * time.Millisecond)
	release(t, first)
	select {
	case lease := <-got:
		release(t, lease)
	case <-time.After(testenv.Hang): // sooner than he would look by himself
		t.Error("the waiter was not woken")
	}
	if left := nodes(t, conn); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// watchRequests counts those for one watch, and those for all of the connection before, and returns
// since which transaction the latter watch, at most.
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

// The time-out of a server that accepts connections and answers nothing is not the caller's.
func TestServerThatStalls(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // its connections are never accepted by this program
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	const timeout = 200 * time.Millisecond
	l := locker(t, silent.Addr().String(), &zklock.Options{Timeout: timeout})
	_, err = l.Acquire(context.Background(), "a", nil)
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "ZooKeeper") {
		t.Errorf("%v, want one that names ZooKeeper, and not the end of the caller's time", err)
	}
	short, cancel := context.WithTimeout(t.Context(), timeout/4)
	defer cancel()
	if _, err := l.Acquire(short, "b", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's time was over: %v", err)
	}
}

package bench

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// oneWay is how long bytes take over the slow wire of the workloads.
const oneWay = 500 * time.Microsecond

// slowWire is a proxy before Redis that delivers each chunk of bytes a fixed time after it arrived,
// in both directions and in order. Any number of chunks can be under way, as on a long wire, so it
// does not limit the throughput.
type slowWire struct {
	addr               string
	delay              time.Duration
	wait               func(due time.Time)
	arrived, delivered atomic.Int64 // chunks
}

// sleepUntil waits in a system call, because a timer of Go that is shorter than a millisecond can
// be a millisecond late in a process that has nothing else to do.
func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		tv := unix.NsecToTimeval(int64(left))
		_, _ = unix.Select(0, nil, nil, nil, &tv)
	}
}

// newSlowWire starts a proxy that is closed when the test ends.
func newSlowWire(t testing.TB, target string, delay time.Duration) *slowWire {
	return startSlowWire(t, target, &slowWire{delay: delay, wait: sleepUntil})
}

func startSlowWire(t testing.TB, target string, w *slowWire) *slowWire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = listener.Addr().String()
	var all sync.WaitGroup // goroutines
	var mu sync.Mutex      // of open
	var open []net.Conn
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			mu.Lock()
			open = append(open, client, server)
			mu.Unlock()
			all.Go(func() { w.carry(client.(*net.TCPConn), server.(*net.TCPConn)) })
			all.Go(func() { w.carry(server.(*net.TCPConn), client.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, c := range open { // some peers never close theirs
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return w
}

// chunk is what one read has returned.
type chunk struct {
	bytes []byte
	due   time.Time
}

// carry delivers what comes from one end to the other, and then closes that direction.
func (w *slowWire) carry(from, to *net.TCPConn) {
	underway := make(chan chunk, 1<<12) // more than arrive during the delay
	go func() {
		defer close(underway)
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				c := chunk{bytes.Clone(buffer[:n]), time.Now().Add(w.delay)}
				w.arrived.Add(1)
				underway <- c
			}
			if err != nil {
				return
			}
		}
	}()
	broken := false
	for c := range underway {
		if broken {
			continue
		}
		w.wait(c.due)
		if _, err := to.Write(c.bytes); err != nil {
			broken = true
			from.Close()
			continue
		}
		w.delivered.Add(1)
	}
	to.CloseWrite()
}

// trip returns how long a round trip takes over the wire: the median of several PINGs, in
// milliseconds.
func (w *slowWire) trip(t testing.TB) float64 {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: w.addr})
	defer rdb.Close()
	var ms []float64
	for range size(200, 20) {
		began := time.Now()
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		ms = append(ms, float64(time.Since(began).Nanoseconds())/1e6)
	}
	return median(ms)
}

// A slow wire delays each direction, and keeps what it carries.
func TestSlowWire(t *testing.T) {
	w := newSlowWire(t, testenv.SharedRedis(t).Addr, oneWay)
	if ms := w.trip(t); ms < 2*oneWay.Seconds()*1000 {
		t.Errorf("a round trip took %g ms", ms)
	}
	rdb := redis.NewClient(&redis.Options{Addr: w.addr})
	defer rdb.Close()
	large := string(bytes.Repeat([]byte("0123456789abcdef"), 1<<16)) // many chunks
	if err := rdb.Set(t.Context(), "large", large, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := rdb.Get(t.Context(), "large").Result(); err != nil || got != large {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
}

// Chunks that arrive one after the other are under way together, and are delivered in order.
func TestSlowWireCarriesManyChunks(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	over := make(chan struct{}) // closed when the delay is over
	w := startSlowWire(t, server.Addr().String(), &slowWire{wait: func(time.Time) { <-over }})
	client, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	const chunks = 50
	ends := [][2]net.Conn{{client, accepted}, {accepted, client}}
	want := ""
	for i := range chunks {
		text := fmt.Sprintf("chunk %d;", i)
		want += text
		for side, end := range ends {
			if _, err := io.WriteString(end[0], text); err != nil {
				t.Fatal(err)
			}
			for w.arrived.Load() < int64(2*i+side+1) { // so that it is a chunk of its own
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	if n := w.delivered.Load(); n != 0 {
		t.Errorf("%d chunks were delivered without a delay", n)
	}
	close(over)
	for _, end := range ends {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(end[1], got); err != nil || string(got) != want {
			t.Errorf("received %q, %v", got, err)
		}
	}
}

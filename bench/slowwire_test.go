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

// oneWay is the delay of bytes on the slow wire of the workloads.
const oneWay = 500 * time.Microsecond

// slowWire is a proxy before Redis that delivers each chunk of bytes a fixed time after it arrived,
// in both directions and in order. Any number of chunks can be in flight, as on a long wire, so it
// does not limit the throughput.
type slowWire struct {
	addr               string
	delay              time.Duration
	wait               func(due time.Time)
	arrived, delivered atomic.Int64 // chunks
}

// sleepUntil waits in a system call. In an idle process, a Go timer of less than a millisecond can
// be a millisecond late.
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
	var all sync.WaitGroup // the goroutines of the proxy
	var mu sync.Mutex      // guards open
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

// chunk is the result of one read.
type chunk struct {
	bytes []byte
	due   time.Time
}

// carry delivers bytes in one direction, and then closes that direction.
func (w *slowWire) carry(from, to *net.TCPConn) {
	underway := make(chan chunk, 1<<12) // capacity for more than arrives during the delay
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

// trip returns the round trip time over the wire in milliseconds: the median of several PINGs.
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

// A slow wire delays each direction and does not change the bytes.
func TestSlowWire(t *testing.T) {
	w := newSlowWire(t, testenv.SharedRedis(t).Addr, oneWay)
	if ms := w.trip(t); ms < 2*oneWay.Seconds()*1000 {
		t.Errorf("a round trip takes %g ms, less than twice the delay", ms)
	}
	rdb := redis.NewClient(&redis.Options{Addr: w.addr})
	defer rdb.Close()
	large := string(bytes.Repeat([]byte("0123456789abcdef"), 1<<16)) // many chunks
	if err := rdb.Set(t.Context(), "large", large, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := rdb.Get(t.Context(), "large").Result(); err != nil || got != large {
		t.Errorf("got %d bytes, which differ; error %v", len(got), err)
	}
}

// Several chunks are in flight at once and are delivered in order.
func TestSlowWireCarriesManyChunks(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	over := make(chan struct{}) // closed at the end of the delay
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
			for w.arrived.Load() < int64(2*i+side+1) { // so that it is a separate chunk
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	if n := w.delivered.Load(); n != 0 {
		t.Errorf("%d chunks are delivered without a delay", n)
	}
	close(over)
	for _, end := range ends {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(end[1], got); err != nil || string(got) != want {
			t.Errorf("received %q, %v", got, err)
		}
	}
}

package testenv

import (
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// An Action says what a Proxy does with a chunk of bytes from the client.
type Action time.Duration

const (
	// Pass forwards the chunk.
	Pass Action = 0
	// Drop cuts the connection; the server never sees the chunk.
	Drop Action = -1
	// LoseReply forwards the chunk and cuts the connection when the reply arrives: the client sees
	// an error although the server executed the command.
	LoseReply Action = -2
)

// Delay holds the chunk, and later chunks of the same connection, for the duration. Then it
// forwards them even if the client has closed the connection, like a network that retransmits a
// lost packet.
func Delay(d time.Duration) Action { return Action(max(0, d)) }

// A Proxy forwards TCP connections to a server and disturbs them on request. Its methods are safe
// for concurrent use.
type Proxy struct {
	Addr string // host:port, for clients

	target string
	trips  atomic.Int64
	wg     sync.WaitGroup // of all goroutines

	rate  atomic.Int64 // the maximum of bytes per second in each direction, for all connections together; 0: no limit
	paces [2]pace      // of requests, and of replies

	requestMu sync.Mutex // guards onRequest and is held during its calls
	onRequest func([]byte) Action

	mu       sync.Mutex
	listener net.Listener // nil while cut or after the end
	links    map[*link]bool
	gate     chan struct{} // closed when Hang ends; nil if the proxy does not hang
}

// NewProxy starts a proxy in front of the address. It is stopped when the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{
		Addr:   net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort(t))),
		target: target,
		links:  map[*link]bool{},
	}
	if err := p.listen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// OnRequest sets the function that returns the Action for each chunk of bytes from a client; nil
// forwards all. A chunk is the result of one read from the connection: a command or a pipeline,
// unless it is large. The proxy does not call f concurrently. Calls for one connection come in
// order.
func (p *Proxy) OnRequest(f func(chunk []byte) Action) {
	p.requestMu.Lock()
	defer p.requestMu.Unlock()
	p.onRequest = f
}

func (p *Proxy) decide(chunk []byte) Action {
	p.requestMu.Lock()
	defer p.requestMu.Unlock()
	if p.onRequest == nil {
		return Pass
	}
	return p.onRequest(chunk)
}

// Trips returns how often clients have sent something and received a reply to it. A request that
// arrives in several chunks counts once.
func (p *Proxy) Trips() int { return int(p.trips.Load()) }

// Cut resets all connections, discards the bytes in transit, and refuses new connections until
// Restore.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	for l := range p.links {
		l.cut()
	}
}

// Restore makes the proxy accept connections again after Cut.
func (p *Proxy) Restore() {
	if err := p.listen(); err != nil {
		panic("testenv: restore the proxy: " + err.Error())
	}
}

// Hang sets whether the proxy holds all bytes in both directions. While it does, connections stay
// open and new ones are accepted. Hang(false) forwards the held bytes.
func (p *Proxy) Hang(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.gate == nil:
		p.gate = make(chan struct{})
	case !on && p.gate != nil:
		close(p.gate)
		p.gate = nil
	}
}

// Rate limits the bytes per second in each direction, for all connections together, like a network
// that they share; 0 removes the limit.
func (p *Proxy) Rate(bytes int64) { p.rate.Store(bytes) }

// A pace limits the rate of one direction.
type pace struct {
	mu   sync.Mutex
	next time.Time // when the next bytes may pass
}

// take returns how long n bytes must wait, for earlier bytes and for their own transmission.
func (p *pace) take(n int, rate int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	return time.Until(p.next)
}

func (p *Proxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.Addr)
	if err != nil {
		return err
	}
	p.listener = listener
	p.wg.Go(func() { p.accept(listener) })
	return nil
}

func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.listener == listener {
			l := &link{proxy: p, client: client.(*net.TCPConn), closed: make(chan struct{})}
			p.links[l] = true
			p.wg.Go(l.run)
		} else { // Cut was called after Accept returned
			reset(client.(*net.TCPConn))
		}
		p.mu.Unlock()
	}
}

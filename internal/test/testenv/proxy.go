package testenv

import (
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Action says what a Proxy does with a chunk of bytes from the client.
type Action time.Duration

const (
	// Pass forwards the chunk.
	Pass Action = 0
	// Drop cuts the connection; the server never sees the chunk.
	Drop Action = -1
	// LoseReply forwards the chunk and cuts the connection when the server has
	// answered: the client sees an error although the command was executed.
	LoseReply Action = -2
)

// Delay holds the chunk, and what comes after it on the same connection, for the
// duration. It is then forwarded even if the client has given up and closed the
// connection, as a network does that retransmits a lost packet.
func Delay(d time.Duration) Action { return Action(max(0, d)) }

// Proxy forwards TCP connections to a server and disturbs them on demand. Its
// methods can be called at any time, from any goroutine.
type Proxy struct {
	Addr string // host:port, for clients

	target string
	count  atomic.Int64
	wg     sync.WaitGroup // of all goroutines

	rate  atomic.Int64 // bytes a second in each direction, of all connections together; 0: as fast as they come
	paces [2]pace      // of requests, and of replies

	requestMu sync.Mutex // one call of onRequest at a time
	onRequest func([]byte) Action

	mu       sync.Mutex
	listener net.Listener // nil while cut or after the end
	links    map[*link]bool
	gate     chan struct{} // bytes wait until it is closed; nil when they need not
}

// NewProxy starts a proxy in front of the address. It ends with the test.
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

// OnRequest sets the function that decides about each chunk of bytes from a client
// to the server; nil passes all. A chunk is what one read of the connection has
// returned: a command or a pipeline, unless it is large. Calls come one at a time,
// and in order for each connection.
func (p *Proxy) OnRequest(f func(chunk []byte) Action) {
	p.requestMu.Lock()
	defer p.requestMu.Unlock()
	p.onRequest = f
}

func (p *Proxy) decide(chunk []byte) Action {
	p.count.Add(1)
	p.requestMu.Lock()
	defer p.requestMu.Unlock()
	if p.onRequest == nil {
		return Pass
	}
	return p.onRequest(chunk)
}

// Count returns the number of chunks that clients have sent.
func (p *Proxy) Count() int { return int(p.count.Load()) }

// Cut resets all connections, loses what is on its way in them, and refuses new
// ones until Restore.
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

// Restore accepts connections again after Cut.
func (p *Proxy) Restore() {
	if err := p.listen(); err != nil {
		panic("testenv: restore the proxy: " + err.Error())
	}
}

// Hang stalls all bytes in both directions while on; connections stay open and new ones are
// accepted. Bytes that were held are forwarded when it is turned off.
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

// Rate bounds how many bytes pass in a second in each direction, in all connections together, as a
// network does that they share; 0: as many as come.
func (p *Proxy) Rate(bytes int64) { p.rate.Store(bytes) }

// pace is when the next bytes may pass in one direction.
type pace struct {
	mu   sync.Mutex
	next time.Time
}

// take answers how long n bytes have to wait for those that came before them, and for themselves.
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
			l := &link{proxy: p, client: client.(*net.TCPConn), gone: make(chan struct{})}
			p.links[l] = true
			p.wg.Go(l.run)
		} else { // cut between the two lines
			reset(client.(*net.TCPConn))
		}
		p.mu.Unlock()
	}
}

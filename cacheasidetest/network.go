package cacheasidetest

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/alicebob/miniredis/v2"
)

// network is the connection of one client to the server. It is in memory, so that nothing blocks
// in a way that a synctest bubble does not recognize.
type network struct {
	server *miniredis.Miniredis

	mu      sync.Mutex
	refused bool
	resumed chan struct{} // not nil while the network hangs; closed when it resumes
	wires   map[*wire]struct{}
}

func newNetwork(server *miniredis.Miniredis) *network {
	return &network{server: server, wires: make(map[*wire]struct{})}
}

func (n *network) dial(context.Context, string, string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refused { // fails immediately; the client would log an error of Dial each time
		near, far := net.Pipe()
		far.Close() //nolint:errcheck // always nil
		return near, nil
	}
	server, err := n.server.Dial()
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	w := &wire{network: n, near: near, far: far, server: server, gone: make(chan struct{})}
	n.wires[w] = struct{}{}
	w.forward(server, far, w.requested)
	w.forward(far, server, func([]byte) {})
	return end{near, w}, nil
}

func (n *network) cut()  { n.set(true, false) }
func (n *network) hang() { n.set(false, true) }
func (n *network) join() { n.set(false, false) }

// set makes the network refuse connections, or hang, or neither.
func (n *network) set(refused, hangs bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused = refused
	switch {
	case hangs && n.resumed == nil:
		n.resumed = make(chan struct{})
	case !hangs && n.resumed != nil:
		close(n.resumed)
		n.resumed = nil
	}
	if refused {
		for w := range n.wires {
			w.cut()
		}
	}
}

func (n *network) cutSubscriptions() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.wires {
		if w.subscribes.Load() {
			w.cut()
		}
	}
}

// fault returns the current fault, or "".
func (n *network) fault() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.refused:
		return "is cut off from Redis"
	case n.resumed != nil:
		return "hangs"
	}
	return ""
}

// hanging returns a channel that is closed when the network resumes, or nil if it does not hang.
func (n *network) hanging() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.resumed
}

// wire is one connection. Bytes that the client writes to near are read from far and forwarded to
// the server, and the replies in the opposite direction.
type wire struct {
	network           *network
	near, far, server net.Conn
	subscribes        atomic.Bool
	gone              chan struct{}
	once              sync.Once
}

// cut closes the connection at both sides.
func (w *wire) cut() {
	w.once.Do(func() {
		close(w.gone)
		for _, c := range []net.Conn{w.near, w.far, w.server} {
			c.Close() //nolint:errcheck // nothing is to be done about it
		}
	})
}

// requested records whether the client subscribes on this wire.
func (w *wire) requested(b []byte) {
	if bytes.Contains(b[:min(len(b), 32)], []byte("\r\n$9\r\nsubscribe\r\n")) {
		w.subscribes.Store(true)
	}
}

// forward copies bytes from one side to the other through an unbounded queue. A pipe has no
// buffer: a client that writes a long pipeline before it reads, and a server that replies to each
// command immediately, would block each other.
func (w *wire) forward(to, from net.Conn, seen func([]byte)) {
	q := queue{filled: make(chan struct{}, 1)}
	go func() {
		b := make([]byte, 32<<10)
		for {
			n, err := from.Read(b)
			if n > 0 {
				seen(b[:n])
				q.put(b[:n])
			}
			if err != nil {
				w.end()
				return
			}
		}
	}()
	go func() {
		for {
			b := q.take()
			if len(b) == 0 {
				select {
				case <-q.filled:
					continue
				case <-w.gone:
					return
				}
			}
			if !w.pass() {
				return
			}
			if _, err := to.Write(b); err != nil {
				w.end()
				return
			}
		}
	}()
}

// pass waits while the network hangs. It returns false if the wire was cut.
func (w *wire) pass() bool {
	for resumed := w.network.hanging(); resumed != nil; resumed = w.network.hanging() {
		select {
		case <-resumed:
		case <-w.gone:
			return false
		}
	}
	return true
}

// end removes a wire that one side has closed.
func (w *wire) end() {
	w.cut()
	w.network.mu.Lock()
	defer w.network.mu.Unlock()
	delete(w.network.wires, w)
}

// queue holds the bytes in transit.
type queue struct {
	mu     sync.Mutex
	bytes  []byte
	filled chan struct{}
}

func (q *queue) put(b []byte) {
	q.mu.Lock()
	q.bytes = append(q.bytes, b...)
	q.mu.Unlock()
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

func (q *queue) take() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.bytes
	q.bytes = nil
	return b
}

// end is the client's end of a wire. Before the client reuses a connection it checks its socket;
// here that reports whether the wire was cut.
type end struct {
	net.Conn
	wire *wire
}

func (e end) SyscallConn() (syscall.RawConn, error) {
	select {
	case <-e.wire.gone:
		return nil, net.ErrClosed
	default:
		return noSocket{}, nil
	}
}

type noSocket struct{}

func (noSocket) Control(func(uintptr)) error    { return nil }
func (noSocket) Read(func(uintptr) bool) error  { return nil }
func (noSocket) Write(func(uintptr) bool) error { return nil }

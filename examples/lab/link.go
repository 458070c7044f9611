package main

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"
)

// link is the proxy between one process and Redis. Its connections can be reset and frozen, and
// those that carry invalidations can be cut.
type link struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu     sync.Mutex
	closed bool
	killed bool          // all connections are reset, including new ones
	cut    bool          // subscriptions are reset
	gate   chan struct{} // not nil while frozen: bytes wait until it is closed
	wires  map[*wire]bool
}

// wire is a connection of a client and its connection to the server.
type wire struct {
	client     net.Conn
	server     net.Conn // nil until connected
	subscribes bool
	over       context.Context
	end        context.CancelFunc
}

func newLink(target string) (*link, error) {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, target: target, wires: map[*wire]bool{}}
	l.wg.Go(l.accept)
	return l, nil
}

func (l *link) address() string { return l.listener.Addr().String() }

// kill(true) resets all connections and new ones until kill(false), as if the server were gone.
func (l *link) kill(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed = on
	if on {
		l.reset(func(*wire) bool { return true })
	}
}

// cutBus(true) resets all subscriptions to invalidations and new ones until cutBus(false).
func (l *link) cutBus(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = on
	if on {
		l.reset(func(w *wire) bool { return w.subscribes })
	}
}

// freeze(true) holds back all bytes in both directions until freeze(false). Connections stay open.
func (l *link) freeze(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case on && l.gate == nil:
		l.gate = make(chan struct{})
	case !on && l.gate != nil:
		close(l.gate)
		l.gate = nil
	}
}

// close closes all connections and waits for all goroutines.
func (l *link) close() {
	_ = l.listener.Close()
	l.mu.Lock()
	l.closed = true
	l.reset(func(*wire) bool { return true })
	l.mu.Unlock()
	l.wg.Wait()
}

func (l *link) reset(which func(*wire) bool) {
	for w := range l.wires {
		if which(w) {
			w.end()
		}
	}
}

func (l *link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		if l.closed || l.killed {
			abort(client)
		} else {
			w := &wire{client: client}
			w.over, w.end = context.WithCancel(context.Background())
			l.wires[w] = true
			l.wg.Go(func() { l.run(w) })
		}
		l.mu.Unlock()
	}
}

// run connects w and forwards bytes until either side closes, or w is ended.
func (l *link) run(w *wire) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.wires, w)
	}()
	defer w.end()
	var dialer net.Dialer
	server, err := dialer.DialContext(w.over, "tcp", l.target)
	if err != nil {
		abort(w.client)
		return
	}
	w.server = server
	var pumps sync.WaitGroup
	pumps.Go(func() { l.pump(w, w.client, w.server, l.request) })
	pumps.Go(func() { l.pump(w, w.server, w.client, func(*wire, []byte) {}) })
	<-w.over.Done()
	abort(w.client)
	abort(w.server)
	pumps.Wait()
}

// pump forwards in one direction. It keeps reading while the link is frozen, so that it notices
// when the other side closes.
func (l *link) pump(w *wire, from, to net.Conn, see func(*wire, []byte)) {
	defer w.end()
	chunks := make(chan []byte, 64)
	var writing sync.WaitGroup
	writing.Go(func() {
		defer w.end()
		for chunk := range chunks {
			if !l.pass(w) {
				return
			}
			if _, err := to.Write(chunk); err != nil {
				return
			}
		}
	})
	defer writing.Wait()
	defer close(chunks)
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			see(w, buffer[:n])
			select {
			case chunks <- bytes.Clone(buffer[:n]):
			case <-w.over.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// request detects connections for invalidations.
func (l *link) request(w *wire, chunk []byte) {
	if !bytes.Contains(bytes.ToLower(chunk), []byte("subscribe\r\n")) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w.subscribes = true
	if l.cut {
		w.end()
	}
}

// pass waits while the link is frozen. It returns false if w was ended.
func (l *link) pass(w *wire) bool {
	for {
		l.mu.Lock()
		gate := l.gate
		l.mu.Unlock()
		if gate == nil {
			return w.over.Err() == nil
		}
		select {
		case <-gate:
		case <-w.over.Done():
			return false
		}
	}
}

// abort closes c so that the other side gets an error immediately.
func abort(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.SetDeadline(time.Unix(1, 0))
	_ = c.Close()
}

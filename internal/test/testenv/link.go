package testenv

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection of a client through a proxy, and the connection to the
// server that belongs to it.
type link struct {
	proxy     *Proxy
	client    *net.TCPConn
	loseReply atomic.Bool

	mu      sync.Mutex
	server  *net.TCPConn // nil until it is connected
	gone    chan struct{}
	goneNow bool
}

// run connects to the server and forwards until both directions have ended.
func (l *link) run() {
	defer func() {
		l.proxy.mu.Lock()
		delete(l.proxy.links, l)
		l.proxy.mu.Unlock()
	}()
	conn, err := net.DialTimeout("tcp", l.proxy.target, answerLimit)
	if err != nil {
		l.cut()
		return
	}
	server := conn.(*net.TCPConn)
	l.mu.Lock()
	l.server = server
	if l.goneNow {
		reset(server)
	}
	l.mu.Unlock()

	var replies sync.WaitGroup
	replies.Go(func() { l.forwardReplies(server) })
	l.forwardRequests(server)
	replies.Wait()
	l.client.Close()
	server.Close()
}

func (l *link) forwardRequests(server *net.TCPConn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buffer)
		if n > 0 {
			switch action := l.proxy.decide(buffer[:n]); {
			case action == Drop:
				l.cut()
				return
			case action == LoseReply:
				l.loseReply.Store(true)
			case action > 0:
				l.sleep(time.Duration(action))
			}
			l.paced(n, 0)
			if !l.pass() {
				return
			}
			if _, err := server.Write(buffer[:n]); err != nil {
				l.cut()
				return
			}
		}
		if err != nil {
			// Only this direction ends: closing the connection while replies are
			// unread would reset it, and the server would lose the last chunk.
			server.CloseWrite()
			return
		}
	}
}

// forwardReplies goes on reading when the client has gone, so that the server can
// get rid of its replies and sees the requests that are still to come.
func (l *link) forwardReplies(server *net.TCPConn) {
	buffer := make([]byte, 64<<10)
	clientGone := false
	for {
		n, err := server.Read(buffer)
		if n > 0 && l.loseReply.Load() {
			l.cut()
			return
		}
		l.paced(n, 1)
		if !l.pass() {
			return
		}
		if n > 0 && !clientGone {
			_, writeErr := l.client.Write(buffer[:n])
			clientGone = writeErr != nil
		}
		if err != nil {
			// The server has closed the connection, so requests are of no use.
			l.client.Close()
			return
		}
	}
}

// pass waits while the proxy hangs; it returns false if the link was cut.
func (l *link) pass() bool {
	for {
		l.proxy.mu.Lock()
		gate := l.proxy.gate
		l.proxy.mu.Unlock()
		if gate == nil {
			break
		}
		select {
		case <-gate:
		case <-l.gone:
			return false
		}
	}
	select {
	case <-l.gone:
		return false
	default:
		return true
	}
}

// paced waits until n bytes may pass: see Proxy.Rate.
func (l *link) paced(n, direction int) {
	if rate := l.proxy.rate.Load(); rate > 0 && n > 0 {
		l.sleep(l.proxy.paces[direction].take(n, rate))
	}
}

// sleep waits, but not longer than the link lives.
func (l *link) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.gone:
	}
}

// cut resets both connections.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.goneNow {
		return
	}
	l.goneNow = true
	close(l.gone)
	reset(l.client)
	if l.server != nil {
		reset(l.server)
	}
}

// reset closes a connection so that the other side gets an error at once.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

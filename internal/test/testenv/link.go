package testenv

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A link is a client's connection to a proxy, with the proxy's connection to the server.
type link struct {
	proxy     *Proxy
	client    *net.TCPConn
	loseReply atomic.Bool
	waits     atomic.Bool // the client has sent something since the last reply

	mu       sync.Mutex
	server   *net.TCPConn // nil until it is connected
	closed   chan struct{}
	isClosed bool
}

// run connects to the server and forwards bytes until both directions have ended.
func (l *link) run() {
	defer func() {
		l.proxy.mu.Lock()
		delete(l.proxy.links, l)
		l.proxy.mu.Unlock()
	}()
	conn, err := net.DialTimeout("tcp", l.proxy.target, replyLimit)
	if err != nil {
		l.cut()
		return
	}
	server := conn.(*net.TCPConn)
	l.mu.Lock()
	l.server = server
	if l.isClosed {
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
			if !l.waits.Swap(true) {
				l.proxy.trips.Add(1)
			}
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
			// Close only this direction. Closing the connection while replies are unread would
			// reset it, and the server would lose the last chunk.
			server.CloseWrite()
			return
		}
	}
}

// forwardReplies forwards bytes from the server. It continues to read after the client has
// disconnected, so that the server can write its replies and receives the remaining requests.
func (l *link) forwardReplies(server *net.TCPConn) {
	buffer := make([]byte, 64<<10)
	clientGone := false
	for {
		n, err := server.Read(buffer)
		l.waits.Store(false)
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
			// The server has closed the connection, so requests cannot be forwarded.
			l.client.Close()
			return
		}
	}
}

// pass waits while the proxy hangs. It returns false if the link was cut.
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
		case <-l.closed:
			return false
		}
	}
	select {
	case <-l.closed:
		return false
	default:
		return true
	}
}

// paced waits until n bytes may pass, according to Proxy.Rate.
func (l *link) paced(n, direction int) {
	if rate := l.proxy.rate.Load(); rate > 0 && n > 0 {
		l.sleep(l.proxy.paces[direction].take(n, rate))
	}
}

// sleep waits for d, or until the link is cut.
func (l *link) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.closed:
	}
}

// cut resets both connections.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed {
		return
	}
	l.isClosed = true
	close(l.closed)
	reset(l.client)
	if l.server != nil {
		reset(l.server)
	}
}

// reset closes a connection with a TCP reset, so that the other side gets an error at once.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

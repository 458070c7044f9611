package testenv

import (
	"net"
	"sync"
)

// An eager is one end of a net.Pipe. Like those to a socket, its writes do not wait until the other
// end reads. A net.Pipe has no buffer, which can cause deadlocks: a client that writes a long
// pipeline before it reads, and a server that replies to each command at once, would wait for each
// other. So would a subscriber that pings while its reading goroutine waits for the lock that
// go-redis holds during a write.
type eager struct {
	net.Conn

	mu      sync.Mutex
	waiting []byte
	writing bool
}

func (e *eager) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = append(e.waiting, b...)
	if !e.writing {
		e.writing = true
		go e.flush()
	}
	return len(b), nil
}

func (e *eager) flush() {
	for {
		e.mu.Lock()
		b := e.waiting
		e.waiting = nil
		e.writing = len(b) > 0
		e.mu.Unlock()
		if len(b) == 0 {
			return
		}
		if _, err := e.Conn.Write(b); err != nil {
			e.Close()
		}
	}
}

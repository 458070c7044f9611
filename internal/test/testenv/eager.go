package testenv

import (
	"net"
	"sync"
)

// eager is one end of a net.Pipe whose writes do not wait for the other end to read, as those to a
// socket do not. A pipe holds nothing: a client that writes a long pipeline of commands before it
// reads, and a server that answers each at once, would wait for each other; so would a subscriber
// that pings, if the goroutine that reads waits for the lock under which go-redis writes.
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

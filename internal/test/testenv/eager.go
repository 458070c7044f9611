package testenv

import (
	"net"
	"sync"
)

// eager is one end of a net.Pipe, whose large writes do not wait for the other end to read. A pipe
// holds nothing: a client that writes a long pipeline of commands before it reads, and a server
// that answers each at once, would wait for each other.
type eager struct {
	net.Conn

	mu      sync.Mutex
	waiting []byte
	writing bool
}

const smallWrite = 4096

func (e *eager) Write(b []byte) (int, error) {
	e.mu.Lock()
	if !e.writing && len(b) < smallWrite {
		e.mu.Unlock()
		return e.Conn.Write(b)
	}
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

package bloom

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// wire connects a client to an embedded server, as testenv.Proxy does to a real one.
type wire struct {
	mu      sync.Mutex
	away    bool
	links   map[*link]bool
	stalled chan struct{} // closed when bytes move again; nil while they do
}

// link is one connection.
type link struct {
	net.Conn
	w    *wire
	held []byte // written while bytes did not move
}

var errUnreachable = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}

// client is one more of the server, whose connections are by the wire.
func (w *wire) client(t testing.TB, of *redis.Client) *redis.Client {
	o := *of.Options()
	dial := o.Dialer
	o.MaxRetries = -1
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.away {
			return nil, errUnreachable
		}
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if w.links == nil {
			w.links = make(map[*link]bool)
		}
		l := &link{Conn: c, w: w}
		w.links[l] = true
		return l, nil
	}
	c := redis.NewClient(&o)
	t.Cleanup(func() { c.Close() })
	return c
}

// cut ends all connections, and refuses others while on.
func (w *wire) cut(on bool) {
	w.mu.Lock()
	w.away = on
	w.mu.Unlock()
	if on {
		w.reset()
	}
}

// reset ends all connections.
func (w *wire) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		l.Conn.Close()
	}
	clear(w.links)
}

// hang has no byte move while on, in either direction.
func (w *wire) hang(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if on {
		w.stalled = make(chan struct{})
		return
	}
	close(w.stalled)
	w.stalled = nil
	for l := range w.links {
		if len(l.held) > 0 {
			go l.Conn.Write(l.held)
			l.held = nil
		}
	}
}

func (l *link) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.w.mu.Lock()
	stalled := l.w.stalled
	l.w.mu.Unlock()
	if stalled != nil && err == nil {
		<-stalled
	}
	return n, err
}

func (l *link) Write(b []byte) (int, error) {
	l.w.mu.Lock()
	if l.w.stalled != nil {
		l.held = append(l.held, b...)
		l.w.mu.Unlock()
		return len(b), nil
	}
	l.w.mu.Unlock()
	return l.Conn.Write(b)
}

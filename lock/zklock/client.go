package zklock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/cacheaside/cacheaside/internal/retry"
)

// client is the driver. It has one go-zk connection, and one session at a time.
type client struct {
	servers []string
	options Options
	closing context.Context
	stop    context.CancelFunc
	jobs    sync.WaitGroup // requests and cleanups

	mu      sync.Mutex
	closed  bool
	conn    *zk.Conn // nil until the first use
	events  <-chan zk.Event
	current *session                   // nil: none
	watches map[string]<-chan zk.Event // watches on other contenders' nodes, by node
	link    *link                      // latest connection; nil: none
	open    bool                       // whether requests can be sent on link
	changed chan struct{}
	authed  bool  // Options.Auth was accepted; from then on go-zk repeats it
	connErr error // why there is no connection or no authentication; nil: not known

	next, failures int // used only by go-zk's connecting goroutine
}

var (
	errClosed       = errors.New("the locker is closed")
	errNoConnection = errors.New("no connection with ZooKeeper")
)

func newClient(servers []string, o Options) *client {
	c := &client{servers: servers, options: o, changed: make(chan struct{}), watches: make(map[string]<-chan zk.Event)}
	rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	c.closing, c.stop = context.WithCancel(context.Background())
	return c
}

// start connects on the first use.
func (c *client) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return errClosed
	case c.conn != nil:
		return nil
	}
	var err error
	c.conn, c.events, err = zk.Connect(c.servers, c.options.SessionTimeout, zk.WithHostProvider(c),
		zk.WithDialer(c.dial), zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err == nil {
		c.jobs.Go(c.pulse)
		c.authed = len(c.options.Auth) == 0
		if !c.authed {
			c.jobs.Go(c.authenticate)
		}
	}
	return err
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// Init, Len, Next and Connected implement go-zk's HostProvider. Names are resolved again for each
// connection.
func (c *client) Init([]string) error { return nil }

// Len returns the number of servers.
func (c *client) Len() int { return len(c.servers) }

// Next returns the server to connect to. It returns true, which makes go-zk pause for a second,
// only after Close, because go-zk checks during the pause whether it must stop.
func (c *client) Next() (string, bool) {
	c.next++
	return c.servers[c.next%len(c.servers)], c.closing.Err() != nil
}

// Connected is called when there is a session.
func (c *client) Connected() { c.failures = 0 }

// dial connects to a server. It tries each server once without a delay, and then with delays.
func (c *client) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	c.currentLink().cut() // go-zk does not close the old one if the session has expired
	if rounds := c.failures / len(c.servers); rounds > 0 {
		longest := min(10*time.Millisecond<<min(rounds, 6), 500*time.Millisecond, c.options.SessionTimeout/10)
		c.sleep(longest/2 + rand.N(longest/2))
	}
	c.failures++
	ctx, cancel := context.WithTimeout(c.closing, timeout)
	defer cancel()
	conn, err := c.options.Dial(ctx, network, address)
	if err != nil {
		err = fmt.Errorf("dial %s: %w", address, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || c.authed {
		c.connErr = err
	}
	switch {
	case err != nil:
		return nil, err
	case c.closed:
		_ = conn.Close() // it was not used
		return nil, errClosed
	}
	c.link = &link{Conn: conn, client: c, limit: time.Now().Add(max(c.options.SessionTimeout/8, time.Second))}
	return c.link, nil
}

// sleep sleeps for d, or until the client is closed.
func (c *client) sleep(d time.Duration) { _ = retry.Sleep(c.closing, d) }

// sessionGranted is called by a link with the server's reply to the session request. An id of 0
// means that the previous session has expired.
func (c *client) sessionGranted(l *link, id int64, timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.current; s != nil && (s.id != id || s.timeout != timeout) {
		// with another timeout, the TTL of its locks is wrong
		s.end(errExpired)
		c.current = nil
	}
	if id != 0 && !c.closed {
		if c.current == nil {
			c.current = &session{id: id, timeout: timeout, gone: make(chan struct{}),
				locks: make(map[string]func(error))}
		}
		c.current.start(l.sent)
		c.open = true
	}
	c.notifyWaiters()
}

// linkClosed is called by a link that is closed.
func (c *client) linkClosed(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.link, c.open = nil, false
		c.notifyWaiters()
	}
}

// expired ends a session after a server has reported that it has expired.
func (c *client) expired(s *session) {
	c.mu.Lock()
	var l *link
	s.end(errExpired)
	if c.current == s {
		c.current, c.open = nil, false
		c.notifyWaiters()
		l = c.link
	}
	c.mu.Unlock()
	l.cut() // makes go-zk create a new session
}

// notifyWaiters wakes the callers that wait for a connection. The caller holds c.mu.
func (c *client) notifyWaiters() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// currentLink returns the latest link, or nil.
func (c *client) currentLink() *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link
}

// session returns the current session, or nil.
func (c *client) session() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// connected waits for a connection that has a session and has sent Options.Auth.
func (c *client) connected(ctx context.Context) (*session, *link, error) {
	for {
		c.mu.Lock()
		s, l, changed, connErr := c.current, c.link, c.changed, c.connErr
		ready := c.open && c.authed && s != nil && l != nil
		c.mu.Unlock()
		if ready {
			return s, l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, errors.Join(errNoConnection, connErr, context.Cause(ctx))
		case <-c.closing.Done():
			return nil, nil, errClosed
		}
	}
}

// authenticate sends Options.Auth to the servers before any other request.
func (c *client) authenticate() {
	for i := 0; i < len(c.options.Auth); {
		a := c.options.Auth[i]
		err := c.conn.AddAuth(a.Scheme, a.Credentials)
		switch {
		case err == nil:
			i++
			continue
		case c.closing.Err() != nil:
			return
		}
		c.mu.Lock()
		c.connErr = fmt.Errorf("Options.Auth: %w", err)
		c.mu.Unlock()
		c.sleep(100 * time.Millisecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.authed, c.connErr = true, nil
	c.notifyWaiters()
}

// pulse sends requests that prove that the session lives.
func (c *client) pulse() {
	for {
		s, _, err := c.connected(c.closing)
		if err != nil {
			return
		}
		began := time.Now()
		// go-zk closes a connection after two thirds of the session timeout without a reply, so
		// at most one of these requests is in progress.
		_, _ = do(c.closing, c, s.timeout,
			func(z *zk.Conn) (bool, error) { ok, _, err := z.Exists("/"); return ok, err })
		c.sleep(pulseInterval(s.timeout) - time.Since(began))
	}
}

// background runs f on a goroutine that Close waits for. It returns false if the client is
// closed.
func (c *client) background(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.jobs.Go(f)
	}
	return !c.closed
}

// Close ends the session, which deletes all its nodes.
func (c *client) Close() error {
	c.mu.Lock()
	c.closed = true
	conn, open := c.conn, c.open
	if c.current != nil {
		c.current.end(errClosed)
	}
	c.mu.Unlock()
	c.stop()
	if conn == nil {
		return nil
	}
	if !open {
		c.currentLink().cut() // it may be waiting for its first reply
	}
	conn.Close()
	c.currentLink().cut()
	for range c.events { // until go-zk has stopped
	}
	c.jobs.Wait()
	return nil
}

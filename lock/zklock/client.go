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

// client is the driver: one connection of go-zk, and the sessions that it has had one after the
// other.
type client struct {
	servers []string
	options Options
	closing context.Context
	stop    context.CancelFunc
	jobs    sync.WaitGroup // requests, and what is cleaned up

	mu      sync.Mutex
	closed  bool
	conn    *zk.Conn // nil until it is needed
	events  <-chan zk.Event
	now     *session                   // nil: none
	watches map[string]<-chan zk.Event // on nodes of others, by node
	link    *link                      // the latest; nil: none
	open    bool                       // requests can be sent to it
	changed chan struct{}
	authed  bool  // Options.Auth was accepted; from then on go-zk repeats it
	trouble error // why there is no connection, or no Auth; nil: not known

	next, failures int // of go-zk's goroutine that connects
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

// start connects, at the first use.
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
	c.conn, c.events, err = zk.Connect(c.servers, c.options.SessionTimeout, zk.WithHostProvider(c), zk.WithDialer(c.dial), zk.WithLogger(silent{}), zk.WithLogInfo(false))
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

// Init is of go-zk's HostProvider, as are the next three: names are looked up anew for each
// connection.
func (c *client) Init([]string) error { return nil }

// Len is how many servers there are.
func (c *client) Len() int { return len(c.servers) }

// Next is the server to connect to. It tells go-zk to pause, which it does for a whole second, only
// at the end: that is when it notices that it is to quit.
func (c *client) Next() (string, bool) {
	c.next++
	return c.servers[c.next%len(c.servers)], c.closing.Err() != nil
}

// Connected is called when there is a session.
func (c *client) Connected() { c.failures = 0 }

// dial connects to a server; at once to each of them, and then with pauses.
func (c *client) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	c.present().cut() // go-zk forgets that where the session has expired
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
		c.trouble = err
	}
	switch {
	case err != nil:
		return nil, err
	case c.closed:
		_ = conn.Close() // it has not been used
		return nil, errClosed
	}
	c.link = &link{Conn: conn, client: c, limit: time.Now().Add(max(c.options.SessionTimeout/8, time.Second))}
	return c.link, nil
}

// sleep returns early when the client is closed.
func (c *client) sleep(d time.Duration) { _ = retry.Sleep(c.closing, d) }

// greeted is called by a link with what the server has replied to the request for a session. An id
// of 0 means that the session before has expired.
func (c *client) greeted(l *link, id int64, timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.now; s != nil && (s.id != id || s.timeout != timeout) { // with another time-out its locks live otherwise than was thought
		s.end(errExpired)
		c.now = nil
	}
	if id != 0 && !c.closed {
		if c.now == nil {
			c.now = &session{id: id, timeout: timeout, gone: make(chan struct{}), locks: make(map[string]func(error))}
		}
		c.now.begin(l.sent)
		c.open = true
	}
	c.change()
}

// left is called by a link that is closed.
func (c *client) left(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.link, c.open = nil, false
		c.change()
	}
}

// expired ends a session that has expired, as a server has replied.
func (c *client) expired(s *session) {
	c.mu.Lock()
	var l *link
	s.end(errExpired)
	if c.now == s {
		c.now, c.open = nil, false
		c.change()
		l = c.link
	}
	c.mu.Unlock()
	l.cut() // so go-zk makes a new session
}

// change wakes the callers that wait for a connection. With c.mu held.
func (c *client) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// present returns the latest link; nil if there is none.
func (c *client) present() *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link
}

// session returns the present session; nil if there is none.
func (c *client) session() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// connected waits for a connection with a session, and with Options.Auth.
func (c *client) connected(ctx context.Context) (*session, *link, error) {
	for {
		c.mu.Lock()
		s, l, changed, trouble := c.now, c.link, c.changed, c.trouble
		ready := c.open && c.authed && s != nil && l != nil
		c.mu.Unlock()
		if ready {
			return s, l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, errors.Join(errNoConnection, trouble, context.Cause(ctx))
		case <-c.closing.Done():
			return nil, nil, errClosed
		}
	}
}

// authenticate sends Options.Auth to the servers, before anything else.
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
		c.trouble = fmt.Errorf("Options.Auth: %w", err)
		c.mu.Unlock()
		c.sleep(100 * time.Millisecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.authed, c.trouble = true, nil
	c.change()
}

// pulse keeps the life of the session proven.
func (c *client) pulse() {
	for {
		s, _, err := c.connected(c.closing)
		if err != nil {
			return
		}
		began := time.Now()
		// go-zk ends a connection that is silent for two thirds of that: so no more than one of
		// these is under way.
		_, _ = do(c.closing, c, s.timeout, func(z *zk.Conn) (bool, error) { ok, _, err := z.Exists("/"); return ok, err })
		c.sleep(pulse(s.timeout) - time.Since(began))
	}
}

// background runs what Close waits for, and ends; it returns false if the client is closed.
func (c *client) background(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.jobs.Go(f)
	}
	return !c.closed
}

// Close ends the session, and with it what may be left of it.
func (c *client) Close() error {
	c.mu.Lock()
	c.closed = true
	conn, open := c.conn, c.open
	if c.now != nil {
		c.now.end(errClosed)
	}
	c.mu.Unlock()
	c.stop()
	if conn == nil {
		return nil
	}
	if !open {
		c.present().cut() // it may wait for its first answer
	}
	conn.Close()
	c.present().cut()
	for range c.events { // until go-zk has ended
	}
	c.jobs.Wait()
	return nil
}

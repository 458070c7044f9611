package promises

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// steady are options under which nothing ends by itself during a test: no lease, no trust in
// memory, no patience with Redis. A machine that stands still for seconds changes nothing. The
// memory is small, because a large one takes long to create.
var steady = cacheaside.Options{
	RedisTimeout: time.Minute, ReadTimeout: time.Minute, MaxStaleness: time.Minute,
	LeaseTTL: time.Minute, QueueTimeout: time.Minute, MemoryBytes: 1 << 20,
}

// steadyNoMemory are steady options for a process without a memory tier.
var steadyNoMemory = withoutMemory(steady)

func withoutMemory(o cacheaside.Options) cacheaside.Options {
	o.MemoryBytes = -1
	return o
}

// embeddedBubble runs f in a bubble, with an embedded Redis.
func embeddedBubble(t *testing.T, f func(t *testing.T, m *miniredis.Miniredis, b backend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m, b := embedded(t)
		f(t, m, b)
	})
}

// lateRequest is one request that reaches its server late: when deliver is called.
type lateRequest struct {
	begins func(chunk []byte) bool // selects the request
	breaks bool                    // its connection breaks; otherwise its sender waits for it
	seen   atomic.Bool
	sent   chan struct{} // closed when it has been sent
	gate   chan struct{} // closed by deliver
	done   chan struct{} // closed when the server has replied; only if its connection breaks
	once   sync.Once
}

// withLateRequest returns a client of the server whose first request that contains text is late.
func withLateRequest(t testing.TB, server *testenv.Redis, text string, breaks bool) (*redis.Client, *lateRequest) {
	t.Helper()
	late := &lateRequest{
		begins: func(chunk []byte) bool { return bytes.Contains(chunk, []byte(text)) },
		breaks: breaks, sent: make(chan struct{}), gate: make(chan struct{}), done: make(chan struct{}),
	}
	o := server.Options()
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = time.Minute, time.Minute, time.Minute
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &lateConn{Conn: c, late: late}, nil
	}
	rdb := redis.NewClient(o)
	t.Cleanup(func() {
		rdb.Close()
		late.deliver()
		if breaks && late.seen.Load() {
			<-late.done
		}
	})
	return rdb, late
}

// deliver lets the request proceed.
func (l *lateRequest) deliver() { l.once.Do(func() { close(l.gate) }) }

type lateConn struct {
	net.Conn
	late  *lateRequest
	apart atomic.Bool // the late request has its own connection
}

func (c *lateConn) Write(b []byte) (int, error) {
	l := c.late
	if !l.begins(b) || l.seen.Swap(true) {
		return c.Conn.Write(b)
	}
	close(l.sent)
	if !l.breaks {
		<-l.gate
		c.SetWriteDeadline(time.Time{})
		return c.Conn.Write(b)
	}
	c.apart.Store(true)
	request := bytes.Clone(b)
	go func() {
		defer close(l.done)
		defer c.Conn.Close()
		<-l.gate
		c.Conn.SetDeadline(time.Time{})
		if _, err := c.Conn.Write(request); err == nil {
			c.Conn.Read(make([]byte, 1024))
		}
	}()
	return 0, syscall.ECONNRESET
}

func (c *lateConn) Close() error {
	if c.apart.Load() {
		return nil
	}
	return c.Conn.Close()
}

// tally counts the round trips and commands of a client, except those that set up connections, and
// polls, which come at any time.
type tally struct {
	mu       sync.Mutex
	poll     any // its script: the first that a process sends
	trips    int
	commands map[string]int
}

func (t *tally) DialHook(next redis.DialHook) redis.DialHook { return next }

func (t *tally) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		t.add(cmd)
		return next(ctx, cmd)
	}
}

func (t *tally) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		t.add(cmds...)
		return next(ctx, cmds)
	}
}

func (t *tally) add(cmds ...redis.Cmder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch cmds[0].Name() {
	case "hello", "auth", "client", "select":
		return
	}
	if args := cmds[0].Args(); len(cmds) == 1 && len(args) > 3 &&
		strings.Contains(fmt.Sprint(args[3]), "::announced:") {
		if t.poll == nil {
			t.poll = args[1]
		}
		if args[1] == t.poll {
			return
		}
	}
	t.trips++
	for _, cmd := range cmds {
		t.commands[cmd.Name()]++
	}
}

// take returns the counts since the previous call.
func (t *tally) take() (trips int, commands map[string]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	trips, commands = t.trips, t.commands
	t.trips, t.commands = 0, make(map[string]int)
	return trips, commands
}

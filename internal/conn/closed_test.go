package conn

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// opaque is a client whose connections go-redis cannot examine.
func opaqueClient(t *testing.T, o *redis.Options) *redis.Client {
	o.Dialer, o.PoolSize = testenv.Opaque, 128
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func once(args ...any) *redis.Cmd { return redis.NewCmd(context.Background(), args...) }

// Commands that were lost with closed connections are sent again until a connection works. A
// command that must not be sent twice fails as Stale, and the next try succeeds.
func TestClosedConnections(t *testing.T) {
	r := testenv.SharedRedis(t)
	admin := r.Client(t)
	for name, set := range map[string]func(*redis.Options){
		"as a rule":             func(*redis.Options) {},
		"no retries":            func(o *redis.Options) { o.MaxRetries = -1 },
		"bounded":               func(o *redis.Options) { o.ContextTimeoutEnabled = true },
		"first in, first out":   func(o *redis.Options) { o.PoolFIFO, o.MaxRetries = true, -1 },
		"no pool for pipelines": func(o *redis.Options) { o.PipelinePoolSize = -1 },
	} {
		for _, before := range []bool{false, true} {
			o := r.Options()
			set(o)
			rdb := opaqueClient(t, o)
			if before { // the connections are older than the Conn
				testenv.FillPool(t, rdb, admin, 100)
			}
			c, err := New(rdb, testenv.Hang)
			if err != nil {
				t.Fatal(err)
			}
			c.Watch("closed", time.Minute)
			for kind, cmds := range map[string]func() []redis.Cmder{
				"a command":  func() []redis.Cmder { return []redis.Cmder{once("set", "a", 1)} },
				"a pipeline": func() []redis.Cmder { return []redis.Cmder{once("set", "a", 1), once("get", "a")} },
				"a request":  func() []redis.Cmder { return []redis.Cmder{Once(once("set", "a", 1))} },
				"requests":   func() []redis.Cmder { return []redis.Cmder{Once(once("set", "a", 1)), Once(once("get", "a"))} },
			} {
				testenv.FillPool(t, rdb, admin, 100)
				testenv.CloseIdle(t, admin)
				first := cmds()
				c.Ask(t.Context(), t.Context(), first)
				if trouble := c.health.ranges[0].Load(); trouble != nil {
					t.Errorf("%s, %s: %+v", name, kind, trouble)
				}
				last := first[len(first)-1]
				switch err := last.Err(); {
				case !last.NoRetry() && err != nil:
					t.Errorf("%s, %s: %v", name, kind, err)
				case last.NoRetry() && !Stale(err):
					t.Errorf("%s, %s: %v, not that it is stale", name, kind, err)
				}
				if second := cmds(); last.NoRetry() {
					c.Ask(t.Context(), t.Context(), second)
					if err := second[len(second)-1].Err(); err != nil {
						t.Errorf("%s, %s, again: %v", name, kind, err)
					}
				}
			}
			c.Close()
		}
	}
}

// closing is a server that closes each connection: at once, or when it is asked for something.
func closing(t *testing.T, greets bool) (addr string, accepted *atomic.Int64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	accepted = new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			go func() {
				defer c.Close()
				for r := bufio.NewReader(c); greets; {
					line, err := r.ReadString('\n')
					switch line = strings.ToLower(strings.TrimSpace(line)); {
					case err != nil, line == "get", line == "persist":
						return
					case line == "hello", line == "setinfo":
						io.WriteString(c, "+OK\r\n")
					}
				}
			}()
		}
	}()
	return l.Addr().String(), accepted
}

// A server that closes new connections is in trouble: after three commands it is not asked any
// more, and until then each of them makes no more connections than the client does by itself.
func TestNewConnectionsClosed(t *testing.T) {
	for name, c := range map[string]struct {
		greets bool
		set    func(*redis.Options)
	}{
		"at once":           {false, func(*redis.Options) {}},
		"at once, opaque":   {false, func(o *redis.Options) { o.Dialer = testenv.Opaque }},
		"at once, TLS":      {false, func(o *redis.Options) { o.TLSConfig = &tls.Config{InsecureSkipVerify: true} }},
		"later":             {true, func(*redis.Options) {}},
		"later, opaque":     {true, func(o *redis.Options) { o.Dialer = testenv.Opaque }},
		"some are prepared": {true, func(o *redis.Options) { o.Dialer, o.MinIdleConns = testenv.Opaque, 5 }},
	} {
		for _, once := range []bool{false, true} {
			addr, accepted := closing(t, c.greets)
			o := &redis.Options{Addr: addr, PoolSize: 10, DialerRetries: 1, Protocol: 2}
			c.set(o)
			rdb := redis.NewClient(o)
			conn, err := New(rdb, testenv.Hang)
			if err != nil {
				t.Fatal(err)
			}
			conn.Watch("closed", time.Minute)
			asked := 0
			for ; conn.Down(0) == nil && asked < 10; asked++ {
				cmd := redis.NewCmd(t.Context(), "get", "a")
				cmds := []redis.Cmder{cmd}
				if once {
					cmds[0] = Once(cmd)
				}
				conn.Ask(t.Context(), t.Context(), cmds)
				if err := cmd.Err(); err == nil || Stale(err) || errors.Is(err, redis.Nil) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if n := accepted.Load(); asked != openAfter || n > 20 {
				t.Errorf("%s: after %d commands and %d connections: %v", name, asked, n, conn.Down(0))
			}
			conn.Close()
			rdb.Close()
		}
	}
}

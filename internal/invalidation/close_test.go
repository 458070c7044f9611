package invalidation

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// running counts the goroutines that run this package's or the client's code, except tests.
func running() (n int, stacks string) {
	buffer := make([]byte, 1<<20)
	buffer = buffer[:runtime.Stack(buffer, true)]
	var all []string
	for stack := range strings.SplitSeq(string(buffer), "\n\n") {
		if strings.Contains(stack, "internal/invalidation.") && !strings.Contains(stack, "testing.tRunner") {
			all = append(all, stack)
		}
	}
	return len(all), strings.Join(all, "\n\n")
}

func TestCloseEndsAll(t *testing.T) {
	server := testenv.SharedRedis(t)
	for name, c := range map[string]struct {
		disturb func(p *testenv.Proxy)
		polls   func(p *poller) bool // and then this comes about
	}{
		"idle":    {func(*testenv.Proxy) {}, func(*poller) bool { return true }},
		"hanging": {func(p *testenv.Proxy) { p.Hang(true) }, func(p *poller) bool { return p.begun > p.ended }},
		"down":    {func(p *testenv.Proxy) { p.Cut() }, func(p *poller) bool { return p.err != nil }},
	} {
		for _, begun := range []bool{true, false} { // before it was disturbed
			t.Run(name, func(t *testing.T) {
				proxy := testenv.NewProxy(t, server.Addr)
				// of a command, that a busy machine keeps mostly: then the memory is trusted
				const timeout = 2 * time.Second
				// it has no time-outs of its own
				rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: -1})
				defer rdb.Close()
				m := &recorder{}
				ch := open(t, rdb, timeout, short, m)
				if begun {
					ch.Listen()
					newBackend(t, rdb).trusted(ch)
				}
				c.disturb(proxy)
				ch.Listen()
				testenv.Eventually(t, "a poll", func() bool {
					p := ch.pollers[0]
					newBackend(t, rdb).poll(ch)
					p.mu.Lock()
					defer p.mu.Unlock()
					return c.polls(p)
				})
				begin := time.Now()
				ch.Close()
				took := time.Since(begin)
				t.Logf("begun %v: Close took %v", begun, took)
				if testenv.Accepting && took > timeout+overshoot {
					t.Errorf("begun %v: Close took %v", begun, took)
				}
				if !m.distrusted() {
					t.Error("the memory is still trusted")
				}
				proxy.Hang(false)
				ch.conn.Close()
				testenv.Eventually(t, "the end of all goroutines", func() bool { n, _ := running(); return n == 0 })
				ch.Listen()
				ch.Poll()
				ch.Close()
				if n, stacks := running(); n != 0 {
					t.Error(stacks)
				}
			})
		}
	}
}

func TestCloseOfWhatHasNotBegun(t *testing.T) {
	b := newBackend(t, testenv.SharedRedis(t).Client(t))
	c, m := b.open(bound)
	c.Close()
	c.Listen()
	c.Poll()
	if err := c.Confirm(b.ctx, 0); err == nil || c.Stats().Subscribes != 0 || !m.distrusted() {
		t.Errorf("%v, %+v", err, c.Stats())
	}
}

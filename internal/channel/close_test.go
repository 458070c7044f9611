package channel

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

// running counts the goroutines that run this package's or the client's code, but for the tests.
func running() (n int, stacks string) {
	buffer := make([]byte, 1<<20)
	buffer = buffer[:runtime.Stack(buffer, true)]
	var all []string
	for stack := range strings.SplitSeq(string(buffer), "\n\n") {
		if strings.Contains(stack, "internal/channel.") && !strings.Contains(stack, "testing.tRunner") {
			all = append(all, stack)
		}
	}
	return len(all), strings.Join(all, "\n\n")
}

func TestCloseEndsAll(t *testing.T) {
	server := testenv.SharedRedis(t)
	for name, c := range map[string]struct {
		disturb func(p *testenv.Proxy)
		want    time.Duration
	}{
		"idle":    {func(*testenv.Proxy) {}, 0},
		"hanging": {func(p *testenv.Proxy) { p.Hang(true) }, 0},
		"down":    {func(p *testenv.Proxy) { p.Cut() }, 0},
	} {
		for _, begun := range []bool{true, false} { // before it was disturbed
			t.Run(name, func(t *testing.T) {
				proxy := testenv.NewProxy(t, server.Addr)
				const timeout = 200 * time.Millisecond
				rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: -1}) // it has no time-outs of its own
				defer rdb.Close()
				m := &recorder{}
				ch := open(t, rdb, timeout, 40*time.Millisecond, m)
				if begun {
					ch.Listen()
					newBackend(t, rdb).trusted(ch)
				}
				c.disturb(proxy)
				ch.Listen()
				time.Sleep(100 * time.Millisecond)
				begin := time.Now()
				ch.Close()
				took := time.Since(begin)
				t.Logf("begun %v: Close took %v", begun, took)
				if took > timeout+overshoot {
					t.Errorf("begun %v: Close took %v", begun, took)
				}
				if !m.distrusted() {
					t.Error("the memory is still trusted")
				}
				proxy.Hang(false)
				ch.conn.Close()
				until(t, "the end of all goroutines", func() bool { n, _ := running(); return n == 0 })
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

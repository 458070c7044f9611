package testenv

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// proxied returns a client that reaches the server through a proxy and does not
// try again by itself.
func proxied(t *testing.T, r *Redis) (*Proxy, *redis.Client) {
	t.Helper()
	p := NewProxy(t, r.Addr)
	o := r.Options()
	o.Addr = p.Addr
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled, o.ReadTimeout = -1, 1, true, Hang
	o.DialerRetryTimeout = time.Millisecond
	client := closed(t, redis.NewClient(o))
	check(t, client.Ping(within(t, Hang)).Err())
	return p, client
}

// on makes the proxy treat the command with the given text in the given way.
func (p *Proxy) on(text string, a Action) {
	p.OnRequest(func(chunk []byte) Action {
		if bytes.Contains(chunk, []byte(text)) {
			return a
		}
		return Pass
	})
}

func TestProxyDelaysBeyondTheLifeOfTheClient(t *testing.T) {
	r := SharedRedis(t)
	direct := r.Client(t)
	p, client := proxied(t, r)
	const delay = 300 * time.Millisecond
	p.OnRequest(func(chunk []byte) Action {
		switch {
		case bytes.Contains(chunk, []byte("late")):
			return Delay(delay)
		case bytes.Contains(chunk, []byte("never")):
			return Delay(time.Hour)
		}
		return Pass
	})
	begin := time.Now()
	for _, key := range []string{"late", "never"} {
		if err := client.Set(within(t, 50*time.Millisecond), key, "1", 0).Err(); err == nil {
			t.Fatal("the delayed command got its reply in time")
		}
	}
	check(t, client.Set(within(t, Hang), "other", "1", 0).Err()) // another connection does not wait
	check(t, client.Close())
	check(t, eventually(func() error { return direct.Get(t.Context(), "late").Err() }, Hang))
	if d := time.Since(begin); d < delay {
		t.Errorf("the command arrived after %v", d)
	}
	if n := direct.Exists(t.Context(), "never").Val(); n != 0 {
		t.Error("the command was not delayed")
	}
}

func TestProxyDropsCommandsAndReplies(t *testing.T) {
	r := SharedRedis(t)
	direct := r.Client(t)
	p, client := proxied(t, r)
	ctx := within(t, Hang)
	p.on("dropped", Drop)
	if err := client.Set(ctx, "dropped", "1", 0).Err(); err == nil {
		t.Error("a dropped command succeeded")
	}
	p.on("unanswered", LoseReply)
	if err := client.Set(ctx, "unanswered", "1", 0).Err(); err == nil {
		t.Error("a lost reply arrived")
	}
	if n := direct.Exists(ctx, "dropped").Val(); n != 0 {
		t.Error("the dropped command was executed")
	}
	if n := direct.Exists(ctx, "unanswered").Val(); n != 1 {
		t.Error("the command without reply was not executed")
	}
	p.OnRequest(nil)
	before := p.Trips()
	check(t, client.Ping(ctx).Err())
	if p.Trips() == before {
		t.Error("a command was not counted")
	}
}

func TestProxyCutsAndRestores(t *testing.T) {
	p, client := proxied(t, SharedRedis(t))
	idle, err := net.Dial("tcp", p.Addr)
	check(t, err)
	defer idle.Close()
	_, err = idle.Write([]byte("PING\r\n"))
	check(t, err)
	pong := make([]byte, 7)
	_, err = io.ReadFull(idle, pong)
	check(t, err)
	p.Cut()
	if _, err := idle.Read(pong); err == nil {
		t.Error("the connection was not reset")
	}
	if c, err := net.Dial("tcp", p.Addr); err == nil {
		c.Close()
		t.Error("a new connection was accepted")
	}
	if err := client.Ping(within(t, Hang)).Err(); err == nil {
		t.Error("the server replies through a cut proxy")
	}
	p.Restore()
	check(t, client.Ping(within(t, Hang)).Err())
}

func TestProxyHangs(t *testing.T) {
	r := SharedRedis(t)
	p, client := proxied(t, r)
	p.Hang(true)
	if err := client.Set(within(t, 50*time.Millisecond), "a", "1", 0).Err(); err == nil {
		t.Error("a reply came through a hanging proxy")
	}
	direct := r.Client(t)
	if n := direct.Exists(t.Context(), "a").Val(); n != 0 {
		t.Error("a command came through a hanging proxy")
	}
	p.Hang(false)
	check(t, client.Ping(within(t, Hang)).Err())
	check(t, eventually(func() error { return direct.Get(t.Context(), "a").Err() }, Hang))
}

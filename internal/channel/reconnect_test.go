package channel

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

// The client makes a pub/sub connection anew before it tells that the one before has ended; if that takes long, nothing is heard meanwhile.
func TestALostSubscriptionIsNoticedBeforeThereIsAnother(t *testing.T) {
	server := testenv.SharedRedis(t)
	proxy := testenv.NewProxy(t, server.Addr)
	b := newBackend(t, redis.NewClient(&redis.Options{Addr: proxy.Addr}))
	defer b.rdb.Close()
	c, m := b.listen(time.Minute)
	reach := make(chan struct{})
	proxy.OnRequest(func(chunk []byte) testenv.Action {
		if strings.Contains(string(chunk), "subscribe") || strings.Contains(string(chunk), "hello") {
			<-reach
		}
		return testenv.Pass
	})
	direct := newBackend(t, server.Client(t))
	before := m.untrusted()
	direct.kill()
	for begin := time.Now(); m.untrusted() == before; time.Sleep(time.Millisecond) {
		if time.Since(begin) > 300*time.Millisecond {
			t.Error("the memory is still trusted though the subscription is lost")
			break
		}
	}
	close(reach)
	b.until("another", func() bool { return c.Stats().Subscribes == 2 })
}

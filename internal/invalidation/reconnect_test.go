package invalidation

import (
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The client makes a new pub/sub connection before it reports the end of the last one. If that
// takes long, nothing is received until then.
func TestALostSubscriptionIsNoticedBeforeThereIsAnother(t *testing.T) {
	server := testenv.SharedRedis(t)
	proxy := testenv.NewProxy(t, server.Addr)
	b := newBackend(t, redis.NewClient(&redis.Options{Addr: proxy.Addr}))
	defer b.rdb.Close()
	c, m := b.listen(long)
	reach := make(chan struct{})
	arrive := sync.OnceFunc(func() { close(reach) })
	t.Cleanup(arrive)
	proxy.OnRequest(func(chunk []byte) testenv.Action {
		if strings.Contains(string(chunk), "subscribe") || strings.Contains(string(chunk), "hello") {
			<-reach
		}
		return testenv.Pass
	})
	direct := newBackend(t, server.Client(t))
	before := m.untrusted()
	direct.kill()
	b.until("the memory is not trusted, since the subscription is lost", func() bool { return m.untrusted() != before })
	arrive()
	b.until("another", func() bool { return c.Stats().Subscribes == 2 })
}

package lease

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

func TestDeleteTellsWhichKeysItHasDeleted(t *testing.T) {
	r := testenv.StartRedis(t)
	b := newBackend(t, r.Client(t))
	keys := []string{"mine:1", "other:1", "mine:2", "other:2"}
	for _, key := range keys {
		b.put(key, Entry{}, long)
	}
	b.check(b.rdb.Do(b.ctx, "acl", "setuser", "default", "resetkeys", "~mine:*").Err())
	for i, err := range b.store.Delete(b.ctx, keys) {
		if want := i%2 == 1; redis.IsPermissionError(err) != want || (err != nil) != want {
			t.Errorf("%s: %v", keys[i], err)
		}
	}
	b.check(b.rdb.Do(b.ctx, "acl", "setuser", "default", "allkeys").Err())
	for i, key := range keys {
		if n := b.rdb.Exists(b.ctx, key).Val(); n != int64(i%2) {
			t.Errorf("%s: there are %d", key, n)
		}
	}
}

func TestDeleteWithoutRedisIsAnErrorForEachKey(t *testing.T) {
	r := testenv.StartRedis(t)
	r.Kill()
	for name, rdb := range map[string]redis.UniversalClient{
		"client":  redis.NewClient(&redis.Options{Addr: r.Addr}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{r.Addr}}),
	} {
		s, err := NewStore(rdb, 50*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		for _, keys := range [][]string{{"a"}, {"a", "b", "c"}} {
			errs := s.Delete(t.Context(), keys)
			if len(errs) != len(keys) {
				t.Errorf("%s: %d errors for %d keys", name, len(errs), len(keys))
			}
			for i, err := range errs {
				if err == nil {
					t.Errorf("%s: %s, one of %d, is said to be deleted", name, keys[i], len(keys))
				}
			}
		}
		rdb.Close()
	}
}

// A delete whose reply was lost is repeated; if no reply comes at all, nobody can say that it was done.
func TestDeleteWhoseReplyIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		always bool
		keys   []string
	}{
		"one key, once":     {false, []string{"a"}},
		"many keys, once":   {false, []string{"a", "b", "c"}},
		"one key, always":   {true, []string{"a"}},
		"many keys, always": {true, []string{"a", "b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, timeout)
			for _, key := range c.keys {
				n.put(key, Entry{}, long)
			}
			lost := false
			n.proxy.OnRequest(func([]byte) testenv.Action {
				if lost && !c.always {
					return testenv.Pass
				}
				lost = true
				return testenv.LoseReply
			})
			for i, err := range n.store.Delete(n.ctx, c.keys) {
				if (err != nil) != c.always {
					t.Errorf("%s: %v", c.keys[i], err)
				}
			}
			n.proxy.OnRequest(nil)
			for _, key := range c.keys {
				n.read(n.attempt(key), Absent)
			}
		})
	}
}

package promises

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// The first call in a process waits until announcements arrive. After Close it returns an error.
func TestReady(t *testing.T) {
	_, b := embedded(t)
	p := startOn(t, b.client(t), newTable(nil), patient, nil)
	if err := p.cache.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if s := p.cache.Stats().Bus; !s.Subscribed || s.Trusted != s.Ranges {
		t.Errorf("Ready returns with %+v", s)
	}
	p.cache.Close()
	if err := p.cache.Ready(t.Context()); !errors.Is(err, cacheaside.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	alone, err := cacheaside.NewLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	if err := alone.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// An outage of Redis takes a process out of service only if no loader would serve: with
// FailWhenDown, and with StaleWhenDown if the process has started during the outage, because its
// memory is empty.
func TestReadyWhileRedisIsDown(t *testing.T) {
	for _, c := range []struct {
		name        string
		policies    []cacheaside.DownPolicy
		old, recent bool // whether a process is ready that started before the outage, or during it
	}{
		{"load", []cacheaside.DownPolicy{cacheaside.LoadWhenDown}, true, true},
		{"stale", []cacheaside.DownPolicy{cacheaside.StaleWhenDown}, true, false},
		{"fail", []cacheaside.DownPolicy{cacheaside.FailWhenDown}, false, false},
		{"fail and load", []cacheaside.DownPolicy{cacheaside.FailWhenDown, cacheaside.LoadWhenDown}, true, true},
		{"fail and stale", []cacheaside.DownPolicy{cacheaside.FailWhenDown, cacheaside.StaleWhenDown}, true, false},
		{"no loader", nil, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, b := embedded(t)
			start := func() *cacheaside.Cache {
				o := patient
				cache, err := newCache(b.client(t), &o)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { cache.Close() })
				for i, policy := range c.policies {
					if _, err := cacheaside.NewLoader(cache, string(rune('a'+i)), newTable(nil).load,
						&cacheaside.LoaderOptions{RedisDown: policy}); err != nil {
						t.Fatal(err)
					}
				}
				return cache
			}
			want := func(which string, cache *cacheaside.Cache, ready bool) {
				t.Helper()
				if err := cache.Ready(t.Context()); ready != (err == nil) || err != nil &&
					!errors.Is(err, cacheaside.ErrRedis) {
					t.Errorf("%s: %v", which, err)
				}
			}
			old := start()
			testenv.Eventually(t, "a cache that is ready", func() bool { return old.Ready(t.Context()) == nil })
			m.SetError("ERR out of order")
			recent := start()
			want("old", old, c.old)
			want("recent", recent, c.recent)
			m.SetError("")
			if c.recent {
				want("recent, Redis is back", recent, true)
			}
			testenv.Eventually(t, "a new process that is ready",
				func() bool { return recent.Ready(t.Context()) == nil })
			testenv.Eventually(t, "an old process that is ready", func() bool { return old.Ready(t.Context()) == nil })
		})
	}
}

// TestReadyWithoutAnnouncements: without a subscription, memory is not served, and Ready returns an
// error.
func TestReadyWithoutAnnouncements(t *testing.T) {
	server := testenv.SharedRedis(t)
	proxy := testenv.NewProxy(t, server.Addr)
	var refused atomic.Bool
	refused.Store(true)
	proxy.OnRequest(func(chunk []byte) testenv.Action {
		if refused.Load() && bytes.Contains(chunk, []byte("subscribe")) {
			return testenv.Drop
		}
		return testenv.Pass
	})
	o := server.Options()
	o.Addr, o.ContextTimeoutEnabled = proxy.Addr, true
	rdb := redis.NewClient(o)
	defer rdb.Close()
	short := cacheaside.Options{RedisTimeout: 3 * time.Second, ReadTimeout: 3 * time.Second} // Ready waits for it
	p := startOn(t, rdb, newTable(nil), short, nil)
	if err := p.cache.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "for 0 of 1 ranges") {
		t.Errorf("%v", err)
	}
	refused.Store(false)
	testenv.Eventually(t, "a cache that is ready", func() bool { return p.cache.Ready(t.Context()) == nil })
	p.cache.Close()
}

package lease

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/testenv"
)

type wrapper struct{ redis.UniversalClient }

func TestNewStoreRefusesClientsThatCannotKeepTheProtocol(t *testing.T) {
	cluster := func(o redis.ClusterOptions) redis.UniversalClient {
		o.Addrs = []string{"127.0.0.1:1"}
		return redis.NewClusterClient(&o)
	}
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	for name, c := range map[string]struct {
		rdb  redis.UniversalClient
		says string
	}{
		"ring":            {redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}}), "moves keys between servers"},
		"read only":       {cluster(redis.ClusterOptions{ReadOnly: true}), "reads from replicas"},
		"by latency":      {cluster(redis.ClusterOptions{RouteByLatency: true}), "reads from replicas"},
		"randomly":        {cluster(redis.ClusterOptions{RouteRandomly: true}), "reads from replicas"},
		"failover":        {redis.NewFailoverClusterClient(&redis.FailoverOptions{SentinelAddrs: []string{"127.0.0.1:1"}, RouteRandomly: true}), "reads from replicas"},
		"nil client":      {(*redis.Client)(nil), "nil *redis.Client"},
		"nil cluster":     {(*redis.ClusterClient)(nil), "nil *redis.ClusterClient"},
		"nil ring":        {(*redis.Ring)(nil), "*redis.Ring"},
		"nothing":         {nil, "<nil>"},
		"another type":    {wrapper{client}, "lease.wrapper"},
		"wrapped pointer": {&wrapper{client}, "*lease.wrapper"},
	} {
		s, err := NewStore(c.rdb, time.Second)
		if s != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v, want an error that says %q", name, s, err, c.says)
		}
		if !strings.HasPrefix(name, "nil") && name != "nothing" {
			c.rdb.Close()
		}
	}
}

// A value that go-redis keeps in the process is still shown after its delete has been acknowledged.
func TestNewStoreRefusesClientsWithACacheOfTheirOwn(t *testing.T) {
	r := testenv.SharedRedis(t)
	for name, o := range map[string]*redis.Options{
		"configured": {Addr: r.Addr, ClientSideCacheConfig: &redis.ClientSideCacheConfig{}},
		"given":      {Addr: r.Addr, ClientSideCache: redis.NewLocalCache(redis.CacheConfig{})},
	} {
		rdb := redis.NewClient(o)
		if _, err := NewStore(rdb, time.Second); err == nil {
			t.Errorf("%s: no error", name)
		}
		rdb.Close()
	}
}

func TestNewStoreTakesClientsAndDoesNoIO(t *testing.T) {
	for name, rdb := range map[string]redis.UniversalClient{
		"client":   redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}),
		"cluster":  redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}),
		"failover": redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: []string{"127.0.0.1:1"}}),
	} {
		begin := time.Now()
		if _, err := NewStore(rdb, time.Second); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("%s: it took %v", name, took)
		}
		rdb.Close()
	}
}

func TestNewStoreLeavesTheClientsSettings(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	before := *rdb.Options()
	if _, err := NewStore(rdb, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	after := rdb.Options()
	if after.ReadTimeout != before.ReadTimeout || after.WriteTimeout != before.WriteTimeout ||
		after.ContextTimeoutEnabled != before.ContextTimeoutEnabled || after.MaxRetries != before.MaxRetries {
		t.Errorf("the options were %+v, now %+v", before, *after)
	}
}

// A renewal may still be under way when its load has ended, and the attempt goes on to the next one.
func TestRenewMayRunBesideTheNextTake(t *testing.T) {
	_, rdb := testenv.Mini(t)
	b := newBackend(t, rdb)
	for range 100 {
		a := b.attempt("k")
		b.take(a, Mine)
		b.delete("k")
		var renewals sync.WaitGroup
		renewal := a.Renewal()
		renewals.Go(func() { renewal.Renew(b.ctx) })
		b.fill(a, Entry{}, long, false)
		b.take(a, Mine)
		renewals.Wait()
		b.fill(a, Entry{}, long, true)
		b.delete("k")
	}
}

func TestRedisOutOfMemoryIsAnError(t *testing.T) {
	r := testenv.StartRedis(t, "--maxmemory-policy", "noeviction")
	b := newBackend(t, r.Client(t))
	b.put("entry", Entry{Payload: []byte("v")}, long)
	b.put("claimed", Entry{Payload: []byte("v")}, long)
	leased, claimed := b.attempt("leased"), b.attempt("claimed")
	b.take(leased, Mine)
	b.claim(claimed, Mine)
	b.check(b.rdb.Set(b.ctx, "unknown", "?", 0).Err())
	before := b.rdb.Get(b.ctx, "entry").Val()

	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "1mb").Err())
	for b.rdb.Append(b.ctx, "filler", strings.Repeat("x", 10000)).Err() == nil {
	}

	for name, f := range map[string]func() (State, error){
		"take":        func() (State, error) { return b.attempt("absent").Take(b.ctx, nil) },
		"claim":       func() (State, error) { return b.attempt("absent").Claim(b.ctx) },
		"claim entry": func() (State, error) { return b.attempt("entry").Claim(b.ctx) },
		"take, no key": func() (State, error) {
			return b.attempt("filler").Take(b.ctx, []byte(b.rdb.Get(b.ctx, "filler").Val()))
		},
	} {
		if s, err := f(); err == nil || s.Kind == Mine || !redis.HasErrorPrefix(err, "OOM") {
			t.Errorf("%s: kind %d, %v", name, s.Kind, err)
		}
	}
	for name, a := range map[string]single{"lease": leased, "claim": claimed} {
		if stored, err := a.Fill(b.ctx, Entry{Payload: []byte("new")}, long); stored || !redis.HasErrorPrefix(err, "OOM") {
			t.Errorf("fill of a %s: %v, %v", name, stored, err)
		}
	}
	if b.rdb.Get(b.ctx, "entry").Val() != before {
		t.Error("the entry has changed")
	}
	b.read(b.attempt("absent"), Absent)
	b.payload("claimed", "v")
	b.release(leased) // frees memory, so it is allowed
	b.delete("claimed", "filler")
	b.read(b.attempt("leased"), Absent)
	b.read(b.attempt("claimed"), Absent)

	b.check(b.rdb.ConfigSet(b.ctx, "maxmemory", "0").Err())
	b.put("absent", Entry{Payload: []byte("v")}, long)
	b.payload("absent", "v")
}

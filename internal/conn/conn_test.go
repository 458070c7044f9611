package conn

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

type wrapper struct{ redis.UniversalClient }

func TestNewRefusesClientsThatCannotKeepTheProtocol(t *testing.T) {
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
		"another type":    {wrapper{client}, "conn.wrapper"},
		"wrapped pointer": {&wrapper{client}, "*conn.wrapper"},
	} {
		s, err := New(c.rdb, time.Second)
		if s != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v, want an error that says %q", name, s, err, c.says)
		}
		if !strings.HasPrefix(name, "nil") && name != "nothing" {
			c.rdb.Close()
		}
	}
}

// A value that go-redis keeps in the process is still shown after its delete has been acknowledged.
func TestNewRefusesClientsWithACacheOfTheirOwn(t *testing.T) {
	r := testenv.SharedRedis(t)
	for name, o := range map[string]*redis.Options{
		"configured": {Addr: r.Addr, ClientSideCacheConfig: &redis.ClientSideCacheConfig{}},
		"given":      {Addr: r.Addr, ClientSideCache: redis.NewLocalCache(redis.CacheConfig{})},
	} {
		rdb := redis.NewClient(o)
		if _, err := New(rdb, time.Second); err == nil {
			t.Errorf("%s: no error", name)
		}
		rdb.Close()
	}
}

// Options of versions to come, and of other types of clients, are found by their names.
func TestNoCache(t *testing.T) {
	type options struct {
		Addr                     string
		ClientSideCacheConfig    *redis.ClientSideCacheConfig
		ClientSideCache          redis.Cache
		ClientSideCacheOfNextDay bool
		lru                      int
	}
	for _, o := range []any{&options{ClientSideCacheConfig: &redis.ClientSideCacheConfig{}},
		&options{ClientSideCache: redis.NewLocalCache(redis.CacheConfig{})}, &options{ClientSideCacheOfNextDay: true}} {
		if err := noCache(o); err == nil || !strings.Contains(err.Error(), "(ClientSideCache") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, o := range []any{&options{Addr: "a", lru: 1}, &redis.Options{Addr: "a"}, &redis.ClusterOptions{},
		&redis.RingOptions{}, &redis.FailoverOptions{}, &redis.UniversalOptions{}} {
		if err := noCache(o); err != nil {
			t.Errorf("%T: %v", o, err)
		}
	}
}

// The nodes of a cluster may have options of their own, also those that the client knows already.
func TestNodesWithACacheOfTheirOwn(t *testing.T) {
	cluster := testenv.SharedCluster(t)
	for name, known := range map[string]bool{"new nodes": false, "known nodes": true} {
		for _, cached := range []bool{false, true} {
			o := cluster.Options()
			o.NewClient = func(o *redis.Options) *redis.Client {
				if o.Protocol = 3; cached {
					o.ClientSideCacheConfig = &redis.ClientSideCacheConfig{}
				}
				return redis.NewClient(o)
			}
			rdb := redis.NewClusterClient(o)
			defer rdb.Close()
			if known {
				if err := rdb.Ping(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			}
			c, err := New(rdb, testenv.Hang)
			if (err != nil) != cached || cached && !strings.Contains(err.Error(), "(ClientSideCacheConfig)") {
				t.Errorf("%s, with a cache: %v: %v", name, cached, err)
			}
			if err == nil {
				c.Close()
			}
		}
	}
}

// A NewClient that knows the addresses of its nodes only returns nil for any other. The nodes may
// have a cache even so.
func TestNodesOfKnownAddresses(t *testing.T) {
	for _, cached := range []bool{false, true} {
		o := testenv.SharedCluster(t).Options()
		o.NewClient = func(node *redis.Options) *redis.Client {
			if !slices.Contains(o.Addrs, node.Addr) {
				return nil
			}
			if node.Protocol = 3; cached {
				node.ClientSideCacheConfig = &redis.ClientSideCacheConfig{}
			}
			return redis.NewClient(node)
		}
		rdb := redis.NewClusterClient(o)
		defer rdb.Close()
		c, err := New(rdb, testenv.Hang)
		if (err != nil) != cached || cached && !strings.Contains(err.Error(), "(ClientSideCacheConfig)") {
			t.Errorf("with a cache: %v: %v", cached, err)
		}
		if err == nil {
			c.Close()
		}
	}
}

// A NewClient that returns no client at all is for go-redis to refuse.
func TestNodesOfNoAddress(t *testing.T) {
	var asked []string
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"one.invalid:1", "two.invalid:2"},
		NewClient: func(node *redis.Options) *redis.Client {
			asked = append(asked, node.Addr)
			return nil
		}})
	defer rdb.Close()
	c, err := New(rdb, testenv.Hang)
	if err != nil || !slices.Equal(asked, []string{"127.0.0.1:6379", "one.invalid:1", "two.invalid:2"}) {
		t.Fatalf("%q: %v", asked, err)
	}
	c.Close()
}

func TestNewTakesClientsAndDoesNoIO(t *testing.T) {
	dial := func(context.Context, string, string) (net.Conn, error) {
		t.Error("it makes a connection")
		return nil, net.ErrClosed
	}
	for name, rdb := range map[string]redis.UniversalClient{
		"client":   redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: dial}),
		"cluster":  redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, Dialer: dial}),
		"failover": redis.NewFailoverClient(&redis.FailoverOptions{SentinelAddrs: []string{"127.0.0.1:1"}, Dialer: dial}),
	} {
		if _, err := New(rdb, time.Second); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		rdb.Close()
	}
}

func TestNewLeavesTheClientsSettings(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	before := *rdb.Options()
	if _, err := New(rdb, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	after := rdb.Options()
	if after.ReadTimeout != before.ReadTimeout || after.WriteTimeout != before.WriteTimeout ||
		after.ContextTimeoutEnabled != before.ContextTimeoutEnabled || after.MaxRetries != before.MaxRetries {
		t.Errorf("the options were %+v, now %+v", before, *after)
	}
}

package lease

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

const (
	hangTimeout = 300 * time.Millisecond
	overshoot   = 150 * time.Millisecond // what a machine may add on which figures are measured
)

// readTimeout is the clients' own time-out. It is 0, the default, when a measurement takes so long
// that only the store's time-outs can end a command.
func readTimeout() time.Duration {
	if testenv.Accepting {
		return 0
	}
	return time.Hour
}

// hangingClients make clients with their own default settings, except for readTimeout.
var hangingClients = map[string]func(addr string) redis.UniversalClient{
	"client": func(addr string) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: readTimeout()})
	},
	"cluster": func(addr string) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ReadTimeout: readTimeout()})
	},
	"cluster with context time-outs": func(addr string) redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ContextTimeoutEnabled: true,
			ReadTimeout: readTimeout()})
	},
}

// onHanging stops a server, and runs the functions concurrently for each kind of client, without
// any connection and with one. Each function gets a client of its own.
func onHanging(t *testing.T, fs map[string]func(t *testing.T, step string, s *Store)) {
	server := oneNodeCluster(t)
	var running sync.WaitGroup
	start := make(chan struct{})
	for kind, newClient := range hangingClients {
		for _, pool := range []string{"cold", "warm"} {
			for name, f := range fs {
				rdb := newClient(server.Addr)
				t.Cleanup(func() { rdb.Close() })
				s := open(t, rdb, hangTimeout)
				if pool == "warm" {
					if _, err := open(t, rdb, testenv.Hang).Attempt("k", long).Read(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				running.Go(func() {
					<-start
					f(t, kind+", "+pool+" pool: "+name, s)
				})
			}
		}
	}
	t.Cleanup(server.Resume)
	server.Pause()
	close(start)
	ended := make(chan struct{})
	go func() { running.Wait(); close(ended) }()
	testenv.Receive(t, "the end of all commands", ended)
}

// oneNodeCluster starts a server that all kinds of client can use.
func oneNodeCluster(t *testing.T) *testenv.Redis {
	t.Helper()
	r := testenv.StartRedis(t, "--cluster-enabled", "yes", "--cluster-port", "0", "--cluster-config-file", "nodes.conf")
	rdb := r.Client(t)
	if err := rdb.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "a cluster", func() bool { return rdb.Get(t.Context(), "k").Err() == redis.Nil })
	return r
}

func TestCommandsEndInTimeWhenRedisHangs(t *testing.T) {
	fs := map[string]func(*testing.T, string, *Store){}
	for name, c := range map[string]struct {
		sends int // a lost reply may be asked for again
		run   func(a single) error
	}{
		"read":  {1, func(a single) error { _, err := a.Read(t.Context()); return err }},
		"renew": {1, func(a single) error { _, err := a.Renewal().Renew(t.Context()); return err }},
		"take":  {maxSends, func(a single) error { _, err := a.Take(t.Context(), nil); return err }},
		"claim": {maxSends, func(a single) error { _, err := a.Claim(t.Context()); return err }},
		"fill":  {maxSends, func(a single) error { _, err := a.Fill(t.Context(), Entry{}, long); return err }},
		"fail":  {1, func(a single) error { return a.Fail(t.Context(), long) }},
	} {
		fs[name] = func(t *testing.T, step string, s *Store) {
			a := s.Attempt("k", long)
			begin := time.Now()
			err := c.run(a)
			took := time.Since(begin)
			want := time.Duration(c.sends) * hangTimeout
			t.Logf("%s: %v over its %v: %v", step, took-want, want, err)
			if err == nil || testenv.Accepting && took > want+overshoot {
				t.Errorf("%s: it took %v, want %v: %v", step, took, want, err)
			}
		}
	}
	onHanging(t, fs)
}

// A command that has waited for a connection has less time left for its reply.
func TestCommandsEndInTimeWhenAllConnectionsHang(t *testing.T) {
	r := testenv.SharedRedis(t)
	proxy := testenv.NewProxy(t, r.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, PoolSize: 1, ReadTimeout: readTimeout()})
	defer rdb.Close()
	s := open(t, rdb, hangTimeout)
	if _, err := open(t, rdb, testenv.Hang).Attempt("k", long).Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	arrived := make(chan struct{}, 10)
	proxy.OnRequest(func([]byte) testenv.Action {
		arrived <- struct{}{}
		return testenv.Pass
	})
	proxy.Hang(true)
	defer proxy.Hang(false)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Attempt("k", long).Read(t.Context())
	}()
	<-arrived // the only connection is taken
	time.Sleep(hangTimeout / 10)
	begin := time.Now()
	_, err := s.Attempt("k", long).Read(t.Context())
	took := time.Since(begin)
	<-done
	t.Logf("%v over its %v: %v", took-hangTimeout, hangTimeout, err)
	if err == nil || testenv.Accepting && took > hangTimeout+overshoot {
		t.Errorf("it took %v: %v", took, err)
	}
}

// Setting up a connection takes several commands. Each reply may be late, but they share one
// time-out.
func TestCommandsEndInTimeWhenRedisIsSlow(t *testing.T) {
	const timeout = 2 * hangTimeout
	r := testenv.SharedRedis(t)
	proxy := testenv.NewProxy(t, r.Addr)
	proxy.OnRequest(func([]byte) testenv.Action { return testenv.Delay(timeout * 45 / 100) })
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr})
	defer rdb.Close()
	s := open(t, rdb, timeout)
	begin := time.Now()
	_, err := s.Attempt("k", long).Read(t.Context())
	took := time.Since(begin)
	t.Logf("%v over its %v: %v", took-timeout, timeout, err)
	if testenv.Accepting && took > timeout+overshoot {
		t.Errorf("it took %v: %v", took, err)
	}
}

func TestCommandsEndInTimeWhenNoConnectionComesAbout(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done() // as if packets were lost
		return nil, ctx.Err()
	}, DialTimeout: 2 * hangTimeout, DialerRetries: 1})
	defer rdb.Close()
	s := open(t, rdb, hangTimeout)
	begin := time.Now()
	_, err := s.Attempt("k", long).Read(t.Context())
	if took := time.Since(begin); err == nil || testenv.Accepting && took > hangTimeout+overshoot {
		t.Errorf("it took %v: %v", took, err)
	}
}

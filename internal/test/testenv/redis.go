package testenv

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

func init() {
	// Tests kill and hang servers on purpose. The driver's log lines about that would only hide the
	// results.
	logging.Disable()
}

// Redis is a real redis-server without persistence.
type Redis struct {
	Addr string // host:port
	*server
}

var (
	sharedRedis  shared[Redis]
	sharedValkey shared[Redis]
	fiveMasters  shared[[]*Redis]
)

// StartRedis starts a server for this test, which is killed when the test ends. The arguments, such
// as "--maxmemory", "2mb", are added to the command line.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	r := startRedis(t, "redis", args...)
	r.claim(t)
	return r
}

// SharedRedis returns the server of the test process, empty and with its statistics reset. A test
// that changes the configuration must use StartRedis.
func SharedRedis(t testing.TB) *Redis {
	t.Helper()
	r := sharedRedis.get(always, func() *Redis { return startRedis(t, "redis") })
	r.clean(t)
	return r
}

// SharedValkey is SharedRedis with the Valkey that `scripts/fetch.sh valkey-9.1` has downloaded.
func SharedValkey(t testing.TB) *Redis {
	t.Helper()
	path := filepath.Join(fetched("valkey-9.1"), "bin", "redis-server")
	if _, err := exec.LookPath(path); err != nil {
		skip(t, "Valkey is not installed: `scripts/fetch.sh valkey-9.1` downloads it, and installs nothing")
	}
	r := sharedValkey.get(always, func() *Redis { return startRedisAt(t, path, "valkey") })
	r.clean(t)
	return r
}

// FiveMasters returns five independent servers, empty and with their statistics reset. All tests of
// the process use the same five.
func FiveMasters(t testing.TB) []*Redis {
	t.Helper()
	masters := *fiveMasters.get(always, func() *[]*Redis {
		var five []*Redis
		for range 5 {
			five = append(five, startRedis(t, "master"))
		}
		return &five
	})
	for _, r := range masters {
		r.clean(t)
	}
	return append([]*Redis(nil), masters...)
}

func always[T any](*T) bool { return true }

func startRedis(t testing.TB, name string, args ...string) *Redis {
	t.Helper()
	return startRedisAt(t, program(t, "redis-server", "redis-server"), name, args...)
}

func startRedisAt(t testing.TB, path, name string, args ...string) *Redis {
	t.Helper()
	r := &Redis{}
	r.server = startServer(t, name, func(s *server) {
		s.argv = append([]string{path,
			"--port", strconv.Itoa(s.port),
			"--bind", "127.0.0.1",
			"--dir", s.dir,
			"--save", "",
			"--appendonly", "no",
			"--tcp-backlog", "128",
			"--repl-diskless-sync-delay", "0",
			"--enable-debug-command", "yes",
		}, args...)
		s.ready = func() error {
			return redisReady(s, &redis.Options{Addr: s.addr()})
		}
	})
	r.Addr = r.addr()
	return r
}

// Options returns new options for a client of this server.
func (r *Redis) Options() *redis.Options {
	return &redis.Options{
		Addr:                     r.Addr,
		PoolSize:                 poolSize,
		ReadTimeout:              Hang, // on a busy machine a reply may take longer than go-redis waits by default
		WriteTimeout:             Hang,
		PoolTimeout:              Hang,
		MaintNotificationsConfig: noMaintenance(),
	}
}

// Client returns a client that is closed when the test ends.
func (r *Redis) Client(t testing.TB) *redis.Client {
	t.Helper()
	return closed(t, redis.NewClient(r.Options()))
}

// CommandCalls returns the number of calls of each command since the statistics were reset, by
// lower-case name ("get", "config|set"). Calls from scripts count. The commands that drivers send
// to set up a connection and those that this package sends are left out: hello, client|setinfo,
// info, config|resetstat.
func (r *Redis) CommandCalls(t testing.TB) map[string]int {
	t.Helper()
	o := r.Options()
	plain(o)
	client := redis.NewClient(o)
	defer client.Close()
	info, err := client.Info(context.WithoutCancel(t.Context()), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]int{}
	for line := range strings.Lines(info) {
		name, stats, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		n, _, _ := strings.Cut(stats, ",")
		if calls[strings.ToLower(name)], err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"hello", "client|setinfo", "info", "config|resetstat"} {
		delete(calls, name)
	}
	return calls
}

// poolSize lets tests run many goroutines that need not wait for a connection. In a synctest bubble
// such a wait would stop the clock.
const poolSize = 64

func noMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

func closed[C interface{ Close() error }](t testing.TB, client C) C {
	t.Cleanup(func() { client.Close() })
	return client
}

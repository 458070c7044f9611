package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Sentinel is a Redis master with one replica, monitored by three sentinels. About a second after
// DownAfter, the replica replaces a master that hangs or has died.
type Sentinel struct {
	MasterName string
	Addrs      []string // of the sentinels
	Master     *Redis
	Replica    *Redis
	Sentinels  []*Redis
}

var sharedSentinel shared[Sentinel]

// SharedSentinel returns the master, replica and sentinels of the test process, healthy and empty.
// After a test that killed one of them or promoted the replica, the next test gets a new set.
func SharedSentinel(t testing.TB) *Sentinel {
	t.Helper()
	s := sharedSentinel.get((*Sentinel).intact, func() *Sentinel { return startSentinel(t, DownAfter) })
	s.Master.clean(t)
	return s
}

// StartSentinel starts a set for this test, which is killed when the test ends. The master counts
// as dead when it has not replied for downAfter.
func StartSentinel(t testing.TB, downAfter time.Duration) *Sentinel {
	t.Helper()
	s := startSentinel(t, downAfter)
	for _, node := range s.all() {
		node.claim(t)
	}
	return s
}

func startSentinel(t testing.TB, downAfter time.Duration) *Sentinel {
	t.Helper()
	s := &Sentinel{MasterName: "mymaster"}
	s.Master = startRedis(t, "master")
	s.Replica = startRedis(t, "replica", "--replicaof", "127.0.0.1 "+strconv.Itoa(s.Master.port))
	// A sentinel asks the master for its replicas only every ten seconds, so the replica must be
	// connected before the sentinels start.
	err := eventually(func() error { return s.Replica.replicates(true) }, settleLimit)
	for range 3 {
		if err != nil {
			break
		}
		one := startOneSentinel(t, s.MasterName, s.Master.port, downAfter)
		s.Sentinels = append(s.Sentinels, one)
		s.Addrs = append(s.Addrs, one.Addr)
	}
	if err == nil {
		err = eventually(s.settled, settleLimit)
	}
	if err != nil {
		s.kill()
		t.Fatalf("set up the sentinels: %v", err)
	}
	return s
}

func startOneSentinel(t testing.TB, name string, masterPort int, downAfter time.Duration) *Redis {
	t.Helper()
	path := program(t, "redis-server", "redis-server")
	r := &Redis{}
	r.server = startServer(t, "sentinel", func(s *server) {
		// A sentinel rewrites its configuration, so it needs a file.
		file := filepath.Join(s.dir, "sentinel.conf")
		text := strings.Join([]string{
			"port " + strconv.Itoa(s.port),
			"bind 127.0.0.1",
			"dir " + s.dir,
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", name, masterPort),
			fmt.Sprintf("sentinel down-after-milliseconds %s %d", name, downAfter.Milliseconds()),
			fmt.Sprintf("sentinel failover-timeout %s %d", name, 3*downAfter.Milliseconds()),
		}, "\n") + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.argv = []string{path, file, "--sentinel"}
		s.ready = func() error { return redisReady(s, &redis.Options{Addr: s.addr()}) }
	})
	r.Addr = r.addr()
	return r
}

// settled returns nil if all sentinels know each other and the replica, and consider the first
// master healthy.
func (s *Sentinel) settled() error {
	for _, one := range s.Sentinels {
		info, err := one.do("info", "sentinel")
		if err != nil {
			return err
		}
		want := fmt.Sprintf("status=ok,address=%s,slaves=1,sentinels=%d", s.Master.Addr, len(s.Sentinels))
		if !strings.Contains(info, want) {
			return fmt.Errorf("sentinel %s lacks %s:\n%s", one.Addr, want, info)
		}
	}
	if err := s.Master.replicates(false); err != nil {
		return err
	}
	return s.Replica.replicates(true)
}

// intact resumes paused servers and reports whether the set can be used again. If not, it kills
// the servers that are left.
func (s *Sentinel) intact() bool {
	ok := true
	for _, node := range s.all() {
		node.Resume()
		ok = ok && node.alive()
	}
	if ok && eventually(s.settled, 2*time.Second) == nil {
		return true
	}
	s.kill()
	return false
}

func (s *Sentinel) all() []*Redis {
	return append([]*Redis{s.Master, s.Replica}, s.Sentinels...)
}

func (s *Sentinel) kill() {
	for _, node := range s.all() {
		node.Kill()
	}
}

// Options returns new options for a client that asks the sentinels for the master.
func (s *Sentinel) Options() *redis.FailoverOptions {
	return &redis.FailoverOptions{
		MasterName:    s.MasterName,
		SentinelAddrs: append([]string(nil), s.Addrs...),
		PoolSize:      poolSize,
		ReadTimeout:   Hang,
		WriteTimeout:  Hang,
		PoolTimeout:   Hang,
	}
}

// Client returns a client that is closed when the test ends.
func (s *Sentinel) Client(t testing.TB) *redis.Client {
	t.Helper()
	return closed(t, redis.NewFailoverClient(s.Options()))
}

package testenv

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) { Main(m) }

// started logs how long it took to get a server.
func started[T any](t *testing.T, get func(testing.TB) T) T {
	t.Helper()
	begin := time.Now()
	v := get(t)
	t.Logf("handed out after %v", time.Since(begin).Round(time.Millisecond))
	return v
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRedisIsEmptyWhenHandedOut(t *testing.T) {
	r := started(t, SharedRedis)
	client := r.Client(t)
	ctx := within(t, Hang)
	check(t, client.Set(ctx, "a", "1", 0).Err())
	check(t, client.Eval(ctx, "return redis.call('get', KEYS[1])", []string{"a"}).Err())
	calls := r.CommandCalls(t)
	if len(calls) != 3 || calls["set"] != 1 || calls["eval"] != 1 || calls["get"] != 1 {
		t.Errorf("calls: %v", calls)
	}
	pid := r.Pid()
	r = started(t, SharedRedis)
	if calls := r.CommandCalls(t); len(calls) != 0 {
		t.Errorf("calls of an earlier test: %v", calls)
	}
	if n := client.DBSize(ctx).Val(); n != 0 || r.Pid() != pid {
		t.Errorf("%d keys, process %d, want none and %d", n, r.Pid(), pid)
	}
}

func TestRedisPausesDiesAndRestarts(t *testing.T) {
	r := StartRedis(t, "--maxmemory", "100mb")
	o := r.Options()
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled, o.ReadTimeout = -1, 1, true, Hang
	client := redis.NewClient(o)
	defer client.Close()
	check(t, client.Set(t.Context(), "a", "1", 0).Err())
	if got := client.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"]; got != "104857600" {
		t.Errorf("maxmemory %q", got)
	}
	r.Pause()
	if err := client.Ping(within(t, 100*time.Millisecond)).Err(); err == nil {
		t.Error("a paused server replies")
	}
	r.Resume()
	check(t, client.Ping(within(t, Hang)).Err())
	r.Kill()
	if err := client.Ping(within(t, Hang)).Err(); err == nil {
		t.Error("a dead server replies")
	}
	r.Restart(t)
	if n, err := client.DBSize(t.Context()).Result(); err != nil || n != 0 {
		t.Errorf("after the restart: %d keys, %v", n, err)
	}
}

func TestFiveMastersAreRevived(t *testing.T) {
	started(t, FiveMasters)[1].Kill()
	started(t, FiveMasters)[2].Pause()
	for _, r := range started(t, FiveMasters) {
		check(t, r.Client(t).Set(within(t, Hang), "a", r.Addr, 0).Err())
	}
}

func TestCluster(t *testing.T) {
	c := started(t, SharedCluster)
	client := c.Client(t)
	ctx := within(t, Hang)
	for i := range 100 {
		check(t, client.Set(ctx, fmt.Sprint("key", i), i, 0).Err())
	}
	for _, master := range c.Nodes[:3] {
		if master.CommandCalls(t)["set"] == 0 {
			t.Errorf("no key on %s", master.Addr)
		}
	}
	if again := started(t, SharedCluster); again != c {
		t.Error("a healthy cluster was replaced")
	}
	if n := client.DBSize(ctx).Val(); n != 0 {
		t.Errorf("%d keys of an earlier test", n)
	}
	c.Nodes[0].Kill()
	c = started(t, SharedCluster)
	check(t, c.Client(t).Set(ctx, "a", "1", 0).Err())
}

func TestSentinelFailsOver(t *testing.T) {
	s := started(t, SharedSentinel)
	client := s.Client(t)
	ctx := within(t, Hang)
	check(t, client.Set(ctx, "a", "1", 0).Err())
	s.Master.Kill()
	begin := time.Now()
	check(t, eventually(func() error { return client.Set(ctx, "a", "2", 0).Err() }, Hang))
	t.Logf("failed over after %v", time.Since(begin).Round(time.Millisecond))
	if got, err := s.Replica.do("get", "a"); got != "2" || err != nil {
		t.Errorf("the former replica has %q, %v", got, err)
	}
	s = started(t, SharedSentinel)
	check(t, s.Client(t).Set(ctx, "a", "1", 0).Err())
}

func TestRedisTLSHasOnlyItsUsers(t *testing.T) {
	r := started(t, func(t testing.TB) *RedisTLS { return StartRedisTLS(t, "~app:*", "+get", "+set") })
	ctx := within(t, Hang)
	client := r.Client(t)
	check(t, client.Set(ctx, "app:a", "1", 0).Err())
	if err := client.Set(ctx, "b", "1", 0).Err(); !redis.IsPermissionError(err) {
		t.Errorf("a key outside of the rules: %v", err)
	}
	if err := client.Del(ctx, "app:a").Err(); !redis.IsPermissionError(err) {
		t.Errorf("a command outside of the rules: %v", err)
	}
	check(t, r.AdminClient(t).Del(ctx, "app:a").Err())
	nobody := r.options("", "")
	if err := closed(t, redis.NewClient(nobody)).Ping(ctx).Err(); err == nil ||
		!strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("a client without a user: %v", err)
	}
	open := r.Options()
	open.TLSConfig = nil
	open.DialerRetries, open.MaxRetries = 1, -1
	if err := closed(t, redis.NewClient(open)).Ping(ctx).Err(); err == nil {
		t.Error("the server replies without TLS")
	}
}

func TestMariaDBGivesEachTestADatabase(t *testing.T) {
	m := started(t, SharedMariaDB)
	var first string
	t.Run("first", func(t *testing.T) {
		first = m.Database(t)
		db := m.DB(t)
		_, err := db.Exec("CREATE TABLE a (id INT PRIMARY KEY, at DATETIME)")
		check(t, err)
		_, err = db.Exec("INSERT INTO a VALUES (1, '2020-01-02 03:04:05')")
		check(t, err)
		var started time.Time
		check(t, m.DB(t).QueryRow("SELECT at FROM a").Scan(&started))
		if started.Year() != 2020 {
			t.Error(started)
		}
	})
	db := m.DB(t)
	var n int
	check(t, db.QueryRow("SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", first).Scan(&n))
	if n != 0 {
		t.Errorf("database %s is still there", first)
	}
	check(t, db.QueryRow("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()").Scan(&n))
	if n != 0 {
		t.Errorf("%d tables in a new database", n)
	}
}

func TestMiniFollowsTheClockOfABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, client := Mini(t)
		check(t, client.Set(t.Context(), "a", "1", time.Hour).Err())
		time.Sleep(time.Hour - time.Millisecond)
		check(t, client.Get(t.Context(), "a").Err())
		time.Sleep(2 * time.Millisecond)
		if err := client.Get(t.Context(), "a").Err(); err != redis.Nil {
			t.Errorf("after its time to live: %v", err)
		}
		if m.Exists("a") {
			t.Error("the key is still there")
		}
		for range poolSize {
			go func() {
				client.Incr(t.Context(), "n")
				client.Eval(t.Context(), "return redis.call('incr', KEYS[1])", []string{"n"})
			}()
		}
		synctest.Wait()
		if n, err := client.Get(t.Context(), "n").Int(); n != 2*poolSize || err != nil {
			t.Errorf("counted %d, %v", n, err)
		}
	})
}

// TestMiniTakesWhatIsNotReadYet: a subscriber that pings does so under a lock that its own reading
// waits for, so a write that waited for the reading would never end. In a bubble it would not even
// time out: to wait for a lock lets no time pass.
func TestMiniTakesWhatIsNotReadYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client := Mini(t)
		sub := client.Subscribe(t.Context(), "topic")
		defer sub.Close()
		begin := time.Now()
		for range 5 {
			check(t, sub.Ping(t.Context()))
		}
		if d := time.Since(begin); d > 0 {
			t.Errorf("a write waited %v for what is not read", d)
		}
		for i := range 6 {
			if _, err := sub.ReceiveTimeout(t.Context(), time.Second); err != nil {
				t.Fatalf("reply %d: %v", i, err)
			}
		}
	})
}

func TestMiniOutsideOfABubble(t *testing.T) {
	_, client := Mini(t)
	check(t, client.Set(t.Context(), "a", "1", 20*time.Millisecond).Err())
	time.Sleep(30 * time.Millisecond)
	if err := client.Get(t.Context(), "a").Err(); err != redis.Nil {
		t.Errorf("after its time to live: %v", err)
	}
}

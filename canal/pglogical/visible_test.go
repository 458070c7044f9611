package pglogical

import (
	"testing"
	"time"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestSnapshot(t *testing.T) {
	for _, c := range []struct {
		text    string
		xid     uint64
		visible bool
	}{
		{"10:10:", 9, true}, {"10:10:", 10, false}, {"10:20:10,15", 10, false}, {"10:20:10,15", 11, true}, {"10:20:10,15", 15, false}, {"10:20:10,15", 20, false}, {"10:20:10,15", 0, true},
		{"4294967290:4294967300:4294967295", 0xfffffffe, true}, {"4294967290:4294967300:4294967295", 0xffffffff, false}, {"4294967290:4294967300:4294967298", 1<<32 + 2, false}, {"4294967290:4294967300:4294967298", 1<<32 + 3, true}, {"4294967290:4294967300:", 1<<32 + 4, false},
		{"10:10:", 3e9, false}, {"3000000000:3000000001:", 3e9, true}, {"10:10:", 1 << 33, false},
	} {
		s, err := parseSnapshot(c.text)
		if err != nil || s.visible(c.xid) != c.visible {
			t.Errorf("%s: %d: %v, %v", c.text, c.xid, s.visible(c.xid), err)
		}
	}
	for _, text := range []string{"", "1:2", "1:x:", "1:2:x", "1:2:3,x", "1:2:3:4"} {
		if _, err := parseSnapshot(text); err == nil {
			t.Errorf("%q is a snapshot", text)
		}
	}
}

// PostgreSQL sends a transaction that waits for a standby before other sessions can see it. The
// Source delivers it when they can.
func TestDeliveredWhenVisible(t *testing.T) {
	x := own(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)")
	l := x.Listen(x.source(), x.Need([]string{"users", "id"}))
	x.Do("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
	testenv.Eventually(x, "it is set", func() bool { return x.Ask("SHOW synchronous_standby_names") == "nobody" })
	done := make(chan error, 1)
	go func() {
		_, err := x.DB.Exec("INSERT INTO users VALUES (1)")
		done <- err
	}()
	testenv.Eventually(x, "it waits for the standby",
		func() bool { return x.Ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1" })
	at := x.Ask("SELECT pg_current_wal_flush_lsn()")
	testenv.Eventually(x, "it was sent", func() bool {
		return x.Ask("SELECT count(*) FROM pg_stat_replication WHERE sent_lsn >= $1", at) == "1"
	})
	time.Sleep(200 * time.Millisecond) // gives a Source that does not ask time to deliver it
	if n := x.Ask("SELECT count(*) FROM users"); n != "0" {
		t.Fatal("it is visible: this shows nothing")
	}
	if all := l.All(); len(all) > 0 {
		t.Errorf("it is delivered: %v", all)
	}
	x.Do("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	l.Want("insert users: 1")
	x.Check(<-done)
}

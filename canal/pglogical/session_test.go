package pglogical

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// Password is asked for before each connection.
func TestPasswordThatChanges(t *testing.T) {
	x := own(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'first'")
	x.server.RequirePassword(t, "reader")
	password := make(chan string, 1)
	password <- "first"
	s := x.source(func(o *Options) {
		o.ConnString = fmt.Sprintf("postgres://reader@%s/%s?sslmode=disable", x.server.Addr, x.name)
		o.Password = func(context.Context) (string, error) {
			now := <-password
			password <- now
			if now == "" {
				return "", errors.New("no token")
			}
			return now, nil
		}
	})
	need := x.Need([]string{"users", "id"})
	l := x.Listen(s, need)
	x.Do("INSERT INTO users VALUES (1)")
	l.Want("insert users: 1")
	x.Do("ALTER ROLE reader PASSWORD 'second'",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'")
	if err := l.Ended(); err == nil {
		t.Fatal("the connection was not cut")
	}
	<-password
	password <- ""
	if err := x.Start(s, need).Ended(); err == nil || err.Error() != "Options.Password: no token" {
		t.Errorf("Password fails: %v", err)
	}
	<-password
	password <- "second"
	l = x.Listen(s, need)
	x.Do("INSERT INTO users VALUES (2)")
	l.Until("the row after the change", func() bool { return l.Count() > 0 })
}

// Settings of the role that would stop the Source do not apply to its connections.
func TestSettingsOfTheRole(t *testing.T) {
	x := own(t)
	x.Do("CREATE TABLE users (id INT PRIMARY KEY)", "CREATE ROLE reader LOGIN REPLICATION SUPERUSER")
	for _, setting := range []string{"lock_timeout = 1", "statement_timeout = 1", "default_transaction_read_only = on",
		"idle_session_timeout = 1", "idle_in_transaction_session_timeout = 1"} {
		x.Do("ALTER ROLE reader SET " + setting)
	}
	writer, err := x.DB.Begin() // the creation of a slot waits for it
	x.Check(err)
	_, err = writer.Exec("INSERT INTO users VALUES (1)")
	x.Check(err)
	x.Do("DROP PUBLICATION cacheaside")
	l := x.Start(x.source(func(o *Options) {
		o.ConnString = fmt.Sprintf("postgres://reader@%s/%s?sslmode=disable", x.server.Addr, x.name)
		o.CreatePublication = true
	}), x.Need([]string{"users", "id"}))
	testenv.Eventually(t, "the creation of the slot waits", func() bool {
		return x.Ask(
			"SELECT count(*) FROM pg_stat_activity WHERE usename = 'reader' AND wait_event_type = 'Lock'") == "1"
	})
	x.Check(writer.Commit())
	l.Until("the source reads", func() bool { return len(l.Batches()) > 0 })
	x.Do("INSERT INTO users VALUES (2)")
	l.Want("insert users: 2")
}

// A proxy that refuses the parameters of the Source is named at the first start.
func TestProxyInBetween(t *testing.T) {
	x := own(t)
	bouncer := testenv.StartPgBouncer(t, x.server)
	l := x.Start(x.source(func(o *Options) { o.ConnString = bouncer }), x.Need([]string{"users", "id"}))
	x.IsSetup(l.Ended(), "PgBouncer", "Options.ConnString")
}

// A process that waits for its client, or for something to do, is not busy.
func TestWaitsForClient(t *testing.T) {
	for kind, want := range map[string]bool{"": false, "IO": false, "LWLock": false, "Lock": false, "Client": true,
		"Activity": true} {
		if waitsForClient(kind) != want {
			t.Errorf("%q: %v", kind, !want)
		}
	}
}

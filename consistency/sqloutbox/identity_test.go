package sqloutbox

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/consistency"
	"github.com/cacheaside/cacheaside/internal/test/sqlite"
	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// identity returns the identity of an outbox in db.
func (t *outboxTest) identity(db *sqlx.DB, options Options) string {
	t.Helper()
	if options.Namespace == "" {
		options.Namespace = testSpace
	}
	o, err := New(db, dialects[db.DriverName()], &options)
	t.check(err)
	identity, err := o.Identity(t.ctx())
	t.check(err)
	return identity
}

// TestIdentity: outboxes have the same identity if and only if they have the same rows.
func TestIdentity(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(tb *testing.T, e testenv.Engine) {
		t := outboxOn(tb, e)
		server := testenv.DatabaseOf(tb, e)
		own := t.identity(t.db, Options{})
		again, err := testenv.OpenDSN(server.DSN(tb))
		t.check(err)
		defer again.Close()
		if got := t.identity(again, Options{}); got != own || own == "" {
			t.Errorf("%q on another connection, want %q", got, own)
		}
		if strings.Contains(own, "password") {
			t.Error("it shows a password")
		}
		all := map[string]bool{own: true}
		all[t.identity(t.db, Options{Namespace: "other"})] = true
		all[t.identity(t.db, Options{Table: "other"})] = true
		var name string
		current, elsewhere := "SELECT DATABASE()", "mysql"
		if e == testenv.PostgreSQL {
			current, elsewhere = "SELECT current_database()", "postgres"
		}
		t.check(t.db.QueryRow(current).Scan(&name))
		there, err := testenv.OpenDSN(strings.Replace(server.DSN(tb), name, elsewhere, 1))
		t.check(err)
		defer there.Close()
		all[t.identity(there, Options{})] = true
		if len(all) != 4 {
			t.Errorf("not all are different: %v", all)
		}
		if e == testenv.PostgreSQL {
			return // a table in another database cannot be used
		}
		table := Options{Table: name + ".cacheaside_outbox"}
		if a, b := t.identity(t.db, table), t.identity(there, table); a != b {
			t.Errorf("a table with its database: %q and %q", a, b)
		}
	})
}

// TestIdentityOfServers: outboxes on different servers have different identities, although
// databases and tables have the same names.
func TestIdentityOfServers(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(tb *testing.T, e testenv.Engine) {
		t := &outboxTest{TB: tb}
		all := map[string]bool{}
		for range 2 {
			var db *sqlx.DB
			if e == testenv.PostgreSQL {
				db = sqlx.NewDb(testenv.StartPostgres(tb).DB(tb), "pgx")
			} else {
				db = sqlx.NewDb(e.Start(tb).DB(tb), "mysql")
			}
			all[t.identity(db, Options{})] = true
		}
		if len(all) != 2 {
			t.Errorf("two servers have one identity: %v", all)
		}
	})
}

// TestIdentityUnknown: an outbox in SQLite has no identity, as its relays ask no server. Without a
// namespace, or the server, Identity returns an error.
func TestIdentityUnknown(tb *testing.T) {
	t := &outboxTest{TB: tb}
	if got := t.identity(sqlx.NewDb(sqlite.Open(tb), "sqlite"), Options{}); got != "" {
		t.Errorf("%q", got)
	}
	gone, err := sqlx.Open("pgx", "postgres://127.0.0.1:1/none")
	t.check(err)
	defer gone.Close()
	for _, namespace := range []string{"", "a"} {
		o, err := New(gone, Postgres, &Options{Namespace: namespace})
		t.check(err)
		if got, err := o.Identity(t.ctx()); got != "" || err == nil {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// TestRelaysCountEachOther: relays of one outbox with different clients of Redis count each other,
// and those of another namespace do not.
func TestRelaysCountEachOther(t *testing.T) {
	testenv.TwoServersUnlessAccepting(t, func(tb *testing.T, e testenv.Engine) {
		t := outboxOn(tb, e)
		server := testenv.StartRedis(tb)
		ctx, stop := context.WithCancel(tb.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		run := func(namespace string) *consistency.Relay {
			cache, err := cacheaside.New(server.Client(tb), &cacheaside.Options{MemoryBytes: -1})
			t.check(err)
			tb.Cleanup(func() { cache.Close() })
			o, err := New(t.db, dialects[t.db.DriverName()], &Options{Namespace: namespace})
			t.check(err)
			relay, err := consistency.NewRelay(cache, o,
				&consistency.RelayOptions{Logger: slog.New(slog.DiscardHandler)})
			t.check(err)
			running.Go(func() {
				if err := relay.Run(ctx); err != nil {
					tb.Error(err)
				}
			})
			return relay
		}
		for i := range 3 {
			relay := run("a")
			testenv.Eventually(tb, "the relay is counted", func() bool { return relay.Stats().Relays == i+1 })
		}
		other := run("b")
		testenv.Eventually(tb, "the other relay is counted", func() bool { return other.Stats().Relays == 1 })
	})
}

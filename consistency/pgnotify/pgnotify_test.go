package pgnotify

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestListen: the function receives what is sent on its channel, and returns when its context or
// its connection ends. It leaves no connection.
func TestListen(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection closes connections that were left
	server := testenv.SharedPostgres(t)
	listen, err := Listen(server.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	admin, err := pgx.Connect(t.Context(), server.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	exec := func(statement string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	listeners := func() (n int) {
		if err := admin.QueryRow(t.Context(),
			"SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()").Scan(
			&n); err != nil {
			t.Error(err)
		}
		return n
	}
	for what, end := range map[string]func(stop func()){
		"context":                 func(stop func()) { stop() },
		"context in the callback": func(func()) { exec("NOTIFY some_channel, 'stop'") },
		"connection": func(func()) {
			exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = " +
				"current_database()")
		},
	} {
		ctx, stop := context.WithCancel(t.Context())
		payloads, ended := make(chan string, 10), make(chan error, 1)
		go func() {
			ended <- listen(ctx, "some_channel", func(p string) {
				if p == "stop" {
					stop()
				}
				payloads <- p
			})
		}()
		if p := testenv.Receive(t, "the beginning", payloads); p != "" {
			t.Errorf("%q at first", p)
		}
		exec("NOTIFY other_channel, 'b'; NOTIFY some_channel, 'a'")
		if p := testenv.Receive(t, "the notification", payloads); p != "a" {
			t.Errorf("%q", p)
		}
		end(stop)
		if err := testenv.Receive(t, "the end by its "+what, ended); err == nil {
			t.Errorf("%s: no error", what)
		}
		stop()
		testenv.Eventually(t, what+": its connection is closed", func() bool { return listeners() == 0 })
	}
}

// TestListenErrors: a connection string that is not valid is an error at once, without the
// password.
func TestListenErrors(t *testing.T) {
	for _, dsn := range []string{"postgres://user:secret@host:port/shop", "postgres://user:se/cret@host/shop",
		"host=a password=my secret"} {
		if _, err := Listen(dsn); err == nil || !strings.Contains(err.Error(), "pgnotify: Listen: connString") ||
			strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), ":se") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
	listen, err := Listen("postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	err = listen(t.Context(), "a", func(string) { t.Error("received a notification") })
	if err == nil || !strings.Contains(err.Error(), "connect") {
		t.Error(err)
	}
}

// TestListenWith: the function before a connection is called each time, and its error ends the
// call. A time-out of the server for idle sessions does not end the connection.
func TestListenWith(t *testing.T) {
	server := testenv.SharedPostgres(t)
	db := server.DB(t)
	if _, err := db.Exec("ALTER DATABASE " + server.Database(t) + " SET idle_session_timeout = '2s'"); err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(server.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	right := config.User
	config.User = "none"
	refused, calls := errors.New("refused"), 0
	listen := ListenWith(config, func(_ context.Context, c *pgx.ConnConfig) error {
		if calls++; calls == 1 {
			return refused
		}
		c.User = right
		return nil
	})
	config.User = "changed later"
	if err := listen(t.Context(), "a", nil); !errors.Is(err, refused) {
		t.Error(err)
	}
	payloads, ended := make(chan string, 10), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { ended <- listen(ctx, "a", func(p string) { payloads <- p }) }()
	testenv.Receive(t, "the beginning", payloads)
	testenv.Eventually(t, "the connection is idle for longer than the time-out", func() bool {
		var n int
		err := db.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()
			AND clock_timestamp() - state_change > '3s'`).Scan(&n)
		return err == nil && n == 1
	})
	if _, err := db.Exec("NOTIFY a, 'late'"); err != nil {
		t.Fatal(err)
	}
	if p := testenv.Receive(t, "the notification", payloads); p != "late" {
		t.Errorf("%q", p)
	}
	stop()
	testenv.Receive(t, "the end", ended)
}

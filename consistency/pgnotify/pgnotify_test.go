package pgnotify

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestListen: the function hears what is sent on its channel, and returns when its context or its
// connection ends.
func TestListen(t *testing.T) {
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
	for what, end := range map[string]func(stop func()){
		"context": func(stop func()) { stop() },
		"connection": func(func()) {
			exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
		},
	} {
		ctx, stop := context.WithCancel(t.Context())
		payloads, ended := make(chan string, 10), make(chan error, 1)
		go func() { ended <- listen(ctx, "some_channel", func(p string) { payloads <- p }) }()
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
	}
}

// TestListenErrors: a connection string that is not valid is an error at once, without the
// password.
func TestListenErrors(t *testing.T) {
	if _, err := Listen("postgres://user:secret@host:port/shop"); err == nil || !strings.Contains(err.Error(), "pgnotify") || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	listen, err := Listen("postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	if err := listen(t.Context(), "a", func(string) { t.Error("heard") }); err == nil || !strings.Contains(err.Error(), "connect") {
		t.Error(err)
	}
}

package main

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// The service sees its own writes at once, and those of other programs soon after.
func TestService(t *testing.T) {
	p := testenv.StartPostgres(t)
	db, redis := p.DB(t), testenv.SharedRedis(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	do(t, db, "CREATE TABLE users (id BIGINT PRIMARY KEY, name TEXT NOT NULL)", "INSERT INTO users VALUES (42, 'Ada')", "CREATE PUBLICATION cacheaside FOR TABLE users")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, p.DSN(t), redis.Addr, listener) }()
	request := func(method, path string) string {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+listener.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err.Error() // it has not begun
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(body))
	}
	testenv.Eventually(t, "it replies", func() bool { return request("GET", "/42") == "Ada" })
	testenv.Eventually(t, "it reads changes", func() bool {
		var n int
		err := db.QueryRow("SELECT COUNT(*) FROM pg_replication_slots WHERE slot_name = 'cacheaside' AND active").Scan(&n)
		return err == nil && n == 1
	})
	if got := request("POST", "/42?name=Grace"); got != "Grace" {
		t.Errorf("after its own write: %q", got)
	}
	do(t, db, "UPDATE users SET name = 'Hedy' WHERE id = 42")
	testenv.Eventually(t, "the change of another program", func() bool { return request("GET", "/42") == "Hedy" })
	if got := request("GET", "/7"); !strings.Contains(got, "not found") {
		t.Errorf("a row that does not exist: %q", got)
	}
	do(t, db, "INSERT INTO users VALUES (7, 'Ida')")
	testenv.Eventually(t, "the row of another program", func() bool { return request("GET", "/7") == "Ida" })
	stop()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// A Consumer that cannot work ends the service with its error.
func TestServiceWithoutPublication(t *testing.T) {
	p := testenv.StartPostgres(t)
	redis := testenv.SharedRedis(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	do(t, p.DB(t), "CREATE TABLE users (id BIGINT PRIMARY KEY, name TEXT NOT NULL)")
	if err := run(t.Context(), p.DSN(t), redis.Addr, listener); err == nil || errors.Is(err, http.ErrServerClosed) || !strings.Contains(err.Error(), "publication") {
		t.Error(err)
	}
}

func do(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

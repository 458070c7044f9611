package main

import (
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cacheaside/cacheaside"
)

// The routes, without any server.
func TestHandler(t *testing.T) {
	db, err := openSQLite(filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rdb, stop, err := config{}.openRedis()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	// A busy machine is no outage.
	s, err := open(t.Context(), db, rdb, cacheaside.Options{RedisTimeout: time.Minute, ReadTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, step := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/users/42", 404, "not found"},
		{"GET", "/users/ada", 400, "the id is not a number"},
		{"PUT", "/users/42?city=London&email=ada@x.org&name=Ada", 200, "inserted"},
		{"PUT", "/users/42?city=London&email=ada@x.org&name=Ada", 409, "UNIQUE constraint failed"},
		{"PUT", "/users/43?city=London&email=ada@x.org&name=Eve", 409, "UNIQUE constraint failed"},
		{"GET", "/users/42", 200, "Ada"},
		{"GET", "/emails/ada@x.org", 200, "Ada"},
		{"GET", "/emails/eve@x.org", 404, "not found"},
		{"GET", "/cities/London", 200, "Ada"},
		{"POST", "/users/42?city=Paris", 200, "moved"},
		{"GET", "/cities/London", 200, "null"},
		{"GET", "/cities/Paris", 200, "Ada"},
		{"POST", "/users/7?city=Paris", 404, "no rows"},
		{"POST", "/users/42?name=Grace", 200, "renamed"},
		{"POST", "/users/42?name=Grace", 200, "renamed"},
		{"POST", "/users/7?name=Grace", 404, "no rows"},
		{"GET", "/emails/ada@x.org", 200, "Grace"},
		{"POST", "/report", 200, "1"},
		{"GET", "/livez", 200, "live"},
		{"GET", "/readyz", 200, "ready"},
		{"GET", "/log", 200, "no log"},
		{"GET", "/metrics", 200, "cacheaside_"},
	} {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequest(step.method, step.path, nil))
		if w.Code != step.status || !strings.Contains(w.Body.String(), step.body) {
			t.Errorf("%s %s: %d %q, want %d %q", step.method, step.path, w.Code, w.Body, step.status, step.body)
		}
	}
}

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/lock"
)

// snippet: routes
// handler returns the routes of the service.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	route := func(pattern string, f func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			value, err := f(r)
			reply(w, value, err)
		})
	}
	route("GET /users/{id}", withID(s.users.Get))
	route("PUT /users/{id}", s.insert)
	route("POST /users/{id}", s.update)
	route("GET /emails/{email}", func(r *http.Request) (any, error) {
		return s.users.WithEmail(r.Context(), r.PathValue("email"))
	})
	route("GET /cities/{city}", func(r *http.Request) (any, error) {
		return s.users.InCity(r.Context(), r.PathValue("city"))
	})
	route("POST /report", func(r *http.Request) (any, error) { return s.reports.Today(r.Context()) })
	// A restart would repair neither Redis nor the database.
	route("GET /livez", func(*http.Request) (any, error) { return "live", nil })
	// Would this process serve requests? Also while Redis is down.
	route("GET /readyz", func(r *http.Request) (any, error) { return "ready", s.Cache.Ready(r.Context()) })
	// Does the cache follow the log of the database? For an alarm, not for readiness.
	route("GET /log", func(*http.Request) (any, error) {
		if s.Consumer == nil {
			return "no log", nil
		}
		return "followed", s.Consumer.Health(time.Minute)
	})
	mux.Handle("GET /metrics", s.metrics)
	return mux
}

// end

var errNoNumber = errors.New("the id is not a number")

func withID[V any](f func(context.Context, int64) (V, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil {
			return nil, errNoNumber
		}
		return f(r.Context(), id)
	}
}

func (s *service) insert(r *http.Request) (any, error) {
	return withID(func(ctx context.Context, id int64) (string, error) {
		user := User{ID: id, City: r.FormValue("city"), Email: r.FormValue("email"), Name: r.FormValue("name")}
		return "inserted", s.users.Insert(ctx, user)
	})(r)
}

func (s *service) update(r *http.Request) (any, error) {
	return withID(func(ctx context.Context, id int64) (string, error) {
		if city := r.FormValue("city"); city != "" {
			return "moved", s.users.Move(ctx, id, city)
		}
		return "renamed", s.users.Rename(ctx, id, r.FormValue("name"))
	})(r)
}

// reply writes value as JSON, or the status of err.
func reply(w http.ResponseWriter, value any, err error) {
	status := http.StatusInternalServerError
	switch {
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value) // the client has left
		return
	case errors.Is(err, errNoNumber):
		status = http.StatusBadRequest
	case errors.Is(err, cacheaside.ErrNotFound), errors.Is(err, sql.ErrNoRows):
		status = http.StatusNotFound
	case errors.Is(err, lock.ErrHeld), isDuplicate(err):
		status = http.StatusConflict
	case errors.Is(err, cacheaside.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		status = http.StatusServiceUnavailable
	}
	http.Error(w, err.Error(), status)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/cacheaside/cacheaside"
	"github.com/cacheaside/cacheaside/lock"
)

// handler returns the routes of the service.
func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /users/{id}", s.withID(s.get))
	mux.HandleFunc("POST /users/{id}", s.withID(s.rename))
	mux.HandleFunc("PUT /users/{id}", s.withID(s.insert))
	mux.HandleFunc("GET /cities/{city}", s.list)
	mux.HandleFunc("POST /report", s.report)
	return mux
}

// ready reports whether this process would serve requests.
func (s *service) ready(w http.ResponseWriter, r *http.Request) {
	reply(w, "ready", s.cache.Ready(r.Context()))
}

func (s *service) withID(f func(http.ResponseWriter, *http.Request, int64)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
		if err != nil {
			http.Error(w, "the id is not a number", http.StatusBadRequest)
			return
		}
		f(w, r, id)
	}
}

func (s *service) get(w http.ResponseWriter, r *http.Request, id int64) {
	user, err := s.users.Get(r.Context(), id)
	reply(w, user, err)
}

func (s *service) rename(w http.ResponseWriter, r *http.Request, id int64) {
	reply(w, "renamed", s.users.Rename(r.Context(), id, r.FormValue("name")))
}

func (s *service) insert(w http.ResponseWriter, r *http.Request, id int64) {
	user := User{ID: id, City: r.FormValue("city"), Name: r.FormValue("name")}
	reply(w, "inserted", s.users.Insert(r.Context(), user))
}

func (s *service) list(w http.ResponseWriter, r *http.Request) {
	all, err := s.users.InCity(r.Context(), r.PathValue("city"))
	reply(w, all, err)
}

// report counts the users. Only one process at a time does so.
func (s *service) report(w http.ResponseWriter, r *http.Request) {
	n := 0
	lease, err := s.locker.TryAcquire(r.Context(), "report", nil)
	if err == nil {
		err = s.users.db.GetContext(lease.Context(), &n, "SELECT COUNT(*) FROM users")
		err = errors.Join(err, lease.Release())
	}
	reply(w, n, err)
}

// reply writes value as JSON, or the status of err.
func reply(w http.ResponseWriter, value any, err error) {
	status := http.StatusOK
	switch {
	case errors.Is(err, cacheaside.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, lock.ErrHeld):
		status = http.StatusConflict
	case errors.Is(err, cacheaside.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		status = http.StatusServiceUnavailable
	case err != nil:
		status = http.StatusInternalServerError
	}
	if err != nil {
		http.Error(w, err.Error(), status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client has left
}

package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"time"
)

//go:embed page
var page embed.FS

const (
	maxBody     = 1 << 10
	writeWithin = 5 * time.Second // time-out for sending a frame to a viewer
)

// policy allows the page to load its own three files and to use its own server, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'"

// handler serves the page, its frames and its switches.
func (l *lab) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", file("index.html", "text/html; charset=utf-8"))
	mux.HandleFunc("GET /lab.css", file("lab.css", "text/css; charset=utf-8"))
	mux.HandleFunc("GET /lab.js", file("lab.js", "text/javascript; charset=utf-8"))
	mux.HandleFunc("GET /favicon.ico",
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /events", l.events)
	mux.HandleFunc("POST /switch/{name}", l.thrown)
	return guard(mux)
}

// guard only accepts requests with this server's own host name, from its own page or from no page.
// The name of another site could resolve to this address.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		origin := r.Header.Get("Origin")
		switch {
		case !ownName(r.Host):
			http.Error(w, "the lab only accepts requests to 127.0.0.1 and localhost", http.StatusForbidden)
		case origin != "" && origin != "http://"+r.Host, origin == "" && r.Method == http.MethodPost:
			http.Error(w, "not from the lab's own page (Origin)", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ownName reports whether a Host header names this machine by an address or name that another site
// cannot claim.
func ownName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "127.0.0.1" || host == "localhost"
}

func file(name, kind string) http.HandlerFunc {
	text, err := page.ReadFile("page/" + name)
	if err != nil {
		panic(err) // impossible: the files are embedded
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(text)
	}
}

// events sends the last minute, and then frames until the viewer leaves or the lab ends.
func (l *lab) events(w http.ResponseWriter, r *http.Request) {
	history, frames, ok := l.film.view()
	if !ok {
		http.Error(w, fmt.Sprintf("%d viewers are connected already", maxViewers), http.StatusServiceUnavailable)
		return
	}
	defer l.film.leave(frames)
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	send := func(name string, data []byte) error {
		_ = control.SetWriteDeadline(time.Now().Add(writeWithin))
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, data); err != nil {
			return err
		}
		return control.Flush()
	}
	if send("history", history) != nil {
		return
	}
	for {
		select {
		case text := <-frames:
			if send("frame", text) != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-l.life.Done():
			return
		}
	}
}

// thrown handles the POST of a switch.
func (l *lab) thrown(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := readOrder(w, r, &o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := r.PathValue("name")
	if _, ok := switches[name]; !ok {
		http.NotFound(w, r)
		return
	}
	out, err := l.throw(r.Context(), name, o)
	if bad, ok := errors.AsType[badOrder](err); ok {
		http.Error(w, bad.Error(), http.StatusBadRequest)
		return
	}
	switch {
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	case errors.Is(err, errBusy):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, errClosed), errors.Is(err, context.Canceled):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// readOrder reads one JSON object, and refuses data after it.
func readOrder(w http.ResponseWriter, r *http.Request, o *order) error {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return errors.New("Content-Type: must be application/json")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return fmt.Errorf("the body cannot be read, or is longer than %d bytes", maxBody)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(o); err != nil {
		return fmt.Errorf("the body: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the body: more than one JSON value")
	}
	return nil
}

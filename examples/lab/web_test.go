package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

// TestGuard sends requests that the lab must refuse, and others that it must accept.
func TestGuard(t *testing.T) {
	l := startLab(t)
	const js = "application/json"
	own := strings.TrimPrefix(l.server.URL, "http://")
	for _, c := range []struct {
		name, method, path, host, origin, kind, body string
		status                                       int
	}{
		{"the page", "GET", "/", own, "", "", "", 200},
		{"the page by its other name", "GET", "/", "localhost", "", "", "", 200},
		{"another name that leads here", "GET", "/", "evil.example", "", "", "", 403},
		{"another name, with our port", "GET", "/events", "evil.example:8080", "", "", "", 403},
		{"a name that begins like ours", "GET", "/", "127.0.0.1.evil.example", "", "", "", 403},
		{"no name", "GET", "/", "", "", "", "", 403},
		{"frames for another page", "GET", "/events", own, "http://evil.example", "", "", 403},
		{"nothing of that name", "GET", "/main.go", own, "", "", "", 404},
		{"out of the folder", "GET", "/page/../lab.go", own, "", "", "", 404},
		{"the switch of another page", "POST", "/switch/flush", own, "http://evil.example", js, "{}", 403},
		{"of a page on another port", "POST", "/switch/flush", own, "http://127.0.0.1:1", js, "{}", 403},
		{"of a page of our name over TLS", "POST", "/switch/flush", own, "https://" + own, js, "{}", 403},
		{"of nobody", "POST", "/switch/flush", own, "", js, "{}", 403},
		{"of a file", "POST", "/switch/flush", own, "null", js, "{}", 403},
		{"not by POST", "GET", "/switch/flush", own, "", "", "", 405},
		{"a form", "POST", "/switch/flush", own, "http://" + own, "application/x-www-form-urlencoded", "{}", 400},
		{"text, as a form can send it", "POST", "/switch/flush", own, "http://" + own, "text/plain", "{}", 400},
		{"no JSON", "POST", "/switch/flush", own, "http://" + own, js, "on", 400},
		{"nothing", "POST", "/switch/flush", own, "http://" + own, js, "", 400},
		{"two orders", "POST", "/switch/flush", own, "http://" + own, js, "{}{}", 400},
		{"too much", "POST", "/switch/flush", own, "http://" + own, js, "{" + strings.Repeat(" ", maxBody) + "}", 400},
		{"a field that there is not", "POST", "/switch/flush", own, "http://" + own, js, `{"speed":1}`, 400},
		{"a field that it does not take", "POST", "/switch/flush", own, "http://" + own, js, `{"on":true}`, 400},
		{"a field that is missing", "POST", "/switch/kill", own, "http://" + own, js, `{}`, 400},
		{"a field of another type", "POST", "/switch/kill", own, "http://" + own, js, `{"on":"yes"}`, 400},
		{"a process that there is not", "POST", "/switch/bus", own, "http://" + own, js, `{"process":5,"on":true}`, 400},
		{"too many reads", "POST", "/switch/traffic", own, "http://" + own, js, `{"reads":1000000,"writes":1}`, 400},
		{"less than no writes", "POST", "/switch/traffic", own, "http://" + own, js, `{"reads":1,"writes":-1}`, 400},
		{"a protection that there is not", "POST", "/switch/protection", own, "http://" + own, js, `{"name":"lease","on":false}`, 400},
		{"a switch that there is not", "POST", "/switch/everything", own, "http://" + own, js, `{}`, 404},
		{"a switch", "POST", "/switch/flush", own, "http://" + own, js, `{}`, 200},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Hang) // frames have no end
		request := httptest.NewRequestWithContext(ctx, c.method, "http://"+own+c.path, strings.NewReader(c.body))
		request.Host = c.host
		if c.origin != "" {
			request.Header.Set("Origin", c.origin)
		}
		if c.kind != "" {
			request.Header.Set("Content-Type", c.kind)
		}
		answer := httptest.NewRecorder()
		l.server.Config.Handler.ServeHTTP(answer, request)
		cancel()
		// A redirect cleans the path.
		if answer.Code != c.status && (c.status != 404 || answer.Code/100 != 3) {
			t.Errorf("%s: %d %q, want %d", c.name, answer.Code, answer.Body, c.status)
		}
		if answer.Header().Get("Content-Security-Policy") != policy ||
			answer.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: the security headers are missing", c.name)
		}
	}
}

// TestViewers uses up all places for viewers. One more viewer gets an error, until another has
// left.
func TestViewers(t *testing.T) {
	l := startLab(t)
	look := func() (io.Closer, int) {
		response, err := l.client.Get(l.server.URL + "/events")
		if err != nil {
			t.Fatal(err)
		}
		return response.Body, response.StatusCode
	}
	var open []io.Closer
	for range maxViewers {
		body, status := look()
		open = append(open, body)
		if status != http.StatusOK {
			t.Fatal(status)
		}
	}
	body, status := look()
	body.Close()
	if status != http.StatusServiceUnavailable {
		t.Error(status)
	}
	open[0].Close()
	testenv.Eventually(t, "a free place", func() bool {
		body, status := look()
		body.Close()
		return status == http.StatusOK
	})
	for _, body := range open[1:] {
		body.Close()
	}
}

// TestPage checks the page: it loads nothing from other servers, treats no text as markup, and
// describes each switch.
func TestPage(t *testing.T) {
	text := map[string]string{}
	for _, name := range []string{"index.html", "lab.css", "lab.js"} {
		b, err := page.ReadFile("page/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text[name] = string(b)
		for _, bad := range []string{"http://", "https://", "//cdn", "innerHTML", "outerHTML", "insertAdjacentHTML",
			"document.write", "eval(", "style=", "onclick"} {
			if strings.Contains(string(b), bad) {
				t.Errorf("%s has %s", name, bad)
			}
		}
	}
	cards := strings.Split(text["index.html"], "<section class=\"card\"")[1:]
	for name := range switches {
		switch name {
		case "traffic", "protection":
			continue // sliders and boxes
		}
		found := false
		for _, card := range cards {
			card, _, _ = strings.Cut(card, "</section>")
			if strings.Contains(card, `data-switch="`+name+`"`) {
				found = strings.Contains(card, "<h3>") && strings.Contains(card, `<p class="see">`) &&
					strings.Contains(card, "<button") && strings.Count(card, "<p") == 2
			}
		}
		if !found {
			t.Errorf("the switch %s has no card with its effect", name)
		}
	}
	for _, name := range protectionNames {
		if !strings.Contains(text["index.html"], `data-protection="`+name+`"`) {
			t.Errorf("the protection %s has no box", name)
		}
	}
}

package zklock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
	"github.com/cacheaside/cacheaside/lock"
)

// TestSessionLifeDependsOnLeader: a message that a server has received proves that a session is
// alive only after the leader must know of it. A reply of the leader itself proves it immediately.
func TestSessionLifeDependsOnLeader(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	s := &session{timeout: 4 * time.Second} // so the leader knows of messages a second later
	s.start(start)
	for _, ms := range []int{500, 1000, 1500} {
		s.record(at(ms), at(ms+100))
	}
	s.record(at(1510), at(1510)) // one more than needed
	for sent, want := range map[int]int{0: 4000, 1599: 4000, 1600: 4500, 2099: 4500, 2100: 5000, 2600: 5500,
		9000: 5500} {
		if got := s.livesUntil(at(sent)); !got.Equal(at(want)) {
			t.Errorf("proof at %d ms: lives until %v, want %d ms", sent, got.Sub(start), want)
		}
	}
	// On another server: messages received by the previous one may be lost with it.
	s.start(at(3000))
	if got := s.livesUntil(at(3100)); !got.Equal(at(7000)) {
		t.Errorf("after another connection: lives until %v", got.Sub(start))
	}
	for ms := 3000; ms < 60000; ms += 10 {
		s.record(at(ms), at(ms+1))
	}
	if n := len(s.replies); n > 60 {
		t.Errorf("%d replies are stored", n)
	}
	if left := s.livesUntil(at(60000)).Sub(at(60000)); left < maxTTL(s.timeout) {
		t.Errorf("the session lives for another %v", left)
	}
}

func TestAhead(t *testing.T) {
	id := func(c string) string { return strings.Repeat(c, 26) }
	name := func(c, number string) string { return "L1-" + id(c) + "-" + number }
	for _, c := range []struct {
		about    string
		children []string
		before   string
		found    bool
	}{
		{"nobody", nil, "", false},
		{"others only", []string{name("A", "0000000001")}, "", false},
		{"alone", []string{name("M", "0000000007")}, "", true},
		{"the nearest", []string{name("A", "0000000001"), name("C", "0000000009"), name("B", "0000000003"), name("M", "0000000007")}, name("B", "0000000003"), true},
		{"no contenders", []string{"_c_1234-lock-0000000001", "x", "L1-0000000001", name("A", "1"), "L1-" + id("a") + "-0000000002", name("M", "0000000007")}, "", true},
		{"numbers begin anew", []string{name("A", "2147483646"), name("B", "2147483647"), name("M", "-2147483648"), name("C", "-2147483647")}, name("B", "2147483647"), true},
	} {
		before, found := ahead(c.children, id("M"))
		if before != c.before || found != c.found {
			t.Errorf("%s: %q, %v; want %q, %v", c.about, before, found, c.before, c.found)
		}
	}
}

func TestEscape(t *testing.T) {
	for key, want := range map[string]string{"lock:a-b_C.1": "lock:a-b_C.1", "..": "%2E.", ".": "%2E", "a/b": "a%2Fb",
		"a%2Fb": "a%252Fb", "\x00\xff": "%00%FF", "ä": "%C3%A4"} {
		if got := escape(key); got != want {
			t.Errorf("escape(%q) = %q, want %q", key, got, want)
		}
	}
}

// TestRefusedRequestIsNotRepeated: a request that the server has refused is not repeated forever,
// although go-zk does not know all error codes.
func TestRefusedRequestIsNotRepeated(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, true},
		{zk.ErrNoNode, true},
		{errors.New("unknown error: -6"), true},    // unimplemented
		{errors.New("unknown error: -120"), true},  // an ephemeral node of a local session
		{errors.New("unknown error: -125"), true},  // a quota is exceeded
		{errors.New("unknown error: -127"), false}, // too many requests: it is repeated
		{errors.New("unknown error: -122"), false}, // not executed in time
		{errors.New("unknown error: -1"), false},
		{errors.New("unknown error: -7"), false},
		{zk.ErrConnectionClosed, false},
		{zk.ErrSessionExpired, false},
		{zk.ErrSessionMoved, false},
		{errTimeout, false},
	} {
		if got := replied(c.err); got != c.want {
			t.Errorf("answered(%v) is %v", c.err, got)
		}
	}
}

// An invalid address is refused with the reason.
func TestAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"h:2181/app": "path", "a:2181,b:2181": "several servers", "h:abc": "port", " h:2181": "white space", "": "empty", "h:0": "port", "::1:x": "brackets",
	} {
		_, err := New([]string{"good:2181", address}, nil)
		if err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("zklock: servers[1]: address %q: ", address)) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", address, err, want)
		}
	}
	got, err := addresses([]string{"h", "::1", "[::1]", "[::1]:1", "h:2"})
	if want := []string{"h:2181", "[::1]:2181", "[::1]:2181", "[::1]:1", "h:2"}; err != nil ||
		!slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// The error of an Acquire names the unreachable address and the cause.
func TestUnreachable(t *testing.T) {
	o := &Options{Options: lock.Options{Timeout: 100 * time.Millisecond}}
	o.Dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("no route")
	}
	l, err := New([]string{"nowhere:1"}, o)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	testenv.Eventually(t, "the cause", func() bool { // the first try may end before the first dial
		_, err = l.Acquire(t.Context(), "x", nil)
		return err == nil || strings.Contains(err.Error(), "dial nowhere:1: no route")
	})
	if err == nil {
		t.Error("Acquire succeeds")
	}
}

func TestOptions(t *testing.T) {
	for field, o := range map[string]*Options{
		"Options.Root":           {Root: "locks"},
		"Options.Root \"/a/../":  {Root: "/a/../b"},
		"Options.Root \"/\"":     {Root: "/"},
		"Options.Root \"/zoo":    {Root: "/zookeeper/x"},
		"Options.SessionTimeout": {SessionTimeout: time.Millisecond},
		"Options.Auth":           {Auth: []Auth{{}}},
		"Options.Prefix":         {Options: lock.Options{Prefix: "/"}},
		"Options.Timeout":        {Options: lock.Options{Timeout: -1}},
	} {
		if _, err := New([]string{"localhost"}, o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, servers := range [][]string{nil, {""}} {
		if _, err := New(servers, nil); err == nil {
			t.Errorf("servers %q are accepted", servers)
		}
	}
	l, err := New([]string{"localhost"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

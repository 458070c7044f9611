package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestTrace(t *testing.T) {
	trace, err := readTrace(0)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(trace.accesses); got != 95_607 {
		t.Errorf("%d accesses", got)
	}
	if got := len(trace.products()); got != 13_756 {
		t.Errorf("%d distinct keys", got)
	}
}

// open creates a fleet with an embedded Redis and an embedded database that contains these
// products.
func open(t *testing.T, c config, ids []int64) (*fleet, *redisServer) {
	t.Helper()
	server, err := openRedis(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	closed(t, func() error { return server.close(context.Background()) })
	db, err := openDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	closed(t, func() error { return db.close(context.Background()) })
	f, err := newFleet(c, server, db)
	if err != nil {
		t.Fatal(err)
	}
	closed(t, f.close)
	if err := db.fill(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	return f, server
}

func closed(t *testing.T, f func() error) {
	t.Cleanup(func() {
		if err := f(); err != nil {
			t.Error(err)
		}
	})
}

func TestReplayLoadsEachProductOnce(t *testing.T) {
	trace, err := readTrace(replayed)
	if err != nil {
		t.Fatal(err)
	}
	f, _ := open(t, config{goroutines: 64, caches: 4}, distinct(trace.accesses))
	r := newReplay(trace)
	if err := r.run(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
	all := r.total()
	if all.requests != replayed || all.loads != r.distinct {
		t.Errorf("%d requests for %d distinct products made %d loads", all.requests, r.distinct, all.loads)
	}
	if all.memory == 0 || all.redis == 0 || all.shared < 0 {
		t.Errorf("sources of the values: %+v", all)
	}
	var out bytes.Buffer
	newReport(&out).replay(r)
	checkText(t, out.String())

	r.reads++
	if r.check() == nil {
		t.Error("check accepts one more load than distinct products")
	}
}

func TestFailures(t *testing.T) {
	trace, err := readTrace(0)
	if err != nil {
		t.Fatal(err)
	}
	ids := trace.products()[:1000]
	f, server := open(t, config{goroutines: 64, caches: 4}, ids)
	server.startClock()
	breakdownLeast = 100
	good := map[string]func(without, with int64) bool{
		"breakdown":   func(without, with int64) bool { return without >= 100 && with == 1 },
		"penetration": func(without, with int64) bool { return without == 1000 && with == 50 },
		"scan":        func(without, with int64) bool { return without == 1000 && with < 30 },
		"outage":      func(without, with int64) bool { return without > 0 && with == 0 },
		// The number of concurrent loads depends on the machine.
		"avalanche":     func(without, with int64) bool { return with > 0 && (without > with || !testenv.Accepting) },
		"inconsistency": func(without, with int64) bool { return without == 100 && with == 0 },
	}
	var all []failure
	for _, c := range classics {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.run(t.Context(), f, ids)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %d without, %d with", got.counted, got.without, got.with)
			if !good[c.name](got.without, got.with) {
				t.Errorf("%s: %d without, %d with", got.counted, got.without, got.with)
			}
			all = append(all, got)
		})
	}
	var out bytes.Buffer
	newReport(&out).failures(all)
	checkText(t, out.String())
}

// checkText fails if text needs a terminal or is too wide.
func checkText(t *testing.T, text string) {
	t.Helper()
	if strings.ContainsAny(text, "\x1b\r\t") {
		t.Error("control characters in output that is not a terminal")
	}
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) >= 100 {
			t.Errorf("a line of 100 columns or more: %s", line)
		}
	}
}

// stopper is a standard output that cancels when the replay is announced.
type stopper struct {
	bytes.Buffer
	cancel context.CancelCauseFunc
}

var errStopped = errors.New("interrupted by the test")

func (s *stopper) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("Replaying")) {
		s.cancel(errStopped)
	}
	return s.Buffer.Write(p)
}

func TestInterrupted(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	ctx, cancel := context.WithCancelCause(t.Context())
	out := &stopper{cancel: cancel}
	if err := run(ctx, config{goroutines: 8, caches: 2}, out); !errors.Is(err, errStopped) {
		t.Errorf("error %v", err)
	}
	checkText(t, out.String())
	left, err := os.ReadDir(folder)
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestFlags(t *testing.T) {
	var help bytes.Buffer
	if _, err := parse([]string{"-help"}, &help); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("error %v", err)
	}
	for _, name := range []string{"-redis", "-mysql", "-goroutines", "-caches", "-accesses"} {
		if !strings.Contains(help.String(), name) {
			t.Errorf("the help lacks %s", name)
		}
	}
	for _, bad := range [][]string{{"-caches", "0"}, {"-goroutines", "-1"}, {"-accesses", "-1"}, {"more"},
		{"-unknown"}} {
		if _, err := parse(bad, io.Discard); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	c, err := parse(nil, io.Discard)
	if want := (config{goroutines: 64, caches: 4}); err != nil || c != want {
		t.Errorf("%+v, %v", c, err)
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheaside/cacheaside/internal/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func init() {
	testenv.RegisterChild("tail", func() {
		os.Args = []string{"cacheaside", "--json", "tail"}
		main()
	})
}

// world is the environment of a test's tool calls.
type world struct {
	*testing.T
	env map[string]string
}

// onServer returns a world with a Redis.
func onServer(t *testing.T) (*world, *redis.Client) {
	s := testenv.SharedRedis(t)
	return &world{t, map[string]string{"CACHEASIDE_REDIS": s.Addr}}, s.Client(t)
}

// outcome is the result of one run.
type outcome struct {
	code     int
	out, err string
}

var patience = 2 * testenv.Hang

// call runs the tool without standard input.
func (w *world) call(args ...string) outcome {
	w.Helper()
	return w.with(strings.NewReader(""), args...)
}

func (w *world) with(stdin io.Reader, args ...string) outcome {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	var out, err bytes.Buffer
	code := run(ctx, args, func(name string) string { return w.env[name] }, stdin, &out, &err)
	if ctx.Err() != nil {
		w.Errorf("%q takes too long", args)
	}
	return outcome{code, out.String(), err.String()}
}

// ok asserts success and returns the output.
func (w *world) ok(args ...string) string {
	w.Helper()
	o := w.call(args...)
	if o.code != exitOK {
		w.Fatalf("%q: exit code %d\n%s%s", args, o.code, o.out, o.err)
	}
	return o.out
}

// fails asserts an exit code and part of the error text.
func (w *world) fails(code int, says string, args ...string) outcome {
	w.Helper()
	o := w.call(args...)
	w.failed(o, code, says, args)
	return o
}

func (w *world) failed(o outcome, code int, says string, args []string) {
	w.Helper()
	if o.code != code || !strings.Contains(o.err, says) {
		w.Errorf("%q: exit code %d, want %d, and an error that says %q:\n%s%s", args, o.code, code, says, o.out, o.err)
	}
}

// parsed runs the tool with --json and decodes its output. code is the expected exit code.
func parsed[V any](w *world, code int, args ...string) (v V) {
	w.Helper()
	o := w.call(append([]string{"--json"}, args...)...)
	if o.code != code {
		w.Fatalf("%q: exit code %d, want %d\n%s%s", args, o.code, code, o.out, o.err)
	}
	d := json.NewDecoder(strings.NewReader(o.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		w.Fatalf("%q: %v in %s", args, err, o.out)
	}
	if strings.Count(o.out, "\n") != 1 {
		w.Errorf("%q prints more than one line:\n%s", args, o.out)
	}
	return v
}

// says asserts that text contains all strings.
func (w *world) says(text string, want ...string) {
	w.Helper()
	for _, s := range want {
		if !strings.Contains(text, s) {
			w.Errorf("%q is not in\n%s", s, text)
		}
	}
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// typedTerminal is a terminal with input.
type typedTerminal struct{ io.Reader }

func types(text string) *typedTerminal { return &typedTerminal{strings.NewReader(text)} }

func (*typedTerminal) Stat() (fs.FileInfo, error) { return terminal{}, nil }

type terminal struct{ fs.FileInfo }

func (terminal) Mode() fs.FileMode { return fs.ModeDevice | fs.ModeCharDevice }

// buffer may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// until waits until the buffer contains a text.
func (b *buffer) until(t testing.TB, step string) string {
	t.Helper()
	testenv.Eventually(t, step, func() bool { return strings.Contains(b.String(), step) })
	return b.String()
}

package testenv

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// A Log stores what is written to it. It is safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// String returns the text written since the last Take.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// Take returns the lines written since its last call, and removes them from the log.
func (l *Log) Take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(l.all.String()), "\n")
	l.all.Reset()
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// Logger returns a logger that writes lines without their times.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// PanickingLogger returns a logger whose handler panics with the given value at each record.
func PanickingLogger(with any) *slog.Logger { return slog.New(panicking{with}) }

type panicking struct{ with any }

func (p panicking) Enabled(context.Context, slog.Level) bool  { return true }
func (p panicking) Handle(context.Context, slog.Record) error { panic(p.with) }
func (p panicking) WithAttrs([]slog.Attr) slog.Handler        { return p }
func (p panicking) WithGroup(string) slog.Handler             { return p }

// Has reports an error unless the lines written since the last Take begin with these texts, one
// each, in this order. It must be called in a synctest bubble.
func (l *Log) Has(t testing.TB, want ...string) {
	t.Helper()
	synctest.Wait()
	lines := l.Take()
	ok := len(lines) == len(want)
	for i := range min(len(lines), len(want)) {
		ok = ok && strings.HasPrefix(lines[i], want[i])
	}
	if !ok {
		t.Errorf("logged\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

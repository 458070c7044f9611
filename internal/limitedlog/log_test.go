package limitedlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// What repeats itself is logged once, and counted.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := &logged{}
		l := New(kept.logger())
		for range 1000 {
			l.Warn("it rains", "a", errors.New("broken"))
			l.Warn("it rains", "b", nil)
			l.Inform("the sun shines", "")
		}
		kept.has(t, `level=WARN msg="cacheaside: it rains" loader=a error=broken`, `level=WARN msg="cacheaside: it rains" loader=b`, `level=INFO msg="cacheaside: the sun shines"`)
		time.Sleep(QuietFor)
		l.Warn("it rains", "a", errors.New("broken"))
		kept.has(t, `level=WARN msg="cacheaside: it rains" loader=a error=broken times=1000`)
		l.Close()
		time.Sleep(QuietFor)
		l.Warn("it rains", "a", errors.New("broken"))
		kept.has(t)
	})
}

// A logger that is slow, or panics, holds nobody up.
func TestBadLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &badHandler{}
		l := New(slog.New(h))
		for i := range 2 * MaxRecords {
			l.Warn(fmt.Sprint(i), "", nil)
		}
		synctest.Wait()
		l.mu.Lock()
		waiting := len(l.records)
		l.mu.Unlock()
		if waiting > MaxRecords {
			t.Errorf("%d wait", waiting)
		}
		l.Close()
		h.panics = true
		other := New(slog.New(h))
		other.Warn("one", "", nil)
		synctest.Wait()
		other.Warn("two", "", nil)
		other.Close()
		if h.times < 2+MaxRecords {
			t.Errorf("logged %d times", h.times)
		}
	})
}

type badHandler struct {
	slog.Handler
	panics bool
	times  int
}

func (h *badHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h *badHandler) Handle(context.Context, slog.Record) error {
	h.times++
	if h.panics {
		panic("boom")
	}
	time.Sleep(time.Second)
	return nil
}

// logged keeps what is logged.
type logged struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

// take returns the lines since it was last asked.
func (l *logged) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(l.String()), "\n")
	l.Reset()
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// has fails unless exactly these were logged since it was last asked, by their beginnings.
func (l *logged) has(t testing.TB, want ...string) {
	t.Helper()
	synctest.Wait()
	lines := l.take()
	ok := len(lines) == len(want)
	for i := range min(len(lines), len(want)) {
		ok = ok && strings.HasPrefix(lines[i], want[i])
	}
	if !ok {
		t.Errorf("logged\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}
